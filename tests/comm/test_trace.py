"""Traces: spans of all ranks in one file of Chrome's format."""

import json
import time

import pytest
import torch

from fastsample_dist.comm import trace as trace_module
from fastsample_dist.comm.local import LocalCommunicator
from fastsample_dist.comm.trace import Trace
from fastsample_dist.testing import run_distributed
from tests.small_disk import small_files


def traced(ctx, path):
    ctx.comm.watch.trace = trace = Trace.start(ctx.comm)
    copy = ctx.comm.duplicate()
    copy.step = 4
    with copy.watch.span("sample", step=4):
        time.sleep(0.01)
        copy.all_reduce(torch.ones(2), purpose="gradients")
    trace.write(path, ctx.comm)
    copy.close()


def test_stages_and_collectives_of_every_rank_are_on_one_timeline(tmp_path):
    run_distributed(2, traced, args=(tmp_path / "trace.json",))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert [names[rank].split(" on ")[0] for rank in (0, 1)] == ["rank 0", "rank 1"]
    for rank in (0, 1):
        spans = {event["name"]: event for event in events if event["ph"] == "X" and event["pid"] == rank}
        stage, collective = spans["sample"], spans["all_reduce of gradients"]
        assert (stage["cat"], collective["cat"], collective["args"]) == ("stage", "collective", {"step": 4})
        assert stage["dur"] >= 10_000  # microseconds
        assert stage["ts"] <= collective["ts"]
        assert collective["ts"] + collective["dur"] <= stage["ts"] + stage["dur"]
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]


def test_a_failed_span_is_noted_too():
    trace = Trace()
    with pytest.raises(KeyError), trace.span("fetch"):
        raise KeyError
    assert [event[0] for event in trace._events] == ["fetch"]


def test_memory_is_bounded_and_the_rest_is_counted(monkeypatch, tmp_path):
    monkeypatch.setattr(trace_module, "MAX_EVENTS", 3)
    comm = LocalCommunicator()
    comm.watch.trace = Trace.start(comm)
    for _ in range(5):
        comm.barrier()
    assert comm.watch.trace.dropped == 2
    comm.watch.trace.write(tmp_path / "t.json", comm)
    assert "later spans not kept" in (tmp_path / "t.json").read_text()


def test_without_a_trace_a_span_notes_nothing_and_lets_errors_through():
    comm = LocalCommunicator()
    comm.watch.trace = trace = Trace.start(comm)
    comm.barrier()
    assert len(trace._events) == 1
    comm.watch.trace = None
    with pytest.raises(KeyError), comm.watch.span("sample"):
        raise KeyError
    comm.barrier()
    assert len(trace._events) == 1


def test_a_file_that_cannot_be_written_is_named_and_nothing_stays(tmp_path):
    comm = LocalCommunicator()
    with small_files(10), pytest.raises(OSError) as raised:
        Trace.start(comm).write(tmp_path / "trace.json", comm)
    assert raised.value.filename == str(tmp_path / "trace.json")
    assert list(tmp_path.iterdir()) == []
