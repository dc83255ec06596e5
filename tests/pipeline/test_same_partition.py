"""DistData.load: ranks with different partitions, or different releases, are refused alike before training."""

import shutil

import numpy as np
import pytest

from fastsample_dist import DistData
from fastsample_dist.graph.datasets import RawGraph
from fastsample_dist.partition.write.build import PartitionOptions, build_partition
from fastsample_dist.testing import mpi_missing_reason, run_distributed, run_mpi
from tests.parts import draw_partition

REMEDY = "give every rank the same partition: copy it again from one place."


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Partitions of the same size: one, its copy elsewhere, another graph, other features alone."""
    make = tmp_path_factory.mktemp
    one = draw_partition(make("one"), 2).path
    copy = make("copy") / "of parts"
    shutil.copytree(one, copy)
    graph = draw_partition(make("graph"), 2, seed=6).path
    features = draw_partition(make("features"), 2, feature_dtype="float64").path
    return {"one": one, "copy": copy, "graph": graph, "features": features}


def load(ctx, path_by_rank):
    """What loading says on this rank, "" when it succeeds; the communicator must be usable afterwards."""
    try:
        DistData.load(path_by_rank[ctx.rank], ctx)
    except ValueError as error:
        text = str(error)
    else:
        text = ""
    ctx.comm.barrier()
    return text


def test_copies_at_other_paths_are_one_partition(paths):
    assert run_distributed(2, load, args=((paths["one"], paths["copy"]),)) == ["", ""]


@pytest.mark.parametrize("other", ["graph", "features"])
def test_another_partition_on_one_rank_is_refused_on_all(paths, other):
    (text,) = set(run_distributed(2, load, args=((paths["one"], paths[other]),)))
    assert_names_both(text)


@pytest.mark.grid
@pytest.mark.skipif(mpi_missing_reason() is not None, reason=str(mpi_missing_reason()))
def test_the_same_over_mpi(paths):
    (text,) = set(run_mpi(2, load, args=((paths["one"], paths["graph"]),)))
    assert_names_both(text)


def assert_names_both(text):
    assert text.startswith("DistData: ranks differ in sha256 of manifest.json: '")
    assert text.count(" on rank 0; '") == 1
    assert "' on rank 1" in text
    assert text.endswith(REMEDY)


def test_another_seed_of_the_cut_is_named(tmp_path):
    """The same graph and number of parts, cut at random with another seed."""
    graph = {
        "name": "ring", "num_nodes": 40, "undirected": False,
        "edge_index": np.stack([np.arange(40), np.roll(np.arange(40), 1)]), "splits": {}, "features": None,
        "labels": None, "num_classes": 0,
    }  # fmt: skip
    for seed in (1, 2):
        options = PartitionOptions(num_parts=2, method="random", seed=seed)
        build_partition(RawGraph(**graph), options, tmp_path / f"cut-{seed}")
    (text,) = set(run_distributed(2, load, args=((tmp_path / "cut-1", tmp_path / "cut-2"),)))
    assert "; in seed: 1 on rank 0; 2 on rank 1; " in text


def load_with_another(ctx, path, name, value):
    if ctx.rank == 1:
        import fastsample_dist.pipeline.data as module

        setattr(module, name, value)
    return load(ctx, (path, path))


@pytest.mark.parametrize(
    ("name", "value", "label"),
    [("__version__", "9.9", "release"), ("EXCHANGE_SCHEMA", 99, "schema of what ranks exchange")],
)
def test_another_release_on_one_rank_is_refused_on_all(paths, name, value, label):
    (text,) = set(run_distributed(2, load_with_another, args=(paths["one"], name, value)))
    assert text.startswith(f"DistData: ranks differ in {label}: ")
    assert text.endswith(f"; {value!r} on rank 1; install the same release of fastsample_dist on every machine.")


@pytest.mark.parametrize("path", [None, 3])
def test_what_is_no_path_is_refused(path, ctx):
    with pytest.raises(ValueError, match=f"^path is {path}; expected the output directory of fastsample-partition.$"):
        DistData.load(path, ctx)


def test_what_is_no_context_is_refused(paths):
    with pytest.raises(ValueError, match=r"^ctx is a NoneType; expected a DistContext, such as DistContext.from_env"):
        DistData.load(paths["one"], None)
