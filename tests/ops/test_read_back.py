"""read_back: what kernels have counted reaches the host, many counts at a time, in memory that is used again."""

import torch

from fastsample_dist.ops import read_back


def test_counts_that_are_under_way_at_the_same_time_do_not_meet(cuda_device, monkeypatch):
    monkeypatch.setattr(read_back, "_FREE", {})
    words = [torch.arange(5) * number for number in range(40)]
    for _ in range(3):
        waiting = [read_back.read_back(cuda_device.put(own), own.numel()) for own in words]
        assert [wait() for wait in reversed(waiting)] == [own.tolist() for own in reversed(words)]
    [free] = read_back._FREE.values()
    assert len(free) == len(words)  # the second and third time took those of the first


def test_memory_that_nobody_waits_for_is_given_to_nobody(cuda_device, monkeypatch):
    monkeypatch.setattr(read_back, "_FREE", {})
    monkeypatch.setattr(read_back, "_MADE", [])
    words = cuda_device.put(torch.arange(5))
    read_back.read_back(words, 5)  # as when the batch before is refused
    assert read_back.read_back(words, 5)() == list(range(5))
    assert len(read_back._MADE) == 2 and read_back._FREE[words.device, 5] == read_back._MADE[1:]


def test_words_are_those_at_the_time_of_the_call(cuda_device):
    words = cuda_device.put(torch.arange(300))
    wait = read_back.read_back(words, words.numel())
    words.fill_(-1)
    assert wait() == list(range(300))
