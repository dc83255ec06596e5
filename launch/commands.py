"""What is started: pure functions from hosts and options to argument vectors.

On every host a guard (guard.py) starts one agent: torchrun's elastic agent, or mpirun, which reaches the other hosts
by itself. The agent starts each rank through a second guard that prefixes the rank's output. Without a hosts file the
guard is this package's own file; on other machines it is the installed package's module of the same interpreter.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from fastsample_dist.launch.hosts import HostEntry, HostRanks
from fastsample_dist.launch.parts import PartCopy

# Later -o options of the same name do not count for ssh, so the user's come first.
SSH_DEFAULTS = ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=2", "ServerAliveCountMax=3")
LOCAL = "localhost"


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """How to start a script.

    Attributes:
      script: the script (or -m and a module) and its arguments.
      python: interpreter, the same path on every host.
      guard: path of this package's guard.py.
      workdir: absolute directory to run in.
      nproc: ranks, without a hosts file.
      env: "NAME=VALUE" each.
      mpirun: path of Open MPI's mpirun; None starts torchrun's agent.
      as_root: this user is root, which mpirun refuses by default.
      oversubscribe: more ranks than cores on this machine.
      max_restarts: how often torchrun's agent restarts the ranks.
      grace_s: seconds that ranks have to end by themselves when asked to.
      ssh: program and its leading arguments.
      ssh_options: NAME=VALUE each, as after ssh's -o.
      master_port: where ranks on several hosts meet, on the first host.
    """

    script: tuple[str, ...]
    python: str
    guard: str
    workdir: str
    nproc: int = 1
    env: tuple[str, ...] = ()
    mpirun: str | None = None
    as_root: bool = False
    oversubscribe: bool = False
    max_restarts: int = 0
    grace_s: float = 5.0
    ssh: tuple[str, ...] = ("ssh",)
    ssh_options: tuple[str, ...] = ()
    master_port: int = 29500


@dataclass(frozen=True)
class Command:
    """One process of the launcher.

    Attributes:
      host: where its work happens, as the hosts file names it.
      argv: program and arguments.
      ranks: ranks below it.
      guarded: it reads its lifeline from standard input (see guard.py).
    """

    host: str
    argv: tuple[str, ...]
    ranks: range
    guarded: bool = True

    def __str__(self) -> str:
        return shlex.join(self.argv)


def start_commands(options: LaunchOptions, layout: Sequence[HostRanks] | None = None) -> list[Command]:
    """What to start, one command per host; under mpirun one for all.

    Args:
      options: how to start.
      layout: hosts and their ranks; None: this machine.
    Raises:
      ValueError: a host that mpirun cannot take.
    """
    if layout is None:
        agent = _mpirun(options, None) if options.mpirun else _torchrun(options, ["--standalone"], options.nproc, None)
        return [Command(LOCAL, (*_host_guard(options, options.nproc), *agent), range(options.nproc))]
    world = range(layout[-1].ranks.stop)
    if options.mpirun:
        largest = max(len(host_ranks.ranks) for host_ranks in layout)
        return [Command(LOCAL, (*_host_guard(options, largest), *_mpirun(options, layout)), world)]
    return [_ssh_start(options, layout, index) for index in range(len(layout))]


def copy_commands(options: LaunchOptions, copies: Sequence[PartCopy]) -> tuple[list[Command], list[Command]]:
    """What brings parts to their hosts: (commands that make the directories, then those that copy)."""
    making, copying = [], []
    shell = shlex.join((*options.ssh, *_ssh_settings(options)))
    for copy in copies:
        host, ranks = copy.host_ranks.host, copy.host_ranks.ranks
        make = ssh_argv(options, host, ("mkdir", "-p", "--", copy.destination))
        making.append(Command(host.target, make, ranks, guarded=False))
        target = f"{rsync_host(host)}:{copy.destination}/"
        argv = ("rsync", "--archive", "--protect-args", "-e", shell, "--", *copy.sources, target)
        copying.append(Command(host.target, argv, ranks, guarded=False))
    return making, copying


def ssh_argv(options: LaunchOptions, host: HostEntry, remote: Sequence[str]) -> tuple[str, ...]:
    """ssh to a host that runs `remote` there; the remote shell sees one quoted line."""
    return (*options.ssh, *_ssh_settings(options), host.target, shlex.join(remote))


def rsync_host(host: HostEntry) -> str:
    """The host as rsync writes it: an IPv6 address has brackets."""
    if ":" not in host.address:
        return host.target
    user, at, address = host.target.rpartition("@")
    return f"{user}{at}[{address}]"


def _ssh_settings(options: LaunchOptions) -> list[str]:
    return [word for setting in (*options.ssh_options, *SSH_DEFAULTS) for word in ("-o", setting)]


def _ssh_start(options: LaunchOptions, layout: Sequence[HostRanks], index: int) -> Command:
    host_ranks = layout[index]
    if len(layout) == 1:
        meeting = ["--standalone"]
    else:
        meeting = ["--nnodes", str(len(layout)), "--node-rank", str(index)]
        meeting += ["--master-addr", layout[0].host.address, "--master-port", str(options.master_port)]
    remote = (
        *_host_guard(options, len(host_ranks.ranks), installed=True),
        *_torchrun(options, meeting, len(host_ranks.ranks), host_ranks.host),
    )
    return Command(host_ranks.host.target, ssh_argv(options, host_ranks.host, remote), host_ranks.ranks)


def _guard(options: LaunchOptions, mode: str, installed: bool) -> list[str]:
    """Isolated (-I), so that no launch.py in the user's directory takes its place."""
    place = ["-m", "fastsample_dist.launch.guard"] if installed else [options.guard]
    return [options.python, "-I", *place, mode, "--grace-s", f"{options.grace_s:g}"]


