"""What a run reports: the table of epochs, and result files that are refused before the work."""

import io

import pytest
from rich.console import Console

from fastsample_dist.train.outputs import check_writable, write_json
from fastsample_dist.train.report import epoch_table


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
