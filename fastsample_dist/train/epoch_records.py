"""What is recorded of every epoch besides its means: each rank's own figures and what was run; and such records read
back from a file of JSON lines.

A record is one line of --jsonl and one entry of "epochs" in --json:

    {"epoch": 3, "loss": 0.71, "steps": 17, "seconds": 4.2, "sample_s": 0.3, ..., "val_acc": 0.69,
     "ranks": [{"rank": 0, "host": "a", "steps": 17, "seconds": 4.2, "sample_s": 0.3, ...,
                "comm": {"feature_rows": {"calls": 17, "bytes_sent": 10, "bytes_received": 12}},
                "peak_rss_bytes": 400, "private_bytes": 300, "shared_bytes": 50, "pss_bytes": 325}, ...],
     "run": {"model": "sage", "graph": "debian12-packages", ...}}
"""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fastsample_dist.comm.context import DistContext
from fastsample_dist.memory_sizes import process_memory
from fastsample_dist.pipeline.batch_loader import BatchLoader
from fastsample_dist.pipeline.subgraph_loader import SubgraphLoader
from fastsample_dist.train.callbacks import Callback, EpochReport, Run
from fastsample_dist.train.config import TrainConfig
from fastsample_dist.train.metrics import CommTally, counted_between

Record = dict[str, Any]

PURPOSE = "records"
RECORDED = ("ranks", "run")
"""What `RankRecords` adds to an epoch's figures."""
TIMES = ("seconds", "sample_s", "fetch_s", "wait_s", "compute_s", "gradients_s")
MEMORY = ("peak_rss_bytes", "private_bytes", "shared_bytes", "pss_bytes")
CACHE = (
    "own", "neighbour", "cached", "kept", "exchanged", "cache_rows", "cache_bytes", "hit_rate", "oracle_hit_rate",
)  # fmt: skip
"""Numbers of a record's "cache", where there is one."""
COUNTS = ("calls", "bytes_sent", "bytes_received")
OPTIONS = (
    "model", "layers", "hidden", "scheme", "fanouts", "sampler", "batch_size", "precision", "lr", "prefetch", "epochs",
    "roles", "staleness",
)  # fmt: skip
"""Fields of TrainConfig that a record names."""


class RankRecords(Callback):
    """Adds "ranks" and "run" to every epoch's figures; behind the tally of training and the callbacks of users, who
    see numbers only.

    Args:
      ctx: the rank's context.
      tally: what training communicated.
      facts: what is run, as `run_facts` returns it.
    """

    def __init__(self, ctx: DistContext, tally: CommTally, facts: Mapping[str, Any]) -> None:
        self._ctx, self._tally, self._facts = ctx, tally, dict(facts)
        self._host = socket.gethostname()

    def on_begin(self, run: Run) -> None:
        """Keep the trainer, which knows this rank's seconds."""
        self._trainer = run.trainer

    def on_epoch_begin(self, epoch: int) -> None:
        """Count from here."""
        self._before = {purpose: dict(counts) for purpose, counts in self._tally.stats.items()}

    def on_epoch(self, report: EpochReport) -> None:
        """Gather every rank's figures. Purpose "records", one call. Collective: every rank must call this."""
        own = {
            "rank": self._ctx.rank, "host": self._host, **self._trainer.own_totals,
            "comm": counted_between(self._before, self._tally.stats), **process_memory(),
        }  # fmt: skip
        ranks = self._ctx.comm.all_gather_object(own, purpose=PURPOSE)
        report.figures.update(zip(RECORDED, (ranks, self._facts), strict=True))


