"""`random`, `range` and `file`: parts that do not depend on the edges."""

import numpy as np
import pytest

from fastsample_dist.graph.npy_files import CHUNK_BYTES
from fastsample_dist.partition.methods import METHODS, constraints, random_parts
from fastsample_dist.partition.methods.balance import balance_parts
from tests.test_partition.inputs import draw_raw
from tests.test_partition.methods.requests import assigned, graph_of, request_of

PART_COUNTS = [1, 2, 3, 4, 5, 8]


@pytest.mark.parametrize("num_parts", PART_COUNTS)
@pytest.mark.parametrize("num_nodes, num_train", [(61, 24), (40, 0), (8, 8)])
def test_random_balances_nodes_and_train_nodes_to_within_one(num_parts, num_nodes, num_train):
    train = np.random.default_rng(1).permutation(num_nodes)[:num_train]
    parts = random_parts(num_nodes, train, num_parts, seed=3)
    for members in (parts, parts[train]):
        counts = np.bincount(members, minlength=num_parts)
        assert len(counts) == num_parts
        assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("num_nodes, num_train, num_parts", [(61, 24, 3), (40, 0, 4), (8, 8, 8), (1000, 10, 7)])
def test_random_deals_permutations(monkeypatch, num_nodes, num_train, num_parts):
    train, rng = np.arange(num_train) * 2 % num_nodes, np.random.default_rng(5)
    train = np.unique(train)
    others = np.setdiff1d(np.arange(num_nodes), train)
    order = np.concatenate([rng.permutation(train), rng.permutation(others)])
    expected = np.empty(num_nodes, dtype=np.int32)
    expected[order] = rng.permutation(num_parts)[np.arange(num_nodes) % num_parts]
    monkeypatch.setattr(constraints, "NODES_AT_ONCE_BYTES", CHUNK_BYTES // 7)
    assert (random_parts(num_nodes, train, num_parts, seed=5) == expected).all()


def test_random_is_uniform():
    # Each of 6 nodes falls to each of 3 parts in a third of the draws: chi-square with 12 degrees of freedom,
    # false alarm 1e-6 at 55.4; the seeds are fixed, so the outcome is too.
    draws = np.stack([random_parts(6, np.array([1, 4]), 3, seed) for seed in range(900)])
    counts = np.stack([(draws == part).sum(axis=0) for part in range(3)])
    assert ((counts - 300) ** 2 / 300).sum() < 55.4


def test_range_keeps_the_input_order():
    assert assigned("range", request_of(graph_of(11, []), 3)).tolist() == [0] * 4 + [1] * 4 + [2] * 3


def given_file(tmp_path, content, num_parts: int = 3, suffix: str = ".txt"):
    """A request for a graph of 6 nodes, all train nodes, with a file of that content."""
    path = tmp_path / f"mine{suffix}"
    if isinstance(content, str):
        path.write_text(content, encoding="utf-8")
    else:
        np.save(path, content, allow_pickle=True)
    return request_of(graph_of(6, [(0, 1)], [0, 1, 2, 3, 4, 5]), num_parts, assignment=path)


@pytest.mark.parametrize("content", ["0\n1\n2\n2\n1\n0\n", "0\n1\n2\n2\n1\n0", " 0 \r\n1\r\n2\n2\n1\n0"])
def test_file_of_text(tmp_path, content):
    assert assigned("file", given_file(tmp_path, content)).tolist() == [0, 1, 2, 2, 1, 0]


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int64])
def test_file_of_numpy(tmp_path, dtype):
    content = np.array([0, 1, 2, 2, 1, 0], dtype=dtype)
    assert assigned("file", given_file(tmp_path, content, suffix=".npy")).tolist() == content.tolist()


def test_file_says_what_was_moved(tmp_path):
    request = given_file(tmp_path, "0\n0\n0\n0\n1\n2\n")
    parts = assigned("file", request)
    balanced = balance_parts(request, METHODS["file"], parts)
    assert np.bincount(parts).tolist() == [2, 2, 2]
    assert balanced.notes == ("2 of 6 train nodes were moved, so that parts differ by one at most.",)


def test_file_that_is_even_is_left_alone(tmp_path):
    request = given_file(tmp_path, "2\n2\n1\n1\n0\n0\n")
    parts = assigned("file", request)
    assert balance_parts(request, METHODS["file"], parts).notes == ()
    assert parts.tolist() == [2, 2, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("content", "suffix", "message"),
    [
        ("0\n1\n2\n", ".txt", r"has 3 entries but the graph has 6 nodes"),
        ("0\n1\n2\n3\n1\n0\n", ".txt", r"entry 3 is part 3; expected 0 to 2 \(--num-parts 3\)"),
        ("0\n1\n2\n-1\n1\n0\n", ".txt", "entry 3 is part -1; expected 0 to 2"),
        ("0\n1\n1\n0\n1\n0\n", ".txt", r"gives part 2 no node \(1 of 3 parts are empty\)"),
        ("0\n1\ntwo\n2\n1\n0\n", ".txt", "line 3: 'two'; expected the number of a part"),
        ("0\n1\n\n2\n1\n0\n", ".txt", "line 3: ''; expected the number of a part"),
        ("0\n1\n1.5\n2\n1\n0\n", ".txt", "line 3: '1.5'"),
        (f"0\n{2**70}\n2\n2\n1\n0\n", ".txt", "line 2: '1180591620717411303424'"),
        ("0\n1\n2\n2\n1\nö\n", ".txt", "cannot be read .*expected text with one part a line, or .npy"),
        (np.zeros((6, 1), dtype=int), ".npy", r"holds int64 of shape \(6, 1\); expected one integer per node"),
        (np.zeros(6), ".npy", r"holds float64 of shape \(6,\); expected one integer per node"),
        (np.array([None] * 6), ".npy", "cannot be read as .npy"),
        ("not a numpy file", ".npy", "cannot be read as .npy"),
    ],
)
def test_refused_files(tmp_path, content, suffix, message):
    with pytest.raises(ValueError, match=message):
        assigned("file", given_file(tmp_path, content, suffix=suffix))


def test_file_must_be_named_and_there(tmp_path):
    raw = draw_raw(undirected=True)
    with pytest.raises(ValueError, match="method file needs the file .*pass --assignment FILE"):
        assigned("file", request_of(raw, 2))
    for name in ("gone.npy", "gone.txt"):
        with pytest.raises(ValueError, match=f"{name} cannot be read"):
            assigned("file", request_of(raw, 2, assignment=tmp_path / name))
