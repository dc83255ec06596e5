"""The table of epochs beside its peers; PyG's and GraphLearn's side of it where neither can be installed."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from fastsample_dist.command import run_command
from fastsample_dist.graph import storage
from fastsample_dist.graph.csc import CSCGraph
from fastsample_dist.interop import pyg
from fastsample_dist.sampling.neighbor import NeighborSampler
from tests.train.task import make_targets, make_task

SCRIPTS = Path(__file__).resolve().parents[2] / "benchmarks"


def load(name):
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


epoch_table, pyg_batches, pyg_epoch = map(load, ("epoch_table", "pyg_batches", "pyg_epoch"))


def shown(*cases):
    rows = {
        epoch_table.title(case): {"epoch": 2.0 + number, "sample": 1.0, "fetch": 1.0 + number}
        for number, case in enumerate(cases)
    }
    return epoch_table.table(rows, dict(zip(rows, cases, strict=True))).splitlines()


OURS, PYG = ("hybrid", "fp32", 0.5, "torchrun"), ("PyG", "fp32", 0.5, "one machine")


def test_epochs_are_compared_with_the_peers_that_were_measured():
    head, _, ours, peer = shown(OURS, PYG)
    assert head.endswith("| epoch of PyG / this | sample + fetch of PyG / this |") and "DistDGL" not in head
    assert ours.endswith("| 1.50x | 1.50x |") and peer.endswith("| 1.00x | 1.00x |")
    head, _, ours, _ = shown(OURS, ("DistDGL 1.1.3", "fp32", 0.0, "one machine"))
    assert "epoch of DistDGL on one machine / this" in head and ours.endswith("| - | - |")  # another dropout
    head, _, ours, _, _ = shown(OURS, *(("GraphLearn", "fp32", 0.5, where) for where in ("one machine", "hosts")))
    assert "| epoch of GraphLearn on one machine / this | epoch of GraphLearn on hosts / this |" in head
    assert ours.endswith("| 1.50x | 2.00x | 1.50x | 2.00x |")


def parts_of(tmp_path, num_parts):
    return make_task(tmp_path, num_parts, dtype="float32").path


@pytest.fixture
def own_sampler(monkeypatch):
    """Batches of PyG's law drawn by this library: pyg-lib, which draws PyG's own, is on no package registry."""
    pytest.importorskip("torch_geometric")

    def neighbor_loader(graph: CSCGraph, seeds, *, fanouts, batch_size, workers):
        sampler = NeighborSampler(graph, fanouts, rng_seed=1)
        return [pyg.to_data(sampler.sample(own, step=0)) for own in seeds.split(batch_size)]

    monkeypatch.setattr(pyg, "neighbor_loader", neighbor_loader)


def arguments(path, *options):
    given = ["--data", str(path), "--fanouts", "3,3", "--batch-size", "8", "--hidden", "8", "--dropout", "0"]
    return pyg_epoch.make_parser().parse_args([*given, *options])


def test_pyg_trains(tmp_path, own_sampler):
    args = arguments(parts_of(tmp_path, 1))
    own = pyg_epoch.Rank(args, pyg_batches.NeighborBatches(args, 0, 1), 1)
    epochs = [own.run_epoch() for _ in range(3)]
    assert epochs[0]["epoch"] >= sum(epochs[0][part] for part in pyg_epoch.PARTS) * 0.99
    assert epochs[0]["edges"] > 0 and epochs[0]["inputs"] > 0
    assert epochs[2]["loss"] < epochs[0]["loss"]


def test_message_flow_graphs_are_counted(tmp_path, own_sampler):
    own = pyg_batches.NeighborBatches(arguments(parts_of(tmp_path, 1)), 0, 1)
    neighbors = [set(its.tolist()) for its in own.graph.indices.tensor_split(own.graph.indptr[1:-1])]
    edges = inputs = rows = 0
    for seeds in (batches := own.seeds.split(8)):
        reached = [set(seeds.tolist())]
        for _ in range(2):
            reached.append(reached[-1].union(*(neighbors[node] for node in reached[-1])))
        edges += sum(own.graph.in_degrees()[list(nodes)].sum().item() for nodes in reached[:2])
        inputs, rows = inputs + len(reached[2]), rows + len(reached[1])
    every = own.graph.num_edges  # a fanout that takes all neighbours
    assert pyg_epoch.count_mfgs(own.graph, batches, [every, every]) == (edges, inputs, rows)


def test_ranks_make_as_many_steps_as_each_other(tmp_path, own_sampler):
    path = parts_of(tmp_path, 1)
    ranks = [pyg_batches.NeighborBatches(arguments(path, "--batch-size", "1"), rank, 7) for rank in (0, 6)]
    counts = [[len(list(rank.loader)), rank.steps] for rank in ranks]
    assert counts[0][0] > counts[1][0] == counts[0][1] == counts[1][1]


def test_graphlearn_gets_the_rows_of_its_part(tmp_path):
    path = parts_of(tmp_path, 2)
    manifest = storage.read_manifest(path)
    graph, lo = storage.load_topology(path, manifest), manifest.part_ranges[1]
    indices, indptr = pyg_batches.rows_of(graph, lo, graph.num_nodes)
    degrees = graph.in_degrees()
    degrees[:lo] = 0
    assert torch.equal(indptr.diff(), degrees) and indptr.dtype == indices.dtype == torch.int64
    assert torch.equal(indices, graph.indices[graph.indptr[lo] :].long()) and 0 < indices.numel() < graph.num_edges


def test_a_task_of_other_labels_is_refused_in_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)  # both would last as long as this process
    monkeypatch.setattr(pyg_epoch, "reuse_freed_memory", lambda: None)
    words = ["--data", str(make_targets(tmp_path, 1, "multilabel"))]
    for more, message in (
        ([], "lacks float32 features, classes or training nodes"),
        (["--epochs", "1"], "--epochs is 1"),
        (["--sampling-processes", "1"], "pass --loader graphlearn too"),
    ):
        assert run_command(pyg_epoch.make_parser(), pyg_epoch.measure, [*words, *more]) == 1
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and message in error


@pytest.mark.parametrize(("num_parts", "message"), [(2, "has 2 parts; expected 1"), (1, "pyg_lib or torch_sparse")])
def test_what_pyg_cannot_sample_is_refused(tmp_path, num_parts, message):
    typing = pytest.importorskip("torch_geometric.typing")
    if num_parts == 1 and (typing.WITH_PYG_LIB or typing.WITH_TORCH_SPARSE):
        pytest.skip("a sampler of PyG's is installed")
    with pytest.raises((ValueError, ImportError), match=message):
        pyg_batches.NeighborBatches(arguments(parts_of(tmp_path, num_parts)), 0, 1)


def test_graphlearn_is_asked_for_where_it_is_missing(tmp_path, monkeypatch):
    args = arguments(parts_of(tmp_path, 2), "--loader", "graphlearn")
    monkeypatch.setitem(sys.modules, "graphlearn_torch", None)
    with pytest.raises(ImportError, match="--loader graphlearn needs graphlearn_torch"):
        pyg_batches.GraphLearnBatches(args, 0, 2)


def test_graphlearn_needs_a_part_for_every_rank(tmp_path, monkeypatch):
    args = arguments(parts_of(tmp_path, 2), "--loader", "graphlearn")
    monkeypatch.setitem(sys.modules, "graphlearn_torch", ModuleType("graphlearn_torch"))
    with pytest.raises(ValueError, match="has 2 parts and there are 3 ranks"):
        pyg_batches.GraphLearnBatches(args, 0, 3)
