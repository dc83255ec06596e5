"""Mini-batches as DGL blocks, for models written with dgl.nn. The only module that imports dgl, and only on use.

A block is DGL's bipartite graph of one layer; an MFG has the same node order (destinations first), so a block is
the MFG's CSC arrays under another type.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

import torch

from fastsample_dist.sampling.base import MFG, MiniBatch

if TYPE_CHECKING:
    from dgl import DGLGraph

INT32_MAX = 2**31 - 1


def _dgl() -> ModuleType:
    try:
        import dgl
    except (ImportError, OSError) as error:  # OSError: dgl's own libraries do not fit the installed torch
        raise ImportError(
            f"to_blocks needs dgl, which cannot be imported ({error}); run `pip install fastsample_dist[dgl]`."
        ) from error
    return dgl


def _block(dgl: ModuleType, mfg: MFG) -> DGLGraph:
    narrow = mfg.indices.dtype == torch.int32 and mfg.num_edges <= INT32_MAX
    id_dtype = torch.int32 if narrow else torch.int64  # DGL wants offsets and ids of one type
    edges = ("csc", (mfg.indptr.to(id_dtype), mfg.indices.to(id_dtype), torch.empty(0, dtype=id_dtype)))
    block = dgl.create_block(
        edges, num_src_nodes=mfg.num_src, num_dst_nodes=mfg.num_dst, idtype=id_dtype, device=mfg.indices.device
    )
    block.srcdata[dgl.NID] = mfg.src_nodes
    block.dstdata[dgl.NID] = mfg.dst_nodes
    return block


def to_blocks(batch: MiniBatch) -> list[DGLGraph]:
    """The MFGs of a mini-batch as DGL blocks, input side first.

    Args:
      batch: a mini-batch; its features and labels may be missing.
    Returns:
      One block per MFG. Edge e of a block is edge e of the MFG; `srcdata[dgl.NID]` and `dstdata[dgl.NID]` are node
      ids of the graph. The first block has `srcdata["feat"]` [num_inputs, feature_dim] when the batch has features,
      the last one `dstdata["label"]` int64 [num_seeds] when it has labels.
    Raises:
      ImportError: dgl is missing or does not fit the installed torch; the message names the extra to install.
    Cost: O(edges of the batch) for the offsets; features are not copied.
    """
    dgl = _dgl()
    blocks = [_block(dgl, mfg) for mfg in batch.mfgs]
    if blocks and batch.features is not None:
        blocks[0].srcdata["feat"] = batch.features
    if blocks and batch.labels is not None:
        blocks[-1].dstdata["label"] = batch.labels
    return blocks
