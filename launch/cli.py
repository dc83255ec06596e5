"""The command `fastsample-launch`: start a script on every rank, here or on many machines, and stay until it ends.

Exit status: 0 all ranks succeeded; the failing rank's own; 124 timeout; 130 interrupted; 143 terminated; 1 something
does not fit; 2 the command line is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import math
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO

from fastsample_dist.launch import guard
from fastsample_dist.launch.commands import LOCAL, Command, LaunchOptions, copy_commands, start_commands
from fastsample_dist.launch.hosts import HostRanks, place_ranks, read_hosts
from fastsample_dist.launch.parts import plan_copies, split_copy_parts
from fastsample_dist.launch.runner import INTERRUPTED, LaunchedCommand, RunLimits, Runner, RunResult
from fastsample_dist.launch.screen import Screen
from fastsample_dist.launch.writer import Writer

PROGRAM = "fastsample-launch"
SSH = "ssh"
SSH_FAILED, NOT_FOUND = 255, 127
PORTS = range(20000, 30000)  # below the ports that systems give to outgoing connections
_EPILOG = """examples:
  fastsample-launch --nproc 2 -- examples/train_sage.py --data parts --epochs 10
  fastsample-launch --nproc 2 --mpi -- examples/train_sage.py --data parts
  fastsample-launch --hosts hosts.txt --copy-parts parts --env OMP_NUM_THREADS=8 -- train.py --data parts
  fastsample-launch --hosts hosts.txt --dry-run -- train.py
hosts.txt has one "address [slots=N]" a line; DGL's ip_config.txt is understood too (its ports are not used).
Every host needs the same interpreter path with fastsample_dist installed, the working directory and the script.
Ctrl-C asks every rank on every host to end (KeyboardInterrupt) and kills those that have not after --grace-s.
Hosts that hear nothing from the launcher for 30 s (cut off, or suspended by Ctrl-Z) end their ranks.
"""


class UsageError(Exception):
    """The command line is wrong."""


class _Parser(argparse.ArgumentParser):
    """A parser whose complaints are one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {PROGRAM} --help.")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be an integer >= 1, not {text!r}")
    return int(text)


def _count_or_zero(text: str) -> int:
    return 0 if text == "0" else _count(text)


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"must be a port from 1 to 65535, not {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, not {text!r}")
    return value


def _setting(text: str) -> str:
    if not re.match(r"[A-Za-z_][A-Za-z0-9_]*=", text):
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, not {text!r}")
    return text


def _ssh_setting(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]*[= ].+", text):
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE as after ssh's -o, such as Port=2222, not {text!r}")
    return text


def _program(text: str) -> tuple[str, ...]:
    try:
        words = shlex.split(text)
    except ValueError:  # a quotation that does not end
        words = []
    if not words:
        raise argparse.ArgumentTypeError(f"must be a program such as ssh, not {text!r}")
    return tuple(words)


