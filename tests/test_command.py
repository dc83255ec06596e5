"""What the command lines share: a result file that cannot be written is one line with its name."""

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fastsample_dist import command as cl
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


def test_a_full_disk_under_standard_output_is_named():
    code = (
        "from fastsample_dist.command import *; made = Parser(prog='a-command'); add_json(made); "
        "run_command(made, lambda args: print('x', flush=True), [])"
    )
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    line = "standard output cannot be written (No space left on device); make room there, or send it elsewhere."
    assert ended.stderr.splitlines()[0] == f"a-command: error: {line}"


def raising(error):
    def command(args):
        raise error

    return command


def parser():
    made = Parser(prog="a-command")
    add_json(made)
    return made


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (ValueError("two\n lines"), 1, "a-command: error: two lines"),
        (RuntimeError(), 1, "a-command: error: RuntimeError"),
        (KeyboardInterrupt(), 130, "a-command: interrupted; everything it started has been ended."),
    ],
    ids=["refusal", "no text", "interrupt"],
)
def test_what_a_command_raises_is_one_line(capsys, error, status, line):
    assert run_command(parser(), raising(error), []) == status
    assert capsys.readouterr().err == f"{line}\n"


@pytest.mark.parametrize("message", ["x is 1; expected 2", "x is 1; expected 2."])
def test_a_complaint_of_the_parser_points_to_the_help(message):
    with pytest.raises(ValueError, match=r"^x is 1; expected 2; see a-command --help\.$"):
        parser().error(message)


def test_sigterm_interrupts(capsys):
    before = signal.getsignal(signal.SIGTERM)
    assert run_command(parser(), lambda args: os.kill(os.getpid(), signal.SIGTERM), []) == 130
    assert "interrupted" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(("argv", "parsed"), [([], True), (["--nonsense"], False)])
def test_a_command_may_say_what_is_left(capsys, argv, parsed):
    def remains(args, error):
        assert (args is not None) == parsed
        return "parts are left"

    assert run_command(parser(), raising(ValueError("no.")), argv, remains) == 1
    err = capsys.readouterr().err
    assert err.endswith("; parts are left\n") and ".;" not in err


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (cl.count, "0", "must be an integer >= 1, not '0'"),
        (cl.counts, "2,x", "must be an integer >= 1, not 'x'"),
        (cl.integer_from(0), "-1", "must be an integer >= 0, not '-1'"),
        (cl.seconds, "inf", "must be a number of seconds > 0, not 'inf'"),
        (cl.share, "1", "must be a number >= 0 and < 1, not '1'"),
        (cl.fanout_list, "5,", "must be a list of fanouts such as 15,10,5, not '5,'"),
    ],
)
def test_values_that_do_not_fit_are_refused(kind, text, message):
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        kind(text)
    assert str(refused.value) == message


def test_values_that_fit_are_converted():
    assert (cl.count("3"), cl.counts("1,2"), cl.seconds("0.5"), cl.share("0"), cl.fanout_list("5,-1")) == (
        *(3, (1, 2), 0.5, 0.0),
        (5, -1),
    )
