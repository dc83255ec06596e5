"""Ids that are names: the order of the new ids, the saved names, and the memory that they take."""

import json

import numpy as np
import pytest

from fastsample_dist.graph.inputs import EdgeListOptions, ReadOptions, Scratch, edgelist, relabel, text_edges
from fastsample_dist.graph.inputs.edgelist import read_edgelist
from fastsample_dist.graph.inputs.relabel import distinct_names, numbered

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

RELABEL = EdgeListOptions(relabel=True)


def read(path, **options):
    return read_edgelist(path, ReadOptions(edges=RELABEL, **options))


def named_edges(raw):
    """The edges by the names that their ends had."""
    return [[raw.input_ids[end] for end in edge] for edge in raw.edge_index.T.tolist()]


@pytest.mark.parametrize(
    "text, names",
    [
        ("b a\na c\n", [b"a", b"b", b"c"]),
        ("10 9\n-3 10\n", [-3, 9, 10]),  # as numbers
        ("9223372036854775807 0\n", [0, 2**63 - 1]),
        ("007 7\n", [7]),
        ("10,9\n  \n9,10\n", [9, 10]),
        ('"10","9"\n9,"+10"\n', [9, 10]),
        ('"10","9"\n"x",10\n', [b"10", b"9", b"x"]),
        ('"9223372036854775808",9\n', [b"9", b"9223372036854775808"]),
        ("10 9\nx 10\n", [b"10", b"9", b"x"]),  # one is not a number: all are text
        ("18446744073709551615 9\n", [b"18446744073709551615", b"9"]),  # int64 does not hold it
        ("\u00e9 z\nZ \u4e2d\n", [b"Z", b"z", "\u00e9".encode(), "\u4e2d".encode()]),
        ("# c\nb,c d\n", [b"b", b"c d"]),
        ('"x,y",z\n', [b"x,y", b"z"]),
        ("u#1 u#2\n", [b"u#1", b"u#2"]),
        ("1 2#\n", [b"1", b"2#"]),
        ("b\ta\r\na\tc\r\n", [b"a", b"b", b"c"]),
    ],
)
@pytest.mark.parametrize("block_bytes", [1, 5, 1 << 22])
def test_names_are_sorted(tmp_path, monkeypatch, text, names, block_bytes):
    monkeypatch.setattr(text_edges, "BLOCK_BYTES", block_bytes)
    (tmp_path / "edges.txt").write_bytes(text.encode())
    raw = read(tmp_path / "edges.txt")
    assert raw.input_ids.tolist() == names
    assert raw.num_nodes == len(names) and raw.counted_by_ids is False


@pytest.mark.parametrize("small_bytes", [0, 1 << 30])
@pytest.mark.parametrize("kind", ["text", "integers"])
@pytest.mark.parametrize("form", [".txt", ".csv", ".parquet"])
def test_every_edge_keeps_its_names(tmp_path, monkeypatch, small_bytes, kind, form):
    monkeypatch.setattr(edgelist, "SMALL_BYTES", small_bytes)
    monkeypatch.setattr(relabel, "MERGE_BYTES", 1000)
    monkeypatch.setattr(text_edges, "BLOCK_BYTES", 500)
    rng = np.random.default_rng(1)
    ids = rng.choice(10**15, 300, replace=False)[rng.integers(0, 300, (2000, 2))]
    wanted = ids if kind == "integers" else np.array([[f"user-{end:x}".encode() for end in edge] for edge in ids])
    texts = [[f"{end}" if kind == "integers" else end.decode() for end in edge] for edge in wanted.tolist()]
    file = tmp_path / f"edges{form}"
    if form == ".parquet":
        columns = wanted if kind == "integers" else np.array(texts)
        pq.write_table(pa.table({"src": columns[:, 0], "dst": columns[:, 1]}), file)
    else:
        file.write_text("".join((" " if form == ".txt" else ",").join(edge) + "\n" for edge in texts))
    with Scratch(tmp_path / "scratch") as scratch:
        raw = read(file, scratch=scratch)
        assert named_edges(raw) == wanted.tolist()
        assert raw.input_ids.tolist() == np.unique(wanted).tolist()
        assert raw.edge_index.dtype == np.int32


