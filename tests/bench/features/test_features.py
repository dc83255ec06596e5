"""fastsample-bench features: the command, its check of the rows, its arithmetic."""

import json

import pytest

from fastsample_dist.bench import cli
from fastsample_dist.bench.features import rank as rank_module
from fastsample_dist.bench.features.measure import summarize
from fastsample_dist.bench.features.rank import OWN
from fastsample_dist.graph.manifest import read_manifest
from fastsample_dist.testing import mpi_missing_reason
from tests.parts import draw_partition

SMALL = ("--batch-size", "20", "--fanouts", "3,2", "--steps", "2", "--repeats", "2", "--verify")


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    return draw_partition(tmp_path_factory.mktemp("features"), 4).path


def run(capsys, *options):
    status = cli.main(["features", *(str(option) for option in options)])
    return status, capsys.readouterr()


def test_every_way_is_measured_and_gives_the_same_rows(forked_ranks, parts, tmp_path, capsys):
    file = tmp_path / "out.json"
    status, printed = run(capsys, parts, "--transport", "--ranks", "2,4", *SMALL, "--json", file)
    assert status == 0, printed
    assert "verify: rows are equal" in printed.out
    runs = json.loads(file.read_text())["runs"]
    assert [entry["ranks"] for entry in runs] == [2, 4]
    for entry in runs:
        assert list(entry["ways"]) == ["exchange", "shared", OWN] and entry["differences"] == []
        assert entry["ways"][OWN]["ratio_to_own"] == 1 and 0 < entry["remote"] < entry["inputs"]


def test_rows_of_int8_count_with_their_scales(forked_ranks, tmp_path, capsys):
    path, file = draw_partition(tmp_path, 2, stored_as="int8").path, tmp_path / "out.json"
    status, _ = run(capsys, path, "--ranks", "2", *SMALL, "--json", file)
    [entry], manifest = json.loads(file.read_text())["runs"], read_manifest(path)
    assert status == 0 and manifest.feature_scales and entry["row_bytes"] == manifest.feature_dim + 4


@pytest.mark.grid
@pytest.mark.skipif(mpi_missing_reason() is not None, reason=f"no MPI here: {mpi_missing_reason()}")
def test_ranks_under_mpirun(parts, capsys):
    status, printed = run(capsys, parts, "--ranks", "2", *SMALL, "--mpi")
    assert status == 0 and "ranks under mpirun" in printed.out


def test_other_rows_are_found():
    class Rows:
        def __init__(self, add):
            self.add = add

        def fetch(self, nodes, *, checked):
            return nodes.float() + self.add

    ways = {"exchange": Rows(0), "shared": Rows(1), OWN: Rows(0)}
    assert rank_module._compare(ways, [rank_module.torch.arange(3)]) == ["shared"]


def test_a_step_takes_as_long_as_its_slowest_rank_and_ratios_are_of_medians():
    def result(scale):
        own = {"walls_s": [[0.001 * scale, 0.002], [0.001, 0.002 * scale]], "cpu_s": [0.004, 0.008]}
        shared = {"walls_s": [[0.004] * 2] * 2, "cpu_s": [0.001] * 2}
        return {
            "graph": {}, "row_bytes": 24, "inputs": 10 * scale, "remote": 4, "differences": ["shared"][: scale - 1],
            "ways": {"shared": shared, OWN: own},
        }  # fmt: skip

    found = summarize([result(1), result(3)])
    assert found["ways"][OWN]["wall_ms"]["rates"] == pytest.approx([3, 2, 1, 6])
    assert found["ways"][OWN]["cpu_ms"]["rates"] == pytest.approx([2, 4])  # two steps a repeat
    assert found["ways"]["shared"]["ratio_to_own"] == pytest.approx(4 / 2.5)
    assert (found["ranks"], found["inputs"], found["remote"], found["differences"]) == (2, 20, 4, ["shared"])


@pytest.mark.parametrize("given", ["tcp", "exchange,,"])
def test_an_unknown_way_is_refused(parts, capsys, given):
    status, printed = run(capsys, parts, "--transport", given)
    assert status != 0 and "must be a list of exchange and shared" in printed.err
