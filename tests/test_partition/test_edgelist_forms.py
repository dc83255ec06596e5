"""The command on edge lists as they are found: the same files as format npy gives, and the map of relabelled ids."""

import gzip
import json
import lzma
import signal

import numpy as np
import pytest

import fastsample_dist as fsd
from fastsample_dist.graph.inputs import EdgeListOptions, ReadOptions, edgelist, read_graph
from fastsample_dist.graph.storage import read_manifest
from fastsample_dist.partition import cli
from fastsample_dist.partition.cli import main
from tests.forked import run_code
from tests.test_partition.test_edgelist_input import KILLED_RUN, arguments, contents

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

NUM_NODES = 60
RNG = np.random.default_rng(7)
EDGES = RNG.integers(0, NUM_NODES, (400, 2))
EDGES[0] = [NUM_NODES - 1, 0]
WEIGHTS = RNG.random(400)
NAMES = np.array([f"n{number:05}" for number in range(NUM_NODES)])  # sorted as the ids are


def text(delimiter=" ", names=None, weights=False, header="") -> bytes:
    lines = [header] if header else []
    for edge, weight in zip(EDGES.tolist(), WEIGHTS.tolist(), strict=True):
        ends = [str(end) if names is None else names[end] for end in edge]
        lines.append(delimiter.join([*ends, repr(weight)] if weights else ends))
    return ("\n".join(lines) + "\n").encode()


def write_npy(path, weights=False):
    path.mkdir()
    (path / "meta.json").write_text(json.dumps({"name": "edges", "num_nodes": NUM_NODES, "undirected": False}))
    np.save(path / "edge_index.npy", EDGES.T.astype(np.int32))
    if weights:
        np.save(path / "edge_weight.npy", WEIGHTS)
    return path


def write_parquet(file, ends, **more):
    pq.write_table(pa.table({"src": ends[:, 0], "dst": ends[:, 1], **more}), file)


def zstd(data: bytes) -> bytes:
    return pa.compress(data, codec="zstd", asbytes=True)


FORMS = {  # file, how it is written, options, with weights
    "xz": ("edges.txt.xz", lambda file: file.write_bytes(lzma.compress(text())), [], False),
    "zst": ("edges.csv.zst", lambda file: file.write_bytes(zstd(text(","))), [], False),
    "header": ("edges.csv", lambda file: file.write_bytes(text(",", header="src,dst")), ["--header"], False),
    "semicolons": ("edges.csv", lambda file: file.write_bytes(text(";")), ["--delimiter", ";"], False),
    "third column": ("edges.txt", lambda file: file.write_bytes(text(weights=True)), ["--weight-column", 3], True),
    "weights left out": ("edges.txt", lambda file: file.write_bytes(text(weights=True)), ["--columns", "1,2"], False),
    "all at once": (
        "edges.tsv.gz",
        lambda file: file.write_bytes(gzip.compress(text("\t", weights=True, header="a\tb\tw"))),
        ["--header", "--delimiter", "tab", "--columns", "a,b", "--weight-column", "w"],
        True,
    ),
    "floats": ("edges.parquet", lambda file: write_parquet(file, EDGES.astype(float)), [], False),
    "named parquet": (
        "edges.parquet",
        lambda file: pq.write_table(pa.table({"w": WEIGHTS, "a": EDGES[:, 0], "b": EDGES[:, 1]}), file),
        ["--columns", "a,b", "--weight-column", "w"],
        True,
    ),
}
NAMED = {
    "names": ("edges.txt", lambda file: file.write_bytes(text(names=NAMES)), [], False),
    "names, header, weights": (
        "edges.csv.zst",
        lambda file: file.write_bytes(zstd(text(",", NAMES, weights=True, header="from,to,weight"))),
        ["--header", "--weight-column", "weight"],
        True,
    ),
    "names in parquet": ("edges.parquet", lambda file: write_parquet(file, NAMES[EDGES]), [], False),
    "sparse integers": (
        "edges.txt",
        lambda file: file.write_bytes(text(names=[str(number * 10**12) for number in range(NUM_NODES)])),
        [],
        False,
    ),
}