def test_the_order_of_the_list_is_of_no_account(tmp_path):
    lines = ["b a", "a c", "d b", "c d"]
    found = []
    for number, order in enumerate((lines, lines[::-1])):
        (tmp_path / f"{number}.txt").write_text("\n".join(order))
        raw = read(tmp_path / f"{number}.txt")
        found.append((raw.input_ids.tolist(), sorted(raw.edge_index.T.tolist())))
    assert found[0] == found[1]


def test_parquet_categories_and_mixed_ends(tmp_path):
    table = {"src": pa.array(["b", "a", "b"]).dictionary_encode(), "dst": [5, 6, 5]}
    pq.write_table(pa.table(table), tmp_path / "edges.parquet")
    raw = read(tmp_path / "edges.parquet")
    assert named_edges(raw) == [[b"b", b"5"], [b"a", b"6"], [b"b", b"5"]]


def test_weights_and_columns_come_along(tmp_path):
    (tmp_path / "edges.csv").write_text('from,to,amount\nbob,eve,0.5\neve,"amy, the",2\n')
    np.save(tmp_path / "labels.npy", np.array([2, 0, 1]))
    options = EdgeListOptions(relabel=True, header=True, weight_column="amount")
    raw = read_edgelist(tmp_path, ReadOptions(edges=options))
    assert raw.input_ids.tolist() == [b"amy, the", b"bob", b"eve"]
    assert (raw.edge_weight.tolist(), raw.labels.tolist()) == ([0.5, 2.0], [2, 0, 1])


def test_stated_nodes_must_be_as_many(tmp_path):
    (tmp_path / "edges.txt").write_text("b a\n")
    for num_nodes in (2, 3):
        (tmp_path / "meta.json").write_text(json.dumps({"name": "n", "num_nodes": num_nodes, "undirected": False}))
        if num_nodes == 2:
            assert read(tmp_path).num_nodes == 2
        else:
            with pytest.raises(ValueError, match="meta.json states 3 nodes but edges.txt has 2 distinct ids"):
                read(tmp_path)


def test_a_list_without_edges_is_refused(tmp_path):
    (tmp_path / "edges.txt").write_text("# nothing\n")
    with pytest.raises(ValueError, match="lists no edge"):
        read(tmp_path / "edges.txt")


@pytest.mark.parametrize("text", ["a\n", "a b c\n", "a b\nc\n"])
def test_a_line_that_is_no_edge_is_refused(tmp_path, text):
    (tmp_path / "edges.txt").write_text(text)
    with pytest.raises(ValueError, match=r"edges.txt, line \d: found '.*'; expected 2 fields"):
        read(tmp_path / "edges.txt")


class Drawn:
    """A source of many names, a chunk at a time."""

    def names(self, *, as_text):
        rng = np.random.default_rng(0)
        for _ in range(40):
            yield rng.integers(0, 2**62, (10_000, 2))


def test_names_that_take_too_much_memory_are_refused(monkeypatch):
    monkeypatch.setattr(relabel, "MERGE_BYTES", 1 << 16)
    with pytest.raises(ValueError, match=r"--relabel has found \d+ distinct ids of up to 8 bytes .*--memory-limit"):
        distinct_names(Drawn(), 10_000_000)
    names = distinct_names(Drawn(), 40_000_000)
    assert len(names) > 790_000
    assert sum(len(ids) for ids in numbered(Drawn(), names)) == 400_000


@pytest.mark.parametrize("left_out", ['"x, y"', '5"', '"a ""1"""'])
def test_quotes_in_a_column_that_is_left_out_leave_the_ids_integers(tmp_path, left_out):
    (tmp_path / "edges.csv").write_text(f"10,9,x\n9,8,{left_out}\n")
    options = EdgeListOptions(relabel=True, columns=("1", "2"))
    assert read_edgelist(tmp_path / "edges.csv", ReadOptions(edges=options)).input_ids.tolist() == [8, 9, 10]


@pytest.mark.parametrize("weight", ["-2", "1_0"])
def test_a_weight_that_is_none_is_refused_by_line(tmp_path, weight):
    (tmp_path / "edges.csv").write_text(f"bob,eve,0.5\neve,amy,{weight}\n")
    options = EdgeListOptions(relabel=True, weight_column="3")
    message = f"edges.csv, line 2: the weight is '{weight}'; expected a finite number, 0 or more"
    with pytest.raises(ValueError, match=message):
        read_edgelist(tmp_path / "edges.csv", ReadOptions(edges=options))
