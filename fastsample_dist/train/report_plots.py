"""The plots of a run's page, one function each, drawn from its records (epoch_records.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import TYPE_CHECKING, Any

from fastsample_dist.page import BLUE, GREY, ORANGE, legend_above, new_figure, number_axis
from fastsample_dist.train.epoch_records import Record
from fastsample_dist.train.report_sums import (
    background_stages,
    epoch_number,
    metric_names,
    metric_words,
    other_seconds,
    per_step,
    slowest_rank,
    work_seconds,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TEAL, PURPLE, RED, PALE, LIGHT = "#7fb7a3", "#a58bc0", "#b5533c", "#cfd8e6", "#8faed4"
STAGES = {
    "sample": BLUE, "fetch": ORANGE, "wait": RED, "compute": TEAL, "gradients": PURPLE, "other": "#cccccc",
}  # fmt: skip
PLACES = {"own": PALE, "neighbour": LIGHT, "cached": TEAL, "kept": "#b9d8a8", "exchanged": ORANGE}
"""Where feature rows come from, by the names of a record's "cache", with their colours."""
_PURPOSES = (ORANGE, BLUE, TEAL, PURPLE, RED, LIGHT, "#d8b365", GREY)
_METRICS = (BLUE, TEAL, PURPLE)
_SMALL = 0.01  # of all bytes
_MANY = 32  # points that get small markers


def progress_figure(records: Sequence[Record]) -> Figure:
    """The loss, and what was measured of the other splits, per epoch."""
    figure, (left, right) = new_figure(2)
    style: dict[str, Any] = {"marker": "o", "markersize": 4 if len(records) <= _MANY else 1.5}
    left.plot([epoch_number(one) for one in records], [one["loss"] for one in records], color=ORANGE, **style)
    left.set_ylabel("training loss")
    _epoch_axis(left, records)
    names = metric_names(records, "val_", "test_")
    for place, name in enumerate(names):
        measured = [record for record in records if name in record]
        colour = _METRICS[place % len(_METRICS)]
        look = style if name.startswith("val_") else {"marker": "D", "linestyle": "none"}
        values = [record[name] for record in measured]
        right.plot([epoch_number(one) for one in measured], values, color=colour, label=metric_words(name), **look)
    right.set_ylabel("measured on held-out nodes")
    _epoch_axis(right, records)
    if names:
        legend_above(right, 2)
    else:
        right.text(0.5, 0.5, "not evaluated", ha="center", transform=right.transAxes)
    return figure


def time_figure(records: Sequence[Record], stages: Sequence[str]) -> Figure:
    """Seconds per epoch, the stages stacked."""
    figure, (ax,) = new_figure()
    numbers = [epoch_number(record) for record in records]
    _stack(ax, numbers, _stage_values(records, stages), STAGES)
    for name in background_stages(stages):
        values = [record[f"{name}_s"] for record in records]
        ax.plot(numbers, values, "o-", color=STAGES[name], markersize=4, label=f"{name}, in the background")
    ax.set_ylabel("seconds")
    _epoch_axis(ax, records)
    legend_above(ax, 3 if background_stages(stages) else 5)
    return figure


def _stage_values(times: Sequence[Mapping[str, float]], stages: Sequence[str]) -> dict[str, list[float]]:
    values = {name: [one[f"{name}_s"] for one in times] for name in stages}
    return values | {"other": [other_seconds(one, stages) for one in times]}


def rank_figure(records: Sequence[Record], means: Sequence[Mapping[str, Any]], stages: Sequence[str]) -> Figure:
    """Every rank's mean seconds, the stages stacked; and its work per epoch, the slowest rank's above the others'.

    Args:
      records: with as many ranks each.
      means: of `rank_means`.
      stages: that are stacked.
    """
    figure, (left, right) = new_figure(2)
    _stack(left, range(len(means)), _stage_values(means, stages), STAGES)
    left.set_ylabel("seconds per epoch")
    number_axis(left, "rank", 0, len(means))
    legend_above(left, 3)
    slowest, _ = slowest_rank(means)
    numbers = [epoch_number(record) for record in records]
    for rank in sorted(range(len(means)), key=lambda rank: rank == slowest):  # drawn last, above the others
        label = f"rank {rank}" if rank == slowest or len(means) == 2 else "another rank" if rank == 0 else None
        colour, width = (ORANGE, 2.0) if rank == slowest else (BLUE, 1.0)
        work = [work_seconds(record["ranks"][rank]) for record in records]
        right.plot(
            numbers, work, "-" if len(means) > 2 else "o-", color=colour, linewidth=width, markersize=3, label=label
        )
    right.set_ylabel("sample + compute, seconds")
    right.set_ylim(bottom=0)
    _epoch_axis(right, records)
    legend_above(right, 2)
    return figure


