"""Which files of a partition a host needs: manifest.json, topology/ and the parts of its own ranks.

Rank r of W owns parts r * P / W up to (r + 1) * P / W, an equal run of the P parts (the rule of DistData.load).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fastsample_dist.launch.hosts import HostRanks

MANIFEST = "manifest.json"
TOPOLOGY = "topology"


@dataclass(frozen=True)
class PartCopy:
    """What one host gets: absolute source paths and the directory that takes them."""

    host_ranks: HostRanks
    sources: tuple[str, ...]
    destination: str


def split_copy_parts(text: str, workdir: str) -> tuple[Path, str]:
    """ "PARTS[:DEST]" -> (absolute PARTS, absolute DEST); DEST is PARTS' own path by default.

    Args:
      text: the option's value. A directory of exactly this name is PARTS, whatever colons it has.
      workdir: the directory that a relative DEST starts from.
    """
    path, colon, destination = (text, "", "") if Path(text).is_dir() else text.rpartition(":")
    if not colon:
        path, destination = text, ""
    source = Path(path).absolute()
    return source, str(Path(workdir) / destination) if destination else str(source)


def read_num_parts(parts: Path) -> int:
    """The number of parts that the manifest states.

    Raises:
      ValueError: no readable manifest of a partition there.
    """
    file = parts / MANIFEST
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
        num_parts = manifest["num_parts"]
        if not isinstance(num_parts, int) or num_parts < 1:
            raise ValueError(f"num_parts is {num_parts!r}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        raise ValueError(
            f"--copy-parts: {file} is not the manifest of a partition ({reason}); pass a directory written by "
            "fastsample-partition."
        ) from error
    return num_parts


def plan_copies(parts: Path, destination: str, layout: Sequence[HostRanks]) -> list[PartCopy]:
    """What to copy to each host.

    Raises:
      ValueError: no partition there, a directory is missing, or its parts cannot be dealt out equally.
    """
    num_parts = read_num_parts(parts)
    world_size = layout[-1].ranks.stop
    if num_parts % world_size:
        raise ValueError(
            f"--copy-parts: {parts} has {num_parts} parts but world_size is {world_size}; start a number of ranks that "
            f"divides {num_parts}, or partition with --num-parts {world_size}."
        )
    per_rank = num_parts // world_size
    copies = []
    for host_ranks in layout:
        own = range(host_ranks.ranks.start * per_rank, host_ranks.ranks.stop * per_rank)
        names = [MANIFEST, TOPOLOGY, *(f"part-{part}" for part in own)]
        missing = [name for name in names if not (parts / name).exists()]
        if missing:
            raise ValueError(f"--copy-parts: {parts} lacks {', '.join(missing)}; partition the graph again.")
        copies.append(PartCopy(host_ranks, tuple(str(parts / name) for name in names), destination))
    return copies
