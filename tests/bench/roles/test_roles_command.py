"""fastsample-bench roles: the command, its comparison of losses, its arithmetic."""

import json

import pytest

from fastsample_dist.bench import cli
from fastsample_dist.bench.roles.measure import differences, summarize
from fastsample_dist.bench.roles.rank import roles_of, split_ways
from fastsample_dist.pipeline.roles import Roles
from tests.parts import draw_partition

SMALL = ("--batch-size", "8", "--fanouts", "3,2", "--hidden", "4", "--epochs", "2", "--verify")


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


def test_one_rank_has_no_roles(tmp_path, capsys):
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
    result = {"graph": {}, "virtual_ranks": 2, "steps": 10, "cores": 1.0, "update_s": 0.005, "ways": ways}
    found = summarize([result, result], 0)
    none, stay, auto = found["ways"]
    assert (found["tasks"], found["alone"], found["best"]) == (20, 0.5, "1+1 stay")
    assert none["predicted_s"] == pytest.approx(1.0) and none["error"] == pytest.approx(1.0 / 1.1 - 1)
    assert stay["predicted_s"] == pytest.approx(20 * 0.04 + 10 * 0.005, rel=0.01)  # one core does all of it
    assert auto["predicted_s"] is None and auto["stood_by"] == 6
    assert not found["auto"]["is_best"]
