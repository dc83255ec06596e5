"""The emulator that stands in for a GPU in the kernels' tests: what it runs, and which mistakes it reports."""

import ctypes
import subprocess

import numpy as np
import pytest

from tests.toolchain import CSRC, find_compiler

THREADS = 64  # per block
LANES = np.arange(32)


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    """csrc/cuda/emulated/emulator_cases.cu with the emulator."""
    built = tmp_path_factory.mktemp("cases") / "cases.so"
    sources = [CSRC / "cuda/emulated/emulator_cases.cu", CSRC / "cuda/device.cu", CSRC / "cuda/emulated/emulator.cpp"]
    includes = [f"-I{CSRC / room}" for room in ("include", "core", "cuda")]
    flags = ["-std=c++17", "-O1", "-fPIC", "-shared", "-DFS_EMULATED", "-x", "c++"]
    subprocess.run([find_compiler(), *flags, *includes, *map(str, sources), "-o", str(built)], check=True)
    library = ctypes.CDLL(str(built))
    library.fs_cuda_last_error.restype = ctypes.c_char_p
    return library


@pytest.fixture(params=[0, 1, 2, 99])
def scheduled(cases, request):
    """The cases under one schedule."""
    cases.fs_cuda_set_schedule(ctypes.c_uint64(request.param))
    yield cases
    cases.fs_cuda_set_schedule(ctypes.c_uint64(0))


def launch(cases, name, blocks, words):
    """The words after the launch."""
    status = getattr(cases, f"case_{name}")(blocks, words.ctypes.data_as(ctypes.c_void_p))
    if status:
        raise RuntimeError(cases.fs_cuda_last_error().decode())
    return words


def zeros(count):
    return np.zeros(count, dtype=np.uint32)


def test_every_thread_of_every_block_runs_once(scheduled):
    total = launch(scheduled, "add_numbers", 7, np.zeros(1, dtype=np.uint64))
    assert total[0] == sum(range(7 * THREADS))


def test_a_barrier_orders_shared_memory(scheduled):
    passed = launch(scheduled, "pass_through_shared", 3, zeros(3 * THREADS)).reshape(3, THREADS)
    assert (passed == (np.arange(THREADS) + 1) % THREADS).all()


def test_shared_memory_starts_as_rubbish(cases):
    assert (launch(cases, "read_shared", 2, zeros(2 * THREADS)) == 0xCDCDCDCD).all()


def test_warp_functions_exchange_between_lanes(scheduled):
    rotated, summed, odd, equal = launch(scheduled, "exchange_in_warp", 1, zeros(4 * THREADS)).reshape(-1, 4).T
    both_warps = np.tile(LANES, 2)
    assert (rotated == (both_warps + 1) % 32).all() and (summed == both_warps * (both_warps + 1) // 2).all()
    assert (odd == 0xAAAAAAAA).all() and (equal == 0xF << (both_warps // 4 * 4)).all()


def test_groups_of_lanes_go_their_own_ways(scheduled):
    votes = launch(scheduled, "exchange_in_groups", 1, zeros(THREADS))[:32]
    assert (votes == [sum(range(1, lane // 8 + 2)) for lane in LANES]).all()


def test_blocks_that_wait_for_one_another_take_turns(scheduled):
    assert launch(scheduled, "wait_for_last_block", 4, zeros(2)).tolist() == [7, 1]


@pytest.mark.parametrize("blocks", [1, 3, 8])
@pytest.mark.parametrize("num_counts", [0, 1, 255, 256, 257, 40 * 256 + 3])
def test_a_scan_of_tiles_is_the_prefix_sum_whatever_the_grid_and_the_schedule(scheduled, num_counts, blocks):
    counts = np.random.default_rng(num_counts).integers(0, 1 << 40, num_counts)
    scheduled.case_scan_words.restype = ctypes.c_int64
    words = np.full(scheduled.case_scan_words(ctypes.c_int64(num_counts)), ~np.uint64(0))
    assert words.size == 1 + max(1, -(-num_counts // 256))
    places = np.full(num_counts + 1, -1)
    addresses = [array.ctypes.data_as(ctypes.c_void_p) for array in (words, counts, places)]
    assert scheduled.case_scan_tiles(blocks, *addresses[:2], ctypes.c_int64(num_counts), addresses[2]) == 0
    assert (places == np.cumsum([0, *counts])).all()


def test_schedule_0_runs_threads_in_order(cases):
    cases.fs_cuda_set_schedule(ctypes.c_uint64(0))
    assert launch(cases, "lose_updates", 1, zeros(1))[0] == THREADS


def test_a_random_schedule_shows_a_race_and_shows_it_again(cases):
    counts = []
    for seed in (5, 5):
        cases.fs_cuda_set_schedule(ctypes.c_uint64(seed))
        counts.append(int(launch(cases, "lose_updates", 1, zeros(1))[0]))
    cases.fs_cuda_set_schedule(ctypes.c_uint64(0))
    assert counts[0] == counts[1] < THREADS


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("miss_barrier", "block 0: 32 of 64 threads wait at a barrier that the others do not reach; thread 0 is one"),
        ("lack_own_lane", "block 0, thread 1: mask 00000001 of a warp function lacks the caller"),
        ("name_ended_lane", "names lane 5, which has ended|waits in a warp function for the lanes of mask ffffffff"),
        ("end_by_trap", "end_by_trap: block 0, thread 33: trap"),
    ],
)
def test_a_wrong_kernel_is_reported_and_the_next_one_runs(cases, name, message):
    with pytest.raises(RuntimeError, match=message):
        launch(cases, name, 1, zeros(THREADS))
    assert launch(cases, "wait_for_last_block", 2, zeros(2)).tolist() == [7, 1]