@pytest.fixture(params=[0, 1 << 26], ids=["mapped", "in memory"])
def small_bytes(request, monkeypatch):
    monkeypatch.setattr(edgelist, "SMALL_BYTES", request.param)


@pytest.mark.parametrize("case", FORMS)
def test_same_files_as_npy(tmp_path, small_bytes, case):
    name, write, options, weights = FORMS[case]
    write(tmp_path / name)
    assert main(arguments(tmp_path / name, tmp_path / "parts", *options)) == 0
    assert main(arguments(write_npy(tmp_path / "npy", weights), tmp_path / "wanted")) == 0
    assert contents(tmp_path / "parts") == contents(tmp_path / "wanted")


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("case", NAMED)
def test_relabelled_list_gives_the_same_files_and_the_names(tmp_path, small_bytes, case, on_disk):
    name, write, options, weights = NAMED[case]
    write(tmp_path / name)
    more = ["--on-disk"] if on_disk else []
    assert main(arguments(tmp_path / name, tmp_path / "parts", "--relabel", *options, *more)) == 0
    assert main(arguments(write_npy(tmp_path / "npy", weights), tmp_path / "wanted", *more)) == 0
    found, wanted = contents(tmp_path / "parts"), contents(tmp_path / "wanted")
    for files in (found, wanted):
        files.pop("manifest.json")
    assert "topology/input_ids.npy" in found
    found.pop("topology/input_ids.npy")
    assert found == wanted
    names = np.load(tmp_path / "parts/topology/input_ids.npy")
    expected = [10**12 * number for number in range(NUM_NODES)] if case == "sparse integers" else NAMES.tolist()
    assert [item if isinstance(item, int) else item.decode() for item in names.tolist()] == expected
    assert read_manifest(tmp_path / "parts").version == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "npy", "parts", "wanted"])


def test_the_names_are_checked_verified_and_carried_over(tmp_path, capsys):
    (tmp_path / "edges.txt").write_bytes(text(names=NAMES))
    assert main(arguments(tmp_path / "edges.txt", tmp_path / "parts", "--relabel")) == 0
    assert main(["--check", str(tmp_path / "parts")]) == 0
    assert main(["--repartition", str(tmp_path / "parts"), "6", "--output", str(tmp_path / "six")]) == 0
    stored = "topology/input_ids.npy"
    assert (tmp_path / "six" / stored).read_bytes() == (tmp_path / "parts" / stored).read_bytes()
    assert main(["--check", str(tmp_path / "six")]) == 0
    with fsd.DistContext.from_env() as ctx:
        assert main(arguments(tmp_path / "edges.txt", tmp_path / "one", "--relabel", "--num-parts", 1)) == 0
        data = fsd.DistData.load(tmp_path / "one", ctx)
        names = np.load(tmp_path / "one" / stored)[data.orig_ids(data.graph.indices[:5].long()).numpy()]
        assert set(names.tolist()) <= {name.encode() for name in NAMES.tolist()}
    data = bytearray((tmp_path / "parts" / stored).read_bytes())
    data[-1] ^= 1
    (tmp_path / "parts" / stored).write_bytes(data)
    capsys.readouterr()
    assert main(["--check", str(tmp_path / "parts")]) == 1
    assert "input_ids.npy: is altered" in capsys.readouterr().out


@pytest.mark.parametrize("count", [1, 6, 12])
def test_killed_while_relabelling_the_run_resumes_to_the_same_bytes(tmp_path, monkeypatch, count):
    (tmp_path / "edges.txt").write_bytes(text(names=[str(7 * number) for number in range(NUM_NODES)], weights=True))
    argv = arguments(tmp_path / "edges.txt", tmp_path / "parts", "--on-disk", "--relabel", "--weight-column", 3)
    assert run_code(KILLED_RUN, "read", str(count), *argv).returncode == -signal.SIGKILL
    monkeypatch.setattr(edgelist, "SMALL_BYTES", 0)
    assert main(argv) == 0
    plain = arguments(tmp_path / "edges.txt", tmp_path / "plain", "--relabel", "--weight-column", 3)
    assert main(plain) == 0
    assert contents(tmp_path / "parts") == contents(tmp_path / "plain")


