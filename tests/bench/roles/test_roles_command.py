"""fastsample-bench roles: the command, its comparison of losses, its arithmetic."""

import json

import pytest
import torch

from fastsample_dist import FeatureCache
from fastsample_dist.bench import cli
from fastsample_dist.bench.roles import rank
from fastsample_dist.bench.roles.measure import differences, stage_times, summarize
from fastsample_dist.bench.roles.rank import roles_of, split_ways
from fastsample_dist.bench.roles.report import ways_table
from fastsample_dist.graph.manifest import read_manifest
from fastsample_dist.graph.placed import topology_bytes
from fastsample_dist.graph.storage import load_topology
from fastsample_dist.pipeline.roles import Roles
from fastsample_dist.testing import run_distributed
from tests.cuda_devices import kernels_on_the_cpu, require_overrides
from tests.parts import FEATURE_DIM, draw_partition
from tests.waiting import ENOUGH_S

ROW_BYTES = 4 * FEATURE_DIM
SMALL = ("--batch-size", "8", "--fanouts", "3,2", "--hidden", "4", "--epochs", "2", "--verify")


def topology_of(path):
    return topology_bytes(load_topology(path, read_manifest(path)))


def run(capsys, *options):
    status = cli.main(["roles", *(str(option) for option in options)])
    return status, capsys.readouterr()


def test_every_way_is_measured_predicted_and_trains_the_same(forked_ranks, tmp_path, capsys):
    parts, file = draw_partition(tmp_path, 2).path, tmp_path / "out.json"
    status, printed = run(capsys, "--graph", parts, *SMALL, "--json", file)
    assert status == 0, printed
    assert "verify: equal losses" in printed.out and "GNNLab's rule 1 sampler(s)" in printed.out
    (found,) = json.loads(file.read_text())["runs"]
    ways = {way["name"]: way for way in found["ways"]}
    assert list(ways) == ["none", "1+1", "1+1 stay", "auto"]
    assert all(way["predicted_s"] > 0 and len(way["epochs_s"]) == 2 for name, way in ways.items() if name != "auto")
    assert ways["auto"]["roles"] in ("none", "1+1") and ways["1+1 stay"]["stood_by"] == 0


def test_splits_have_a_staleness_and_auto_has_none(forked_ranks, tmp_path, capsys):
    parts = draw_partition(tmp_path, 2).path
    status, printed = run(capsys, "--graph", parts, *SMALL[:-1], "--staleness", 1, "--switching", "off")
    assert status == 0 and "staleness 1; " in printed.out, printed


def test_splits_of_a_staleness_are_compared_among_themselves(forked_ranks, tmp_path, capsys):
    """Time sharing and "auto" have none, so other losses."""
    parts, file = draw_partition(tmp_path, 2).path, tmp_path / "out.json"
    status, printed = run(capsys, "--graph", parts, *SMALL, "--staleness", 1, "--json", file)
    assert status == 0 and "verify: equal losses" in printed.out, printed
    losses = {way["name"]: way["loss"] for way in json.loads(file.read_text())["runs"][0]["ways"]}
    assert losses["1+1"] == losses["1+1 stay"] != losses["none"]


def test_one_split_of_a_staleness_has_nothing_to_be_compared_with(capsys):
    status, printed = run(capsys, "--staleness", "2", "--switching", "off", "--verify")
    assert status == 1 and "--verify compares the splits of --staleness 2, and 2 ranks have one" in printed.err


def on_the_emulator(ctx, library, settings):
    """What a rank with a GPU measures: room for 20 rows beside the topology, for 40 without."""

    def cache(data, roles):
        return FeatureCache((40 if isinstance(roles, Roles) else 20) * data.features.local.row_bytes)

    with pytest.MonkeyPatch.context() as monkeypatch, kernels_on_the_cpu(library):
        monkeypatch.setattr(rank, "on_gpu", lambda ctx: ctx)
        monkeypatch.setattr(rank, "limit_tables", lambda data, memory_bytes: None)
        monkeypatch.setattr(rank, "cache_of", cache)
        return rank.roles_rank(ctx, settings)


def test_a_gpu_that_only_trains_has_the_larger_cache(emulated_library, tmp_path):
    require_overrides()
    settings = {
        "path": str(draw_partition(tmp_path, 2).path), "ways": ["none", "1+1 stay", "auto"], "epochs": 1,
        "batch_size": 20, "fanouts": (3, 2), "hidden": 4, "dropout": 0.5, "rng_seed": 0, "staleness": 0,
        "device": "cuda", "gpu_memory": None,
    }  # fmt: skip
    results = run_distributed(2, on_the_emulator, args=(emulated_library, settings), timeout_s=ENOUGH_S)
    found = summarize(results, 0, on_gpus=True)
    none, stay, auto = found["ways"]
    assert none["cache_rows"] == auto["cache_rows"] == 20 and stay["cache_rows"] == 40
    assert 0 < none["hit_rate"] < stay["hit_rate"] < 1 and found["differences"] == []
    assert found["times"]["fetch_factored_s"] > 0
    assert [column.header for column in ways_table(found).columns][-2:] == ["cached rows", "hits"]


