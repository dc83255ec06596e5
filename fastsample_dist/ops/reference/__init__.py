"""Oracles: every operator once more, slow and obvious, in plain Python and torch.

Written from the definitions (Philox's paper, Floyd's selection, Lemire's bounded draw, Vose's alias tables), not from
the kernels, and free of the compiled core. Tests compare kernels with these by exact equality. A sampling method has a
module of its own with its draw and its exact law, which statistical tests compare samplers with.
"""

from fastsample_dist.ops.reference.clusters import cluster_nodes, contract_links, refine_parts
from fastsample_dist.ops.reference.induced import induced_subgraph
from fastsample_dist.ops.reference.labor import layer_pick
from fastsample_dist.ops.reference.laws import Certain, Independent, Outcomes, Replaced, RowLaw
from fastsample_dist.ops.reference.layers import (
    act_dropout,
    aggregate,
    aggregate_concat,
    dropout_factors,
    row_sums,
    sage_layer,
)
from fastsample_dist.ops.reference.membership import has_edges, hashed_rows, home_bucket
from fastsample_dist.ops.reference.partitioning import bfs_order, stream_partition
from fastsample_dist.ops.reference.pinsage import pinsage_law, pinsage_neighbors, sample_pinsage
from fastsample_dist.ops.reference.probabilities import (
    inclusion_moments,
    inclusion_probabilities,
    oracle,
    pick_distribution,
    row_law,
)
from fastsample_dist.ops.reference.rows import bucket_by_part, gather_rows, locate_rows, merge_rows
from fastsample_dist.ops.reference.sampling import Hops, Row, compact, sample_mfg, sample_neighbors
from fastsample_dist.ops.reference.streams import below, node_words, philox, stage_key
from fastsample_dist.ops.reference.subgraphs import dashboard_counts, permutation, subgraph_nodes, subgraph_visits
from fastsample_dist.ops.reference.uniform import pick
from fastsample_dist.ops.reference.weighted import AliasRow, alias_row, alias_tables, weighted_pick

__all__ = [
    "AliasRow",
    "Certain",
    "Hops",
    "Independent",
    "Outcomes",
    "Replaced",
    "Row",
    "RowLaw",
    "act_dropout",
    "aggregate",
    "aggregate_concat",
    "alias_row",
    "alias_tables",
    "below",
    "bfs_order",
    "bucket_by_part",
    "cluster_nodes",
    "compact",
    "contract_links",
    "dashboard_counts",
    "dropout_factors",
    "gather_rows",
    "has_edges",
    "hashed_rows",
    "home_bucket",
    "inclusion_moments",
    "inclusion_probabilities",
    "induced_subgraph",
    "layer_pick",
    "locate_rows",
    "merge_rows",
    "node_words",
    "oracle",
    "permutation",
    "philox",
    "pick",
    "pick_distribution",
    "pinsage_law",
    "pinsage_neighbors",
    "refine_parts",
    "row_law",
    "row_sums",
    "sage_layer",
    "sample_mfg",
    "sample_neighbors",
    "sample_pinsage",
    "stage_key",
    "stream_partition",
    "subgraph_nodes",
    "subgraph_visits",
    "weighted_pick",
]
