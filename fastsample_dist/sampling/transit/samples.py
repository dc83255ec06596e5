"""Samples: what sampling an application returns."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import zip_longest

import torch
from torch import Tensor
from torch.nn.functional import pad

from fastsample_dist.sampling.mfg import MFG, DrawKey, MiniBatch
from fastsample_dist.sampling.transit.app import NULL


class Samples:
    """The samples of one call, in the order of their roots.

    Args:
      flat: int64 [S, R + picks]; or [sum of lengths] with offsets: sample after sample its roots and the picks of its
        steps, NULLs in their places, up to the last step that it took part in.
      offsets: int64 [S + 1] or None.
      num_roots: R.
      widths: picks of each step; the most that a sample has.
      sample_ids: int64 [S], on any device.
      draw: rng_seed and step.
      mfgs_of_sample: of applications that record edges.
    Attributes:
      draw: as given.
    """

    def __init__(
        self,
        flat: Tensor,
        offsets: Tensor | None,
        num_roots: int,
        widths: Sequence[int],
        sample_ids: Tensor,
        draw: DrawKey,
        mfgs_of_sample: list[list[MFG]] | None = None,
    ) -> None:
        self._flat, self._offsets, self._num_roots, self._widths = flat, offsets, num_roots, list(widths)
        self._ids, self.draw, self.mfgs_of_sample = sample_ids, draw, mfgs_of_sample

    @classmethod
    def of_steps(
        cls, roots: Tensor, steps: Sequence[Tensor], sample_ids: Tensor, draw: DrawKey,
        mfgs_of_sample: list[list[MFG]] | None = None,
    ) -> Samples:  # fmt: skip
        """Samples of roots int64 [S, R] and per step int64 [S, picks]."""
        widths = [step.shape[1] for step in steps]
        return cls(torch.cat([roots, *steps], 1), None, roots.shape[1], widths, sample_ids, draw, mfgs_of_sample)

    @classmethod
    def joined(cls, parts: Sequence[Samples], sample_ids: Tensor, device: torch.device) -> Samples:
        """The samples of several calls as those of one, on a device.

        Args:
          parts: one or more calls of the same application and key, in the order of their samples.
          sample_ids: int64 [S], of all.
        """
        first = parts[0]
        widths = [max(own) for own in zip_longest(*(part._widths for part in parts), fillvalue=0)]
        mfgs = None
        if first.mfgs_of_sample is not None:
            mfgs = [[mfg.to(device) for mfg in mfgs] for part in parts for mfgs in part.mfgs_of_sample or []]
        if first._offsets is None:
            width = first._num_roots + sum(widths)
            padded = [pad(part._flat.to(device), (0, width - part._flat.shape[1]), value=NULL) for part in parts]
            return cls(torch.cat(padded), None, first._num_roots, widths, sample_ids, first.draw, mfgs)
        flat = torch.cat([part._flat.to(device) for part in parts])
        offsets = torch.zeros(len(sample_ids) + 1, dtype=torch.int64, device=device)
        lengths = [part._offsets.diff().to(device) for part in parts if part._offsets is not None]
        torch.cumsum(torch.cat(lengths), 0, out=offsets[1:])
        return cls(flat, offsets, first._num_roots, widths, sample_ids, first.draw, mfgs)

    def __len__(self) -> int:
        return self._ids.numel()

    @cached_property
    def sample_ids(self) -> Tensor:
        """int64 [S], in host memory."""
        return self._ids.cpu()

    @property
    def num_steps(self) -> int:
        """Steps that were run; with steps() == INF those in which some sample got a vertex."""
        return len(self._widths)

    @property
    def roots(self) -> Tensor:
        """int64 [S, R]; NULL (-1) behind the last root of a sample."""
        if self._offsets is None:
            return self._flat[:, : self._num_roots]
        return self._flat[self._offsets[:-1, None] + torch.arange(self._num_roots, device=self._flat.device)]

    @cached_property
    def vertices(self) -> Tensor:
        """Roots and picks of all steps, int64 [S, R + picks], NULL where nothing was picked. Where samples differ in
        length it is padded with NULL to the longest, which takes its memory on first use; `nodes` does not.
        """
        if self._offsets is None:
            return self._flat
        width, device = self._num_roots + sum(self._widths), self._flat.device
        padded = torch.full((len(self), width), NULL, dtype=torch.int64, device=device)
        padded[torch.arange(width, device=device) < self._offsets.diff()[:, None]] = self._flat
        return padded

    @cached_property
    def steps(self) -> list[Tensor]:
        """Per step int64 [S, picks]; with sample_size ALL as many as the sample with the most neighbours has."""
        return list(self.vertices[:, self._num_roots :].split(self._widths, 1)) if self._widths else []

    @cached_property
    def _ragged(self) -> tuple[Tensor, Tensor]:
        kept = self._flat != NULL
        before = torch.zeros(kept.numel() + 1, dtype=torch.int64, device=kept.device)
        torch.cumsum(kept.reshape(-1), 0, out=before[1:])
        offsets = self._offsets
        if offsets is None:
            offsets = torch.arange(len(self) + 1, device=kept.device) * self._flat.shape[1]
        return before[offsets], self._flat[kept]

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
