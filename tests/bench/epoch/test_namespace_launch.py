"""fastsample-launch over hosts with addresses, disks and shared memory of their own: torchrun's agents and mpirun.

What reaches a host in place of ssh enters its namespaces; everything else is as between machines.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fastsample_dist.bench.epoch.namespaces import missing_reason, namespace_hosts
from fastsample_dist.testing import mpi_missing_reason
from tests.grids import grid
from tests.train.task import make_task
from tests.waiting import ENOUGH_S

ROOT = Path(__file__).resolve().parents[3]
REASON = missing_reason()
pytestmark = pytest.mark.skipif(REASON is not None, reason=f"no hosts in namespaces: {REASON}")
SMALL = (
    "--epochs",
    "4",
    "--batch-size",
    "20",
    "--hidden",
    "16",
    "--lr",
    "0.02",
    "--threads",
    "1",
    "--timeout-s",
    "200",
)

ENTER = """#!{python}
import os, sys
words = sys.argv[1:]
while words[0].startswith("-"):
    words = words[2:] if words[0] == "-o" else words[1:]
prefix = {prefixes!r}[words[0]]
os.execvp(prefix[0], [*prefix, "sh", "-c", " ".join(words[1:])])
"""


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    return make_task(tmp_path_factory.mktemp("hosts"), 4, dtype="float32").path


def command(made, directory: Path, *options: str, slots: int = 1) -> list[str]:
    """fastsample-launch on the first host, for all hosts, with `slots` ranks on each."""
    (directory / "hosts").write_text("".join(f"{host.address} slots={slots}\n" for host in made.hosts))
    program = directory / "ssh"
    prefixes = {host.address: list(host.prefix) for host in made.hosts}
    program.write_text(ENTER.format(python=sys.executable, prefixes=prefixes))
    program.chmod(0o755)
    launch = [
        sys.executable,
        "-m",
        "fastsample_dist.launch",
        "--hosts",
        str(directory / "hosts"),
        "--ssh",
        str(program),
        *options,
    ]
    return [*made.hosts[0].prefix, *launch, "--", str(ROOT / "examples" / "train_sage.py"), "--data", str(made.data)]


@pytest.mark.parametrize("launcher", grid(["torchrun", "mpirun"], gate=["torchrun"]))
@pytest.mark.parametrize("count", grid([2, 4], gate=[2]))
def test_trains_across_hosts(parts, tmp_path, launcher, count):
    if launcher == "mpirun" and mpi_missing_reason() is not None:
        pytest.skip(f"no MPI here: {mpi_missing_reason()}")
    with namespace_hosts(parts, count, work=tmp_path) as made:
        options = [] if launcher == "torchrun" else ["--mpi"]
        ended = subprocess.run(
            [*command(made, tmp_path, *options), *SMALL, "--json", str(tmp_path / "out.json")],
            cwd=ROOT, capture_output=True, text=True, timeout=ENOUGH_S, check=False,
        )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    results = json.loads((tmp_path / "out.json").read_text())
    assert results["world_size"] == count
    assert results["comm"]["feature_rows"]["bytes_received"] > 0
    assert results["transport"] == "exchange", "hosts of namespaces are machines to each other"
    assert results["test_acc"] > 0.5


@pytest.mark.grid
@pytest.mark.parametrize("launcher", ["torchrun", "mpirun"])
def test_roles_train_across_hosts(parts, tmp_path, launcher):
    """A sampler and a trainer on each host; equal losses are held by tests/train/test_roles_hosts.py."""
    if launcher == "mpirun" and mpi_missing_reason() is not None:
        pytest.skip(f"no MPI here: {mpi_missing_reason()}")
    with namespace_hosts(parts, 2, work=tmp_path) as made:
        words = command(made, tmp_path, *([] if launcher == "torchrun" else ["--mpi"]), slots=2)
        ended = subprocess.run(
            [*words, *SMALL, "--roles", "1+1", "--json", str(tmp_path / "out.json")],
            cwd=ROOT, capture_output=True, text=True, timeout=ENOUGH_S, check=False,
        )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    results = json.loads((tmp_path / "out.json").read_text())
    assert results["world_size"] == 4
    assert "roles 1+1 on each of 2 machines: ranks 0, 2 train, ranks 1, 3 sample" in ended.stdout
    assert results["test_acc"] > 0.5


SSHD = shutil.which("sshd", path=os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"]))
TOOLS = {"sshd": SSHD, "ssh": shutil.which("ssh"), "ssh-keygen": shutil.which("ssh-keygen")}
NO_SSH = ", ".join(name for name, found in TOOLS.items() if found is None)


@contextmanager
def ssh_servers(hosts, directory: Path) -> Iterator[list[str]]:
    """A real sshd on every host; yields the launcher's options that log in with a key of this test."""
    for name in ("host_key", "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / name)], check=True)
    settings = {
        "HostKey": directory / "host_key", "AuthorizedKeysFile": directory / "key.pub", "StrictModes": "no",
        "UsePAM": "no", "PasswordAuthentication": "no", "PermitRootLogin": "yes", "PidFile": "none",
    }  # fmt: skip
    (directory / "sshd_config").write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    Path("/run/sshd").mkdir(exist_ok=True)  # where sshd's unprivileged half lives
    command = [SSHD, "-D", "-e", "-f", str(directory / "sshd_config")]
    with (directory / "sshd.log").open("w") as log:
        servers = [subprocess.Popen([*host.prefix, *command], stdout=log, stderr=log) for host in hosts]
        client = {
            "IdentityFile": directory / "key", "StrictHostKeyChecking": "no", "UserKnownHostsFile": "/dev/null",
            "LogLevel": "ERROR", "ConnectionAttempts": "10",
        }  # fmt: skip
        try:
            yield [word for name, value in client.items() for word in ("--ssh-option", f"{name}={value}")]
        finally:
            for server in servers:
                server.terminate()
                server.wait()


@pytest.mark.skipif(NO_SSH != "", reason=f"not installed here: {NO_SSH}")
@pytest.mark.parametrize("launcher", grid(["torchrun", "mpirun"], gate=["mpirun"]))
def test_trains_across_hosts_by_ssh(parts, tmp_path, launcher):
    if launcher == "mpirun" and mpi_missing_reason() is not None:
        pytest.skip(f"no MPI here: {mpi_missing_reason()}")
    with namespace_hosts(parts, 2, work=tmp_path) as made, ssh_servers(made.hosts, tmp_path) as options:
        (tmp_path / "hosts").write_text("".join(f"{host.address} slots=1\n" for host in made.hosts))
        launch = [sys.executable, "-m", "fastsample_dist.launch", "--hosts", str(tmp_path / "hosts"), *options]
        launch += [] if launcher == "torchrun" else ["--mpi"]
        script = ["--", str(ROOT / "examples" / "train_sage.py"), "--data", str(made.data), *SMALL]
        ended = subprocess.run(
            [*made.hosts[0].prefix, *launch, *script, "--json", str(tmp_path / "out.json")],
            cwd=ROOT, capture_output=True, text=True, timeout=ENOUGH_S, check=False,
        )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr + (tmp_path / "sshd.log").read_text()
    assert json.loads((tmp_path / "out.json").read_text())["world_size"] == 2


@pytest.mark.grid
def test_a_host_that_is_cut_off_ends_the_run_with_a_diagnosis(parts, tmp_path):
    endless = ("--epochs", "100000", "--batch-size", "20", "--hidden", "16", "--threads", "1", "--eval-every", "0")
    with namespace_hosts(parts, 2, work=tmp_path) as made:
        run = subprocess.Popen(
            [*command(made, tmp_path), *endless, "--timeout-s", "12"],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            assert run.stdout is not None
            printed = ""
            while "epoch 2/" not in printed:
                line = run.stdout.readline()
                assert line, printed
                printed += line
            made.set_link(1, False)
            printed += run.communicate(timeout=ENOUGH_S)[0]
        finally:
            run.kill()
            run.wait()
    assert run.returncode != 0
    assert "did not finish within 12 s" in printed and "rank 1" in printed
