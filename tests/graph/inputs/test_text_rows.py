"""Blocks of text as arrays: pyarrow and NumPy read the same, or refuse in the same words; names; layouts."""

import importlib.util
import logging

import numpy as np
import pytest

from fastsample_dist.graph.inputs import EdgeListOptions, text_edges, text_rows
from fastsample_dist.graph.inputs.text_edges import TextEdges
from fastsample_dist.graph.inputs.text_rows import RowLayout, find_layout, parse_rows, split_names

WITH_PYARROW = importlib.util.find_spec("pyarrow") is not None
SAME = {
    "blanks": (b"0 1\n23 4\n", " "),
    "tabs": (b"0\t1\n23\t4", " "),
    "many blanks": (b"0   1\n 23\t4 \n", " "),
    "commas": (b"0,1\n23,4\n", ","),
    "commas and blanks": (b"0, 1\n 23 ,4\n", ","),
    "windows": (b"0,1\r\n23,4\r\n", ","),
    "empty lines": (b"\n0,1\n\n\n23,4\n\n", ","),
    "comments": (b"# x\n0,1 # y\n23,4\n", ","),
    "signs": (b"+0,1\n23,+4\n", ","),
    "zeros": (b"00,01\n0023,4\n", ","),
}
REFUSED = [
    b"0x1F,1\n",
    b"0,1,2\n",
    b"0\n",
    b"0,\n",
    b",1\n",
    b"0,1.0\n",
    b"0,1e3\n",
    b'"0","1"\n',
    b"0,1\r2,1\r",
    b"a,b\n",
]
REFUSED += [
    b"a,b\n",
    b"0,9223372036854775808\n",
    b"1_0,2\n",
    b"0,nan\n",
    b"0,true\n",
    b"\x000,1\n",
    b"0,\xe9\n",
    b"0,1\n2;3\n",
]


def read(file, **options):
    source = TextEdges([file], 1000, lambda count: None, EdgeListOptions(**options))
    edges = np.concatenate([np.empty((0, 2), np.int64), *source.chunks()]).tolist()
    return edges, (np.concatenate(list(source.weights())).tolist() if source.has_weights else None)


@pytest.fixture(params=[False, True], ids=["numpy", "pyarrow"])
def fast(request, monkeypatch):
    """Text is read without and with pyarrow."""
    if request.param and not WITH_PYARROW:
        pytest.skip("pyarrow is not installed, so its parser is not compared")
    monkeypatch.setattr(text_edges, "FAST_BYTES", 0 if request.param else 1 << 60)
    return request.param


@pytest.mark.parametrize("case", SAME)
def test_both_parsers_read_the_same(case, fast):
    block, delimiter = SAME[case]
    edges, weights = parse_rows(block, RowLayout(delimiter), fast=fast)
    assert (edges.dtype, edges.tolist(), weights) == (np.int64, [[0, 1], [23, 4]], None)


