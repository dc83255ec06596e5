"""Labels far apart are refused in the formats of other libraries as in npy: no model of a billion classes."""

import dataclasses

import numpy as np
import pytest

from fastsample_dist.graph.inputs import ReadOptions, Scratch, read_graph
from tests.graph.inputs.layouts import draw_graph, write_chunked, write_npy, write_ogb, write_pyg

LAYOUTS = {
    "ogb": write_ogb,
    "dgl-chunked": write_chunked,
    "pyg": lambda path, graph: write_pyg(path / "data.pt", graph),
}


@pytest.mark.parametrize("label", [10**8, 10**9])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_labels_far_apart_are_refused(tmp_path, layout, label):
    drawn = draw_graph()
    far = dataclasses.replace(drawn, labels=np.where(drawn.labels == 2, label, drawn.labels))
    source = LAYOUTS[layout](tmp_path / "far", far)
    with (
        Scratch(tmp_path / "scratch") as scratch,
        pytest.raises(ValueError, match=f"has 3 distinct labels but the highest is {label}, which means") as refusal,
    ):
        read_graph(source, layout, ReadOptions(scratch=scratch))
    assert "\n" not in str(refusal.value)


def test_npy_states_its_classes(tmp_path):
    drawn = draw_graph()
    far = dataclasses.replace(drawn, labels=np.where(drawn.labels == 2, 10**8, drawn.labels))
    with pytest.raises(ValueError, match="has 3 distinct labels but the highest is 100000000"):
        read_graph(write_npy(tmp_path / "far", far))
