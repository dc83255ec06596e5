"""Ctrl-C (or SIGTERM) while a command is loaded, while it runs, and again: one line, status 130."""

import importlib
import os
import signal
import subprocess
import sys

import pytest

from fastsample_dist.entry import MODULES
from fastsample_dist.ops import library
from tests.interrupted import FOREVER, ROOT, TIMEOUT_S, interrupt

SLOW = f"import time\nprint('loading', flush=True)\n{FOREVER}\n"
START = (
    "import sys; from fastsample_dist import entry; entry.MODULES['fastsample-train'] = 'command'; "
    "{}sys.exit(entry.train())"
)
COMMAND = """
import time

def main():
    try:
        print("running", flush=True)
        while True:
            time.sleep(0.05)
    except KeyboardInterrupt:
        print("cleaning, running", flush=True)
        for _ in range({clean_naps}):
            time.sleep(0.05)
        print("cleaned", flush=True)
        return 130
"""


@pytest.mark.parametrize("program", [name for name in MODULES if name != "fastsample-launch"])  # which loads nothing
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_while_packages_are_being_loaded(tmp_path, program, number):
    for package in ("torch", "rich"):
        (tmp_path / f"{package}.py").write_text(SLOW)
    ended = interrupt(["-m", "fastsample_dist.entry", program, "--help"], "loading", path=tmp_path, number=number)
    assert (ended.status, ended.err) == (130, [f"{program}: interrupted."])


@pytest.mark.parametrize("words", [("examples/train_sage.py",), ("-m", "fastsample_dist.train")])
def test_other_ways_to_start_training(tmp_path, words):
    (tmp_path / "torch.py").write_text(SLOW)
    ended = interrupt([*words, "--help"], "loading", path=tmp_path)
    assert (ended.status, ended.err) == (130, ["fastsample-train: interrupted."])


def test_an_error_that_comes_of_it_inside_an_import_is_not_seen(tmp_path):
    """An import may turn KeyboardInterrupt into something else, or swallow it."""
    swallowing = f"import time\nwhile True:\n    try:\n        print('loading', flush=True)\n        {FOREVER}\n"
    (tmp_path / "torch.py").write_text(f"{swallowing}    except BaseException as error:\n        print(error)\n")
    ended = interrupt(["-m", "fastsample_dist.entry", "fastsample-train"], "loading", path=tmp_path)
    assert (ended.status, ended.err) == (130, ["fastsample-train: interrupted."])


DROPPING = """
import time

class Dropping:
    def __del__(self):
        print("running", flush=True)
        time.sleep(0.2)

def main():
    try:
        while True:
            Dropping()
            time.sleep(0.01)
    except KeyboardInterrupt:
        return 130
"""


def test_an_interrupt_that_python_drops_comes_again(tmp_path):
    """It comes inside of a __del__, whose exceptions Python prints and forgets."""
    (tmp_path / "command.py").write_text(DROPPING)
    ended = interrupt(["-c", START.format("")], "running", path=tmp_path)
    assert (ended.status, ended.err) == (130, [])


