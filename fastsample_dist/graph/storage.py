"""Partitions on disk, format version 1; with scales 2.

    PARTS/manifest.json                  see manifest.py; written last
    PARTS/topology/indptr.npy            int64 [num_nodes + 1]: the whole graph, ids relabelled so that part p
    PARTS/topology/indices.npy           int32 | int64 [num_edges]     owns part_ranges[p] .. part_ranges[p + 1]
    PARTS/topology/weights.npy           float32 | float64 [num_edges] (only with edge weights)
    PARTS/topology/edge_map.npy          int32 | int64 [num_edges] (only with a map): place in the input
    PARTS/topology/orig_ids.npy          int64 [num_nodes]: original id of each node
    PARTS/topology/clusters.npy          int32 [num_nodes] (only with clusters): cluster of each node, 0 .. K - 1; those
                                         of a part have consecutive numbers, in the order of the parts
    PARTS/topology/input_ids.npy         int64 or bytes (UTF-8) [num_nodes]: what original id v was called in an edge
                                         list whose ids were names (--relabel); ascending
    PARTS/part-<p>/features.npy          [nodes of p, feature_dim], stored type (bfloat16: its bits as int16)
    PARTS/part-<p>/scales.npy            float32 [nodes of p] (only with int8 rows that were rounded): a value is
                                         feature * scale; a row of zeros has scale 0
    PARTS/part-<p>/labels.npy            int64 [nodes of p], -1: unlabelled; or, when the manifest's task is another,
    PARTS/part-<p>/targets.npy           float32 [nodes of p, num_targets], NaN: not known
    PARTS/part-<p>/train.npy val.npy test.npy   int64: global (relabelled) ids owned by p, ascending
What the input did not have is not there and not in the manifest. A row of the topology lists the in-neighbours by
ascending original id. Where nodes have types, a part's nodes of one type have consecutive ids (type_ranges of the
manifest). A machine needs only the manifest, topology/ and its own part-*/.

Reading maps the files: loading costs no copy, and all ranks of a machine share one. Opening a file compares its
size with the manifest and its header with the graph; `verify_files` compares the bytes, and verification.py does so
once per copy: it remembers them in PARTS/.verified, which is not part of the format. Writing goes to a hidden sibling
directory, is synced, and takes the final name only when complete.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastsample_dist.files import naming_file, sync_directory
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.graph.manifest import MANIFEST_NAME, Manifest, read_manifest, version_of
from fastsample_dist.graph.npy_files import NpyWriter, open_npy, sha256_file
from fastsample_dist.ops import RowTable, checks

__all__ = [
    "BFLOAT16",
    "BFLOAT16_AS",
    "CLUSTERS",
    "FEATURE_DTYPES",
    "INPUT_IDS",
    "SPLITS",
    "WIDE_DTYPES",
    "Manifest",
    "PartData",
    "PartitionWriter",
    "check_output",
    "features_file",
    "load_clusters",
    "load_features",
    "load_orig_ids",
    "load_part",
    "load_topology",
    "part_files",
    "read_manifest",
    "refuse_altered",
    "scales_file",
    "sized_file",
    "topology_files",
    "verify_files",
]

SPLITS = ("train", "val", "test")
INPUT_IDS, CLUSTERS = "topology/input_ids.npy", "topology/clusters.npy"
FEATURE_DTYPES = ("float16", "float32", "float64", "int8", "uint8", "int16")
WIDE_DTYPES = ("int32", "int64")
"""Of features that are taken to be converted. Partitions of older releases hold them; no batch is made of them."""
BFLOAT16, BFLOAT16_AS = "bfloat16", "int16"  # .npy has no bfloat16: the manifest names it, the file holds its bits
_ID_DTYPES = ("int32", "int64")


@dataclass(frozen=True, eq=False)
class PartData:
    """What one part owns, in the order of its ids.

    Attributes:
      features: [nodes of the part, feature_dim] in the stored type, mapped from the file; None if not stored.
      scales: float32 [nodes of the part], mapped; a value is feature * scale. None: features are values.
      labels: int64 [nodes of the part], -1: unlabelled; for other tasks than classification float32 [nodes of the part,
        num_targets], NaN: not known; None if not stored.
      splits: the stored ones of "train", "val", "test"; int64, global (relabelled) ids, ascending.
    """

    features: Tensor | None
    labels: Tensor | None
    splits: dict[str, Tensor]
    scales: Tensor | None = None

    @property
    def feature_table(self) -> RowTable | None:
        """Features with their scales."""
        return None if self.features is None else RowTable(self.features, self.scales)


def topology_files(manifest: Manifest) -> list[str]:
    """Relative paths of the topology's files."""
    return list(manifest.files_by_room.get("topology", ()))