@pytest.mark.gpu
@pytest.mark.parametrize("beside", [None, 10])
def test_a_gpu_is_measured(tmp_path, capsys, beside):
    """Tables may take a share of it, or no more than the topology and so many rows beside it."""
    file, graph = tmp_path / "out.json", draw_partition(tmp_path, 2).path
    size = () if beside is None else ("--gpu-memory", topology_of(graph) + beside * ROW_BYTES)
    status, printed = run(capsys, "--graph", graph, *SMALL, "--device", "cuda", *size, "--json", file)
    assert status == 0, printed
    assert "cached rows" in printed.out and "fetch on ranks that only train" in printed.out
    ways = {way["name"]: way for way in json.loads(file.read_text())["runs"][0]["ways"]}
    rows = {name: way["cache_rows"] for name, way in ways.items()}
    every = rows["1+1 stay"]  # that a batch may need, fewer than fit in the topology's place
    assert rows["1+1"] == every > 10 and rows["none"] == (beside or every)


def test_gpus_that_are_not_there_are_refused(capsys):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    status, printed = run(capsys, "--device", "cuda")
    assert status == 1 and "--device is cuda but torch sees no CUDA device" in printed.err
    status, printed = run(capsys, "--gpu-memory", "2GB")
    assert (
        status == 1 and "--gpu-memory is given with --device cpu; pass --device cuda, or leave it out." in printed.err
    )


def test_one_rank_has_no_roles(capsys):
    status, printed = run(capsys, "--ranks", "1,2")
    assert status == 1 and "--ranks is 1,2; roles need 2 ranks or more." in printed.err


def test_ways_of_three_ranks():
    assert split_ways(3, (True, False)) == ["1+2", "1+2 stay", "2+1", "2+1 stay"]
    assert roles_of("1+2 stay") == Roles(1, 2, switching=False)
    assert roles_of("2+1") == Roles(2, 1) and roles_of("none") == "none"


@pytest.mark.parametrize(
    ("losses", "found"),
    [
        ({"none": [1.0, 0.9], "1+1": [1.00001, 0.9], "auto": [1.0, 0.9]}, []),
        ({"none": [1.1, 0.9], "1+1": [1.0, 0.9], "auto": [1.0, 0.9]}, ["none"]),
        ({"none": [1.0, 0.9], "1+1": [1.0, 0.9], "1+1 stay": [1.0, 0.900001], "auto": [1.0, 0.9]}, ["1+1 stay"]),
    ],
)
def test_losses_with_roles_are_equal_and_those_of_time_sharing_close(losses, found):
    ways = [{"name": name, "roles": "1+1" if "+" in name else "none", "loss": loss} for name, loss in losses.items()]
    assert differences(ways) == found


def test_splits_of_a_staleness_that_differ_are_found():
    losses = {"none": [2.0], "1+1": [1.0], "1+1 stay": [1.1], "auto": [2.0]}
    ways = [{"name": name, "roles": "1+1", "loss": loss} for name, loss in losses.items()]
    assert differences(ways, staleness=1) == ["1+1 stay"]


def epochs(seconds, **more):
    stages = {"sample_s": 0.2, "fetch_s": 0.2, "compute_s": 0.5, "gradients_s": 0.1}
    return [{"seconds": 9.0, "loss": 1.0, **stages, **more}] + [
        {"seconds": s, "loss": 1.0, **stages, **more} for s in seconds
    ]


def test_predictions_are_those_of_the_measured_times():
    """10 steps of 2 tasks: 20 ms to sample and to fetch, 40 ms to train, 10 ms to update and to sum gradients; a rank
    alone takes half of that.
    """
    tally = {"sampled": 20, "trained": 0, "stood_by": 3, "hand_over_s": 0.0}
    ways = {
        "none": {"roles": "none", "epochs": epochs([1.0, 1.2, 1.1])},
        "1+1 stay": {"roles": "1+1", "epochs": epochs([0.8, 0.8, 0.8], **tally)},
        "auto": {"roles": "1+1", "epochs": epochs([0.9, 0.9, 0.9], **tally)},
    }
    ways = {name: way | {"cache": None} for name, way in ways.items()}
    result = {
        "graph": {}, "virtual_ranks": 2, "steps": 10, "cores": 1.0, "update_s": 0.005, "sum_s": 0.02, "ways": ways,
    }  # fmt: skip
    found = summarize([result, result], 0)
    none, stay, auto = found["ways"]
    assert (found["tasks"], found["alone"], found["best"]) == (20, 0.5, "1+1 stay")
    assert none["predicted_s"] == pytest.approx(1.0) and none["error"] == pytest.approx(1.0 / 1.1 - 1)
    assert stay["predicted_s"] == pytest.approx(20 * 0.04 + 10 * 0.005, rel=0.01)  # one core does all of it
    assert auto["predicted_s"] is None and auto["stood_by"] == 6
    assert not found["auto"]["is_best"]


def test_what_a_sum_of_gradients_takes_longer_than_alone_is_waiting_for_the_slowest():
    ways = {"none": {"roles": "none", "epochs": epochs([1.0, 1.2, 1.1])}}
    result = {"steps": 10, "cores": 2.0, "update_s": 0.005, "sum_s": 0.004, "ways": ways}
    times = stage_times([result, result])
    assert (times.sum_s, times.skew_s) == (0.004, pytest.approx(0.006))
