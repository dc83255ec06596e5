"""The command line: what is refused, in one line, and what --dry-run prints. Nothing is started here."""

import io
import os
import stat
import sys

import pytest

from fastsample_dist.launch.cli import _write_json, main
from tests.small_disk import small_files
from tests.test_launch.test_parts import make_parts


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    """The working directory, with a script and two hosts files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('never run')\n")
    (tmp_path / "hosts").write_text("10.0.0.1 slots=2\n10.0.0.2 slots=2\n")
    return tmp_path


def run(capsys, *words):
    status = main([str(word) for word in words])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--nproc", "2"], "no script; put it after --, as in: fastsample-launch --nproc 2 -- train.py --epochs 10"),
        (["--nproc", "2", "train.py"], "unrecognized arguments: train.py; see fastsample-launch --help."),
        (["--", "train.py"], "--nproc is missing; pass the number of ranks, or --hosts FILE."),
        (["--nproc", "0", "--", "train.py"], "argument --nproc: must be an integer >= 1, not '0'"),
        (["--nproc", "two", "--", "train.py"], "argument --nproc: must be an integer >= 1, not 'two'"),
        (["--nproc", "1", "--env", "1A=2", "--", "t.py"], "argument --env: must be NAME=VALUE, not '1A=2'"),
        (["--nproc", "1", "--env", "A", "--", "t.py"], "argument --env: must be NAME=VALUE, not 'A'"),
        (
            ["--nproc", "1", "--timeout-s", "nan", "--", "t.py"],
            "argument --timeout-s: must be a number of seconds above 0, not",
        ),
        (
            ["--nproc", "1", "--grace-s", "0", "--", "t.py"],
            "argument --grace-s: must be a number of seconds above 0, not",
        ),
        (["--nproc", "1", "--copy-parts", "p", "--", "t.py"], "--copy-parts goes with --hosts; add a hosts file"),
        (["--nproc", "1", "--ssh-option", "A=1", "--", "t.py"], "--ssh-option goes with --hosts; add a hosts file"),
        (["--hosts", "hosts", "--ssh-option", "-p", "--", "t.py"], "argument --ssh-option: expected one argument"),
        (
            ["--hosts", "hosts", "--ssh-option=-p", "--", "t.py"],
            "argument --ssh-option: must be NAME=VALUE as after",
        ),
        (
            ["--nproc", "1", "--ssh", "ssh -v", "--", "t.py"],
            "--ssh goes with --hosts; add a hosts file or leave it out",
        ),
        (["--hosts", "hosts", "--ssh", "", "--", "t.py"], "argument --ssh: must be a program such as ssh, not ''; see"),
        (
            ["--hosts", "hosts", "--ssh", "ssh -i 'my key", "--", "t.py"],
            """argument --ssh: must be a program such as ssh, not "ssh -i 'my key"; see""",
        ),
        (
            ["--hosts", "hosts", "--master-port", "0", "--", "t.py"],
            "argument --master-port: must be a port from 1 to 65535, not '0'",
        ),
        (["--mpi", "--nproc", "1", "--max-restarts", "1", "--", "t.py"], "--max-restarts goes with torchrun's agent"),
    ],
)
def test_a_command_line_that_is_not_understood(capsys, words, message):
    status, out, err = run(capsys, *words)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"fastsample-launch: error: {message}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--nproc", "1", "--", "missing.py"], "script missing.py was not found in "),
        (["--nproc", "1", "--workdir", "no", "--", "t.py"], "--workdir "),
        (["--nproc", "1", "--json", ".", "--", "train.py"], "--json . is a directory; pass a file name."),
        (
            ["--nproc", "1", "--json", "no/x", "--", "train.py"],
            "--json no/x cannot be written (No such file or directory)",
        ),
        (["--hosts", "missing", "--", "train.py"], "--hosts missing cannot be read (No such file or directory)"),
        (["--hosts", "hosts", "--nproc", "3", "--", "train.py"], "--nproc is 3 but 10.0.0.1 has slots=2 (line 1"),
        (["--hosts", "hosts", "--copy-parts", "no", "--", "train.py"], "--copy-parts: "),
        (["--hosts", "hosts", "--ssh", "no-such-ssh", "--", "train.py"], "no-such-ssh was not found, --hosts needs it"),
    ],
)
def test_what_does_not_fit_is_refused(capsys, words, message):
    status, out, err = run(capsys, *words)
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"fastsample-launch: error: {message}")


def test_programs_that_are_missing_are_named(capsys, directory, monkeypatch):
    make_parts(directory / "parts", 4)
    (directory / "bin").mkdir()
    monkeypatch.setenv("PATH", str(directory / "bin"))
    copy = ["--hosts", "hosts", "--copy-parts", "parts", "--", "train.py"]
    assert "error: ssh was not found, --hosts needs it; install an ssh client." in run(capsys, *copy)[2]
    program = directory / "bin" / "ssh"
    program.write_text("#!/bin/sh\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    assert "error: rsync was not found, --copy-parts needs it here and on every host" in run(capsys, *copy)[2]
    python = ["--nproc", "1", "--mpi", "--python", directory / "bin" / "python", "--", "train.py"]
    assert "error: --mpi needs mpirun, which is neither beside" in run(capsys, *python)[2]


def test_what_the_terminal_cannot_encode_is_escaped(directory, monkeypatch):
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii", write_through=True))
    assert main(["--nproc", "1", "--dry-run", "--env", "NAME=é", "--", "train.py"]) == 0
    assert b"NAME=\\xe9" in shown.getvalue()


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (
            "echo libmpi.so not found >&2\nexit 127",
            "mpirun --version ended with status 127 (libmpi.so not found); repair it, or put another one first",
        ),
        (
            "echo HYDRA build details:",
            "mpirun says 'HYDRA build details:', expected Open MPI; put Open MPI's mpirun first on PATH.",
        ),
    ],
    ids=["does not start", "another kind"],
)
def test_an_mpirun_that_does_not_serve_is_refused(capsys, directory, script, message):
    program = directory / "mpirun"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    status, _, err = run(capsys, "--nproc", 1, "--mpi", "--python", directory / "python", "--", "train.py")
    assert status == 1 and message in err


def test_a_dry_run_prints_every_command_in_order_and_starts_none(capsys, directory):
    make_parts(directory / "parts", 4)
    words = ["--hosts", "hosts", "--copy-parts", "parts:d", "--master-port", 20001, "--dry-run", "--", "train.py"]
    status, out, err = run(capsys, *words, "--data", "d")
    lines = out.splitlines()
    assert (status, err, len(lines)) == (0, "", 6)
    assert [line.split()[0] for line in lines] == ["ssh", "ssh", "rsync", "rsync", "ssh", "ssh"]
    assert lines[0].endswith(f" 10.0.0.1 'mkdir -p -- {directory}/d'")
    assert lines[3].endswith(f"{directory}/parts/part-2 {directory}/parts/part-3 10.0.0.2:{directory}/d/")
    assert "--node-rank 1 --master-addr 10.0.0.1 --master-port 20001 --nproc-per-node 2" in lines[5]
    assert lines[5].endswith(f"-- {sys.executable} -u train.py --data d'")
    assert not (directory / "d").exists()


def test_a_dry_run_of_one_machine_names_this_interpreter_and_directory(capsys, directory):
    status, out, _ = run(capsys, "--nproc", 3, "--dry-run", "--", "train.py")
    assert status == 0 and out.count("\n") == 1
    assert (
        out.startswith(f"{sys.executable} -I ") and f"--ranks 3 --chdir {directory} -- {sys.executable} -m torch" in out
    )


def test_help_shows_an_example(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    assert "fastsample-launch --nproc 2 -- examples/train_sage.py" in capsys.readouterr().out


def test_report_on_a_pipe_leaves_it_a_pipe(directory):
    os.mkfifo(directory / "pipe")
    reader = os.open(directory / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    _write_json(directory / "pipe", {"status": 0})
    assert os.read(reader, 100) == b'{\n "status": 0\n}\n'
    assert stat.S_ISFIFO((directory / "pipe").stat().st_mode)
    os.close(reader)


def test_a_report_that_cannot_be_written_is_named_and_nothing_stays(tmp_path):
    before = sorted(tmp_path.iterdir())
    with small_files(10), pytest.raises(OSError) as raised:
        _write_json(tmp_path / "out.json", {"a": list(range(100))})
    assert raised.value.filename == str(tmp_path / "out.json")
    assert sorted(tmp_path.iterdir()) == before
