"""Facts about reductions, broadcasts, objects, barriers, and duplicates in threads."""

import threading
import time
import traceback

import torch

from tests.comm.oracle import DTYPES, FACTS, assert_same, fact

# ---- reductions, broadcast, objects, barrier ----


def check_reduce(dtype, op, reduce):
    def reduced(comm):
        values = [torch.tensor([rank, 7 - rank, 2 * rank]).to(dtype) for rank in range(comm.world_size)]
        tensor = values[comm.rank].clone()
        assert comm.all_reduce(tensor, op=op, purpose="values") is tensor
        assert_same(tensor, reduce(torch.stack(values)).to(dtype))

    return reduced


for _dtype in DTYPES[:-1]:
    for _op, _reduce in {"sum": lambda t: t.sum(0), "max": lambda t: t.amax(0), "min": lambda t: t.amin(0)}.items():
        _name = f"all_reduce_{_op}_{str(_dtype).removeprefix('torch.')}"
        FACTS[_name] = check_reduce(_dtype, _op, _reduce)


@fact
def all_reduce_works_on_a_strided_tensor(comm):
    base = torch.zeros(4, 3)
    base[:, 1] = comm.rank
    comm.all_reduce(base[:, 1], op="max", purpose="values")
    assert base.tolist() == [[0.0, comm.world_size - 1.0, 0.0]] * 4


@fact
def all_reduce_of_nothing(comm):
    assert comm.all_reduce(torch.empty(0, 3), purpose="values").shape == (0, 3)


@fact
def all_reduce_works_on_a_parameter(comm):
    parameter = torch.nn.Parameter(torch.full((2,), 1.5))
    comm.all_reduce(parameter, purpose="values")
    assert parameter.tolist() == [1.5 * comm.world_size] * 2


def check_future(dtype):
    def summed_later(comm):
        tensor = torch.arange(4).to(dtype) + comm.rank
        got = comm.all_reduce_future(tensor, purpose="gradients").wait()
        total = sum(range(comm.world_size))
        assert_same(got, (torch.arange(4) * comm.world_size + total).to(dtype))
        assert got.data_ptr() == tensor.data_ptr()

    return summed_later


for _dtype in (torch.float32, torch.bfloat16, torch.int16):
    FACTS[f"all_reduce_future_{str(_dtype).removeprefix('torch.')}"] = check_future(_dtype)


@fact
def several_all_reduce_futures_may_be_under_way(comm):
    tensors = [torch.full((1000,), float(k)) for k in range(5)]
    futures = [comm.all_reduce_future(tensor, purpose="gradients") for tensor in tensors]
    assert [future.wait()[0].item() for future in futures] == [float(k * comm.world_size) for k in range(5)]


def check_start(dtype):
    def summed_when_waited_for(comm):
        tensors = [torch.arange(4).to(dtype) + comm.rank + k for k in range(5)]
        for wait in [comm.all_reduce_start(tensor, purpose="gradients") for tensor in tensors]:
            wait()
        total = sum(range(comm.world_size))
        for k, tensor in enumerate(tensors):
            assert_same(tensor, ((torch.arange(4) + k) * comm.world_size + total).to(dtype))

    return summed_when_waited_for


for _dtype in (torch.float32, torch.bfloat16, torch.int16):
    FACTS[f"all_reduce_start_{str(_dtype).removeprefix('torch.')}"] = check_start(_dtype)


@fact
def broadcast_from_every_rank(comm):
    for src in range(comm.world_size):
        tensor = torch.full((2, 2), comm.rank, dtype=torch.float16)
        assert comm.broadcast(tensor, src, purpose="values") is tensor
        assert tensor.tolist() == [[src, src]] * 2


@fact
def broadcast_of_bool(comm):
    tensor = torch.tensor([True, False, True]) if comm.rank == 0 else torch.zeros(3, dtype=torch.bool)
    assert comm.broadcast(tensor, purpose="values").tolist() == [True, False, True]


@fact
def broadcast_into_a_strided_tensor(comm):
    base = torch.full((2, 3), comm.rank)
    comm.broadcast(base[:, 1], purpose="values")
    assert base.tolist() == [[comm.rank, 0, comm.rank]] * 2


@fact
def broadcast_into_a_column_of_one_row(comm):
    base = torch.full((1, 3), comm.rank + 1)
    comm.broadcast(base[:, 1], purpose="values")
    assert base.tolist() == [[comm.rank + 1, 1, comm.rank + 1]]


@fact
def all_gather_object_returns_every_object_by_rank(comm):
    got = comm.all_gather_object({"rank": comm.rank, "list": [None] * comm.rank}, purpose="objects")
    assert got == [{"rank": rank, "list": [None] * rank} for rank in range(comm.world_size)]


@fact
def nobody_leaves_a_barrier_before_all_have_come(comm):
    if comm.rank == comm.world_size - 1:
        time.sleep(0.1)
    came_s = time.monotonic()  # one clock for all processes of a machine
    comm.barrier()
    left_s = time.monotonic()
    times = comm.all_gather_object((came_s, left_s), purpose="times")
    assert max(came for came, _ in times) <= min(left for _, left in times)


# ---- two threads ----


@fact
def a_duplicate_works_in_a_thread_at_the_same_time(comm):
    """Messages of both would mix if they shared a group: sizes, order and values differ."""
    copy = comm.duplicate()
    failures = []

    def background():
        try:
            for k in range(30):
                values = torch.full((comm.world_size * 50, 3), 1000.0 * k + comm.rank)
                got, _ = copy.all_to_all_rows(values, [50] * comm.world_size, purpose="background")
                expected = 1000.0 * k + torch.arange(comm.world_size).repeat_interleave(50)
                assert torch.equal(got[:, 0], expected)
        except BaseException:
            failures.append(traceback.format_exc())

    thread = threading.Thread(target=background)
    thread.start()
    for k in range(30):
        tensor = torch.full((100,), float(k))
        comm.all_reduce(tensor, purpose="gradients")
        assert tensor[0].item() == k * comm.world_size
    thread.join()
    copy.close()
    assert not failures, failures[0]


@fact
def a_duplicate_may_be_closed_at_once(comm):
    for _ in range(20):  # on busy cores a rank may still be connecting when another closes
        comm.duplicate().close()


@fact
def a_duplicate_takes_over_limits_and_step(comm):
    comm.step = 7
    comm.max_message_bytes = 99
    copy = comm.duplicate()
    assert (copy.step, copy.max_message_bytes, copy.timeout_s) == (7, 99, comm.timeout_s)
    copy.close()
