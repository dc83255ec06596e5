"""The command with `kaminpar`: Ctrl-C and kills during the call, and what the same command resumes from."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fastsample_dist.partition
from fastsample_dist.memory_sizes import parse_bytes
from fastsample_dist.partition.cli import main
from fastsample_dist.partition.external.journal import work_directory
from fastsample_dist.partition.external.sampled_rows import SampledRows
from tests.test_partition.inputs import write_input
from tests.test_partition.played_kaminpar import is_running, played_kaminpar, signal_parent
from tests.test_partition.test_on_disk import contents
from tests.waiting import wait_until

REPOSITORY = Path(fastsample_dist.partition.__file__).parents[2]


@pytest.fixture
def play(tmp_path):
    with played_kaminpar(tmp_path / "played") as plays:
        yield plays


@pytest.fixture
def outputs(tmp_path):
    """Directory of outputs."""
    (tmp_path / "outputs").mkdir()
    return tmp_path / "outputs"


@pytest.fixture
def argv(tmp_path, outputs) -> list[str]:
    graph = write_input(tmp_path / "graph")
    return ["--input", str(graph), "--num-parts", "3", "--method", "kaminpar", "--output", str(outputs / "parts")]


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_signal_during_the_call_is_one_line_and_nothing_is_left(argv, outputs, tmp_path, play, capsys, name):
    play(signal_parent(name, tmp_path / "pid"))
    assert main(argv) == 130
    assert capsys.readouterr().err == "fastsample-partition: interrupted; no partial output is left.\n"
    assert not is_running(tmp_path / "pid")
    assert list(outputs.iterdir()) == []


def test_threads_are_as_many_as_asked_for(argv, outputs, tmp_path, play):
    before, seen = torch.get_num_threads(), tmp_path / "threads"
    play(f"open({str(seen)!r}, 'a').write(f'{{self.num_threads}} ')")
    for name, more in (("asked", ["--threads", str(before + 1)]), ("default", [])):
        argv[-1] = str(outputs / name)
        assert main([*argv, *more]) == 0
        assert torch.get_num_threads() == before
    assert seen.read_text().split() == [str(before + 1), str(before)]


@pytest.mark.parametrize("name", ["SIGINT", "SIGKILL"])
def test_run_on_disk_that_ended_during_the_call_resumes_with_the_call(argv, outputs, tmp_path, play, monkeypatch, name):
    work = work_directory(outputs / "parts")
    play(signal_parent(name, tmp_path / "pid"))
    command = [sys.executable, "-m", "fastsample_dist.partition.cli", *argv, "--on-disk"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    kept = f"fastsample-partition: interrupted; unfinished work is kept in {work}: "
    assert (done.returncode, done.stderr[: len(kept)]) == {"SIGINT": (130, kept), "SIGKILL": (-9, "")}[name]
    wait_until(lambda: not is_running(tmp_path / "pid"))
    graph = work / "assign" / "kaminpar.graph"
    play(f"assert os.stat({str(graph)!r}).st_ino == {graph.stat().st_ino}")
    with monkeypatch.context() as patch:
        patch.delattr("fastsample_dist.partition.external.csc.sort_edges")  # nothing is sorted again
        assert main([*argv, "--on-disk"]) == 0
    play("pass")
    argv[-1] = str(outputs / "plain")
    assert main(argv) == 0
    assert contents(outputs / "parts") == contents(outputs / "plain")
    assert not work.exists()


def test_limited_run_stays_within_the_limit_and_a_lower_one_is_refused_before_the_work(argv, outputs, tmp_path):
    pytest.importorskip("kaminpar")
    code = (  # without the end of the interpreter, where a torch for CUDA reads 127 MB more of its files
        "import json, os, resource, sys\n"
        "from fastsample_dist.memory_sizes import resident_bytes\n"
        "from fastsample_dist.partition.cli import main\n"
        "status = main(sys.argv[1:])\n"
        "most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024\n"
        "print(json.dumps([status, max(resident_bytes(peak=True), most)]), flush=True)\n"
        "os._exit(0)"
    )

    def run(limit: str) -> list:
        """[status, errors, most memory of the command or of KaMinPar's process]."""
        options = [*argv, "--memory-limit", limit, "--on-disk", "--json", str(tmp_path / "report.json")]
        command = [sys.executable, "-c", code, *options]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
        status, most = json.loads(done.stdout.splitlines()[-1])
        return [status, done.stderr, most]

    status, line, _ = run("10MB")
    assert status == 1 and line.count("\n") == 1 and list(outputs.iterdir()) == []
    assert re.search(r"method kaminpar holds the whole graph in memory, about .* or another --method \(.*ldg.*\)", line)
    least = line.split("pass --memory-limit ")[1].split(" ")[0]
    status, line, most = run(least)
    assert line == "" and status == 0
    assert most <= parse_bytes(least)
    assert json.loads((tmp_path / "report.json").read_text())["peak_resident_bytes"] <= parse_bytes(least)


def test_graph_that_is_too_large_compressed_is_refused_before_edges_are_sorted(argv, outputs, capsys, monkeypatch):
    monkeypatch.setattr(SampledRows, "compressed_bytes", lambda rows: 3 << 40)
    monkeypatch.delattr("fastsample_dist.partition.external.buckets.group_edges")
    assert main([*argv, "--on-disk"]) == 1
    line = capsys.readouterr().err
    assert re.search(r"method kaminpar takes 3\.3\d?TB or more, 3\.3TB of it the graph as kaminpar compresses it", line)
    assert line.count("\n") == 1 and list(outputs.iterdir()) == []


def test_another_cut_starts_with_a_new_file(argv, outputs, play, capsys):
    play("os._exit(1)")
    assert main([*argv, "--on-disk"]) == 1
    line = capsys.readouterr().err
    assert "KaMinPar failed: it printed nothing; unfinished work is kept" in line and line.count("\n") == 1
    graph = work_directory(outputs / "parts") / "assign" / "kaminpar.graph"
    graph.write_bytes(b"of another graph")
    play("pass")
    assert main([*argv, "--on-disk", "--seed", "1"]) == 0