def _host_guard(options: LaunchOptions, num_ranks: int, installed: bool = False) -> list[str]:
    guard = [*_guard(options, "host", installed), "--ranks", str(num_ranks), "--chdir", options.workdir]
    if options.mpirun:  # which passes these on to every rank; SIGINT and SIGTERM would end them unasked
        guard += ["--interrupt-with", "SIGUSR2", "--terminate-with", "SIGUSR1"]
    return [*guard, *(word for setting in options.env for word in ("--env", setting)), "--"]


def _rank_command(options: LaunchOptions, installed: bool) -> list[str]:
    return [*_guard(options, "rank", installed), "--", options.python, "-u", *options.script]


def _torchrun(options: LaunchOptions, meeting: list[str], nproc: int, host: HostEntry | None) -> list[str]:
    agent = [options.python, "-m", "torch.distributed.run", *meeting, "--nproc-per-node", str(nproc)]
    agent += ["--max-restarts", str(options.max_restarts), "--monitor-interval", "0.1", "--no-python"]
    return [*agent, *_rank_command(options, installed=host is not None)]


def _mpirun(options: LaunchOptions, layout: Sequence[HostRanks] | None) -> list[str]:
    assert options.mpirun is not None
    agent = [options.mpirun, *(["--allow-run-as-root"] if options.as_root else [])]
    agent += ["--bind-to", "none"]  # by default two ranks get one core each, however many there are
    if layout is None:
        agent += ["--oversubscribe"] if options.oversubscribe else []
        return [*agent, "-n", str(options.nproc), *_rank_command(options, installed=False)]
    for host in (host_ranks.host for host_ranks in layout):
        if "@" in host.target or ":" in host.target:
            raise ValueError(
                f"{host.target} (line {host.line} of the hosts file) does not go with --mpi: mpirun takes names and "
                "IPv4 addresses only; give the user with --ssh-option User=NAME, or leave out --mpi."
            )
    hosts = ",".join(f"{host_ranks.host.target}:{len(host_ranks.ranks)}" for host_ranks in layout)
    agent += ["--host", hosts, "--map-by", "slot", "--wdir", options.workdir]
    agent += ["--mca", "plm_rsh_no_tree_spawn", "1"]  # daemons would start daemons with half of ssh's settings
    agent += ["--mca", "plm_rsh_agent", shlex.join((*options.ssh, *_ssh_settings(options)))]
    agent += [word for setting in options.env for word in ("-x", setting.partition("=")[0])]
    return [*agent, "-n", str(layout[-1].ranks.stop), *_rank_command(options, installed=True)]