def part_files(manifest: Manifest, part: int) -> list[str]:
    """Relative paths of one part's own files."""
    return list(manifest.files_by_room.get(f"part-{part}", ()))


def load_topology(path: str | Path, manifest: Manifest, node_range: tuple[int, int] | None = None) -> CSCGraph:
    """Map the topology, or the rows of one range of nodes.

    Args:
      path: the partition's directory.
      manifest: of that directory.
      node_range: (lo, hi) takes the rows of the nodes lo .. hi - 1 only; row i is then node lo + i, while the
        sources in `indices` stay ids of the whole graph. Pages outside the range are never touched.
    Returns:
      CSCGraph with orig_ids; tensors share the mapped pages (with node_range, indptr is a rebased copy).
    Raises:
      ValueError: node_range is not within the graph; a file is missing, truncated or does not fit (by name).
    """
    lo, hi = (0, manifest.num_nodes) if node_range is None else node_range
    if not 0 <= lo <= hi <= manifest.num_nodes:
        raise ValueError(f"node_range is ({lo}, {hi}); expected 0 <= lo <= hi <= {manifest.num_nodes}.")
    edges = (manifest.num_edges,)
    indptr = _open(path, manifest, "topology/indptr.npy", ("int64",), (manifest.num_nodes + 1,))
    indices = _open(path, manifest, "topology/indices.npy", _ID_DTYPES, edges)
    weights = None
    if "topology/weights.npy" in manifest.files:
        weights = _open(path, manifest, "topology/weights.npy", ("float32", "float64"), edges)
    edge_map = None
    if "topology/edge_map.npy" in manifest.files:
        edge_map = _open(path, manifest, "topology/edge_map.npy", _ID_DTYPES, edges)
    orig_ids = load_orig_ids(path, manifest)
    # Weights were checked when the partition was made: a mapped file is not read through to open it.
    whole = CSCGraph(indptr, indices, weights, orig_ids, edge_map=edge_map, weights_checked=True)
    whole.advise_huge_pages()
    if node_range is None:
        return whole
    first, last = int(indptr[lo]), int(indptr[hi])
    rebased = indptr[lo : hi + 1] - first
    weights, edge_map = (None if column is None else column[first:last] for column in (weights, edge_map))
    orig_ids = whole.orig_ids[lo:hi]
    return CSCGraph(rebased, indices[first:last], weights, orig_ids, edge_map=edge_map, weights_checked=True)


def load_orig_ids(path: str | Path, manifest: Manifest) -> Tensor:
    """Map the original id of every node, int64 [num_nodes].

    Raises:
      ValueError: the file is missing, truncated or does not fit (by name).
    """
    return _open(path, manifest, "topology/orig_ids.npy", ("int64",), (manifest.num_nodes,))


def load_clusters(path: str | Path, manifest: Manifest) -> Tensor | None:
    """Map the cluster of every node, int32 [num_nodes]; None where the partition has no clusters.

    Raises:
      ValueError: the file is missing, truncated or does not fit (by name).
    """
    if CLUSTERS not in manifest.files:
        return None
    return _open(path, manifest, CLUSTERS, ("int32",), (manifest.num_nodes,))


def load_part(path: str | Path, manifest: Manifest, part: int) -> PartData:
    """Map what one part owns.

    Args:
      path: the partition's directory.
      manifest: of that directory.
      part: part index.
    Returns:
      PartData; what is not stored is None, or absent from `splits`.
    Raises:
      ValueError: there is no such part; a file is missing, truncated or does not fit (by name).
    """
    if not 0 <= part < manifest.num_parts:
        raise ValueError(f"part is {part}; {path} has the parts 0 to {manifest.num_parts - 1}.")
    num_nodes = manifest.part_ranges[part + 1] - manifest.part_ranges[part]
    stored = {Path(name).stem: name for name in part_files(manifest, part)}
    table = load_features(path, manifest, part) if "features" in stored else None
    features, scales = (None, None) if table is None else (table.rows, table.scales)
    labels = None
    if manifest.num_targets:
        if "targets" in stored:
            labels = _open(path, manifest, stored["targets"], ("float32",), (num_nodes, manifest.num_targets))
    elif "labels" in stored:
        labels = _open(path, manifest, stored["labels"], ("int64",), (num_nodes,))
    splits = {split: _open(path, manifest, stored[split], ("int64",), (None,)) for split in SPLITS if split in stored}
    return PartData(features, labels, splits, scales)


