"""What every operator's arguments are checked by: integers, flags, names, tensors, threads."""

import ctypes
import re

import numpy as np
import pytest
import torch

from fastsample_dist import ops
from fastsample_dist.ops import SampleSpec, checks, library

INDPTR, INDICES, NODES = torch.tensor([0, 1, 2]), torch.tensor([1, 0]), torch.tensor([0])


@pytest.mark.parametrize("value", [None, 1.5, "3", True, -1, 8])
def test_whole_refuses_what_is_no_integer_in_range(value):
    with pytest.raises(ValueError, match=re.escape(f"count is {value!r}; expected an integer from 0 to 7.")):
        checks.whole("count", value, 0, 7)


def test_whole_returns_a_python_integer():
    assert [type(checks.whole("count", value, 0)) for value in (3, np.int32(3), torch.tensor(3))] == [int] * 3


@pytest.mark.parametrize("value", [None, 0, 1, "no", []])
def test_a_flag_is_true_or_false(value):
    with pytest.raises(ValueError, match=re.escape(f"shuffle is {value!r}; expected True or False.")):
        checks.flag("shuffle", value)


@pytest.mark.parametrize("value", [None, 3, [], {}, np.array(["a", "b"]), "c"])
def test_one_of_refuses_what_is_no_name(value):
    with pytest.raises(ValueError, match="letter is .*; expected 'a' or 'b'"):
        checks.one_of("letter", value, ("a", "b"))


@pytest.mark.parametrize("threads", [0, -1, checks.MOST_THREADS + 1, 2**31 - 1, 2**31, 2**32 + 1, 1.5, "2", True])
def test_threads_out_of_range_are_refused_before_any_is_started(threads):
    message = re.escape(f"num_threads is {threads!r}; expected an integer from 1 to {checks.MOST_THREADS}.")
    for call in (
        lambda: SampleSpec(fanouts=(2,), num_threads=threads),
        lambda: ops.induced_subgraph(INDPTR, INDICES, NODES, num_threads=threads),
        lambda: ops.alias_tables(INDPTR, torch.ones(2), num_threads=threads),
        lambda: ops.PinSAGERule(num_threads=threads),
        lambda: ops.SubgraphRule(num_threads=threads),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_the_core_refuses_the_same_numbers_of_threads():
    """For callers without Python, and where torch's own setting is larger."""
    spec = library.SampleArguments((ctypes.c_int64 * 1)(2), 1, 0, 0, 0, 0, 0, checks.MOST_THREADS, 0, 0)
    library.call(library.core().fs_check_sample_spec, b"core", spec)
    spec.num_threads += 1
    with pytest.raises(ValueError, match=f"num_threads is {spec.num_threads}; expected an integer from 1 to 1024"):
        library.call(library.core().fs_check_sample_spec, b"core", spec)


@pytest.mark.parametrize(
    ("function", "arguments", "name"),
    [
        (ops.induced_subgraph, (INDPTR.tolist(), INDICES, NODES), "indptr"),
        (ops.induced_subgraph, (INDPTR, INDICES, [0]), "nodes"),
        (ops.induced_subgraph, (INDPTR, None, NODES), "indices"),
        (ops.bfs_order, (INDPTR.tolist(), INDICES), "indptr"),
        (ops.bfs_order, (INDPTR, None), "indices"),
    ],
)
def test_a_list_in_place_of_a_tensor_is_refused(function, arguments, name):
    with pytest.raises(ValueError, match=f"^{name} is a (list|NoneType); expected a tensor.$"):
        function(*arguments)


@pytest.mark.parametrize("step", [None, -1, "a", 1.5, True, 2**63])
def test_a_step_is_an_integer_of_63_bits(step):
    for arguments in (SampleSpec(fanouts=(2,)).arguments, ops.PinSAGERule().arguments):
        with pytest.raises(ValueError, match=f"step is {step!r}; expected an integer from 0"):
            arguments(step)
