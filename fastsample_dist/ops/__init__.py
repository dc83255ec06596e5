"""The operators: one typed function per operator of the compiled core, registered as torch.ops.fastsample.*.

Importing this package registers schemas, kernels, fake kernels and gradients; the compiled library itself is
loaded on the first call.
"""

from collections.abc import Callable

import torch

from fastsample_dist.ops import act_dropout as _act_dropout
from fastsample_dist.ops import aggregate as _aggregate
from fastsample_dist.ops import alias_tables as _alias_tables
from fastsample_dist.ops import bfs_order as _bfs_order
from fastsample_dist.ops import collective_sample as _collective_sample  # noqa: F401  (declares its structs)
from fastsample_dist.ops import compact as _compact
from fastsample_dist.ops import cuda_apps as _cuda_apps  # noqa: F401  (declares structs and functions)
from fastsample_dist.ops import cuda_collective as _cuda_collective  # noqa: F401  (declares structs and functions)
from fastsample_dist.ops import cuda_columns as _cuda_columns  # noqa: F401  (declares structs and functions)
from fastsample_dist.ops import cuda_transit as _cuda_transit  # noqa: F401  (declares structs and functions)
from fastsample_dist.ops import embedding_draws as _embedding_draws
from fastsample_dist.ops import fake, gradients
from fastsample_dist.ops import gather_rows as _gather_rows
from fastsample_dist.ops import hashed_rows as _hashed_rows
from fastsample_dist.ops import inclusion_probabilities as _inclusion_probabilities
from fastsample_dist.ops import induced_subgraph as _induced_subgraph
from fastsample_dist.ops import locate_rows as _locate_rows
from fastsample_dist.ops import sage_layer as _sage_layer
from fastsample_dist.ops import sample_mfg as _sample_mfg
from fastsample_dist.ops import shared_queue as _shared_queue  # noqa: F401  (declares structs and functions)
from fastsample_dist.ops import skipgram as _skipgram
from fastsample_dist.ops import stream_partition as _stream_partition
from fastsample_dist.ops import transit_sample as _transit_sample  # noqa: F401  (declares structs and functions)
from fastsample_dist.ops.act_dropout import DropoutKey, act_dropout
from fastsample_dist.ops.aggregate import aggregate, aggregate_concat
from fastsample_dist.ops.alias_tables import AliasTables, alias_tables
from fastsample_dist.ops.bfs_order import bfs_order
from fastsample_dist.ops.captured import CapturedSampler
from fastsample_dist.ops.cluster_nodes import ClusterRule, Clusters, cluster_nodes
from fastsample_dist.ops.compact import bucket_by_part, compact
from fastsample_dist.ops.contract_links import PairTable
from fastsample_dist.ops.embedding_draws import alias_draws, random_rows
from fastsample_dist.ops.gather_rows import gather_rows, merge_rows, place_in
from fastsample_dist.ops.hashed_rows import HashedRows, has_edges, hashed_rows, hashed_rows_bytes
from fastsample_dist.ops.inclusion_probabilities import HAZARD_BITS, MOST_HAZARD, inclusion_probabilities
from fastsample_dist.ops.induced_subgraph import induced_subgraph
from fastsample_dist.ops.library import advise_huge_pages, isa, sampler_scratch_bytes, set_isa
from fastsample_dist.ops.locate_rows import CachedSlots, Located, RowIndex, locate_rows
from fastsample_dist.ops.neighbours import Neighbours
from fastsample_dist.ops.pinned_pages import pin_pages, unpin_pages
from fastsample_dist.ops.refine_parts import PartLimits, refine_parts
from fastsample_dist.ops.row_tables import RowCache, RowTable, raise_deferred_errors
from fastsample_dist.ops.sage_layer import sage_layer
from fastsample_dist.ops.sample_mfg import sample_mfg, sample_neighbors
from fastsample_dist.ops.sample_pinsage import PinSAGERule, sample_pinsage
from fastsample_dist.ops.sample_spec import TAKE_ALL, SampleSpec
from fastsample_dist.ops.sample_subgraphs import InducedNodes, SampledSubgraphs, sample_subgraphs
from fastsample_dist.ops.sampling_graph import EdgeWeights, SampledHops, SamplingGraph
from fastsample_dist.ops.skipgram import RowGradients, RowRule, skipgram_gradients, update_rows
from fastsample_dist.ops.stream_partition import StreamRule, stream_partition
from fastsample_dist.ops.subgraph_nodes import SubgraphNodes, subgraph_nodes
from fastsample_dist.ops.subgraph_rule import FRONTIER_STRUCTURES, SUBGRAPH_METHODS, SubgraphRule, SubgraphTables
from fastsample_dist.ops.subgraph_weights import (
    ClustersLaw,
    CountsLaw,
    DrawsLaw,
    EdgeFingerprint,
    InclusionLaw,
    edge_fingerprint,
    node_inclusion,
    subgraph_weights,
)