def features_file(part: int) -> str:
    """Relative path of a part's feature rows."""
    return f"part-{part}/features.npy"


def scales_file(part: int) -> str:
    """Relative path of the scales of a part's feature rows."""
    return f"part-{part}/scales.npy"


def load_features(path: str | Path, manifest: Manifest, part: int) -> RowTable:
    """Map a part's feature rows, [nodes of the part, feature_dim] in the stored type, with their scales.

    Raises:
      ValueError: a file is missing, truncated or does not fit (by name).
    """
    num_nodes = manifest.part_ranges[part + 1] - manifest.part_ranges[part]
    dtype = BFLOAT16_AS if manifest.feature_dtype == BFLOAT16 else str(manifest.feature_dtype)
    rows = _open(path, manifest, features_file(part), (dtype,), (num_nodes, manifest.feature_dim))
    if manifest.feature_scales:
        return RowTable(rows, _open(path, manifest, scales_file(part), ("float32",), (num_nodes,)))
    return RowTable(rows.view(torch.bfloat16) if manifest.feature_dtype == BFLOAT16 else rows)


def verify_files(path: str | Path, manifest: Manifest, relpaths: Iterable[str]) -> None:
    """Compare size and SHA-256 of files with the manifest. Cost: reads every byte of them.

    Args:
      path: the partition's directory.
      manifest: of that directory.
      relpaths: names as in manifest.files, e.g. from `topology_files` and `part_files`.
    Raises:
      ValueError: names the first file that is missing, truncated or altered.
    """
    for name in relpaths:
        file = sized_file(path, manifest, name)
        found, expected = sha256_file(file), manifest.files[name]["sha256"]
        if found != expected:
            raise refuse_altered(file, found, expected)


def refuse_altered(file: Path, found: str, expected: str) -> ValueError:
    """The error for a file whose SHA-256 is not the manifest's."""
    return ValueError(
        f"{file} is altered: its SHA-256 is {found[:16]}..., the manifest says {expected[:16]}...; "
        "copy it again or partition the graph again."
    )


def check_output(path: str | Path, overwrite: bool = False) -> None:
    """Refuse an output directory that could not be written, before any work is done; leaves nothing behind.

    Args:
      path: where a partition is to be written.
      overwrite: whether a partition that is there may be replaced.
    Raises:
      ValueError: the output exists (without overwrite), is not a partition (with it), or cannot be created; path is
        no path, overwrite no truth value.
    """
    if not isinstance(path, str | os.PathLike):
        raise ValueError(f"output is {path!r}; expected the path of the directory to write.")
    checks.flag("overwrite", overwrite)
    target = Path(path)
    if os.path.lexists(target):
        if not overwrite:
            raise ValueError(f"{target} exists; pass --overwrite (overwrite=True) to replace it.")
        if target.is_symlink() or not (target / MANIFEST_NAME).is_file():
            raise ValueError(f"{target} exists and is not a partition; only a partition is overwritten, remove it.")
    _make_sibling(target).rmdir()


