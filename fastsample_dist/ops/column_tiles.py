"""Tiles of columns by theorem 2 of Zeng et al., IPDPS'19: rows cut into parts that fit a cache."""

from __future__ import annotations

from pathlib import Path

from fastsample_dist.ops import checks

LINE_BYTES = 64  # of a cache
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def theorem_columns(
    num_src: int, width: int, element_size: int, num_threads: int = 1, cache_bytes: int | None = None
) -> int:
    """Columns of a part when rows are cut into parts so that one part of all source rows fits into a cache.

    The number of parts is max(num_threads, bytes of all rows / cache_bytes), which moves at most twice the least
    possible number of bytes between cache and memory. A part of more than one cache line is a whole number of them.

    Args:
      num_src, width, element_size: the source rows, [num_src, width], and the bytes of a number.
      num_threads: threads that share the parts.
      cache_bytes: of the cache; None: of a core's second-level cache on this machine.
    Raises:
      ValueError: cache_bytes is None and the machine does not say.
    Source: Zeng et al., IPDPS'19, theorem 2 (Qv = 1); the paper counts 8 bytes per number.
    """
    cache_bytes = second_level_cache_bytes() if cache_bytes is None else cache_bytes
    checks.require(
        cache_bytes is not None, "the size of the second-level cache is not known here; give a number of columns."
    )
    parts = max(num_threads, -(-num_src * width * element_size // cache_bytes), 1)
    columns, line = max(width // parts, 1), max(LINE_BYTES // element_size, 1)
    return columns - columns % line if columns > line else columns


def second_level_cache_bytes() -> int | None:
    """Of the first core; None where Linux does not say."""
    for cache in sorted(_CACHES.glob("index*")):
        try:
            if (cache / "level").read_text(encoding="ascii").strip() == "2":
                return 1024 * int((cache / "size").read_text(encoding="ascii").strip().removesuffix("K"))
        except (OSError, ValueError):
            continue
    return None
