"""Every input format gives the same partition files as the same graph in format npy."""

import pickle
from pathlib import Path

import pytest

from fastsample_dist.graph.inputs import FORMATS
from fastsample_dist.partition.cli import main
from tests.forked import run_python
from tests.graph.inputs.layouts import (
    draw_graph,
    write_chunked,
    write_graphbolt,
    write_npy,
    write_ogb,
    write_ogb_binary,
    write_pyg,
)

LAYOUTS = {
    "ogb": ("ogb", write_ogb),
    "ogb npz": ("ogb", lambda path, graph: write_ogb_binary(path, graph, packed=False)),
    "ogb npz packed": ("ogb", lambda path, graph: write_ogb_binary(path, graph, packed=True)),
    "dgl-chunked": ("dgl-chunked", write_chunked),
    "graphbolt": ("graphbolt", write_graphbolt),
    "pyg": ("pyg", lambda path, graph: write_pyg(path / "data.pt", graph)),
}
WITH_WEIGHTS = ("dgl-chunked", "graphbolt", "pyg")


def cut(source: Path, output: Path, *options: str) -> dict[str, bytes]:
    """The files of a partition made by the command, without the manifest."""
    arguments = ["--input", str(source), "--num-parts", "2", "--method", "random", "--output", str(output), *options]
    assert main(arguments) == 0
    return {str(file.relative_to(output)): file.read_bytes() for file in sorted(output.rglob("*.npy"))}


@pytest.mark.parametrize("undirected", [False, True])
@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_partition_is_that_of_npy(tmp_path, layout, on_disk, undirected):
    graph, (name, write) = draw_graph(weighted=layout in WITH_WEIGHTS), LAYOUTS[layout]
    write_npy(tmp_path / "npy", graph)
    if undirected:
        meta = tmp_path / "npy/meta.json"
        meta.write_text(meta.read_text().replace("false", "true"))
    options = ["--on-disk"] if on_disk else []
    expected = cut(tmp_path / "npy", tmp_path / "expected", *options)
    more = [*options, "--undirected"] if undirected else options
    assert cut(write(tmp_path / "given", graph), tmp_path / "parts", "--format", name, *more) == expected
    assert ("topology/weights.npy" in expected) == (layout in WITH_WEIGHTS)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_is_left_beside_the_output(tmp_path, layout):
    name, write = LAYOUTS[layout]
    cut(write(tmp_path / "given", draw_graph()), tmp_path / "parts", "--format", name)
    assert sorted(item.name for item in tmp_path.iterdir()) == ["given", "parts"]


def test_a_refusal_is_one_line_and_leaves_nothing(tmp_path, capsys):
    source = write_chunked(tmp_path / "given", draw_graph())
    (source / "node_data/node/feat-1.npy").unlink()
    arguments = ["--input", str(source), "--num-parts", "2", "--output", str(tmp_path / "parts")]
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "feat-1.npy is missing" in error
    assert [item.name for item in tmp_path.iterdir()] == ["given"]


def test_a_foreign_pickle_is_refused_in_one_line(tmp_path):
    (tmp_path / "data.pt").write_bytes(pickle.dumps({"x": 1}))
    options = ("--input", tmp_path / "data.pt", "--num-parts", 2, "--output", tmp_path / "parts")
    run = run_python("-m", "fastsample_dist.partition.cli", *options)
    assert run.returncode == 1
    assert run.stderr.count("\n") == 1 and "data.pt cannot be loaded safely" in run.stderr


def test_every_format_is_there():
    assert {"npy", "edgelist", "ogb", "dgl", "dgl-chunked", "graphbolt", "pyg"} <= set(FORMATS)
