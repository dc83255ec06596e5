"""Rows of the machine's other ranks, read in their part files: no exchange, no copy, no second page cache.

A rank reports which file it reads its rows from, and in which state the file was when its bytes were compared with the
manifest (graph/verification.py). Another rank of the machine (comm/machine.py) maps that very file: device, inode, size
and times of what it has opened must be those that were reported, before and after it is mapped, so a file that was
swapped, damaged or written to since then is not read. The file must be on a local file system: over a network the rows
would travel uncounted, as pages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fastsample_dist.features.source import RowRange
from fastsample_dist.graph.manifest import Manifest
from fastsample_dist.graph.storage import features_file, load_features, scales_file
from fastsample_dist.graph.verification import FileState

NETWORK_FILE_SYSTEMS = (
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "fhgfs", "fuse", "gfs", "gfs2", "glusterfs", "gpfs", "lustre",
    "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb2", "smb3", "smbfs", "virtiofs", "wekafs",
)  # fmt: skip
"""Names in /proc/self/mountinfo; "fuse" stands for all kinds of it."""
_MOUNTS = Path("/proc/self/mountinfo")


@dataclass(frozen=True)
class RankFiles:
    """What a rank reports to its neighbours of the files that it reads its rows from.

    Attributes:
      folder: of the partition, absolute and without links.
      states: by part, the state in which its file was found to be what the manifest says; None: it was not compared.
      refusal: why nobody can read this rank's rows in place, nor it theirs; None: they can.
      scales: as `states`, of the rows' scales, where they have any.
    """

    folder: str
    states: Mapping[int, FileState | None]
    refusal: str | None = None
    scales: Mapping[int, FileState | None] = field(default_factory=dict)

    def of_part(self, manifest: Manifest, part: int) -> dict[str, FileState | None]:
        """States of one part's files, by name."""
        found = {features_file(part): self.states[part]}
        return found | ({scales_file(part): self.scales.get(part)} if manifest.feature_scales else {})


def map_neighbour(
    files: RankFiles, manifest: Manifest, file_system: Callable[[str], str] | None = None
) -> list[RowRange]:
    """Map the rows of another rank of this machine, a table for each of its parts.

    Args:
      files: what that rank reported.
      manifest: of the partition, the same on all ranks.
      file_system: names the file system of a path; None: as the system says.
    Raises:
      ValueError: a proof failed; one line, without the rank's number.
    """
    tables = []
    for part in files.states:
        states = {Path(files.folder) / name: state for name, state in files.of_part(manifest, part).items()}
        for path, state in states.items():
            if state is None:
                raise ValueError(f"{path} was not compared with the manifest (verify='never')")
            kind = (file_system or file_system_of)(str(path))
            if kind.partition(".")[0] in NETWORK_FILE_SYSTEMS:
                raise ValueError(f"{path} is on a network file system ({kind})")
            _check_state(path, state)
        table = load_features(files.folder, manifest, part)
        for path, state in states.items():
            _check_state(path, state)
        tables.append(RowRange(manifest.part_ranges[part], table if table.is_scaled else table.rows))
    return tables


def _check_state(path: Path, expected: FileState | None) -> None:
    """Refuse a file that is not the one that was compared with the manifest."""
    try:
        found = FileState.of(path.stat())
    except OSError as error:
        raise ValueError(f"{path} cannot be read here ({error.strerror})") from error
    if found != expected:
        name, has, had = next(
            (name, has, had) for name, has, had in zip(found._fields, found, expected, strict=True) if has != had
        )
        raise ValueError(f"{path} is not the file that was compared with the manifest: its {name} is {has}, was {had}")


def file_system_of(path: str, mounts: str | None = None) -> str:
    """The kind of the file system that holds a path, such as "ext4".

    Args:
      path: absolute.
      mounts: content of /proc/self/mountinfo; None: what it is now.
    Raises:
      ValueError: it is not known.
    """
    try:
        text = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape") if mounts is None else mounts
    except OSError as error:
        raise ValueError(f"the file system of {path} is unknown ({_MOUNTS} cannot be read)") from error
    best, kind = "", None
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        mount = left.split()[4].encode().decode("unicode_escape")  # blanks are written as \040
        if (path == mount or path.startswith(mount.rstrip("/") + "/")) and len(mount) >= len(best):
            best, kind = mount, right.split()[0]  # of two mounts at one place the later hides the other
    if kind is None:
        raise ValueError(f"the file system of {path} is unknown: no line of {_MOUNTS} fits")
    return kind
