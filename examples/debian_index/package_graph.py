"""Nodes, edges, labels and splits of the package graph.

Nodes: binary packages by name, then source packages by name. A source package that only a binary mentions is a
node too. Edges run from the one that needs to the one needed:
  depends (with pre-depends), recommends, suggests   binary -> binary
  build-depends (all three fields)                   source -> binary
  built-from                                         binary -> source
Every alternative of `a | b` is an edge. A name that no package has is virtual: it stands for the packages that
provide it, unless there are more than MAX_PROVIDERS (a dictionary, any of 200, says nothing); a name that nobody
provides is left out, as are self-loops and repetitions of one (source, destination, type).

Label: the Section of a binary package. A split needs many source packages per class, so a section with few
packages, or from few source packages, is not a class: its packages keep label -1, like source packages.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np

from debian_index.control import Binary, Source

EDGE_TYPES = ("depends", "recommends", "suggests", "build-depends", "built-from")
NODE_TYPES = ("binary", "source")
MAX_PROVIDERS = 8
SPLIT_PERCENT = {"train": 60, "val": 20, "test": 20}


@dataclass(frozen=True, kw_only=True)
class PackageGraph:
    """Topology of the package graph.

    Attributes:
      binaries: names of the binary packages, ascending; node i is binaries[i].
      sources: names of the source packages, ascending; node len(binaries) + i is sources[i].
      edge_index: int32 [2, E]; from the one that needs to the one needed, sorted by (source, destination, type).
      edge_type: uint8 [E]; index into EDGE_TYPES.
      unresolved: relations left out: {"unknown": nobody provides the name, "too_many_providers": ...}.
    """

    binaries: list[str]
    sources: list[str]
    edge_index: np.ndarray
    edge_type: np.ndarray
    unresolved: dict[str, int]

    @property
    def num_nodes(self) -> int:
        """Number of nodes, binary and source packages together."""
        return len(self.binaries) + len(self.sources)


def build_graph(binaries: dict[str, Binary], sources: dict[str, Source]) -> PackageGraph:
    """Number the packages and collect the edges between them (see the module text for the rules)."""
    binary_names = sorted(binaries)
    source_names = sorted(sources.keys() | {binary.source for binary in binaries.values()})
    binary_id = {name: i for i, name in enumerate(binary_names)}
    source_id = {name: len(binary_names) + i for i, name in enumerate(source_names)}
    resolve = _Resolver(binaries, binary_id)
    edges: set[tuple[int, int, int]] = set()

    def connect(nid: int, relations: dict[str, tuple[str, ...]]) -> None:
        for kind, names in relations.items():
            for name in names:
                edges.update((nid, needed, EDGE_TYPES.index(kind)) for needed in resolve(name) if needed != nid)

    for name, binary in binaries.items():
        connect(binary_id[name], binary.relations)
        edges.add((binary_id[name], source_id[binary.source], EDGE_TYPES.index("built-from")))
    for name, source in sources.items():
        connect(source_id[name], source.relations)
    table = np.array(sorted(edges), dtype=np.int32).reshape(-1, 3)
    return PackageGraph(
        binaries=binary_names,
        sources=source_names,
        edge_index=np.ascontiguousarray(table[:, :2].T),
        edge_type=table[:, 2].astype(np.uint8),
        unresolved=dict(resolve.unresolved),
    )


class _Resolver:
    """Node ids that a name in a relation stands for: the package of that name, else its providers."""

    def __init__(self, binaries: dict[str, Binary], binary_id: dict[str, int]) -> None:
        self._binary_id = binary_id
        self._providers: dict[str, set[int]] = defaultdict(set)
        self.unresolved: Counter[str] = Counter(unknown=0, too_many_providers=0)
        for name, binary in binaries.items():
            for virtual in binary.provides:
                self._providers[virtual].add(binary_id[name])

    def __call__(self, name: str) -> set[int]:
        if name in self._binary_id:
            return {self._binary_id[name]}
        providers = self._providers.get(name, set())
        if 0 < len(providers) <= MAX_PROVIDERS:
            return providers
        self.unresolved["too_many_providers" if providers else "unknown"] += 1
        return set()


def section_labels(
    graph: PackageGraph, binaries: dict[str, Binary], *, min_packages: int, min_sources: int
) -> tuple[np.ndarray, list[str]]:
    """Label every node by its section.

    Args:
      graph: the topology; gives the order of the nodes.
      binaries: the packages by name.
      min_packages: a section with fewer binary packages is not a class.
      min_sources: a section whose packages come from fewer source packages is not a class.
    Returns:
      (int64 [num_nodes] labels, -1 = no class; class names, ascending).
    Raises:
      ValueError: no section is large enough.
    """
    packages = Counter(binary.section for binary in binaries.values() if binary.section)
    origins = defaultdict(set)
    for binary in binaries.values():
        origins[binary.section].add(binary.source)
    classes = sorted(name for name, n in packages.items() if n >= min_packages and len(origins[name]) >= min_sources)
    if not classes:
        raise ValueError(
            f"none of the {len(packages)} sections has {min_packages} packages from {min_sources} sources; "
            "lower --min-packages and --min-sources."
        )
    number = {name: i for i, name in enumerate(classes)}
    labels = np.full(graph.num_nodes, -1, dtype=np.int64)
    labels[: len(graph.binaries)] = [number.get(binaries[name].section, -1) for name in graph.binaries]
    return labels, classes


def split_of_source(source: str) -> str:
    """The split of a source package: the first 8 bytes of its name's SHA-256, modulo 100, cut at 60 and 80."""
    slot = int.from_bytes(hashlib.sha256(source.encode()).digest()[:8], "big") % 100
    for split, percent in SPLIT_PERCENT.items():
        if slot < percent:
            return split
        slot -= percent
    raise AssertionError("SPLIT_PERCENT does not add up to 100")


def split_by_source(graph: PackageGraph, binaries: dict[str, Binary], labels: np.ndarray) -> dict[str, np.ndarray]:
    """Split the labelled nodes so that the binaries of one source package are all on one side.

    Binaries of one source share most of their description and neighbours; parted, they would give test labels away.

    Returns:
      {"train" | "val" | "test": int64 node ids, ascending}.
    """
    sides: dict[str, list[int]] = {split: [] for split in SPLIT_PERCENT}
    for nid, name in enumerate(graph.binaries):
        if labels[nid] >= 0:
            sides[split_of_source(binaries[name].source)].append(nid)
    return {split: np.array(nids, dtype=np.int64) for split, nids in sides.items()}
