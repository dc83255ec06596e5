"""How the ranks meet to make a batch: by one exchange a step, or by the exchanges of every request.

"paired": a fetch asks and is answered, ids out and rows back. "combined": the rows of a step, the ids of the next and
the counts of the one after travel together (features/combined.py). "auto" takes "combined" wherever the sampler itself
exchanges nothing: by a rule, not by timing, so that counts never vary from run to run.
"""

from __future__ import annotations

from fastsample_dist.features.dist import DistFeatures
from fastsample_dist.sampling.sampler import Sampler, payload_exchanges

_, COMBINED, PAIRED = EXCHANGES = ("auto", "combined", "paired")
NOTHING = "none"  # how ranks meet that have nothing to exchange


def resolve_exchange(asked: str, sampler: Sampler, features: DistFeatures | None, world_size: int) -> str:
    """COMBINED, PAIRED, or NOTHING where batches are made without an exchange.

    Args:
      asked: one of EXCHANGES.
      sampler: of the loader.
      features: None without.
      world_size: number of ranks.
    Raises:
      ValueError: COMBINED is asked for beside a sampler that exchanges.
    """
    sampling = payload_exchanges(sampler)
    if asked == COMBINED and sampling > 0:
        raise ValueError(
            f"exchange is 'combined', but sampling a batch takes {sampling} exchanges of its own, one after another; "
            "pass exchange='paired' or 'auto'."
        )
    fetches = features is not None and features.exchanges
    if world_size == 1 or not (fetches or sampling > 0):
        return NOTHING
    return COMBINED if fetches and sampling == 0 and asked != PAIRED else PAIRED
