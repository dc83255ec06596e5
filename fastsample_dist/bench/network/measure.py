"""The measurement of `fastsample-bench network`: runs on hosts in namespaces, and the figures of each row."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fastsample_dist.bench.epoch.namespaces import namespace_hosts
from fastsample_dist.bench.graphs import GraphSource
from fastsample_dist.bench.network.rows import INT8, Row
from fastsample_dist.features.cache import CacheReport
from fastsample_dist.graph.manifest import read_manifest
from fastsample_dist.testing.jobs import RankJob, run_ranks
from fastsample_dist.train.metrics import PAYLOAD_PURPOSES, payload_exchanges

RANK_TASK = "fastsample_dist.bench.network.rank:network_rank"
UNLIMITED = "unlimited"
ROWS = ("features.npy", "scales.npy")  # files that differ where rows are stored in another type
PLANS = "counts"  # purpose of what a paired fetch agrees on


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """What is run.

    Attributes:
      source: the graph.
      int8_parts: the same partition with rows stored as int8; None: a generated graph is cut again.
      hosts, ranks_per_host: numbers of them.
      rates: of the hosts' links, as tc writes them, or UNLIMITED.
      rows: of the table.
      settings: of a rank but for path and rows, see network_rank.
      threads: intra-op threads per rank.
      deadline_s: for the ranks of one run to end.
      timeout_s: of one collective.
    """

    source: GraphSource
    int8_parts: Path | None
    hosts: int
    ranks_per_host: int
    rates: tuple[str, ...]
    rows: tuple[Row, ...]
    settings: dict
    threads: int = 1
    deadline_s: float = 3600.0
    timeout_s: float = 600.0

    @property
    def num_ranks(self) -> int:
        """Ranks of a run."""
        return self.hosts * self.ranks_per_host


def measure(options: NetworkOptions, progress: Callable[[str], object]) -> list[dict]:
    """Run every rate; returns {"rate", "rows": what `summarize` returns for each} for each.

    Args:
      options: what to run.
      progress: called with a line about what is done next.
    Raises:
      ValueError: --int8 is another partition, or a run was refused.
      RuntimeError: a run failed.
    """
    if options.int8_parts is not None and any(row.has(INT8) for row in options.rows):
        check_int8(options.source.parts(options.num_ranks, progress), options.int8_parts)
    runs = []
    for rate in options.rates:
        found: dict[str, dict] = {}
        for is_int8 in (False, True):
            rows = [row for row in options.rows if row.has(INT8) is is_int8]
            if rows:
                parts = _parts(options, is_int8, progress)
                progress(f"training with {', '.join(row.name for row in rows)} at {rate}")
                for summary in summarize(_run(options, rate, parts, rows)):
                    found[summary["name"]] = summary
        ordered = [found[row.name] for row in options.rows]
        for entry in ordered:
            entry["times_fewer_bytes"] = ordered[0]["feature_bytes"] / max(entry["feature_bytes"], 1)
        runs.append({"rate": rate, "rows": ordered})
    return runs


def check_int8(parts: Path, int8_parts: Path) -> None:
    """Refuse a partition that differs from `parts` in more than how its rows are stored.

    Raises:
      ValueError: with the first difference.
    """
    expected, found = read_manifest(parts), read_manifest(int8_parts)
    remedy = f"pass {parts} partitioned again with --feature-dtype {INT8}"
    if found.feature_dtype != INT8:
        raise ValueError(f"--int8 {int8_parts} has rows of {found.feature_dtype}; {remedy}.")
    for field in ("part_ranges", "num_nodes", "num_edges", "feature_dim", "num_classes"):
        pair = [getattr(manifest, field) for manifest in (found, expected)]
        if pair[0] != pair[1]:
            raise ValueError(f"--int8 {int8_parts} has {field} {pair[0]}, but {parts} has {pair[1]}; {remedy}.")
    for name in sorted(found.files.keys() & expected.files.keys()):
        if not name.endswith(ROWS) and found.files[name]["sha256"] != expected.files[name]["sha256"]:
            raise ValueError(f"--int8 {int8_parts} has another {name} than {parts}; {remedy}.")


def _parts(options: NetworkOptions, is_int8: bool, progress: Callable[[str], object]) -> Path:
    if not is_int8:
        return options.source.parts(options.num_ranks, progress)
    if options.int8_parts is not None:
        return options.int8_parts
    return options.source.parts(options.num_ranks, progress, INT8)


def _run(options: NetworkOptions, rate: str, parts: Path, rows: Sequence[Row]) -> list[dict]:
    limit, work = None if rate == UNLIMITED else rate, options.source.work
    with namespace_hosts(parts, options.hosts, rate=limit, work=work) as made:
        settings = options.settings | {"path": str(made.data), "rows": [row.name for row in rows]}
        job = RankJob(
            task=RANK_TASK, settings=[settings] * options.num_ranks, deadline_s=options.deadline_s,
            timeout_s=options.timeout_s, threads=options.threads,
        )  # fmt: skip
        return run_ranks(job, [host for host in made.hosts for _ in range(options.ranks_per_host)])


def summarize(results: Sequence[dict]) -> list[dict]:
    """The figures of each row of one run.

    Args:
      results: what network_rank returned, by rank.
    Returns:
      [{"name", "transport", "exchange", "rails", "graph", "row_bytes", "steps", "epoch_s": median of the timed epochs,
      "epochs_s", "loss": per epoch, "feature_bytes": that all ranks sent for features in an epoch, by the communicator,
      "link_bytes": that left all hosts in an epoch, "calls": payload exchanges per step, "hit_rate", "fetched": rows of
      all epochs by where they came from}].
    """
    first, summaries = results[0], []
    for number, row in enumerate(first["rows"]):
        of_ranks = [result["rows"][number] for result in results]
        timed = [rank["epochs"][1:] for rank in of_ranks]
        sent = [
            sum(entry["comm"].get(purpose, {}).get("bytes_sent", 0) for purpose in (*PAYLOAD_PURPOSES, PLANS))
            for epochs in timed
            for entry in epochs
        ]
        link_bytes = [entry["link_bytes"] for epochs in timed for entry in epochs]
        calls = [payload_exchanges(entry["comm"]) for entry in timed[0]]
        fetched = CacheReport.total(CacheReport(**rank["fetched"]) for rank in of_ranks)
        epochs_s = [entry["seconds"] for entry in timed[0]]
        summaries.append({
            **{name: row[name] for name in ("name", "transport", "exchange", "rails")},
            "graph": first["graph"], "row_bytes": first["row_bytes"], "steps": first["steps"],
            "epoch_s": statistics.median(epochs_s), "epochs_s": epochs_s,
            "loss": [entry["loss"] for entry in of_ranks[0]["epochs"]],
            "feature_bytes": sum(sent) / len(epochs_s), "link_bytes": sum(link_bytes) / len(epochs_s),
            "calls": statistics.fmean(calls) / first["steps"], "hit_rate": fetched.hit_rate,
            "fetched": fetched.as_json(),
        })  # fmt: skip
    return summaries