def test_a_closed_output_is_as_good_as_none(tmp_path):
    (tmp_path / "command.py").write_text(
        "import sys\n\ndef main():\n    print('x')\n    return 3 + sys.stdout.isatty()\n"
    )
    words = [sys.executable, "-c", START.format("")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    ended = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *words], env=environ, stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_S,
        check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (3, "")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_names_that_the_output_cannot_encode_are_escaped(tmp_path, encoding):
    shown = "gr\xe4ph \u4e2d \udcff"  # the last is a byte of a file's name that is no UTF-8
    (tmp_path / "command.py").write_text(
        f"import rich.console\n\ndef main():\n    rich.console.Console(width=80).print({shown!a})\n    return 0\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]), "PYTHONIOENCODING": encoding}
    words = [sys.executable, "-c", START.format("")]
    ended = subprocess.run(words, env=environ, capture_output=True, timeout=TIMEOUT_S, check=False)
    assert (ended.returncode, ended.stdout) == (0, f"{shown}\n".encode(encoding, "backslashreplace")), ended.stderr


@pytest.mark.parametrize(
    "console",
    [
        "from fastsample_dist.command import make_console; console = make_console()",
        "from fastsample_dist.partition.report.display import _console; console = _console()",
        "from fastsample_dist import DistContext; from fastsample_dist.train.report import make_console; "
        "console = make_console(DistContext.from_env())",
    ],
    ids=["command", "partition", "train"],
)
def test_an_output_that_nobody_reads_any_longer_is_an_error_with_a_line(console):
    code = (
        f"import sys; from fastsample_dist.command import Parser, add_json, run_command; {console}; "
        "made = Parser(prog='a-command'); add_json(made); sys.exit(run_command(made, lambda _: console.print('x'), []))"
    )
    reading, writing = os.pipe()
    os.close(reading)
    words = [sys.executable, "-c", code]
    ended = subprocess.run(
        words, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_S, check=False
    )
    os.close(writing)
    line = "standard output was closed by what read it; send it to a file, or read it to its end."
    assert (ended.returncode, ended.stderr) == (1, f"a-command: error: {line}\n")


def test_one_that_a_launcher_passes_on_does_not_disturb_the_end(tmp_path):
    (tmp_path / "command.py").write_text(COMMAND.format(clean_naps=2))
    patient = "entry.REPEAT_S = 600.0; "
    ended = interrupt(["-c", START.format(patient)], "running", times=2, path=tmp_path)
    assert (ended.status, ended.err) == (130, []) and "cleaned\n" in ended.out


def test_a_later_one_ends_it_at_once(tmp_path):
    (tmp_path / "command.py").write_text(COMMAND.format(clean_naps=10000))
    ended = interrupt(["-c", START.format("entry.REPEAT_S = 0.0; ")], "running", times=2, path=tmp_path)
    assert (ended.status, ended.err) == (130, ["fastsample-train: interrupted."]) and "cleaned\n" not in ended.out


def test_what_a_command_does_not_handle_is_one_line(tmp_path):
    (tmp_path / "command.py").write_text(f"import time\n\ndef main():\n    print('running')\n    {FOREVER}\n")
    ended = interrupt(["-c", START.format("")], "running", path=tmp_path)
    assert (ended.status, ended.err) == (130, ["fastsample-train: interrupted."])


def test_a_loaded_command_is_ended_by_sigterm_as_it_likes(tmp_path):
    (tmp_path / "command.py").write_text(COMMAND.format(clean_naps=0))
    ended = interrupt(["-c", START.format("")], "running", path=tmp_path, number=signal.SIGTERM)
    assert (ended.status, ended.err) == (-signal.SIGTERM, [])


@pytest.mark.parametrize("loads", [True, False])
def test_an_ignored_ctrl_c_does_not_hide_sigterm(tmp_path, loads):
    (tmp_path / "command.py").write_text((SLOW if loads else "") + COMMAND.format(clean_naps=0))
    ignoring = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    ended = interrupt(
        ["-c", START.format(ignoring)], "loading" if loads else "running", path=tmp_path, number=signal.SIGTERM
    )
    expected = (130, ["fastsample-train: interrupted."]) if loads else (-signal.SIGTERM, [])
    assert (ended.status, ended.err) == expected


def test_an_ignored_ctrl_c_stays_ignored(tmp_path):
    (tmp_path / "command.py").write_text(
        "import signal\n\ndef main():\n    print(signal.getsignal(signal.SIGINT).name)\n    return 0\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", START.format("")], capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))},
    )  # fmt: skip
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "SIG_IGN\n", "")


@pytest.mark.parametrize("program", MODULES)
def test_options_are_shown_without_the_compiled_core(monkeypatch, program):
    """It is missing, or older than the Python files after an update of the sources."""

    def missing():
        raise ImportError("libfastsample.so is not there")

    monkeypatch.setattr(library, "core", missing)
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(MODULES[program]).main(["--help"])
    assert ended.value.code == 0
