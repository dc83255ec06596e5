"""A training run as one HTML page that needs nothing else: for who asks how it went, where the time goes, and who is
slow.

The page is a function of the run's records (epoch_records.py), so that one made of a --jsonl file afterwards is the one
that the run itself writes. What the plots show stands in tables too, those of all epochs at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean, median
from typing import Any

from fastsample_dist.page import beside, document, heading, paragraph, picture, require_matplotlib, table
from fastsample_dist.train.epoch_records import OPTIONS, TIMES, Record
from fastsample_dist.train.report_plots import (
    PLACES,
    cache_figure,
    memory_figure,
    progress_figure,
    rank_figure,
    time_figure,
    traffic_figure,
)
from fastsample_dist.train.report_sums import (
    background_stages,
    by_purpose,
    epoch_number,
    metric_names,
    metric_words,
    of_last_ranks,
    other_seconds,
    rank_means,
    slowest_rank,
    stacked_stages,
    tasks_text,
    work_seconds,
)


def render_page(records: Sequence[Record]) -> str:
    """The page of a run.

    Args:
      records: its epochs, as `read_records` returns them or --json has them under "epochs".
    Returns:
      The text of the page. The same records give the same page.
    Raises:
      ImportError: matplotlib is not installed.
    """
    require_matplotlib("--report", "--jsonl")
    facts = (records[-1].get("run") or {}) if records else {}
    return document(_title(facts), _sections(records, facts))


def _title(facts: Mapping[str, Any]) -> str:
    if not {"model", "graph", "ranks"} <= facts.keys():
        return "Training run"
    return f"{facts['model']} on {facts['graph']}, {facts['ranks']} rank{'s' if facts['ranks'] != 1 else ''}"


def _sections(records: Sequence[Record], facts: Mapping[str, Any]) -> Iterator[str]:
    if not records:
        yield paragraph("No epoch was trained.")
        return
    tables = {"result": list(_results(records)), **_run_tables(facts)}
    yield beside(*(table([name, ""], rows) for name, rows in tables.items() if rows))
    yield heading("Loss and accuracy")
    yield picture(progress_figure(records), "loss and accuracy per epoch")
    stages = stacked_stages(facts)
    yield from _time_sections(records, stages)
    ranked = of_last_ranks([record for record in records if record.get("ranks")])
    if ranked and len(ranked[-1]["ranks"]) > 1:
        yield from _rank_sections(ranked, stages)
    with_roles = [record for record in records if record.get("roles")]
    if with_roles:
        yield from _role_sections(with_roles)
    if ranked and len(ranked[-1]["ranks"]) > 1:
        yield from _traffic_sections(ranked)
    with_cache = [record for record in records if record.get("cache")]
    if with_cache:
        yield from _cache_sections(with_cache)
    if ranked:
        yield from _memory_sections(ranked)
    yield from _epoch_tables(records, stages)


def _results(records: Sequence[Record]) -> Iterator[list[str]]:
    """Rows of the first table: what came out."""
    yield ["epochs recorded", _epochs_text(records)]
    yield ["loss of the last epoch", f"{records[-1]['loss']:.4f}"]
    for name in metric_names(records, "val_", "test_"):
        epoch, value = next((one["epoch"], one[name]) for one in reversed(records) if name in one)
        yield [metric_words(name), f"{value:.4f} after epoch {epoch + 1}"]
    yield ["seconds per epoch", f"{median(record['seconds'] for record in records):.2f} (median)"]
    ranked = of_last_ranks([record for record in records if record.get("ranks")])
    if ranked and len(ranked[-1]["ranks"]) > 1:
        slowest, ratio = slowest_rank(rank_means(ranked))
        yield ["most work", f"rank {slowest}, {ratio:.2f} x the mean"]
        received = sum(found["bytes_received"] for found in by_purpose(ranked).values())
        yield ["received per rank and step", f"{_kilobytes(received)} kB"]
    if ranked:
        peak = max(rank.get("peak_rss_bytes", 0) for rank in ranked[-1]["ranks"])
        yield ["largest peak memory", _megabytes(peak)]


def _run_tables(facts: Mapping[str, Any]) -> dict[str, list[list[str]]]:
    """Rows of the tables beside it: what was run, and with which options."""
    tables: dict[str, list[list[str]]] = {"run": [], "options": []}
    for name, value in facts.items():
        if isinstance(value, Mapping):
            text = ", ".join(f"{key} {one}".replace("_", " ") for key, one in value.items() if one is not None)
        else:
            is_list = isinstance(value, list | tuple)
            text = ",".join(map(str, value)) if is_list else f"{value:,}" if isinstance(value, int) else str(value)
        kind = "options" if name in OPTIONS else "run"
        tables[kind].append([name.replace("num_", "").replace("_", " "), text])
    return tables


def _time_sections(records: Sequence[Record], stages: Sequence[str]) -> Iterator[str]:
    ahead = (
        "Batches are made ahead in the background: sample and fetch (the lines) run beside the other stages, and wait "
        "is what is left of them. "
        if background_stages(stages)
        else ""
    )
    yield heading("Seconds by stage")
    yield paragraph(
        f"Per epoch, mean over the ranks. {ahead}Fetch and gradients hold the time in which a rank waits for others; "
        "other is everything else, such as a checkpoint being written. Evaluation is not part of an epoch."
    )
    yield picture(time_figure(records, stages), "seconds by stage per epoch")


def _rank_sections(records: Sequence[Record], stages: Sequence[str]) -> Iterator[str]:
    means, shown = rank_means(records), _all_stages(stages)
    slowest, ratio = slowest_rank(means)
    work = work_seconds(means[slowest])
    yield heading("Ranks: who is slow")
    yield paragraph(
        "A step ends when the last rank is done, so a rank with little work of its own has long waits in fetch and "
        f"gradients. Work is sample + compute. Rank {slowest} has the most: {work:.2f} s an epoch, {ratio:.2f} times "
        f"the mean of the ranks. Means over {_epochs_text(records)}."
    )
    yield picture(rank_figure(records, means, stages), "seconds by stage and rank, and work of the ranks per epoch")
    several = len({rank.get("host") for rank in means}) > 1
    average = mean(map(work_seconds, means))
    rows = [
        [
            str(rank["rank"]), *([str(rank.get("host"))] if several else []), f"{rank['seconds']:.2f}",
            *(f"{rank[f'{name}_s']:.2f}" for name in shown), f"{other_seconds(rank, stages):.2f}",
            f"{work_seconds(rank):.2f}", _ratio(work_seconds(rank), average),
        ]
        for rank in means
    ]  # fmt: skip
    heads = ["rank", *(["host"] if several else []), "seconds", *shown, "other", "work", "work / mean"]
    yield table(heads, rows)


def _role_sections(records: Sequence[Record]) -> Iterator[str]:
    last, names = records[-1]["roles"], ("samplers", "trainers")
    alike = [record for record in records if all(record["roles"][name] == last[name] for name in names)]
    trainers, counts = last["trainers"], [record["roles"] for record in alike]
    yield heading("Roles: who sampled and who trained")
    yield paragraph(
        f"Roles {last['samplers']}+{trainers}: samplers make the batches that trainers train. A sampler switches once "
        "all batches of the epoch are sampled, and then trains what is left, where that pays. Batches in "
        f"{_epochs_text(alike)}; trained: those of trainers in the order of ranks | those of samplers."
    )
    ranks = range(len(last["trained"]))
    sampled, trained = ([sum(one[name][rank] for one in counts) for rank in ranks] for name in ("sampled", "trained"))
    rows = [
        [str(rank), "trains" if rank < trainers else "samples", f"{sampled[rank]:,}", f"{trained[rank]:,}",
         "" if rank < trainers else str(sum(one["trained"][rank] > 0 for one in counts))]
        for rank in ranks
    ]  # fmt: skip
    yield table(["rank", "role", "batches sampled", "batches trained", "epochs in which it switched"], rows)
    rows = [
        [str(epoch_number(record)), tasks_text(record["roles"]), f"{record['roles']['standby']:,}"] for record in alike
    ]
    yield table(["epoch", "trained", "of them by samplers"], rows)


def _traffic_sections(records: Sequence[Record]) -> Iterator[str]:
    purposes = by_purpose(records)
    received = {purpose: found["bytes_received"] for purpose, found in purposes.items()}
    yield heading("Bytes by purpose")
    yield paragraph(
        "What a rank receives from the others in a training step, mean over the ranks; 1 kB is 1000 bytes. The table "
        f"has the mean over {_epochs_text(records)}; most: the rank that receives the most. Evaluation is left out."
    )
    yield picture(traffic_figure(records, received), "kB received per rank and step, by purpose")
    rows = [
        [
            purpose, f"{found['calls']:.2f}", _kilobytes(found["bytes_sent"]), _kilobytes(found["bytes_received"]),
            f"{_kilobytes(found['most'])} (rank {found['of_rank']})",
        ]
        for purpose, found in purposes.items()
    ]  # fmt: skip
    yield table(["purpose", "calls/step", "kB sent/step", "kB received/step", "most received"], rows)


def _cache_sections(records: Sequence[Record]) -> Iterator[str]:
    yield heading("Feature rows and the cache")
    yield paragraph(
        "Where the feature rows of the training steps came from: the rank's own part, a neighbour on the same machine, "
        "the cache, rows kept from steps before, or an exchange. Hit rate: of the rows that are not read in place, the "
        "share that was cached or kept. Oracle: that of the best cache of the same size, known only afterwards."
        f"{_cache_text(records[-1]['cache'])}"
    )
    yield picture(cache_figure(records), "feature rows by place, and hit rate beside the oracle's")


def _cache_text(cache: Mapping[str, Any]) -> str:
    if not {"policy", "cache_rows", "cache_bytes"} <= cache.keys():
        return ""
    return f" Policy {cache['policy']}: {cache['cache_rows']:,} rows, {_megabytes(cache['cache_bytes'])} in a cache."


def _memory_sections(records: Sequence[Record]) -> Iterator[str]:
    ranks = records[-1]["ranks"]
    if not all("peak_rss_bytes" in rank for rank in ranks):
        return
    yield heading("Memory")
    yield paragraph(
        f"Of every rank after epoch {epoch_number(records[-1])}; 1 MB is 10^6 bytes. Shared: pages that another "
        "process has mapped as well, such as the topology of a machine with several ranks. PSS: private bytes and a "
        "rank's share of the shared ones, so that the ranks of a machine add up. Peak: the largest resident size."
    )
    yield picture(memory_figure(records), "memory of every rank, and per epoch")
    columns = ("private_bytes", "shared_bytes", "pss_bytes", "peak_rss_bytes")
    names = {"pss_bytes": "PSS", "peak_rss_bytes": "peak", "private_bytes": "private", "shared_bytes": "shared"}
    rows = [
        [str(rank["rank"]), *(_megabytes(rank[name]) if name in rank else "" for name in columns)] for rank in ranks
    ]
    yield table(["rank", *(names[name] for name in columns)], rows)


def _epoch_tables(records: Sequence[Record], stages: Sequence[str]) -> Iterator[str]:
    """Everything that has a figure per epoch, as text."""
    names, others, shown = metric_names(records, "val_", "test_"), _other_figures(records), _all_stages(stages)
    rows = [
        [
            str(epoch_number(record)), str(record["steps"]), f"{record['loss']:.4f}",
            *(f"{record[name]:.4f}" if name in record else "" for name in names),
            *(f"{record[name]:g}" if name in record else "" for name in others),
            f"{record['seconds']:.2f}", *(f"{record[f'{name}_s']:.2f}" for name in shown),
            f"{other_seconds(record, stages):.2f}",
        ]
        for record in records
    ]  # fmt: skip
    yield heading("Epochs")
    heads = ["epoch", "steps", "loss", *map(metric_words, names), *others, "seconds", *shown, "other"]
    yield table(heads, rows)
    rows = [
        [
            str(epoch_number(record)), *(f"{record['cache'].get(name, 0):,}" for name in PLACES),
            *(_percent(record["cache"].get(name)) for name in ("hit_rate", "oracle_hit_rate")),
        ]
        for record in records if record.get("cache")
    ]  # fmt: skip
    if rows:
        yield table(["epoch", *(f"{name} rows" for name in PLACES), "hit rate", "oracle's hit rate"], rows)


def _other_figures(records: Sequence[Record]) -> list[str]:
    """Names of numbers beside those that every run has, such as what a user's callback adds."""
    known = {"epoch", "loss", "steps", "step", *TIMES, *metric_names(records, "val_", "test_")}
    names = dict.fromkeys(name for record in records for name in record if name not in known)
    return [name for name in names if all(isinstance(one.get(name, 0.0), int | float) for one in records)]


def _all_stages(stages: Sequence[str]) -> tuple[str, ...]:
    return (*background_stages(stages), *stages)


def _percent(rate: float | None) -> str:
    return "" if rate is None else f"{100 * rate:.1f} %"


def _epochs_text(records: Sequence[Record]) -> str:
    count, first, last = len(records), epoch_number(records[0]), epoch_number(records[-1])
    return f"epoch {first}" if count == 1 else f"{count} epochs, {first} to {last}"


def _ratio(value: float, of: float) -> str:
    return f"{value / of:.2f}" if of else ""


def _kilobytes(count: float) -> str:
    return f"{count / 1e3:,.1f}" if count >= 1e3 else f"{count / 1e3:.3f}"


def _megabytes(count: float) -> str:
    return f"{count / 1e6:,.1f} MB"
