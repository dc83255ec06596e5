"""Labels whose number of classes is not stated: what is taken, what is refused, the memory that it takes."""

import tracemalloc

import numpy as np
import pytest

from fastsample_dist.graph import label_classes
from fastsample_dist.graph.label_classes import count_classes


@pytest.mark.parametrize(
    "labels, classes",
    [
        ([-1, -1], 0),
        ([0, 2, -1], 3),
        ([0, 999], 1000),  # free
        (np.arange(50) * 100, 4901),  # a class in a hundred is there
        (np.arange(20) * 1000 // 10, 1901),
        (np.arange(5000), 5000),
    ],
)
@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64])
def test_class_numbers_are_counted(labels, classes, dtype):
    assert count_classes("labels.npy", np.asarray(labels, dtype=dtype)) == classes


@pytest.mark.parametrize(
    "labels, distinct, highest",
    [
        (np.array([0, 10**12, -1]), 2, 10**12),
        (np.array([0, 10**8]), 2, 10**8),
        (np.array([0, 2**63 - 1]), 2, 2**63 - 1),
        (np.array([0, 2**64 - 1], dtype=np.uint64), 2, 2**64 - 1),
        (np.array([2**31 - 1] * 7, dtype=np.int32), 1, 2**31 - 1),
        (np.arange(50) * 103, 50, 5047),
        (np.array([1000]), 1, 1000),
    ],
)
def test_labels_far_apart_are_refused(labels, distinct, highest):
    found = f"labels.npy has {distinct} distinct labels but the highest is {highest}, which means {highest + 1} classes"
    with pytest.raises(ValueError, match=rf"{found} .*renumber the classes .*or state num_classes") as refusal:
        count_classes("labels.npy", labels)
    assert "\n" not in str(refusal.value)


def test_memory_for_counting_is_bounded(monkeypatch):
    monkeypatch.setattr(label_classes, "MAX_COUNTED", 1000)
    labels = np.random.default_rng(0).integers(0, 2**62, 1_000_000)
    labels = labels.repeat(8)  # 64 MB: chunks of 16 MB are looked at
    tracemalloc.start()
    with pytest.raises(ValueError, match="has more than 999 distinct labels"):
        count_classes("labels.npy", labels)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < labels.nbytes