@pytest.mark.parametrize("line", [b"7  8", b"7 8 ", b" 7 8", b"7\t8\t", b"7\t8\ty z", b"7 8 y\fz"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_blank_too_many_is_no_field_to_either(line, place, fast):
    """A line of two, or of four, fields where three are expected."""
    rows = [b"0\t1\tx" if b"\t" in line else b"0 1 x"] * 2
    with pytest.raises(ValueError, match="columns"):
        parse_rows(b"\n".join([*rows[:place], line, *rows[place:]]), RowLayout(" ", 3), fast=fast)


def test_fields_between_mixed_blanks_are_the_same(fast):
    edges, _ = parse_rows(b"1\t7\t5\t9\n1\t7 8\t5\t\n", RowLayout(" ", 4, (0, 2)), fast=fast)
    assert edges.tolist() == [[1, 5], [1, 8]]


@pytest.mark.parametrize("name", ["z\u00e0b", "a\u0085b", "a\x1cb"])
def test_a_name_that_is_left_out_may_have_any_letters(name, fast):
    edges, _ = parse_rows(f"1 2 {name}\n3 4 x\n".encode(), RowLayout(" ", 3), fast=fast)
    assert edges.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("line", [b"  ", b"\t", b" \r", b"  # y"])
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("layout", [RowLayout(","), RowLayout(",", 3, (0, 2))], ids=["plain", "wide"])
def test_lines_of_blanks_are_empty(line, place, layout, fast):
    rows = [b"1,2,2", b"10,1,1"] if layout.width == 3 else [b"1,2", b"10,1"]
    edges, _ = parse_rows(b"\n".join([*rows[:place], line, *rows[place:]]), layout, fast=fast)
    assert edges.tolist() == [[1, 2], [10, 1]]


@pytest.mark.parametrize("block", REFUSED)
def test_both_parsers_refuse_the_same(block, fast):
    with pytest.raises((ValueError, OverflowError, DeprecationWarning)):
        parse_rows(block, RowLayout(","), fast=fast)


@pytest.mark.parametrize("block", REFUSED)
def test_refusals_have_the_same_words(block, tmp_path, monkeypatch):
    messages = []
    (tmp_path / "edges.txt").write_bytes(b"0,1\n" + block)
    for least in (0, 1 << 60):
        monkeypatch.setattr(text_edges, "FAST_BYTES", least)
        with pytest.raises(ValueError, match=r"edges.txt, line \d") as refusal:
            read(tmp_path / "edges.txt")
        messages.append(str(refusal.value))
    assert messages[0] == messages[1]


def test_plain_blocks_do_go_through_pyarrow(fast, tmp_path, monkeypatch):
    monkeypatch.setattr(text_rows, "_parse_with_numpy", lambda *given: pytest.fail("NumPy read the block"))
    (tmp_path / "edges.csv").write_text("0,1\n2,3\n")
    if fast:
        assert read(tmp_path / "edges.csv") == ([[0, 1], [2, 3]], None)


def test_drawn_lists_are_the_same(fast, tmp_path):
    rng = np.random.default_rng(0)
    edges, weights = rng.integers(0, 1000, (5000, 2)), rng.random(5000) * 10.0 ** rng.integers(-300, 300, 5000)
    rows = zip(edges.tolist(), weights.tolist(), strict=True)
    (tmp_path / "edges.csv").write_text("".join(f"{src};{weight!r};name;{dst}\n" for (src, dst), weight in rows))
    found = read(tmp_path / "edges.csv", delimiter=";", columns=("1", "4"), weight_column="2")
    assert found == (edges.tolist(), weights.tolist())


LAYOUTS = {
    "header": ("src,dst\n5,6\n7,8\n", {"header": True}, None),
    "header behind comments": ("# c\n\nsrc,dst\n5,6\n7,8\n", {"header": True}, None),
    "header by known names": ("id,target,source\n1,6,5\n1,8,7\n", {"header": True}, None),
    "header with blanks": ("from to\n5 6\n7 8\n", {"header": True}, None),
    "header of other names": ("a\tb\n5\t6\n7\t8\n", {"header": True}, None),
    "quoted header": ('"a b","c,d"\n5,6\n7,8\n', {"header": True}, None),
    "named columns": ("x,b,a\n9,6,5\n9,8,7\n", {"header": True, "columns": ("a", "b")}, None),
    "numbered columns": ("9 6 5\n9 8 7\n", {"columns": ("3", "2")}, None),
    "semicolons": ("5;6\n7;8\n", {"delimiter": ";"}, None),
    "pipes": ("5|6\n7|8\n", {"delimiter": "pipe"}, None),
    "tabs": ("5\t6\n7\t8\n", {"delimiter": "tab"}, None),
    "commas given": ("5,6\n7,8\n", {"delimiter": "comma"}, None),
    "blanks given": ("5  6\n7\t8\n", {"delimiter": "space"}, None),
    "header with a name twice": ("u,v,x,x\n5,6,1,2\n7,8,1,2\n", {"header": True}, None),
    "third column": ("5 6 0.5\n7 8 2\n", {"weight_column": "3"}, [0.5, 2.0]),
    "third column of four": ("5,6,1e-3,x\n7,8,0,y\n", {"weight_column": "3"}, [0.001, 0.0]),
    "first column": ("0.5,5,6\n2,7,8\n", {"weight_column": "1"}, [0.5, 2.0]),
    "named weight": ("src,dst,amount\n5,6,0.5\n7,8,2\n", {"header": True, "weight_column": "amount"}, [0.5, 2.0]),
}


@pytest.mark.parametrize("case", LAYOUTS)
@pytest.mark.parametrize("block_bytes", [1, 7, 1 << 22])
def test_lists_as_they_are(case, block_bytes, fast, tmp_path, monkeypatch):
    monkeypatch.setattr(text_edges, "BLOCK_BYTES", block_bytes)
    text, options, weights = LAYOUTS[case]
    (tmp_path / "edges.txt").write_text(text)
    assert read(tmp_path / "edges.txt", **options) == ([[5, 6], [7, 8]], weights)


BAD = [
    (
        "src,dst\n5,6\n7,x\n",
        {"header": True},
        "line 3: found '7,x'; expected two integers",
    ),
    ("src,dst\nsrc,dst\n5,6\n", {"header": True}, "line 2: found 'src,dst'"),
    (
        "a,b,c\n1,2,3\n",
        {"header": True},
        "line 1: found the columns a, b, c; pass source and destination",
    ),
    ("a,b\n1,2\n", {"columns": ("a", "b")}, "line 1: there is no column a but 2 columns; .*or pass --header"),
    ("1,2\n", {"columns": ("1", "3")}, "there is no column 3 but 2 columns; pass a number from 1"),
    ("a,b\n1,2\n", {"header": True, "columns": ("a", "c")}, "there is no column c but the names a, b"),
    (
        "5 6 0.5\n7 8\n",
        {"weight_column": "3"},
        "line 2: found '7 8'; expected 3 fields between blanks, .*weight",
    ),
    ("5 6 0.5\n7 8 x\n", {"weight_column": "3"}, "line 2: the weight is 'x'; expected a finite number, 0 or more"),
    ("5 6 0.5\n7 8 -1\n", {"weight_column": "3"}, "line 2: the weight is '-1'; expected a finite number, 0 or more"),
    ("5 6 0.5\n7 8 nan\n", {"weight_column": "3"}, "line 2: the weight is 'nan'; expected a finite number"),
    ("5 6 0.5\n7 8 inf\n", {"weight_column": "3"}, "line 2: the weight is 'inf'; expected a finite number"),
    ("5;6\n7,8\n", {"delimiter": ";"}, "line 2: found '7,8'"),
    ("5 6 1_0\n", {"weight_column": "3"}, "line 1: the weight is '1_0'; expected a finite number"),
    ("a,a,b\n1,2,3\n", {"header": True, "columns": ("a", "b")}, "line 1: 2 columns are called a; expected one; rename"),
    ("src,SRC,dst\n1,2,3\n", {"header": True}, "line 1: 2 columns are called src; expected one; rename them"),
    ("u,v,w,w\n1,2,3,4\n", {"header": True, "weight_column": "w"}, "line 1: 2 columns are called w; expected one"),
]


@pytest.mark.parametrize("text, options, message", BAD)
def test_what_does_not_fit_is_refused_by_line(text, options, message, fast, tmp_path):
    (tmp_path / "edges.txt").write_text(text)
    with pytest.raises(ValueError, match=rf"edges.txt, {message}|edges.txt, line 1: {message}") as refusal:
        read(tmp_path / "edges.txt", **options)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"delimiter": "::"}, "delimiter is '::'; expected one character"),
        ({"delimiter": "#"}, "delimiter is '#'"),
        ({"delimiter": "a"}, "delimiter is 'a'"),
        ({"columns": ("1",)}, "columns is '1'; expected source and destination"),
        ({"columns": ("1", "1")}, "the columns 1, 1 are not different"),
        ({"columns": ("1", "2"), "weight_column": "2"}, "the columns 1, 2, 2 are not different"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        EdgeListOptions(**options)


def test_columns_that_are_left_out_are_said(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    (tmp_path / "edges.csv").write_text("src,dst,weight,kind\n0,1,0.5,x\n")
    assert read(tmp_path / "edges.csv", header=True) == ([[0, 1]], None)
    assert "columns left out: weight, kind" in caplog.text
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == 1 and "pass --weight-column weight to take it" in warned[0]


def test_names_are_split_as_they_stand(tmp_path):
    block = b'# c\nhttp://a#1, b c\n"x,y",\xc3\xa9\n\n'
    found = split_names(tmp_path, 1, block, find_layout("here", b"a,b", EdgeListOptions(relabel=True)))
    assert found.tolist() == [[b"http://a#1", b"b c"], [b"x,y", "\u00e9".encode()]]


@pytest.mark.parametrize("line", [b"a", b"a,b,c", b"a,", b",b", b"a,\xe9", b"a,b\x00", b"a," + b"b" * 1025])
def test_a_line_without_two_names_is_refused(tmp_path, line):
    with pytest.raises(ValueError, match=r"edges.csv, line 8: found .*; expected (2 fields|ids of 1 to|text in UTF-8)"):
        split_names(tmp_path / "edges.csv", 7, b"a,b\n" + line + b"\n", RowLayout(","))