def test_other_options_after_a_kill_read_the_list_anew(tmp_path, monkeypatch):
    (tmp_path / "edges.txt").write_bytes(text(weights=True))
    argv = arguments(tmp_path / "edges.txt", tmp_path / "parts", "--on-disk")
    done = run_code(KILLED_RUN, "save", "4", *argv, "--columns", "1,2")
    assert done.returncode == -signal.SIGKILL
    monkeypatch.setattr(edgelist, "SMALL_BYTES", 0)
    assert main([*argv, "--columns", "2,1"]) == 0
    assert main([*arguments(tmp_path / "edges.txt", tmp_path / "plain"), "--columns", "2,1"]) == 0
    assert contents(tmp_path / "parts") == contents(tmp_path / "plain")


def test_names_beyond_the_memory_limit_are_refused_in_one_line(tmp_path, capsys, monkeypatch):
    (tmp_path / "edges.txt").write_bytes(text(names=NAMES))
    monkeypatch.setattr(cli, "resident_bytes", lambda **how: 3_999_999_000)  # all but 1000 bytes of the limit
    assert main(arguments(tmp_path / "edges.txt", tmp_path / "parts", "--relabel", "--memory-limit", "4GB")) == 1
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and "--relabel has found 60 distinct ids of up to 6 bytes" in line
    assert "1000B are left within the memory limit; pass a --memory-limit that is at least" in line
    assert [path.name for path in tmp_path.iterdir()] == ["edges.txt"]


REFUSED = {
    "other format": ([], "npy", ["--header"], "--header goes with --format edgelist"),
    "no relabelling": (text(names=NAMES), "edges.txt", [], "pass --relabel if ids are names"),
    "weights twice": (text(weights=True), "list/edges.txt", ["--weight-column", 3], "has edge_weight.npy and a column"),
    "no such column": (text(), "edges.txt", ["--columns", "1,7"], "there is no column 7"),
    "delimiter": (text(), "edges.txt", ["--delimiter", "::"], "delimiter is '::'; expected one character"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_go_is_refused_in_one_line(tmp_path, capsys, case):
    data, name, options, message = REFUSED[case]
    graph = tmp_path / name
    if case == "other format":
        write_npy(graph)
    else:
        graph.parent.mkdir(exist_ok=True)
        graph.write_bytes(data)
        if graph.parent.name == "list":
            np.save(graph.parent / "edge_weight.npy", WEIGHTS)
            graph = graph.parent
    assert main(arguments(graph, tmp_path / "parts", *options)) == 1
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and message in line


def test_the_plan_takes_the_same_options(tmp_path, capsys):
    (tmp_path / "edges.csv").write_bytes(text(";", weights=True, header="a;b;w"))
    argv = ["--plan", "--input", str(tmp_path / "edges.csv"), "--num-parts", "2", "--json", str(tmp_path / "plan.json")]
    assert main([*argv, "--header", "--delimiter", ";", "--columns", "a,b", "--weight-column", "w"]) == 0
    graph = json.loads((tmp_path / "plan.json").read_text())["graph"]
    assert (graph["num_listed"], graph["weight_dtype"]) == (400, "float64") and graph["num_nodes"] == NUM_NODES
    assert main([*argv, "--relabel"]) == 1
    assert "pass --num-nodes and --num-edges" in capsys.readouterr().err


def test_a_list_read_in_python_is_cut_with_its_names(tmp_path):
    (tmp_path / "edges.txt").write_bytes(text(names=NAMES))
    raw = read_graph(tmp_path / "edges.txt", options=ReadOptions(edges=EdgeListOptions(relabel=True)))
    fsd.partition_graph(raw, num_parts=2, method="random", output=tmp_path / "parts")
    assert np.load(tmp_path / "parts/topology/input_ids.npy").tolist() == [name.encode() for name in NAMES.tolist()]
