"""What a rank of fastsample-verify does: a few steps through the library's own loader, their content kept.

For every scheme and step: the hashes of the batch's tensors go into the result, the tensors to
<scheme>-<rank>-<step>.npz in the job's folder, and rank 0 keeps the summed gradient. Parameters stay as they were
drawn, so that every step is compared by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from fastsample_dist.comm.context import DistContext
from fastsample_dist.pipeline.data import DistData
from fastsample_dist.pipeline.loader import DistLoader
from fastsample_dist.sampling.mfg import MiniBatch
from fastsample_dist.train.gradients import wrap_model
from fastsample_dist.verify.content import batch_content, tensor_hash
from fastsample_dist.verify.reference import VerifySettings, compared_loss, flat_gradient, make_model


def content_file(folder: Path, scheme: str, rank: int, step: int) -> Path:
    """Where a rank keeps a batch."""
    return folder / f"{scheme}-{rank}-{step}.npz"


def gradient_file(folder: Path, scheme: str, step: int) -> Path:
    """Where rank 0 keeps a summed gradient."""
    return folder / f"gradient-{scheme}-{step}.npy"


def verify_rank(ctx: DistContext, settings: dict, folder: Path) -> dict:
    """Run all schemes. Collective: every rank must call this.

    Args:
      ctx: the rank's context.
      settings: {"path", "checksums", "prefetch", "transport", "exchange", "schemes", "common": fields of
        VerifySettings, "keep_features": [scheme, rank, step] of the batch whose features are kept, or None}.
      folder: the job's.
    Returns:
      {scheme: [{"hashes": {tensor: hex}, "gradient": hex or None} per step]}.
    """
    common = VerifySettings(**{**settings["common"], "fanouts": tuple(settings["common"]["fanouts"])})
    data = DistData.load(settings["path"], ctx, verify=settings["checksums"])
    results: dict[str, list[dict]] = {}
    for scheme in settings["schemes"]:
        loader = DistLoader(
            data, common.fanouts, common.batch_size, split=common.split, scheme=scheme, rng_seed=common.rng_seed,
            prefetch=settings["prefetch"], feature_dtype=torch.float64, transport=settings["transport"],
            exchange=settings["exchange"],
        )  # fmt: skip
        gradients = _Gradients(data, common) if data.features is not None and data.labels is not None else None
        results[scheme] = []
        for step, batch in enumerate(_first_batches(loader, common.steps)):
            if settings["keep_features"] == [scheme, ctx.rank, step]:
                assert batch.features is not None  # a difference was found in them
                np.save(folder / "features.npy", batch.features.numpy())
            content = batch_content(batch, data.graph.orig_ids)
            content.save(content_file(folder, scheme, ctx.rank, step))
            gradient = None if gradients is None else gradients.of(batch)
            if gradient is not None and ctx.rank == 0:
                np.save(gradient_file(folder, scheme, step), gradient)
            results[scheme].append({
                "hashes": content.hashes, "gradient": None if gradient is None else tensor_hash(gradient),
            })  # fmt: skip
        loader.close()
    return results


class _Gradients:
    """Summed gradients at the parameters as they were drawn."""

    def __init__(self, data: DistData, common: VerifySettings) -> None:
        self._model = make_model(common, data.feature_dim, data.num_outputs)
        self._gradients = wrap_model(self._model, data.ctx)

    def of(self, batch: MiniBatch) -> np.ndarray:
        """float64 [parameters]. Collective: every rank must call this."""
        self._model.zero_grad(set_to_none=True)
        logits = self._gradients.module(batch.mfgs, batch.features)
        self._gradients.backward(compared_loss(logits, batch.labels, batch.num_global_seeds))
        return flat_gradient(self._model).numpy().copy()


def _first_batches(loader: DistLoader, steps: int) -> Iterator[MiniBatch]:
    """Batches of the first steps, over as many epochs as that takes."""
    made = 0
    while made < steps:
        batches = iter(loader)
        for batch in batches:
            yield batch
            made += 1
            if made == steps:
                break
        batches.close()  # type: ignore[attr-defined]  # a generator: its prefetcher ends here
