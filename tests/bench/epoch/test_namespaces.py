"""Hosts in network namespaces: what each has, that they reach each other, and that nothing of them stays."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fastsample_dist.bench.epoch import namespaces
from fastsample_dist.bench.epoch.namespaces import missing_reason, namespace_hosts, place_parts
from fastsample_dist.graph.manifest import read_manifest
from fastsample_dist.testing.jobs import RankJob, run_ranks
from tests.grids import grid
from tests.interrupted import FOREVER
from tests.train.task import make_task
from tests.waiting import ENOUGH_S, wait_until

ROOT = Path(__file__).resolve().parents[3]


def needs_hosts(rate=None):
    reason = missing_reason(rate)
    return pytest.mark.skipif(reason is not None, reason=f"no hosts in namespaces: {reason}")


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    return make_task(tmp_path_factory.mktemp("hosts"), 4, dtype="float32").path


def printed(host, *command):
    return subprocess.run([*host.prefix, *command], capture_output=True, text=True, check=True).stdout.split()


def links():
    return Path("/proc/net/dev").read_text().count(":")


@needs_hosts()
def test_hosts_have_their_own_parts_names_and_addresses_and_vanish(parts, tmp_path):
    before = links()
    with namespace_hosts(parts, 2, work=tmp_path) as made:
        for index, host in enumerate(made.hosts):
            own = [f"part-{2 * index}", f"part-{2 * index + 1}"]
            assert printed(host, "ls", str(made.data)) == ["manifest.json", *own, "topology"]
            assert printed(host, "hostname") == [f"host-{index}"]
            assert printed(host, "ls", "/dev/shm") == []
            assert host.address in " ".join(printed(host, "ip", "-brief", "address", "show", "eth0"))
        anchors = [int(host.prefix[2]) for host in made.hosts]
    assert links() == before and list(tmp_path.iterdir()) == []
    assert not any(Path(f"/proc/{pid}").exists() for pid in anchors)


@needs_hosts()
def test_hosts_made_in_a_relative_directory_have_absolute_paths(parts, tmp_path, monkeypatch):
    """Ranks have working directories of their own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "work").mkdir()
    with namespace_hosts(parts, 1, work=Path("work")) as made:
        assert made.data.is_absolute() and printed(made.hosts[0], "ls", str(made.data))[0] == "manifest.json"


@pytest.mark.grid
@needs_hosts()
def test_ranks_on_hosts_meet_and_load_what_is_theirs(parts, tmp_path):
    with namespace_hosts(parts, 2, work=tmp_path) as made:
        job = RankJob(
            task="tests.testing.job_tasks:load_own", settings=[{"path": str(made.data)}] * 2, deadline_s=ENOUGH_S
        )
        found = run_ranks(job, made.hosts)
    manifest = read_manifest(parts)
    assert [entry["own_range"] for entry in found] == [
        tuple(manifest.part_ranges[0:3:2]),
        tuple(manifest.part_ranges[2:5:2]),
    ]
    assert [entry["interface"] for entry in found] == ["eth0", "eth0"]


@needs_hosts("50mbit")
def test_a_rate_limits_the_links(forked_ranks, parts, tmp_path):
    """50 Mbit/s is 6.25 MB/s, once the bucket of 1 MiB is spent."""
    with namespace_hosts(parts, 2, rate="50mbit", work=tmp_path) as made:
        job = RankJob(
            task="tests.testing.job_tasks:send_megabytes", settings=[{"megabytes": 6}] * 2, deadline_s=ENOUGH_S
        )
        seconds = max(entry["seconds"] for entry in run_ranks(job, made.hosts))
    assert seconds > 0.7  # 5 MB beyond the bucket


@needs_hosts()
@pytest.mark.grid
def test_a_link_taken_down_ends_the_run_with_a_diagnosis(parts, tmp_path):
    started = tmp_path / "started-"
    with namespace_hosts(parts, 2, work=tmp_path) as made:
        job = RankJob(
            task="tests.testing.job_tasks:reduce_until_it_fails", settings=[{"file": str(started)}] * 2,
            deadline_s=ENOUGH_S, timeout_s=20.0,
        )  # fmt: skip
        failure = []

        def run():
            with pytest.raises(RuntimeError) as caught:
                run_ranks(job, made.hosts)
            failure.append(str(caught.value))

        ranks = threading.Thread(target=run)
        ranks.start()
        wait_until(lambda: Path(f"{started}0").exists() and Path(f"{started}1").exists())
        made.set_link(1, up=False)
        ranks.join(ENOUGH_S)
    assert failure and "all_reduce of gradients" in failure[0], failure


@needs_hosts()
@pytest.mark.parametrize("number", grid([signal.SIGTERM, signal.SIGKILL], gate=[signal.SIGKILL]))
def test_a_killed_command_leaves_no_host_and_the_next_start_removes_its_directory(parts, tmp_path, number):
    code = (
        "import sys, time; from pathlib import Path; "
        "from fastsample_dist.command import sigterm_interrupts; "
        "from fastsample_dist.bench.epoch.namespaces import namespace_hosts\n"
        f"with sigterm_interrupts(), namespace_hosts(Path({str(parts)!r}), 2, work=Path({str(tmp_path)!r})) as made:\n"
        f"    print(*(host.prefix[2] for host in made.hosts), flush=True)\n    {FOREVER}"
    )
    command = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    anchors = [int(pid) for pid in command.stdout.readline().split()]
    assert len(anchors) == 2
    os.kill(command.pid, number)
    command.wait()
    command.stdout.close()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in anchors))
    left = list(tmp_path.iterdir())
    assert len(left) == (1 if number == signal.SIGKILL else 0)
    with namespace_hosts(parts, 1, work=tmp_path):
        assert not any(folder.exists() for folder in left)


def test_a_host_gets_links_to_its_share_of_the_files(parts, tmp_path):
    place_parts(parts, tmp_path / "host", 3, 4)
    found = {str(path.relative_to(tmp_path / "host")) for path in (tmp_path / "host").rglob("*.*")}
    manifest = read_manifest(parts)
    assert found == {"manifest.json"} | {name for name in manifest.files if name.startswith(("topology/", "part-3/"))}
    assert all((tmp_path / "host" / name).samefile(parts / name) for name in found)


def test_parts_that_do_not_fit_the_hosts_are_refused(parts, tmp_path):
    with pytest.raises(ValueError, match="has 4 parts, which 3 hosts cannot share equally"):
        place_parts(parts, tmp_path / "host", 0, 3)


def test_where_hosts_cannot_be_made_the_reason_is_given(monkeypatch, parts):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with (
        pytest.raises(RuntimeError, match="cannot be made here: network namespaces need root"),
        namespace_hosts(parts, 2),
    ):
        pass
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(namespaces.shutil, "which", lambda tool: None if tool == "tc" else tool)
    assert missing_reason("1gbit") == "tc is missing; install iproute2"


@pytest.mark.parametrize("rate", ["fast", "1 gbit", "1gbit; reboot"])
def test_a_rate_that_is_none_is_refused(rate):
    with pytest.raises(ValueError, match="expected bits per second such as 1gbit"):
        namespaces.check_rate(rate)
