"""Ctrl-C in every step: one line, status 130, nothing under the output's name, and work is kept only to be resumed.

The signal arrives as it would from outside, in the middle of a step. (While METIS works: test_metis_interrupts.py. A
method that keeps Python's lock ends with the process: test_cli.py.)
"""

import importlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from fastsample_dist.partition.cli import main
from fastsample_dist.partition.external.journal import work_directory
from tests.test_partition.inputs import write_input
from tests.test_partition.test_on_disk import contents

IN_MEMORY = {
    "read": "fastsample_dist.partition.cli:read_graph",
    "topology": "fastsample_dist.graph.datasets:_both_directions",
    "balance": "fastsample_dist.partition.write.build:balance_parts",
    "write": "fastsample_dist.partition.write.writer:_write_part",
}
ON_DISK = {
    "read": "fastsample_dist.partition.cli:read_graph",
    "counting": "fastsample_dist.partition.external.csc:add_degrees",
    "grouping": "fastsample_dist.partition.external.buckets:group_edges",
    "sorting": "fastsample_dist.partition.external.csc:sort_edges",
    "balance": "fastsample_dist.partition.write.build:balance_parts",
    "write": "fastsample_dist.partition.write.writer:_write_part",
}
INTERRUPTED = "fastsample-partition: interrupted; "


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    return write_input(tmp_path / "graph")


def interrupt_in(patch: pytest.MonkeyPatch, place: str) -> None:
    """Send this process Ctrl-C when a function, "module:name", begins."""
    module, name = place.split(":")
    original: Callable = getattr(importlib.import_module(module), name)

    def interrupted(*args: object, **named: object) -> object:
        os.kill(os.getpid(), signal.SIGINT)
        return original(*args, **named)

    patch.setattr(f"{module}.{name}", interrupted)


def arguments(graph: Path, output: Path, *more: str) -> list[str]:
    return ["--input", str(graph), "--num-parts", "2", "--method", "random", "--output", str(output), *more]


@pytest.mark.parametrize("step", IN_MEMORY)
def test_cut_in_memory_leaves_nothing(graph, tmp_path, capsys, monkeypatch, step):
    interrupt_in(monkeypatch, IN_MEMORY[step])
    assert main(arguments(graph, tmp_path / "parts")) == 130
    assert capsys.readouterr().err == f"{INTERRUPTED}no partial output is left.\n"
    assert list(tmp_path.iterdir()) == [graph]


@pytest.mark.parametrize("step", ON_DISK)
def test_cut_on_disk_leaves_what_it_resumes_from(graph, tmp_path, capsys, monkeypatch, step):
    argv, work = arguments(graph, tmp_path / "parts", "--on-disk"), work_directory(tmp_path / "parts")
    with monkeypatch.context() as patch:
        interrupt_in(patch, ON_DISK[step])
        assert main(argv) == 130
    kept = step not in ("read", "counting")  # then a step is finished
    line = capsys.readouterr().err
    assert line.startswith(f"{INTERRUPTED}unfinished work is kept in {work}: " if kept else f"{INTERRUPTED}no partial")
    assert line.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == sorted([graph, *([work] if kept else [])])
    assert main(argv) == 0 and main(arguments(graph, tmp_path / "plain")) == 0
    assert contents(tmp_path / "parts") == contents(tmp_path / "plain")
    assert not work.exists()


@pytest.mark.parametrize("more", [(), ("--on-disk",)])
def test_partition_that_is_complete_stays(graph, tmp_path, capsys, monkeypatch, more):
    with monkeypatch.context() as patch:
        interrupt_in(patch, "fastsample_dist.partition.write.build:measure_partition")
        assert main(arguments(graph, tmp_path / "parts", *more)) == 130
    assert capsys.readouterr().err == f"{INTERRUPTED}no partial output is left.\n"
    assert sorted(tmp_path.iterdir()) == [graph, tmp_path / "parts"]
    assert main(["--check", str(tmp_path / "parts")]) == 0


@pytest.mark.parametrize(
    "place",
    [
        "fastsample_dist.partition.write.repartition:_rewrite_column",
        "fastsample_dist.partition.write.repartition:topology_files",
    ],
)
def test_repartition_leaves_nothing(graph, tmp_path, capsys, monkeypatch, place):
    assert main(arguments(graph, tmp_path / "parts")) == 0
    before = contents(tmp_path / "parts")
    interrupt_in(monkeypatch, place)
    assert main(["--repartition", str(tmp_path / "parts"), "4", "--output", str(tmp_path / "new")]) == 130
    assert capsys.readouterr().err == f"{INTERRUPTED}no partial output is left.\n"
    assert sorted(tmp_path.iterdir()) == [graph, tmp_path / "parts"]
    assert contents(tmp_path / "parts") == before
