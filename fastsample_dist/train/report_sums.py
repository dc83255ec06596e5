"""Figures that the page of a run derives from its records: stages that add up, means per rank, bytes per step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from fastsample_dist.train.epoch_records import COUNTS, TIMES, Record


def epoch_number(record: Record) -> int:
    """The epoch as it is shown, counted from 1."""
    return record["epoch"] + 1


def of_last_ranks(records: Sequence[Record]) -> list[Record]:
    """Those that ran on as many ranks as the last one."""
    return [record for record in records if len(record["ranks"]) == len(records[-1]["ranks"])]


def metric_names(records: Sequence[Record], *prefixes: str) -> list[str]:
    """Names of what was measured of these splits, in the order of their first appearance."""
    return list(dict.fromkeys(name for record in records for name in record if name.startswith(prefixes)))


def metric_words(name: str) -> str:
    """ "val_acc" -> "validation accuracy"."""
    split, _, metric = name.partition("_")
    return f"{ {'val': 'validation'}.get(split, split) } {metric.replace('acc', 'accuracy').replace('_', ' ')}"


def stacked_stages(facts: Mapping[str, Any]) -> tuple[str, ...]:
    """The stages that, with "other", add up to an epoch: "wait" is there in place of "sample" and "fetch" where batches
    are made ahead, beside the other stages.
    """
    return ("wait", "compute", "gradients") if facts.get("prefetch") else ("sample", "fetch", "compute", "gradients")


def background_stages(stages: Sequence[str]) -> tuple[str, ...]:
    """Those that run beside the stacked ones."""
    return () if "sample" in stages else ("sample", "fetch")


def other_seconds(times: Mapping[str, float], stages: Sequence[str]) -> float:
    """What the stages leave of the seconds."""
    return max(0.0, times["seconds"] - sum(times[f"{name}_s"] for name in stages))


def work_seconds(times: Mapping[str, float]) -> float:
    """What does not depend on how fast other ranks are."""
    return times["sample_s"] + times["compute_s"]


def rank_means(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Each rank's mean seconds per epoch; of whole epochs only, where there are any."""
    whole = [record for record in records if all(rank["steps"] == record["steps"] for rank in record["ranks"])]
    per_rank = zip(*(record["ranks"] for record in whole or records), strict=True)
    return [{**found[-1], **{name: mean(one[name] for one in found) for name in TIMES}} for found in per_rank]


def slowest_rank(means: Sequence[Mapping[str, float]]) -> tuple[int, float]:
    """The rank with the most work, and its work as a multiple of the mean."""
    work = [work_seconds(rank) for rank in means]
    slowest = max(range(len(work)), key=work.__getitem__)
    return slowest, work[slowest] / mean(work) if any(work) else 1.0


def by_purpose(records: Sequence[Record]) -> dict[str, dict[str, float]]:
    """Per purpose what a rank counts in a step: "calls", "bytes_sent", "bytes_received" as means over ranks, and "most"
    received by "of_rank". The purpose with the most bytes comes first.
    """
    names = {purpose for record in records for rank in record["ranks"] for purpose in rank.get("comm", {})}
    found = {}
    for purpose in names:
        per_rank = [
            {name: per_step(ranks, purpose, name) for name in COUNTS}
            for ranks in zip(*(record["ranks"] for record in records), strict=True)
        ]
        received = [rank["bytes_received"] for rank in per_rank]
        found[purpose] = {name: mean(rank[name] for rank in per_rank) for name in per_rank[0]}
        found[purpose] |= {"most": max(received), "of_rank": received.index(max(received))}
    return dict(sorted(found.items(), key=lambda item: (-item[1]["bytes_received"], item[0])))


def per_step(ranks: Sequence[Mapping[str, Any]], purpose: str, name: str) -> float:
    """One rank's count over its records, divided by their steps."""
    total = sum(rank.get("comm", {}).get(purpose, {}).get(name, 0) for rank in ranks)
    return total / max(1, sum(rank["steps"] for rank in ranks))


def tasks_text(roles: Mapping[str, Any]) -> str:
    """ "12 11 13 | 4": batches that each trainer and, behind the line, each sampler has trained.

    Args:
      roles: of an epoch's figures, see RoleFigures.
    """
    trained = roles["trained"]
    return " | ".join(" ".join(map(str, part)) for part in (trained[: roles["trainers"]], trained[roles["trainers"] :]))
