"""What a cache of feature rows would hold for one process whose rows all lie elsewhere, as in GNNLab a GPU's do."""

from __future__ import annotations

from fastsample_dist.bench.cache.replay import static_hits
from fastsample_dist.features import policies
from fastsample_dist.graph import hotness

POLICY = "auto"


def auto_hit_rate(workload: policies.Workload, epochs: int, rows: int) -> dict:
    """Hits of the rows that policy auto caches, over the epochs of a run.

    Args:
      workload: of the one process.
      epochs: of the run, from 0 on.
      rows: cached.
    Returns:
      {"policy", "rows", "hit_rate", "oracle_hit_rate": of the best set of as many rows}.
    """
    inputs = (nodes for number in range(epochs) for nodes in workload.sample(number, number * workload.steps_per_epoch))
    num_nodes, orig_ids = workload.graph.num_nodes, hotness.original_ids(workload.graph)
    visits = hotness.counts(inputs, num_nodes)
    scores = {"hit_rate": policies.score(POLICY, workload), "oracle_hit_rate": visits}
    rates = {
        name: static_hits(visits, hotness.hottest(score, orig_ids, rows), rows) / max(1, int(visits.sum()))
        for name, score in scores.items()
    }
    return {"policy": policies.resolve(POLICY, workload.spec), "rows": rows, **rates}
