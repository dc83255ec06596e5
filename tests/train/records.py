"""Records of epochs drawn by hand: what --jsonl would hold of a run on several ranks."""

import random

STAGES = ("sample_s", "fetch_s", "compute_s", "gradients_s")
ROW_BYTES = 40


def make_rank(rank: int, draw: random.Random, steps: int) -> dict:
    """One rank's figures of one epoch."""
    times = {name: draw.uniform(0.5, 1.5) for name in STAGES}
    wait_s = times["sample_s"] + times["fetch_s"]
    seconds = sum(times.values()) + 0.25
    rows = draw.randrange(1000, 2000)
    return {
        "rank": rank, "host": "a", "steps": steps, "seconds": seconds, "wait_s": wait_s, **times,
        "comm": {
            "feature_ids": {"calls": steps, "bytes_sent": 4 * rows, "bytes_received": 4 * rows + 8},
            "feature_rows": {"calls": steps, "bytes_sent": ROW_BYTES * rows, "bytes_received": ROW_BYTES * rows + 80},
        },
        "peak_rss_bytes": 600_000_000 + rank * 10**6, "private_bytes": 400_000_000, "shared_bytes": 100_000_000,
        "pss_bytes": 450_000_000,
    }  # fmt: skip


def make_records(num_epochs: int = 3, num_ranks: int = 2, *, prefetch: int = 0, cache: bool = False) -> list[dict]:
    """Records of epochs 0, 1, ...; the last one has a test score."""
    draw, records = random.Random(0), []
    for epoch in range(num_epochs):
        ranks = [make_rank(rank, draw, 7) for rank in range(num_ranks)]
        means = {name: sum(rank[name] for rank in ranks) / num_ranks for name in ("seconds", "wait_s", *STAGES)}
        record = {"step": 7 * (epoch + 1), "epoch": epoch, "loss": 3 / (epoch + 1), "steps": 7, **means}
        record |= {"lr": 0.01, "val_acc": 0.5 + draw.random() / 4}
        if cache:
            rows = {"own": 9000, "neighbour": 100 * epoch, "cached": 3000, "kept": 500, "exchanged": 1500}
            size = {"policy": "vip", "cache_rows": 1234, "cache_bytes": 2_500_000}
            record["cache"] = rows | size | {"hit_rate": 0.7 + epoch / 100, "oracle_hit_rate": 0.75 + epoch / 100}
        facts = {"graph": "drawn", "num_nodes": 12345, "ranks": num_ranks, "model": "sage", "fanouts": [5, 3]}
        records.append(record | {"ranks": ranks, "run": facts | {"prefetch": prefetch}})
    records[-1]["test_acc"] = 0.625
    return records
