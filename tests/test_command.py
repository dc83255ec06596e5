"""What the command lines share: a result file that cannot be written is one line with its name."""

from fastsample_dist.command import Parser, add_json, run_command
from tests.small_disk import small_files


def run(tmp_path):
    parser = Parser(prog="fastsample-bench")
    add_json(parser)
    return run_command(parser, lambda args: (0, {"rows": list(range(100))}), ["--json", str(tmp_path / "out.json")])


def test_results_that_cannot_be_written_are_named_and_nothing_stays(tmp_path, capsys):
    with small_files(10):
        assert run(tmp_path) == 1
    line = f"fastsample-bench: error: [Errno 27] File too large: '{tmp_path}/out.json'\n"
    assert capsys.readouterr().err == line
    assert list(tmp_path.iterdir()) == []
    assert run(tmp_path) == 0