def make_parser() -> argparse.ArgumentParser:
    """The command's options, without the script."""
    parser = _Parser(
        prog=PROGRAM,
        usage=f"{PROGRAM} [--nproc N] [--hosts FILE] [--mpi] [options] -- script.py [arguments]",
        description="Start a training script on every rank of a run and stay with it until it ends.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--nproc", metavar="N", type=_count, help="ranks per machine (default with --hosts: its slots, or 1)")
    add("--hosts", metavar="FILE", help="start on these machines, by ssh; ranks are numbered host by host")
    add("--mpi", action="store_true", help="start with Open MPI's mpirun instead of torchrun's agent")
    add(
        "--env", metavar="NAME=VALUE", type=_setting, action="append", default=[], help="set for every rank; repeatable"
    )
    add("--workdir", metavar="DIR", help="run there, on every host (default: this directory)")
    add("--copy-parts", metavar="PARTS[:DEST]", help="first bring topology/ and each host's own part-*/ there by rsync")
    add("--dry-run", action="store_true", help="print every command as it would be run, one a line, and run none")
    add("--max-restarts", metavar="N", type=_count_or_zero, default=0, help="restarts after a failure (torchrun)")
    add("--timeout-s", metavar="S", type=_seconds, help="end the run after S seconds, with status 124")
    add("--grace-s", metavar="S", type=_seconds, default=5.0, help="from asking to killing (default: %(default)g)")
    add("--python", metavar="PATH", default=sys.executable, help="interpreter on every host (default: this one)")
    add("--master-port", metavar="P", type=_port, help="where ranks of several hosts meet (default: drawn at random)")
    add("--ssh", metavar="PROGRAM", type=_program, default=SSH, help="what reaches a host (default: %(default)s)")
    add("--ssh-option", metavar="NAME=VALUE", type=_ssh_setting, action="append", default=[], help="as after ssh's -o")
    add("--verbose", action="store_true", help="show all output of torchrun's agent and mpirun")
    add("--json", metavar="FILE", help="write what was started and how each host ended")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command.

    Args:
      argv: arguments without the program's name; those of the process by default.
    Returns:
      Exit status.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # what it cannot encode is shown as standard error shows it
        sys.stdout.reconfigure(errors="backslashreplace")
    words = sys.argv[1:] if argv is None else argv
    try:
        split = words.index("--") if "--" in words else len(words)
        args = make_parser().parse_args(words[:split])
        args.script = tuple(words[split + 1 :])
        _check_arguments(args)
        return _launch(args)
    except KeyboardInterrupt:
        return _refuse("interrupted before anything was started.", 130)
    except UsageError as error:
        return _refuse(str(error), 2)
    except BrokenPipeError:  # as under `| head`; the interpreter would fail at its own flush once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _refuse("the output was closed; all ranks were ended.", 1)
    except (ValueError, OSError, RuntimeError) as error:
        return _refuse(str(error), 1)


def _refuse(text: str, status: int) -> int:
    print(f"{PROGRAM}: error: {' '.join(text.split())}", file=sys.stderr)
    return status


def _check_arguments(args: argparse.Namespace) -> None:
    """Refuse what the command line alone shows to be wrong."""
    if not args.script:
        raise UsageError(f"no script; put it after --, as in: {PROGRAM} --nproc 2 -- train.py --epochs 10")
    if args.hosts is None:
        for name in ("copy_parts", "master_port", "ssh_option"):
            if getattr(args, name):
                raise UsageError(f"--{name.replace('_', '-')} goes with --hosts; add a hosts file or leave it out.")
        if args.ssh != (SSH,):
            raise UsageError("--ssh goes with --hosts; add a hosts file or leave it out.")
        if args.nproc is None:
            raise UsageError("--nproc is missing; pass the number of ranks, or --hosts FILE.")
    if args.mpi and args.max_restarts:
        raise UsageError("--max-restarts goes with torchrun's agent, mpirun restarts nothing; leave out either.")


def _launch(args: argparse.Namespace) -> int:
    layout = place_ranks(read_hosts(args.hosts), args.nproc) if args.hosts else None
    options = _options(args, layout)
    making, copying = _copies(args, options, layout)
    starts = start_commands(options, layout)
    if args.dry_run:
        for command in (*making, *copying, *starts):
            print(command)
        return 0
    _check_machine(args, options)
    if args.json:
        _check_json_target(Path(args.json))
    hosts = _hosts_of_ranks(layout, starts)
    out = Writer(sys.stdout)
    err = out if _same_file(sys.stdout, sys.stderr) else Writer(sys.stderr)  # one: what goes to both keeps its order
    try:
        result = _run_all(args, [making, copying, starts], hosts, (out, err))
        if args.json:
            _write_json(Path(args.json), _report(args, hosts, result))
    except KeyboardInterrupt:
        out.hurry()
        err.hurry()
        raise
    finally:
        all_shown = err.close() and out.close()
    return result.status or (0 if all_shown else INTERRUPTED)


def _run_all(
    args: argparse.Namespace, stages: Sequence[Sequence[Command]], hosts: Sequence[str], writers: tuple[Writer, Writer]
) -> RunResult:
    """Run one stage's commands after the other's; returns the result of the last stage, or of the one that failed."""
    limits = RunLimits(grace_s=args.grace_s, timeout_s=args.timeout_s, ends_with_rank=args.max_restarts == 0)
    result = None
    for commands in stages:
        if commands:
            screen = Screen(*writers, hosts, colour=_shows_colour(), verbose=args.verbose)
            result = Runner(commands, limits, screen, writers).run()
            failed = result.reason is None and result.status != 0
            screen.finish(_summary(result, screen), result.failure, failed=failed)
            if result.status != 0:
                break
    assert result is not None  # there always is something to start
    return result


