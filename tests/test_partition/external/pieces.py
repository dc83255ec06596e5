"""Pieces and buckets so small that graphs of a few edges are sorted on disk in several."""

import pytest

from fastsample_dist.partition.external import buckets
from fastsample_dist.partition.external import budget as memory


def shrink_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some edges at a time, and an entry of the journal after every other piece."""
    monkeypatch.setattr(memory, "MIN_PIECE", 1)
    monkeypatch.setattr(memory, "MAX_PIECE", 7)
    monkeypatch.setattr(memory, "MAX_BUCKET", 11)
    monkeypatch.setattr(buckets, "SAVE_EDGES", 14)
