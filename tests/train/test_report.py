"""What a run reports: the table of epochs, and result files that are refused before the work."""

import io
import json
import logging

import pytest
from rich.console import Console

from fastsample_dist.comm.context import DistContext
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.comm.machine import Machines
from fastsample_dist.files import check_writable, write_json
from fastsample_dist.pipeline.roles import Roles
from fastsample_dist.train.callbacks import EpochReport
from fastsample_dist.train.metrics import EpochTotals
from fastsample_dist.train.report import EpochFigures, epoch_line, epoch_table, make_console, roles_line
from tests.small_disk import small_files


def test_the_table_of_epochs_has_a_row_per_epoch_and_gaps_where_nothing_was_evaluated():
    times = {"seconds": 2.0, "sample_s": 0.25, "fetch_s": 0.5, "compute_s": 1.0, "gradients_s": 0.125}
    out = io.StringIO()
    table = epoch_table([{"epoch": 0, "loss": 1.5, **times}, {"epoch": 1, "loss": 1.25, "val_acc": 0.75, **times}])
    Console(file=out, width=120).print(table)
    rows = [
        [cell.strip() for cell in line.strip("│").split("│")] for line in out.getvalue().splitlines() if "│" in line
    ]
    assert rows == [
        ["1", "1.5000", "", "2.00", "0.25", "0.50", "1.00", "0.12"],
        ["2", "1.2500", "0.7500", "2.00", "0.25", "0.50", "1.00", "0.12"],
    ]


ROLES = {"samplers": 1, "trainers": 3, "sampled": [0, 0, 0, 40], "trained": [12, 11, 13, 4], "standby": 4}


def test_the_table_and_the_line_of_an_epoch_show_who_trained_how_many_batches():
    times = {"seconds": 2.0, "sample_s": 0.25, "fetch_s": 0.5, "compute_s": 1.0, "gradients_s": 0.125}
    out = io.StringIO()
    Console(file=out, width=140).print(epoch_table([{"epoch": 0, "loss": 1.5, "roles": ROLES, **times}]))
    assert "batches" in out.getvalue() and "12 11 13 | 4" in out.getvalue()
    line = epoch_line(EpochTotals(num_seeds=1).stats(0), {"val_acc": 0.5, "roles": ROLES})
    assert line.startswith("loss 0.0000  val 0.5000  batches 12 11 13 | 4  0.00 s (")


def test_the_line_of_an_epoch_shows_the_numbers_among_the_figures():
    figures = {"recall": [0.5, 0.25], "kind": "warm-up", "by_class": {"a": 1.0}, "none": None, "f1": 0.5, "left": 3}
    assert epoch_line(EpochTotals(num_seeds=1).stats(0), figures).startswith(
        "loss 0.0000  f1 0.5000  left 3.0000  0.00 s"
    )


@pytest.mark.parametrize(
    ("roles", "line"),
    [
        (Roles(1, 3), "roles 1+3: ranks 0-2 train, rank 3 samples"),
        (Roles(2, 1), "roles 2+1: rank 0 trains, ranks 1, 2 sample"),
        (Roles(1, 1, switching=False), "roles 1+1: rank 0 trains, rank 1 samples; samplers do not help to train"),
    ],
    ids=str,
)
def test_roles_name_their_ranks(roles, line):
    assert roles_line(roles, Machines(roles.ranks)) == line


def test_roles_name_the_ranks_of_all_machines():
    machines = Machines(4, dict.fromkeys([(0, 2), (0, 3), (1, 2), (1, 3)], "apart"))
    line = "roles 1+1 on each of 2 machines: ranks 0, 2 train, ranks 1, 3 sample"
    assert roles_line(Roles(1, 1), machines) == line


def test_names_are_printed_as_they_stand(capsys):
    with DistContext(LocalCommunicator()) as ctx:
        make_console(ctx).print("partition /data/g[/x]:100:")
    assert capsys.readouterr().out == "partition /data/g[/x]:100:\n"


def test_a_directory_is_no_result_file(tmp_path):
    with pytest.raises(ValueError, match=rf"^--trace {tmp_path} cannot be written \(it is a directory\); pass another"):
        check_writable("--trace", tmp_path)


def test_results_appear_complete_and_alone(tmp_path):
    write_json(tmp_path / "out.json", {"a": [1, 2]})
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]
    assert (tmp_path / "out.json").read_text() == '{\n "a": [\n  1,\n  2\n ]\n}\n'


def test_results_go_where_a_link_leads(tmp_path):
    (tmp_path / "link.json").symlink_to("out.json")
    write_json(tmp_path / "link.json", {})
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "out.json").read_text() == "{}\n"


# ---- files that refuse ----


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def report_of(epoch):
    return EpochReport(stats=EpochTotals(num_seeds=1).stats(epoch), step=epoch + 1, is_last=False)


def test_a_log_that_cannot_be_written_is_one_warning_and_is_made_up_for(tmp_path, caplog):
    path = tmp_path / "epochs.jsonl"
    figures = EpochFigures(DistContext(LocalCommunicator()), jsonl=path)
    with small_files(5):
        for epoch in range(3):
            figures.on_epoch(report_of(epoch))
    assert warnings_of(caplog) == [
        f"--jsonl {path} cannot be written (File too large); training continues and tries again after every epoch."
    ]
    figures.close()
    figures.close()
    assert [json.loads(line)["epoch"] for line in path.read_text().splitlines()] == [0, 1, 2]
    assert len(warnings_of(caplog)) == 1


def test_what_a_log_lacks_at_the_end_is_said(tmp_path, caplog):
    path = tmp_path / "epochs.jsonl"
    figures = EpochFigures(DistContext(LocalCommunicator()), jsonl=path)
    figures.on_epoch(report_of(0))
    with small_files(path.stat().st_size):
        for epoch in (1, 2):
            figures.on_epoch(report_of(epoch))
        figures.close()
    assert warnings_of(caplog)[1:] == [f"--jsonl {path} lacks the last 2 epoch(s)."]
    assert [json.loads(line)["epoch"] for line in path.read_text().splitlines()] == [0]