__all__ = [
    "FRONTIER_STRUCTURES",
    "HAZARD_BITS",
    "MOST_HAZARD",
    "SUBGRAPH_METHODS",
    "TAKE_ALL",
    "AliasTables",
    "CachedSlots",
    "CapturedSampler",
    "ClusterRule",
    "Clusters",
    "ClustersLaw",
    "CountsLaw",
    "DrawsLaw",
    "DropoutKey",
    "EdgeFingerprint",
    "EdgeWeights",
    "HashedRows",
    "InclusionLaw",
    "InducedNodes",
    "Located",
    "Neighbours",
    "PairTable",
    "PartLimits",
    "PinSAGERule",
    "RowCache",
    "RowGradients",
    "RowIndex",
    "RowRule",
    "RowTable",
    "SampleSpec",
    "SampledHops",
    "SampledSubgraphs",
    "SamplingGraph",
    "StreamRule",
    "SubgraphNodes",
    "SubgraphRule",
    "SubgraphTables",
    "act_dropout",
    "advise_huge_pages",
    "aggregate",
    "aggregate_concat",
    "alias_draws",
    "alias_tables",
    "bfs_order",
    "bucket_by_part",
    "cluster_nodes",
    "compact",
    "cuda_kernels",
    "edge_fingerprint",
    "gather_rows",
    "has_edges",
    "hashed_rows",
    "hashed_rows_bytes",
    "inclusion_probabilities",
    "induced_subgraph",
    "isa",
    "locate_rows",
    "merge_rows",
    "node_inclusion",
    "pin_pages",
    "place_in",
    "raise_deferred_errors",
    "random_rows",
    "refine_parts",
    "sage_layer",
    "sample_mfg",
    "sample_neighbors",
    "sample_pinsage",
    "sample_subgraphs",
    "sampler_scratch_bytes",
    "set_isa",
    "skipgram_gradients",
    "stream_partition",
    "subgraph_nodes",
    "subgraph_weights",
    "unpin_pages",
    "update_rows",
]

_NAMESPACE = "fastsample"


_MODULES = (
    _bfs_order, _embedding_draws, _skipgram,
    _sample_mfg, _alias_tables, _compact, _gather_rows, _aggregate, _act_dropout, _sage_layer, _stream_partition,
    _hashed_rows, _inclusion_probabilities, _induced_subgraph, _locate_rows,
)  # fmt: skip

cuda_kernels: dict[str, Callable] = {}  # by operator: what runs on CUDA tensors
for _module in _MODULES:
    cuda_kernels |= getattr(_module, "CUDA_KERNELS", {})


def _register() -> torch.library.Library:
    definitions = torch.library.Library(_NAMESPACE, "DEF")
    for module in _MODULES:
        for name, (schema, kernel) in module.SCHEMAS.items():
            definitions.define(name + schema)
            definitions.impl(name, kernel, "CPU")
            torch.library.register_fake(f"{_NAMESPACE}::{name}", getattr(fake, name), lib=definitions)
        for name, (backward, setup_context) in getattr(module, "AUTOGRAD", {}).items():
            gradients.register(definitions, getattr(torch.ops.fastsample, name).default, backward, setup_context)
    for name, kernel in cuda_kernels.items():
        definitions.impl(name, kernel, "CUDA")
    return definitions


_definitions = _register()  # the registrations live as long as this object
