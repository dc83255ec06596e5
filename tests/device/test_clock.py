"""Times of stages: the host's clock, laps and shares, and a GPU's clock where there is one."""

import time

import pytest
import torch

from fastsample_dist.device.clock import Clock, CudaClock, Lap, clock_of


def test_a_lap_is_the_time_between_its_marks():
    clock = Clock()
    started_s = time.perf_counter()
    begin = clock.mark()
    time.sleep(0.02)
    lap = Lap(clock, begin, clock.mark())
    assert 0.02 <= lap.seconds <= time.perf_counter() - started_s


def test_a_lap_may_be_shared_among_stages():
    assert Lap(Clock(), 1.0, 3.0, 4).seconds == 0.5


def test_the_cpu_has_the_clock_of_the_host():
    assert type(clock_of(torch.device("cpu"))) is Clock and Clock.lag == 0


@pytest.mark.gpu
def test_a_gpus_lap_is_that_of_its_work_alone():
    """Not what was enqueued before it, and not the time that enqueueing takes."""
    device = torch.device("cuda", torch.cuda.current_device())
    clock, much = CudaClock(device), torch.rand(4096, 4096, device=device)
    clock.finish()
    started = time.perf_counter()
    before = clock.mark()
    for _ in range(50):
        much = much @ much / 4096
    begin = clock.mark()
    little = torch.ones(8, device=device) + 1
    end = clock.mark()
    enqueued_s = time.perf_counter() - started
    heavy, light = clock.seconds(before, begin), clock.seconds(begin, end)
    assert heavy > 10 * light and heavy > enqueued_s and little.sum().item() == 16
