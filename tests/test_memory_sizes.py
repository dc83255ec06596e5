"""Sizes as text, and the memory that is available."""

import mmap
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fastsample_dist.memory_sizes import available_bytes, format_size, parse_bytes, process_memory


@pytest.mark.parametrize(
    "text, count",
    [("2GB", 2 * 10**9), ("1.5 GiB", 3 * 2**29), ("300", 300), ("7kb", 7000), (" 4 MB ", 4 * 10**6), ("1TiB", 2**40)],
)
def test_sizes_are_read(text, count):
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "2 G B", "GB", "-1", "1e9", "2PB"])
def test_other_text_is_refused(text):
    with pytest.raises(ValueError, match="is not a size; expected a number"):
        parse_bytes(text)


@pytest.mark.parametrize("count", [0, 999_999, 1_000_001, 123_456_789, 5_000_000_001, 10**13 + 1])
def test_a_size_that_is_asked_for_is_no_smaller(count):
    assert count <= parse_bytes(format_size(count)) <= count * 1.011


MEMORY_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")


@pytest.fixture
def system(monkeypatch):
    """Texts of the files of /proc and /sys by name; none else is there."""
    texts = {"/proc/meminfo": "MemTotal: 9000000 kB\nMemAvailable: 8000000 kB\n"}

    def read_text(path: Path, encoding: str, errors: str | None = None) -> str:
        if str(path) not in texts:
            raise FileNotFoundError(path)
        return texts[str(path)]

    monkeypatch.setattr(Path, "read_text", read_text)
    return texts


def group(
    path: str, limit: str, used: int, names: tuple[str, str] = ("memory.max", "memory.current")
) -> dict[str, str]:
    """The files of a control group; 1 MB of its pages are those of files."""
    total = "total_" if names == MEMORY_V1 else ""
    stat = f"anon 7\n{total}inactive_anon 300000\n{total}inactive_file 600000\n{total}active_file 400000\nshmem 8\n"
    return {f"{path}/{names[0]}": f"{limit}\n", f"{path}/{names[1]}": f"{used}\n", f"{path}/memory.stat": stat}


def test_available_memory_respects_the_control_group(system):
    system |= {"/sys/fs/cgroup/memory.max": "3000000\n", "/sys/fs/cgroup/memory.current": "1000000\n"}
    assert available_bytes() == 2_000_000
    system["/sys/fs/cgroup/memory.max"] = "max\n"
    assert available_bytes() == 8_000_000 * 1024


@pytest.mark.parametrize(
    "mount, names", [("/sys/fs/cgroup", ()), ("/sys/fs/cgroup/memory", (MEMORY_V1,))], ids=["2", "1"]
)
def test_pages_of_files_do_not_take_memory_of_a_control_group(system, mount, names):
    system |= group(mount, "3000000", 2_900_000, *names)
    assert available_bytes() == 3_000_000 - 1_900_000


@pytest.mark.parametrize(
    "line, mount, names",
    [("0::/job/step", "/sys/fs/cgroup", ()), ("4:cpu,memory:/job/step", "/sys/fs/cgroup/memory", (MEMORY_V1,))],
    ids=["2", "1"],
)
def test_the_limit_of_a_control_group_above_holds_too(system, line, mount, names):
    """A batch system limits the job, not the step that the process is in."""
    system["/proc/self/cgroup"] = f"1:name=systemd:/user\n{line}\n"
    system |= group(f"{mount}/job/step", "9223372036854771712" if names else "max", 2_000_000, *names)
    system |= group(f"{mount}/job", "5000000", 3_000_000, *names)
    assert available_bytes() == 3_000_000
    system |= group(f"{mount}/job/step", "2500000", 2_000_000, *names)
    assert available_bytes() == 1_500_000
    system["/proc/self/cgroup"] = line.replace("/job", "/elsewhere/job")  # a container's path is the one outside
    system |= group(mount, "4000000", 1_500_000, *names)
    assert available_bytes() == 3_500_000


CORE = """
import sys
from pathlib import Path
import torch
import fastsample_dist as fsd
graph = fsd.CSCGraph(torch.tensor([0, 10**6]), torch.zeros(10**6).int())
sampler, roots = fsd.TransitSampler(graph, fsd.sampling.transit.MVS()), torch.zeros(1, 300).long()
Path(sys.argv[1], "cgroup.procs").write_text("0")
try:
    sampler.sample(roots)
except ValueError as error:
    print(error)
"""


def test_the_core_finds_the_limit_of_a_control_group_above():
    """2.4 GB of neighbours in a group within one of 2 GB."""
    listed = re.search(r"^\d+:(?:.+,)?memory(?:,.+)?:(/.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
    outer = Path("/sys/fs/cgroup/memory", listed[1][1:] if listed else "none", f"fastsample-test-{os.getpid()}")
    try:
        (outer / "step").mkdir(parents=True)
    except OSError:
        pytest.skip("no control group of version 1 may be made here")
    try:
        (outer / "memory.limit_in_bytes").write_text(str(2 * 10**9))
        command = [sys.executable, "-c", CORE, str(outer / "step")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    finally:
        (outer / "step").rmdir()
        outer.rmdir()
    assert re.search(r"which take 2\.4 GB, but (1\.\d|2\.0) GB of memory are free", done.stdout), (
        done.stdout,
        done.stderr,
    )


def test_memory_of_this_process_grows_with_what_it_writes():
    before = process_memory()
    held = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE)  # the heap may have as much to give without growing
    for _ in range(64):
        held.write(bytes([1]) * (1 << 20))
    after = process_memory()
    assert after["private_bytes"] - before["private_bytes"] > 0.9 * len(held)
    assert after["peak_rss_bytes"] > 0.9 * len(held)
    assert after["private_bytes"] <= after["pss_bytes"] <= after["private_bytes"] + after["shared_bytes"]


def test_without_the_kernels_sums_the_peak_is_known(monkeypatch):
    def read_text(path, encoding):
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", read_text)
    assert process_memory().keys() == {"peak_rss_bytes"}
