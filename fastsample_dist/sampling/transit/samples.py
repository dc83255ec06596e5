"""Samples: what sampling an application returns."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from fastsample_dist.sampling.mfg import MFG, DrawKey, MiniBatch
from fastsample_dist.sampling.transit.app import NULL


class Samples:
    """The samples of one call, in the order of their roots.

    Attributes:
      roots: int64 [S, R]; NULL (-1) behind the last root of a sample.
      steps: per step int64 [S, picks]; NULL where nothing was picked. With sample_size ALL picks is the largest number
        of neighbours of a sample in this call.
      sample_ids: int64 [S].
      mfgs: of applications that record edges: a list of MFGs, input side first, per sample; else None.
      draw: rng_seed and step.
    """

    def __init__(
        self,
        roots: Tensor,
        steps: Sequence[Tensor],
        sample_ids: Tensor,
        draw: DrawKey,
        mfgs_of_sample: list[list[MFG]] | None = None,
    ) -> None:
        self.roots, self.steps, self.sample_ids, self.draw = roots, list(steps), sample_ids, draw
        self.mfgs_of_sample = mfgs_of_sample

    def __len__(self) -> int:
        return self.sample_ids.numel()

    @property
    def num_steps(self) -> int:
        """Steps that were run."""
        return len(self.steps)

    @cached_property
    def vertices(self) -> Tensor:
        """Roots and picks of all steps, int64 [S, R + picks], NULLs in their places; built on first use."""
        return torch.cat([self.roots, *self.steps], dim=1)

    @cached_property
    def _ragged(self) -> tuple[Tensor, Tensor]:
        kept = self.vertices != NULL
        ends = torch.zeros(len(self) + 1, dtype=torch.int64)
        torch.cumsum(kept.sum(1), 0, out=ends[1:])
        return ends, self.vertices[kept]

    @property
    def indptr(self) -> Tensor:
        """int64 [S + 1]: the vertices of sample i are nodes[indptr[i] : indptr[i + 1]]."""
        return self._ragged[0]

    @property
    def nodes(self) -> Tensor:
        """Roots and picks without the NULLs, sample after sample, int64 [indptr[-1]]."""
        return self._ragged[1]

    @property
    def mfgs(self) -> list[MFG] | list[list[MFG]] | None:
        """Recorded edges: the MFGs of one sample, input side first; of several samples a list of such lists."""
        if self.mfgs_of_sample is None:
            return None
        return self.mfgs_of_sample[0] if len(self.mfgs_of_sample) == 1 else self.mfgs_of_sample

    def mini_batches(self) -> list[MiniBatch]:
        """One MiniBatch per sample, without features and labels.

        Raises:
          ValueError: the application records no edges.
        """
        if self.mfgs_of_sample is None:
            raise ValueError('the application records no edges; set its record, such as record = "to_new".')
        return [
            MiniBatch(mfgs[-1].dst_nodes, mfgs, mfgs[0].src_nodes, self.draw) for mfgs in self.mfgs_of_sample if mfgs
        ]
