"""What a release must not change unawares: batches, counters and files of a few small runs, held as digests.

Every value behind them is an integer or a stored row, so machines and instruction sets agree. When a change is meant to
alter them, `python tests/test_digests.py` writes digests.json anew; say in the commit why.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fastsample_dist import CSCGraph, DistData, DistLoader, LaborSampler, NeighborSampler
from fastsample_dist.testing import run_distributed
from tests.parts import draw_partition

HELD = Path(__file__).with_name("digests.json")
METHODS = {
    "uniform": {}, "replace": {"replace": True}, "weighted": {"method": "weighted"}, "labor": {"method": "labor"},
    "labor, dependent": {"method": "labor", "layer_dependency": True}, "take all": {"fanouts": (-1, 2)},
}  # fmt: skip
LOADERS = {
    "hybrid": {"scheme": "hybrid"}, "vanilla": {"scheme": "vanilla"},
    "hybrid, ahead": {"scheme": "hybrid", "prefetch": 3}, "vanilla, ahead": {"scheme": "vanilla", "prefetch": 3},
    "edge values": {"scheme": "vanilla", "edge_ids": True}, "weighted": {"method": "weighted", "edge_values": True},
    "labor, bfloat16": {"method": "labor", "feature_dtype": torch.bfloat16},
    "drop last": {"drop_last": True, "shuffle": False},
}  # fmt: skip
FANOUTS, BATCH, SEED = (4, 3, 2), 11, 2**40 + 7
FILES = {"random": {"method": "random"}, "ldg": {"method": "ldg"}, "fennel": {"method": "fennel"}}


def digest(*tensors: torch.Tensor | None) -> str:
    """SHA-256 of dtypes, shapes and bytes."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(b"none" if tensor is None else f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        if tensor is not None:
            found.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:24]


def batch_digest(mb) -> str:
    """Of everything in a batch but its times."""
    edges = [part for m in mb.mfgs for part in (m.indptr, m.indices, m.src_nodes, m.edge_ids, m.edge_values)]
    return digest(mb.seeds, mb.input_nodes, mb.features, mb.labels, *edges)


def one_process() -> dict[str, str]:
    """Batches of every method on a drawn graph."""
    drawn = np.random.default_rng(1)
    src, dst = drawn.integers(0, 300, (2, 4000))
    graph = CSCGraph.from_edge_index(src, dst, 300)
    weights = torch.from_numpy(drawn.random(graph.num_edges).astype(np.float32))
    weighted = CSCGraph(graph.indptr, graph.indices, weights=weights)
    seeds = torch.arange(0, 300, 7)
    found = {}
    for name, options in METHODS.items():
        options = {"fanouts": FANOUTS, **options}
        kind = options.pop("method", "uniform")
        if kind == "labor":
            sampler = LaborSampler(graph, rng_seed=SEED, **options)
        else:
            sampler = NeighborSampler(weighted, rng_seed=SEED, weighted=kind == "weighted", **options)
        batches = [sampler.sample(seeds, step=3), *sampler.sample_many([seeds[:5], seeds[5:]], first_step=4)]
        found[name] = digest(
            *(torch.frombuffer(bytearray(batch_digest(mb), "ascii"), dtype=torch.uint8) for mb in batches)
        )
    return found


def run_rank(ctx, path):
    """{loader: digest of two epochs' batches and of what was counted}"""
    data, found = DistData.load(path, ctx), {}
    for name, options in LOADERS.items():
        loader = DistLoader(data, FANOUTS, BATCH, rng_seed=SEED, transport="exchange", exchange="paired", **options)
        ctx.comm.reset_stats()
        batches = [f"{mb.step} {mb.num_global_seeds} {batch_digest(mb)}" for _ in range(2) for mb in loader]
        text = json.dumps([batches, ctx.comm.stats()], sort_keys=True)
        found[name] = hashlib.sha256(text.encode()).hexdigest()[:24]
        loader.close()
    return found


def files(directory: Path) -> dict[str, str]:
    """Of every file of a partition, by the method that cut it."""
    import fastsample_dist as fsd

    drawn = np.random.default_rng(3)
    edges, found = drawn.integers(0, 240, (2, 3000)), {}
    features, labels = drawn.random((240, 6), np.float32), drawn.integers(0, 5, 240)
    for name, options in FILES.items():
        out = directory / name
        fsd.partition_graph(edges, features, labels, num_parts=3, output=out, seed=4, num_nodes=240, **options)
        hashes = {
            str(file.relative_to(out)): hashlib.sha256(file.read_bytes()).hexdigest()
            for file in sorted(out.rglob("*.npy"))
        }
        found[name] = hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()[:24]
    return found


def measure(directory: Path) -> dict[str, dict | list]:
    """All digests, as digests.json holds them."""
    weights = np.random.default_rng(2).random(3000).astype(np.float32)
    drawn = draw_partition(directory, 2, weights=weights)
    return {
        "sampler": one_process(),
        "ranks": run_distributed(2, run_rank, args=(drawn.path,)),
        "files": files(directory),
    }


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What this tree makes."""
    return measure(tmp_path_factory.mktemp("digests"))


@pytest.mark.parametrize("kind", ["sampler", "ranks", "files"])
def test_as_held(found, kind):
    assert found[kind] == json.loads(HELD.read_text())[kind]


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        HELD.write_text(json.dumps(measure(Path(name)), indent=1) + "\n")
