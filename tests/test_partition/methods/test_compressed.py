"""Bytes of a compressed graph: against an encoder of one row after the other, and against what KaMinPar takes."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
import torch

from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.partition.methods.adjacency import Adjacency, symmetrise
from fastsample_dist.partition.methods.compressed import compressed_bytes
from fastsample_dist.partition.methods.constraints import InDegrees
from fastsample_dist.partition.methods.parhip import write_parhip


def varint(value: int) -> int:
    return max(1, -(-value.bit_length() // 7))


def zigzag(value: int) -> int:
    return 2 * value if value >= 0 else -2 * value - 1


def row_bytes(node: int, row: list[int], weights: list[int] | None) -> int:
    """One row as it is encoded; 3 bytes for a run."""
    total = varint(2 * len(row))
    at = 0
    while at < len(row):
        end = at + 1
        while end < len(row) and row[end] == row[end - 1] + 1:
            end += 1
        if end - at >= 3:
            total += 3
        else:
            before = [row[place - 1] if place else None for place in range(at, end)]
            ids = zip(row[at:end], before, strict=True)
            total += sum(varint(zigzag(id - node) if last is None else id - last - 1) for id, last in ids)
        at = end
    for value, last in zip(weights or [], [0, *(weights or [])], strict=False):
        total += varint(zigzag(value - last))
    return total


def drawn(num_nodes: int, num_edges: int, reach: int, *, copies: bool = True) -> Adjacency:
    """Edges to nodes within reach."""
    rng = np.random.default_rng(0)
    src = rng.integers(0, num_nodes, num_edges)
    dst = (src + rng.integers(1, reach, num_edges)) % num_nodes
    if copies:
        src, dst = (np.concatenate([ends, ends[: num_edges // 4]]) for ends in (src, dst))
    graph = CSCGraph.from_edge_index(torch.from_numpy(src), torch.from_numpy(dst), num_nodes)
    return symmetrise(graph, undirected=False)


def entries(adjacency: Adjacency) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    owners = np.repeat(np.arange(adjacency.num_nodes), np.diff(adjacency.indptr))
    return owners, adjacency.indices.astype(np.int64), adjacency.weights


@pytest.mark.parametrize("reach", [5, 300, 30_000])
@pytest.mark.parametrize("weighted", [False, True])
def test_every_row_is_as_long_as_its_code(reach, weighted):
    adjacency = drawn(30_000, 20_000, reach)
    owners, ids, weights = entries(adjacency)
    weights = weights if weighted else None
    offsets = adjacency.indptr.tolist()
    expected = sum(
        row_bytes(node, ids[lo:hi].tolist(), None if weights is None else weights[lo:hi].tolist())
        for node, (lo, hi) in enumerate(itertools.pairwise(offsets))
        if lo < hi
    )
    assert compressed_bytes(owners, ids, weights) == expected


def test_no_rows_take_nothing():
    assert compressed_bytes(np.empty(0, np.int64), np.empty(0, np.int64), None) == 0


LOAD = """
import re, sys
import kaminpar
def held():
    return int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
before = held()
graph = kaminpar.load_graph(sys.argv[1], kaminpar.GraphFileFormat.PARHIP, True)
print(held() - before)
"""


def test_kaminpar_takes_as_much(tmp_path):
    """Two graphs of as many nodes and entries: what differs is the bytes of their ids."""
    pytest.importorskip("kaminpar")
    taken, predicted = [], []
    for reach in (200, 200_000):
        adjacency = drawn(200_000, 2_000_000, reach, copies=False)
        write_parhip(tmp_path / "graph", adjacency, InDegrees(adjacency.indptr))
        command = [sys.executable, "-c", LOAD, str(tmp_path / "graph")]
        taken.append(int(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
        predicted.append(compressed_bytes(*entries(adjacency)))
    assert taken[1] - taken[0] == pytest.approx(predicted[1] - predicted[0], rel=0.15)
    assert predicted[1] <= taken[1]
