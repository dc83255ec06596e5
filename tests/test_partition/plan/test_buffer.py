"""The buffer of methods that stream: what a memory limit leaves of it, said before any pass, and in the plan."""

from dataclasses import replace

import pytest

from fastsample_dist.graph.inputs.sizes import GraphSizes
from fastsample_dist.partition.external.budget import SLACK_BYTES
from fastsample_dist.partition.methods.stream import BUFFER_BYTES, LEAST_PART_BYTES
from fastsample_dist.partition.plan.buffer import buffer_within
from fastsample_dist.partition.plan.memory import memory_budget
from fastsample_dist.partition.plan.prediction import PlanInput, PlanOptions, make_plan
from fastsample_dist.partition.write.checks import check_request
from fastsample_dist.partition.write.options import PartitionOptions

SIZES = GraphSizes(name="graph", num_nodes=100_000, num_listed=1_000_000)
PARTS = 4


def budget_with(room, method="stream"):
    """A budget with so many bytes above what the nodes take."""
    fixed = memory_budget(1 << 40, 0, SIZES, method)
    return memory_budget(fixed.limit - fixed.rest + room, 0, SIZES, method)


@pytest.mark.parametrize(
    ("asked", "room", "held"),
    [
        (None, 1 << 40, BUFFER_BYTES),
        (None, 50 << 20, 50 << 20),  # what is left
        (None, PARTS * LEAST_PART_BYTES, PARTS * LEAST_PART_BYTES),
        (1 << 30, 1 << 40, 1 << 30),
        (1 << 20, 50 << 20, 1 << 20),
    ],
)
def test_the_buffer_is_what_is_asked_for_or_what_the_limit_leaves(asked, room, held):
    assert buffer_within("stream", asked, PARTS, budget_with(room)) == held


def test_methods_without_a_buffer_get_none():
    assert buffer_within("ldg", None, PARTS, budget_with(0, "ldg")) is None


def test_a_limit_that_leaves_too_little_is_refused_with_one_that_does(tmp_path):
    for asked in (None, 100 << 20):
        with pytest.raises(
            ValueError, match=r"^the memory limit is .* takes .* pass --memory-limit .* or more"
        ) as told:
            check_request(
                SIZES,
                PartitionOptions(num_parts=PARTS, method="stream", memory_limit=SLACK_BYTES, buffer=asked),
                tmp_path / "parts",
            )
        assert ("smaller --buffer" in str(told.value)) == (asked is not None)
    assert list(tmp_path.iterdir()) == []


def test_a_buffer_too_small_for_the_parts_is_refused_before_any_pass(tmp_path):
    options = PartitionOptions(num_parts=PARTS, method="stream", buffer=PARTS * LEAST_PART_BYTES - 1)
    with pytest.raises(ValueError, match=r"^buffer is 262143 bytes but .* needs 262144; pass --buffer 1MB or more"):
        check_request(SIZES, options, tmp_path / "parts")


def test_the_plan_counts_what_a_graph_fills_of_the_buffer():
    def peak(edges, **streaming):
        streaming = PartitionOptions(num_parts=PARTS, method="stream", **streaming).streaming
        sizes = replace(SIZES, num_listed=edges)
        options = PlanOptions(num_parts=PARTS, streaming=streaming, memory_limit=1 << 40)
        plan = make_plan(PlanInput(sizes=sizes), options, 0)
        return plan["partitioning"]["methods"]["stream"]["on_disk"]["peak_bytes"]

    many = 1 << 26  # as many pairs of neighbours, 32 bytes of the buffer each
    assert peak(many, buffer=1 << 30) - peak(many, buffer=1 << 29) == 1 << 29
    assert peak(many, buffer=1 << 34) == peak(many, buffer=1 << 31) == peak(many, buffer=1 << 30) + (1 << 30)
    assert peak(many) == peak(many, buffer=BUFFER_BYTES)
    few = 10_000
    assert peak(few, buffer=1 << 30) == peak(few) == peak(few, buffer=32 * few)
