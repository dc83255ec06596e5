"""Names of graphs that a benchmark draws."""

import pytest

from fastsample_dist.bench.graphs import GraphSource, drawing_options, is_drawn
from fastsample_dist.graph.datasets import read_npy_graph


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("rmat:19:16", "rmat --scale 19 --edge-factor 16"),
        ("planted:1000:20000:5", "planted --nodes 1000 --edges 20000 --communities 5"),
        ("planted:1000:20000:5:0.4", "planted --nodes 1000 --edges 20000 --communities 5 --mixing 0.4"),
    ],
)
def test_a_name_is_a_command_of_the_generators(name, options):
    assert is_drawn(name) and drawing_options(name) == options.split()


@pytest.mark.parametrize("name", ["data/rmat", "planted", "debian", "parts:2"])
def test_other_names_are_not_drawn(name):
    assert not is_drawn(name)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("rmat:19", "rmat:SCALE:EDGE_FACTOR"), ("planted:10:20", "planted:NODES:EDGES:COMMUNITIES[:MIXING]")],
)
def test_a_name_that_only_looks_like_one_is_refused(tmp_path, name, shape):
    with pytest.raises(ValueError, match="graph is") as refused:
        GraphSource(name, tmp_path).check((1,))
    assert f"expected {shape} such as " in str(refused.value)


def test_a_planted_graph_is_drawn_with_the_task_and_cut(tmp_path):
    source = GraphSource("planted:400:3000:4", tmp_path, method="random")
    source.check((2,))
    parts = source.parts(2, lambda text: None)
    assert (parts / "manifest.json").is_file()
    raw = read_npy_graph(tmp_path / "planted-400-3000-4")
    assert (raw.features.shape, raw.num_classes, len(raw.splits["train"])) == ((400, 100), 47, 40)