def _options(args: argparse.Namespace, layout: Sequence[HostRanks] | None) -> LaunchOptions:
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    nproc = args.nproc or 1
    return LaunchOptions(
        script=args.script,
        python=args.python,
        guard=str(Path(guard.__file__).absolute()),
        workdir=str(Path(args.workdir or ".").absolute()),
        nproc=nproc,
        env=tuple(args.env),
        mpirun=_find_mpirun(args.python) if args.mpi else None,
        as_root=is_root,
        oversubscribe=layout is None and nproc > (os.cpu_count() or 1),
        max_restarts=args.max_restarts,
        grace_s=args.grace_s,
        ssh=args.ssh,
        ssh_options=tuple(args.ssh_option),
        master_port=args.master_port or random.SystemRandom().choice(PORTS),
    )


def _copies(
    args: argparse.Namespace, options: LaunchOptions, layout: Sequence[HostRanks] | None
) -> tuple[list[Command], list[Command]]:
    if not args.copy_parts or layout is None:
        return [], []
    parts, destination = split_copy_parts(args.copy_parts, options.workdir)
    return copy_commands(options, plan_copies(parts, destination, layout))


def _find_mpirun(python: str) -> str:
    """mpirun beside the interpreter, or the first on PATH.

    Raises:
      RuntimeError: there is none, it does not start, or it is not Open MPI's.
    """
    beside = Path(python).with_name("mpirun")
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("mpirun")
    if found is None:
        raise RuntimeError(
            f"--mpi needs mpirun, which is neither beside {python} nor on PATH; install Open MPI, or leave out --mpi."
        )
    run = subprocess.run([found, "--version"], capture_output=True, text=True, check=False, timeout=60)
    says = (run.stdout or run.stderr).strip().split("\n", 1)[0]
    if run.returncode != 0:
        raise RuntimeError(
            f"{found} --version ended with status {run.returncode} ({says or 'it printed nothing'}); repair it, or put "
            "another one first on PATH."
        )
    if "Open MPI" not in says:
        raise RuntimeError(f"{found} says {says!r}, expected Open MPI; put Open MPI's mpirun first on PATH.")
    return found


def _check_machine(args: argparse.Namespace, options: LaunchOptions) -> None:
    """Refuse what would fail on this machine only after a start."""
    if args.hosts and shutil.which(options.ssh[0]) is None:
        raise RuntimeError(f"{options.ssh[0]} was not found, --hosts needs it; install an ssh client.")
    if args.copy_parts and shutil.which("rsync") is None:
        raise RuntimeError("rsync was not found, --copy-parts needs it here and on every host; install rsync.")
    if args.hosts:
        return
    if not Path(options.workdir).is_dir():
        raise ValueError(f"--workdir {options.workdir} is not a directory; pass one that exists.")
    if options.script[0] != "-m" and not Path(options.workdir, options.script[0]).is_file():
        raise ValueError(f"script {options.script[0]} was not found in {options.workdir}; check its path.")
    if not args.mpi and args.python == sys.executable and importlib.util.find_spec("torch") is None:
        raise RuntimeError(f"torch is not installed in {args.python}; install it, or pass --python.")


def _hosts_of_ranks(layout: Sequence[HostRanks] | None, starts: Sequence[Command]) -> list[str]:
    if layout is None:
        return [starts[0].host] * len(starts[0].ranks)
    return [host_ranks.host.target for host_ranks in layout for _ in host_ranks.ranks]


def _shows_colour() -> bool:
    streams = (sys.stdout, sys.stderr)
    return all(stream is not None and stream.isatty() for stream in streams) and not os.environ.get("NO_COLOR")


def _same_file(one: TextIO | None, other: TextIO | None) -> bool:
    if one is None or other is None:
        return False
    try:
        return os.path.sameopenfile(one.fileno(), other.fileno())
    except OSError:  # streams in memory
        return False


