"""The compiled core is tied to nothing: neither torch nor Python in its symbols or its needs."""

import shutil
import subprocess

import pytest

from fastsample_dist.ops import abi, library
from tests.forked import run_code
from tests.waiting import ENOUGH_S


def output_of(tool, *arguments):
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed (package binutils or libc-bin)")
    return subprocess.run([tool, *arguments], capture_output=True, text=True, check=True).stdout


def libraries():
    return sorted(library.LIBRARY_DIR.glob("libfastsample*.so"))


@pytest.mark.parametrize("path", libraries(), ids=lambda path: path.name)
def test_no_torch_and_no_python_among_the_symbols(path):
    symbols = [line.split()[-1] for line in output_of("nm", "-D", str(path)).splitlines()]  # without their addresses
    assert any(name.startswith("fs_") for name in symbols)
    assert not [name for name in symbols if name.startswith(("Py", "_Py")) or "torch" in name or "c10" in name]


@pytest.mark.parametrize("path", libraries(), ids=lambda path: path.name)
def test_links_neither_torch_nor_python(path):
    needs = [line.split()[0] for line in output_of("ldd", str(path)).splitlines()]
    assert "libc.so.6" in needs or any(name.startswith("libc.") for name in needs)
    assert not [name for name in needs if "torch" in name or "python" in name or "c10" in name]


def test_only_the_c_abi_is_exported_under_its_prefix():
    symbols = output_of("nm", "-D", "--defined-only", str(library.LIBRARY_DIR / "libfastsample.so"))
    strong = [line.split()[-1] for line in symbols.splitlines() if " T " in line]
    assert strong and all(name.startswith("fs_") for name in strong)


def test_a_missing_library_says_how_to_build_it(monkeypatch, tmp_path):
    monkeypatch.setattr(library, "LIBRARY_DIR", tmp_path)
    library.core.cache_clear()
    with pytest.raises(ImportError, match=r"libfastsample.so is not in .*; build it with `pip install"):
        library.core()


def test_a_damaged_library_says_how_to_build_it(monkeypatch, tmp_path):
    (tmp_path / "libfastsample.so").write_bytes(b"not a library")
    monkeypatch.setattr(library, "LIBRARY_DIR", tmp_path)
    library.core.cache_clear()
    with pytest.raises(ImportError, match="cannot be loaded .* build it with"):
        library.core()


CUT_SHORT = """
import sys
from pathlib import Path
from fastsample_dist.ops import abi, library
try:
    library.load(Path(sys.argv[1]), abi.Declarations(), "do it.")
except ImportError as error:
    print(error)
"""


def test_a_library_that_was_cut_short_is_refused_before_it_is_mapped(tmp_path):
    whole = (library.LIBRARY_DIR / "libfastsample.so").read_bytes()
    path = tmp_path / "libfastsample.so"
    for size in (50, 64, len(whole) // 16, len(whole) - 1):
        path.write_bytes(whole[:size])
        finished = run_code(CUT_SHORT, path)
        assert finished.returncode == 0, f"{size} bytes: {finished.returncode} {finished.stderr}"
        assert finished.stdout.startswith(f"{path} cannot be loaded (") and finished.stdout.endswith("; do it.\n")
    assert f"it has {len(whole) - 1:,} bytes, its header states {len(whole):,}" in finished.stdout


def test_another_library_of_that_name_is_refused():
    path = library.LIBRARY_DIR / "libfastsample.so"
    with pytest.raises(ImportError, match="libfastsample.so lacks fs_other_abi_version, so it is another library; do"):
        library.load(path, abi.Declarations(), "do it.", kind="fs_other")


def test_a_library_without_a_function_is_older_and_says_how_to_build_it():
    path = library.LIBRARY_DIR / "libfastsample.so"
    with pytest.raises(ImportError, match="lacks fs_nothing, so it is older than these Python files; do it"):
        library.load(path, abi.Declarations(prototypes={"fs_nothing": ()}), "do it.")


FORKS = """
import os, signal, sys, threading
import torch
from fastsample_dist import ops

graph = ops.SamplingGraph(torch.arange(0, 1601, 8), torch.arange(1600) % 200)
seeds, spec = torch.arange(4), ops.SampleSpec(fanouts=(1,) * 100, num_threads=1)
held = graph.sample(seeds, spec, 0)

def go_on():  # takes memory and gives it back without Python: the last batch is refused
    while True:
        try:
            graph.sample_many([seeds] * 50 + [torch.tensor([-1])], spec, 0)
        except ValueError:
            pass

threading.Thread(target=go_on, daemon=True).start()
for number in range(40):
    child = os.fork()
    if child == 0:
        signal.alarm(int(sys.argv[1]))  # ends a child that hangs
        held = None
        graph.sample(seeds, spec, 0)
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        print("hung: child", number, flush=True)
        break
os._exit(0)
"""


def test_a_child_does_not_wait_for_what_a_thread_of_its_parent_held_at_the_fork():
    """It gives back a batch that it inherited, and samples."""
    finished = run_code(FORKS, int(ENOUGH_S / 10))
    assert finished.returncode == 0 and finished.stdout == "", finished.stdout + finished.stderr


@pytest.fixture(autouse=True)
def _fresh_library():
    yield
    library.core.cache_clear()
