"""Sizes as text, and the memory that is available."""

import mmap
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


def test_available_memory_respects_the_control_group(monkeypatch):
    texts = {
        "/proc/meminfo": "MemTotal: 9000000 kB\nMemAvailable: 8000000 kB\n",
        "/sys/fs/cgroup/memory.max": "3000000\n",
        "/sys/fs/cgroup/memory.current": "1000000\n",
    }

    def read_text(path: Path, encoding: str) -> str:
        if str(path) not in texts:
            raise FileNotFoundError(path)
        return texts[str(path)]

    monkeypatch.setattr(Path, "read_text", read_text)
    assert available_bytes() == 2_000_000
    texts["/sys/fs/cgroup/memory.max"] = "max\n"
    assert available_bytes() == 8_000_000 * 1024


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
