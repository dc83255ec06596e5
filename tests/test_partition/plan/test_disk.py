"""Predicted bytes of a partition and of the work directory against the files themselves."""

from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from fastsample_dist.graph.inputs.sizes import sizes_of
from fastsample_dist.graph.storage import FEATURE_DTYPES
from fastsample_dist.partition.external.journal import JOURNAL_NAME, work_directory
from fastsample_dist.partition.plan.disk import feature_row_bytes, output_bytes, topology_file_bytes, work_bytes
from fastsample_dist.partition.progress import Progress
from fastsample_dist.partition.write.build import PartitionOptions, build_partition
from tests.test_partition.inputs import draw_raw


def size_of(path: Path) -> int:
    """Bytes of the files below a directory, the journal left out."""
    files = (file for file in path.rglob("*") if file.is_file() and not file.name.startswith(JOURNAL_NAME))
    return sum(file.stat().st_size for file in files)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("feature_dtype", ["keep", "bfloat16", "int8"])
def test_a_partition_is_as_large_as_predicted(tmp_path, weighted, feature_dtype):
    raw = draw_raw(undirected=False, weighted=weighted, num_nodes=5000, num_train=1000)
    options = PartitionOptions(num_parts=3, method="random", feature_dtype=feature_dtype)
    build_partition(raw, options, tmp_path / "parts")
    predicted = output_bytes(sizes_of(raw), 3, feature_dtype)
    assert size_of(tmp_path / "parts") == pytest.approx(predicted, rel=0.01)
    assert size_of(tmp_path / "parts" / "topology") == topology_file_bytes(sizes_of(raw))


class Watcher(Progress):
    """Takes the size of the work directory when bytes are reported, and at the end of each step."""

    def __init__(self, work: Path, output: Path) -> None:
        self.work, self.output, self.at_end, self.widest, self.running = work, output, {}, {}, ""

    @contextmanager
    def step(self, name):
        self.running = name
        yield
        self.at_end[name] = size_of(self.work) + (size_of(self.output) if self.output.exists() else 0)

    def bytes_done(self, count):
        self.widest[self.running] = max(self.widest.get(self.running, 0), size_of(self.work))


@pytest.mark.parametrize("weighted", [False, True])
def test_the_work_directory_is_as_large_as_predicted(tmp_path, weighted):
    raw = draw_raw(undirected=False, weighted=weighted, num_nodes=5000, num_train=1000)
    watcher = Watcher(work_directory(tmp_path / "parts"), tmp_path / "parts")
    options = PartitionOptions(num_parts=3, method="random", on_disk=True)
    build_partition(raw, options, tmp_path / "parts", progress=watcher)
    predicted = work_bytes(sizes_of(raw), 3)
    assert watcher.widest["topology"] == predicted["sort"]
    assert watcher.at_end["topology"] == predicted["assign"] - 4 * raw.num_nodes
    assert watcher.at_end["write"] == pytest.approx(predicted["write"], rel=0.01)


@pytest.mark.parametrize("dtype", FEATURE_DTYPES)
def test_feature_rows_are_as_wide_as_their_type(dtype):
    sizes = sizes_of(draw_raw(undirected=True))
    kept = type(sizes)(**{**sizes.__dict__, "feature_dtype": dtype})
    assert feature_row_bytes(kept) == 3 * np.dtype(dtype).itemsize
    assert feature_row_bytes(kept, "float16") == 6