def run_facts(config: TrainConfig, loader: BatchLoader, threads: int) -> dict[str, Any]:
    """What is run, as JSON values by name: the graph, the ranks, the options in OPTIONS, and "subgraphs" or
    "walks" if any.
    """
    data = loader.data
    ctx, manifest = data.ctx, data.manifest
    options = {name: getattr(config, name) for name in OPTIONS}
    subgraphs = {}
    if isinstance(loader, SubgraphLoader):
        shaping = config.subgraph_shaping(config.sampler, config.seed)
        subgraphs["subgraphs"] = shaping | {"subgraphs_per_step": loader.subgraphs_per_step}
    walks = {"walks": config.pinsage_shaping()} if config.has_walks else {}
    return {
        "graph": manifest.name, "num_nodes": data.num_nodes, "num_edges": manifest.num_edges,
        "ranks": ctx.world_size, "threads": threads, "device": str(ctx.device),
        "transport": loader.transport, "exchange": loader.exchange,
        **options, "fanouts": list(config.fanouts), **subgraphs, **walks,
    }  # fmt: skip


def read_records(path: Path) -> list[Record]:
    """The epochs that a file of JSON lines holds, each once, by number.

    A line whose epoch is not behind the one before begins anew there: a run that was resumed from a checkpoint, or
    another run that continued the file. What was recorded of that epoch and of later ones is replaced.

    Raises:
      ValueError: the file cannot be read, has no line, or one that is not an epoch's record; names the line.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ValueError(
            f"--from-jsonl {path} cannot be read ({error.strerror}); pass a file that --jsonl wrote."
        ) from error
    records: list[Record] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            check_record(record)
            record |= {name: math.nan for name in _measured(record) if record[name] is None}
        except ValueError as error:
            raise ValueError(
                f"--from-jsonl {path}: line {number} is not the record of an epoch ({error}); remove the line, or pass "
                "a file that --jsonl wrote."
            ) from error
        records = [kept for kept in records if kept["epoch"] < record["epoch"]]
        records.append(record)
    if not records:
        raise ValueError(f"--from-jsonl {path} has no line; expected one per epoch, as --jsonl writes them.")
    return records


def check_record(record: object) -> None:
    """Refuse what is no record of an epoch. "ranks", "run", "cache" and "roles" may be missing (older releases).

    Raises:
      ValueError: with what is wrong.
    """
    _check_numbers("the line", record, ("epoch",))
    measured = [name for name in _measured(record) if record.get(name, "") is not None]
    _check_numbers("the line", record, (*measured, "steps", *TIMES))
    for place, rank in enumerate(_list_of(record, "ranks")):
        _check_numbers(f"ranks[{place}]", rank, ("rank", "steps", *TIMES, *(set(MEMORY) & set(rank))))
        for purpose, counts in _mapping_of(rank, "comm").items():
            _check_numbers(f"comm of {purpose} in ranks[{place}]", counts, COUNTS)
    _mapping_of(record, "run")
    cache = _mapping_of(record, "cache")
    _check_numbers("cache", cache, [name for name in CACHE if cache.get(name) is not None])
    if roles := _mapping_of(record, "roles"):
        _check_roles(roles)


def _measured(record: Record) -> list[str]:
    """Names of the loss and the scores there are; null is one that was NaN or infinite."""
    return ["loss", *(name for name in record if name.startswith(("val_", "test_")))]


def _check_roles(roles: dict[str, Any]) -> None:
    _check_numbers("roles", roles, ("samplers", "trainers", "standby"))
    for name in ("sampled", "trained"):
        counts = _list_of(roles, name)
        if len(counts) != roles["samplers"] + roles["trainers"]:
            raise ValueError(f"{name} of roles has {len(counts)} entries, expected one per rank")
        _check_numbers(f"{name} of roles", dict(enumerate(counts)), range(len(counts)))


def _check_numbers(what: str, found: object, names: Iterable[str | int]) -> None:
    if not isinstance(found, dict):
        raise ValueError(f"{what} is {type(found).__name__}, expected an object")
    for name in names:
        if isinstance(found.get(name), bool) or not isinstance(found.get(name), int | float):
            raise ValueError(f"{name} of {what} is {found.get(name)!r}, expected a number")


def _list_of(found: Mapping[str, Any], name: str) -> list[Any]:
    value = found.get(name, [])
    if not isinstance(value, list):
        raise ValueError(f"{name} is {type(value).__name__}, expected a list")
    return value


def _mapping_of(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = found.get(name) or {}
    if not isinstance(value, dict):
        raise ValueError(f"{name} is {type(value).__name__}, expected an object")
    return value
