"""`stream`: known communities come out, within any buffer and order; what cannot be is refused."""

from dataclasses import replace

import numpy as np
import pytest

from fastsample_dist.partition.methods import METHODS, PartitionRequest, stream
from fastsample_dist.partition.methods.balance import balance_parts
from fastsample_dist.partition.methods.stream import LEAST_PART_BYTES, assign_stream
from fastsample_dist.partition.progress import Progress
from tests.test_partition.methods.requests import graph_of, request_of, stored_cut

COMMUNITIES, SIZE = 24, 100


@pytest.fixture(scope="module")
def planted() -> PartitionRequest:
    """Communities of SIZE nodes with 12 links a node, a tenth of them to nodes of any; ids say nothing of them."""
    rng = np.random.default_rng(5)
    num_nodes = COMMUNITIES * SIZE
    a = np.repeat(np.arange(num_nodes), 6)
    anywhere, own = rng.integers(0, num_nodes, len(a)), a // SIZE * SIZE + rng.integers(0, SIZE, len(a))
    b = np.where(rng.random(len(a)) < 0.1, anywhere, own)
    ids = rng.permutation(num_nodes)
    apart = a != b
    edges = np.unique(np.sort(np.stack([ids[a[apart]], ids[b[apart]]]), axis=0), axis=1)
    return request_of(graph_of(num_nodes, edges.T.tolist(), train=ids[: num_nodes // 4].tolist()), 4)


@pytest.mark.parametrize("fields", [{}, {"buffer_bytes": 4 * LEAST_PART_BYTES}, {"passes": 1}, {"seed": 9}])
def test_communities_stay_whole(planted, fields):
    parts = assign_stream(replace(planted, **fields))
    assert stored_cut(planted, parts) < 0.15  # chance cuts 0.75, METIS 0.20, the communities themselves 0.075
    balanced = balance_parts(planted, METHODS["stream"], parts)
    assert balanced.notes == ()
    counts = np.bincount(parts, minlength=4)
    assert abs(counts / counts.mean() - 1).max() <= 0.05


def test_an_order_decides_who_comes_first(planted):
    ascending, given = (assign_stream(replace(planted, order=order)) for order in (None, np.arange(planted.num_nodes)))
    assert (ascending == given).all()
    backwards = assign_stream(replace(planted, order=np.arange(planted.num_nodes)[::-1]))
    assert stored_cut(planted, backwards) < 0.15 and (backwards != ascending).any()


def test_threads_change_no_part(planted):
    one, three = (assign_stream(replace(planted, num_threads=threads)) for threads in (1, 3))
    assert (one == three).all()


class Counted(Progress):
    """What was reported: (bytes to read, bytes read)."""

    def __init__(self):
        self.total = self.done = 0

    def bytes_total(self, count):
        self.total = count

    def bytes_done(self, count):
        self.done += count


@pytest.mark.parametrize("passes", [None, 1, 3])
@pytest.mark.parametrize(("method", "default", "reads"), [("stream", 2, 9), ("ldg", 10, 1), ("fennel", 10, 1)])
def test_what_is_read_is_what_was_announced(planted, method, default, reads, passes):
    progress = Counted()
    METHODS[method].assign(replace(planted, progress=progress, passes=passes))
    links = planted.adjacency if method == "stream" else planted.graph
    assert progress.done == progress.total == (passes or default) * reads * links.indices.nbytes


def test_links_that_are_read_again_are_announced(planted, monkeypatch):
    monkeypatch.setattr(stream, "PAIR_BYTES", stream.BUFFER_BYTES // 100)  # room for 100 pairs of clusters
    progress = Counted()
    assign_stream(replace(planted, progress=progress))
    assert progress.done == progress.total > 18 * planted.adjacency.indices.nbytes


def test_a_buffer_without_room_for_a_model_is_refused(planted):
    with pytest.raises(ValueError, match=r"^buffer is 200000 bytes but the model of a graph in 4 parts needs 262144; "
                       r"pass --buffer 1MB or more, or fewer parts: 3 at most.$"):  # fmt: skip
        assign_stream(replace(planted, buffer_bytes=200000))
    with pytest.raises(ValueError, match=r"pass --buffer 1MB or more.$"):  # for not even two parts
        assign_stream(replace(planted, buffer_bytes=1000))


def test_more_parts_than_clusters():
    request = request_of(graph_of(6, [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3)]), 5)
    assert sorted(set(assign_stream(request).tolist())) == [0, 1, 2, 3, 4]