_SIGNAL_ADVICE = {  # what ends a rank so that it cannot say why
    "was killed by SIGKILL": "; out of memory? the kernel's log or the batch system's says so",
    "was killed by SIGBUS": "; files of parts cut short or replaced below it, or /dev/shm full?",
}


def _summary(result: RunResult, screen: Screen) -> str | None:
    """One line about the end; None after success."""
    unsure = [launched.command.host for launched in result.all_launched if launched.killed]
    left = f"; {', '.join(unsure)} did not answer in time: look there for processes left" if unsure else ""
    after = f"after {result.seconds:.1f} s"
    if result.reason == "interrupted" and not left:
        return None  # the runner has reported it
    if result.reason is not None:
        return f"{PROGRAM}: {result.reason}; all ranks ended {after}{left}"
    if result.status == 0:
        return None
    if result.failure is not None:
        first = result.failure
        where = f" on {first.host}" if screen.several_hosts else ""
        said = "; its traceback:" if first.lines else ""
        advice = _SIGNAL_ADVICE.get(first.how, "")
        return f"{PROGRAM}: error: rank {first.rank}{where} {first.how}; the run ended {after}{left}{advice}{said}"
    launched = result.failed_command
    assert launched is not None  # a status without a failing rank comes from a process
    what = f"{Path(launched.command.argv[0]).name} for {launched.command.host} ended with status {launched.status}"
    said = launched.last_error.strip() or "it printed nothing"
    return f"{PROGRAM}: error: {what} ({said}); the run ended {after}{left}{_advice(launched)}"


def _advice(launched: LaunchedCommand) -> str:
    """What to do about a process that failed although no rank failed; "" where the cause is not known."""
    if "fastsample_dist.launch.guard" in launched.last_error and "No module" in launched.last_error:
        return "; install fastsample_dist on that host in the interpreter that --python names"
    if launched.status == SSH_FAILED and launched.command.host != LOCAL:
        return (
            "; the connection was refused or lost: check that ssh reaches the host without a password. Ranks that run "
            f"there end by themselves after {guard.SILENCE_S:g} s of silence"
        )
    if launched.status == NOT_FOUND and launched.command.host != LOCAL:
        return "; pass an interpreter that every host has with --python"
    return ""


def _report(args: argparse.Namespace, hosts: Sequence[str], result: RunResult) -> dict[str, Any]:
    """What --json holds."""
    failure = result.failure
    return {
        "script": list(args.script),
        "world_size": len(hosts),
        "status": result.status,
        "reason": result.reason,
        "seconds": result.seconds,
        "failed_rank": None if failure is None else {"rank": failure.rank, "host": failure.host, "how": failure.how},
        "traceback": None if failure is None else failure.lines,
        "hosts": [
            {
                "host": launched.command.host,
                "ranks": list(launched.command.ranks),
                "command": list(launched.command.argv),
                "pid": launched.process.pid,
                "status": launched.status,
                "seconds": launched.ended_s,
                "killed": launched.killed,
                "last_error": launched.last_error or None,
            }
            for launched in result.all_launched
        ],
    }


def _check_json_target(path: Path) -> None:
    """Refuse a report file that could not be written, before any work is done."""
    if path.is_dir():
        raise ValueError(f"--json {path} is a directory; pass a file name.")
    try:
        with tempfile.TemporaryFile(dir=path.absolute().parent):
            return
    except OSError as error:
        raise ValueError(f"--json {path} cannot be written ({error.strerror}); pass another file name.") from error


def _write_json(path: Path, report: dict[str, Any]) -> None:
    """Write the report; a file appears complete, a device or a pipe takes it as it comes.

    Raises:
      OSError: it cannot be written; the error names it, and nothing is left.
    """
    target, text = path.resolve(), json.dumps(report, indent=1) + "\n"
    whole = not target.exists() or target.is_file()
    partial = target.with_name(f".{target.name}.partial") if whole else target
    try:
        partial.write_text(text, encoding="utf-8")
        if whole:
            partial.replace(target)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        if whole:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
