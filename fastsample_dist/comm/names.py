"""How ranks and collectives are named in messages. A process has one number everywhere: its rank in the run."""

from __future__ import annotations

from collections.abc import Sequence


def describe(collective: str, purpose: str) -> str:
    """A collective and its purpose: "all_reduce of gradients", or "barrier" when that is its purpose."""
    return collective if purpose == collective else f"{collective} of {purpose}"


def rank_names(ranks: Sequence[int]) -> str:
    """ "rank 3", or "ranks 0, 2, 5-8": ascending numbers, runs of three or more shortened."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    texts = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(texts)}"