class PartitionWriter:
    """Write a partition's files and publish them at once under their final name; a context manager.

        with PartitionWriter("parts") as writer:
            with writer.open("topology/indptr.npy", np.dtype("int64"), (num_nodes + 1,)) as file:
                file.append(indptr)
            writer.finish(name=..., num_nodes=..., ...)        # the fields of Manifest except `files`

    The files are written to a hidden sibling directory `.<name>.partial-<random>`. Leaving the block without
    `finish`, whether by an error or by Ctrl-C, removes that directory; an older partition under the final name stays
    until the new one is complete.

    Args:
      path: the partition's directory.
      overwrite: replace a partition that is there.
    Raises:
      ValueError: see `check_output`.
    """

    def __init__(self, path: str | Path, *, overwrite: bool = False) -> None:
        self.path = Path(path)
        self.files: dict[str, dict[str, int | str]] = {}
        check_output(self.path, overwrite)
        self._overwrite = overwrite
        self._partial: Path | None = None  # while writing
        self._retired: Path | None = None  # the older partition, once the new one is complete

    def __enter__(self) -> PartitionWriter:
        self._partial = _make_sibling(self.path)
        return self

    def __exit__(self, *_: object) -> None:
        for leftover in (self._partial, self._retired):
            if leftover is not None and leftover.exists():
                shutil.rmtree(leftover)
        self._partial = self._retired = None

    @contextmanager
    def open(self, name: str, dtype: np.dtype, shape: tuple[int, ...]) -> Iterator[NpyWriter]:
        """Begin one file; its record enters the manifest when its block ends.

        Args:
          name: relative path with forward slashes, e.g. "part-0/labels.npy".
          dtype: stored type.
          shape: full shape.
        Returns:
          A context manager that gives the NpyWriter to append rows to.
        """
        assert self._partial is not None, "PartitionWriter.open outside the with block"
        file = self._partial / name
        file.parent.mkdir(parents=True, exist_ok=True)
        with NpyWriter(file, dtype, shape) as writer:
            yield writer
        self.files[name] = writer.record

    def write(self, name: str, array: np.ndarray) -> None:
        """Write one whole array."""
        with self.open(name, array.dtype, array.shape) as file:
            file.append(array)

    def finish(self, **fields: Any) -> Manifest:
        """Write the manifest, sync everything, and move the directory to its final name.

        Args:
          **fields: the fields of Manifest except `files`.
        Returns:
          The manifest as written.
        Raises:
          OSError: the output has appeared in the meantime, or the disk refuses.
        """
        assert self._partial is not None, "PartitionWriter.finish outside the with block"
        version = version_of(fields.get("feature_scales", False))
        manifest = Manifest(files=dict(sorted(self.files.items())), version=version, **fields)
        path = self._partial / MANIFEST_NAME
        with naming_file(path), path.open("x", encoding="utf-8") as file:
            file.write(manifest.to_json())
            file.flush()
            os.fsync(file.fileno())
        for directory in {self._partial / Path(name).parent for name in self.files} | {self._partial}:
            with naming_file(directory):
                sync_directory(directory)
        self._publish()
        return manifest

    def _publish(self) -> None:
        assert self._partial is not None, "nothing to publish"
        target = self.path.absolute()
        try:
            if self._overwrite and target.exists():
                self._retired = _make_sibling(self.path)
                target.rename(self._retired)  # onto the empty directory just made
            self._partial.rename(target)
        except BaseException as error:
            if self._retired is not None and not target.exists():
                retired, self._retired = self._retired, None  # no longer ours to remove
                retired.rename(target)
            if isinstance(error, OSError) and error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise FileExistsError(
                    f"{self.path} has appeared in the meantime, made by another run; it is left as it is, "
                    "choose another output."
                ) from error
            raise
        self._partial = None
        sync_directory(target.parent)


def _make_sibling(target: Path) -> Path:
    """Create an empty hidden directory beside `target`, on the same file system, with the user's usual mode."""
    target_name = target.absolute().name
    sibling = target.absolute().parent / f".{target_name}.partial-{secrets.token_hex(4)}"
    try:
        sibling.mkdir()
    except FileNotFoundError:
        raise ValueError(f"{sibling.parent} does not exist, so {target} cannot be written; create it first.") from None
    except OSError as error:
        raise ValueError(
            f"{sibling.parent} is not writable ({error.strerror}), so {target} cannot be written; "
            "choose another output."
        ) from error
    return sibling


def sized_file(path: str | Path, manifest: Manifest, name: str) -> Path:
    """The file `name`, of the size that the manifest states.

    Raises:
      ValueError: the manifest does not list it, it is missing, or its size is another.
    """
    file = Path(path) / name
    if name not in manifest.files:
        raise ValueError(f"{Path(path) / MANIFEST_NAME} does not list {name}; partition the graph again.")
    expected = manifest.files[name]["bytes"]
    if not file.is_file():
        raise ValueError(f"{file} is missing; expected {expected} bytes; copy it again or partition the graph again.")
    found = file.stat().st_size
    if found != expected:
        state = "truncated" if found < expected else "altered"
        raise ValueError(
            f"{file} is {state}: it has {found} bytes, the manifest says {expected}; "
            "copy it again or partition the graph again."
        )
    return file


def _open(
    path: str | Path, manifest: Manifest, name: str, dtypes: tuple[str, ...], shape: tuple[int | None, ...]
) -> Tensor:
    """Map one file as a tensor; its header must have one of `dtypes` and `shape` (None: any length)."""
    file = sized_file(path, manifest, name)
    array = open_npy(file)
    fits = len(array.shape) == len(shape) and all(
        want in (None, have) for have, want in zip(array.shape, shape, strict=True)
    )
    if array.dtype.name not in dtypes or not array.dtype.isnative or not fits:
        wanted = ", ".join("any" if want is None else str(want) for want in shape)
        raise ValueError(
            f"{file} holds {array.dtype.name} of shape {array.shape}; the manifest expects {' or '.join(dtypes)} "
            f"of shape ({wanted}); copy it again or partition the graph again."
        )
    return torch.from_numpy(np.asarray(array))