def traffic_figure(records: Sequence[Record], purposes: Mapping[str, float]) -> Figure:
    """Bytes per rank and step of every epoch, the purposes stacked.

    Args:
      records: with as many ranks each.
      purposes: with the bytes of each, the largest first; the small ones are drawn as one.
    """
    figure, (ax,) = new_figure()
    total = sum(purposes.values())
    shown = [purpose for purpose, count in purposes.items() if count >= _SMALL * total][: len(_PURPOSES) - 1]
    groups = {purpose: [purpose] for purpose in shown}
    groups["others"] = [purpose for purpose in purposes if purpose not in shown]
    values = {
        name: [
            sum(mean(per_step([rank], purpose, "bytes_received") for rank in record["ranks"]) for purpose in group)
            / 1e3
            for record in records
        ]
        for name, group in groups.items()
    }
    drawn = {name: per_epoch for name, per_epoch in values.items() if any(per_epoch)}
    _stack(ax, [epoch_number(one) for one in records], drawn, dict(zip(groups, _PURPOSES, strict=False)))
    ax.set_ylabel("kB received per rank and step")
    _epoch_axis(ax, records)
    if drawn:
        legend_above(ax, 4)
    return figure


def cache_figure(records: Sequence[Record]) -> Figure:
    """Feature rows by place, and the hit rate beside the oracle's; of records that have "cache"."""
    figure, (left, right) = new_figure(2)
    numbers = [epoch_number(record) for record in records]
    values = {name: [record["cache"].get(name, 0) / 1e6 for record in records] for name in PLACES}
    _stack(left, numbers, {name: rows for name, rows in values.items() if any(rows)}, PLACES)
    left.set_ylabel("million rows per epoch")
    _epoch_axis(left, records)
    legend_above(left, 3)
    for name, label, look in (("oracle_hit_rate", "oracle", "o--"), ("hit_rate", "cache", "o-")):
        measured = [record for record in records if record["cache"].get(name) is not None]
        rates = [100 * record["cache"][name] for record in measured]
        colour = BLUE if name == "hit_rate" else GREY
        right.plot([epoch_number(one) for one in measured], rates, look, color=colour, markersize=4, label=label)
    right.set_ylabel("hit rate, %")
    right.set_ylim(0, 100)
    _epoch_axis(right, records)
    legend_above(right, 2)
    return figure


def memory_figure(records: Sequence[Record]) -> Figure:
    """Memory of every rank after the last epoch; of all ranks together, and the largest peak, after each."""
    figure, (left, right) = new_figure(2)
    ranks = records[-1]["ranks"]
    values = {name: [rank.get(f"{name}_bytes", 0) / 1e6 for rank in ranks] for name in ("private", "shared")}
    _stack(left, range(len(ranks)), values, {"private": BLUE, "shared": PALE})
    peaks = [rank["peak_rss_bytes"] / 1e6 for rank in ranks]
    left.plot(range(len(ranks)), peaks, "_", color=ORANGE, markersize=14, markeredgewidth=2, label="peak")
    left.set_ylabel("MB")
    number_axis(left, "rank", 0, len(ranks))
    legend_above(left, 3)
    for name, label, colour, over in (
        ("pss_bytes", "PSS of all ranks", BLUE, sum),
        ("peak_rss_bytes", "largest peak of a rank", ORANGE, max),
    ):
        found = [over(rank.get(name, 0) for rank in record["ranks"]) / 1e6 for record in records]
        right.plot([epoch_number(one) for one in records], found, "o-", color=colour, markersize=3, label=label)
    right.set_ylabel("MB")
    right.set_ylim(bottom=0)
    _epoch_axis(right, records)
    legend_above(right, 2)
    return figure


def _epoch_axis(ax: Axes, records: Sequence[Record]) -> None:
    first = epoch_number(records[0])
    number_axis(ax, "epoch", first, epoch_number(records[-1]) - first + 1)


def _stack(ax: Axes, places: Sequence[int], values: Mapping[str, Sequence[float]], colours: Mapping[str, str]) -> None:
    """Bars of these heights upon each other, one colour and legend entry per name."""
    bottom = [0.0] * len(places)
    for name, heights in values.items():
        ax.bar(places, heights, 0.7, bottom, color=colours[name], label=name)
        bottom = [below + height for below, height in zip(bottom, heights, strict=True)]
