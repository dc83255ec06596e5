"""fastsample-launch over hosts with addresses, disks and shared memory of their own: torchrun's agents and mpirun.

What reaches a host in place of ssh enters its namespaces; everything else is as between machines.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fastsample_dist.bench.namespaces import missing_reason, namespace_hosts
from fastsample_dist.testing import mpi_missing_reason
from tests.train.task import make_task

ROOT = Path(__file__).resolve().parents[2]
REASON = missing_reason()
pytestmark = pytest.mark.skipif(REASON is not None, reason=f"no hosts in namespaces: {REASON}")
ENOUGH_S = 200  # for a busy machine
SMALL = ("--epochs", "4", "--batch-size", "20", "--hidden", "16", "--lr", "0.02", "--threads", "1", "--timeout-s", "60")

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


@pytest.mark.parametrize("launcher", ["torchrun", "mpirun"])
@pytest.mark.parametrize("count", [2, 4])
def test_trains_across_hosts(parts, tmp_path, launcher, count):
    if launcher == "mpirun" and mpi_missing_reason() is not None:
        pytest.skip(f"no MPI here: {mpi_missing_reason()}")
    with namespace_hosts(parts, count, work=tmp_path) as made:
        (tmp_path / "hosts").write_text("".join(f"{host.address} slots=1\n" for host in made.hosts))
        program = tmp_path / "ssh"
        prefixes = {host.address: list(host.prefix) for host in made.hosts}
        program.write_text(ENTER.format(python=sys.executable, prefixes=prefixes))
        program.chmod(0o755)
        launch = [sys.executable, "-m", "launch", "--hosts", str(tmp_path / "hosts"), "--ssh", str(program)]
        launch += [] if launcher == "torchrun" else ["--mpi"]
        script = ["--", str(ROOT / "examples" / "train_sage.py"), "--data", str(made.data), *SMALL]
        ended = subprocess.run(
            [*made.hosts[0].prefix, *launch, *script, "--json", str(tmp_path / "out.json")],
            cwd=ROOT, capture_output=True, text=True, timeout=ENOUGH_S, check=False,
        )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    results = json.loads((tmp_path / "out.json").read_text())
    assert results["world_size"] == count
    assert results["comm"]["feature_rows"]["bytes_received"] > 0
    assert results["test_acc"] > 0.5
