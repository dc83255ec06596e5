"""The command `fastsample-bench`: measurements that anyone can repeat on their own machine.

    fastsample-bench epoch PARTS | rmat:19:16   seconds per epoch of both schemes, with and without prefetching
    fastsample-bench features PARTS | rmat:18:16   milliseconds per fetch of feature rows, by transport
    fastsample-bench network PARTS | rmat:18:16   seconds and bytes per epoch over slow links, by what saves them
    fastsample-bench sampling --graph ...       sampled edges per second beside DGL
    fastsample-bench cache --graph ...          hit rates of the policies of the feature cache
    fastsample-bench walk --graph ...           steps of random walks per second beside ThunderRW, DGL and PyG
    fastsample-bench pinsage --graph ...        PinSAGE's neighbourhoods per second beside DGL
    fastsample-bench subgraphs --graph ...      milliseconds per subgraph beside the paper's code, DGL and PyG
    fastsample-bench models                     GNNLab's workloads: epochs, hits of the cache, accuracy, beside DGL
    fastsample-bench roles                      epochs of every split into samplers and trainers, beside predictions
    fastsample-bench gpu                        everything that is measured on a GPU

Each is a room of its own with a cli.py. Exit status: 0 only when everything ran.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from fastsample_dist import command as cl
from fastsample_dist.bench.cache import cli as cache_cli
from fastsample_dist.bench.epoch import cli as epoch_cli
from fastsample_dist.bench.features import cli as features_cli
from fastsample_dist.bench.gpu import cli as gpu_cli
from fastsample_dist.bench.models import cli as models_cli
from fastsample_dist.bench.network import cli as network_cli
from fastsample_dist.bench.pinsage import cli as pinsage_cli
from fastsample_dist.bench.roles import cli as roles_cli
from fastsample_dist.bench.sampling import cli as sampling_cli
from fastsample_dist.bench.subgraphs import cli as subgraphs_cli
from fastsample_dist.bench.walk import cli as walk_cli

PROGRAM = "fastsample-bench"


def make_parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    parser = cl.Parser(prog=PROGRAM, description="Measure, on this machine or on several.", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True, parser_class=cl.Parser)
    for room in (
        epoch_cli, features_cli, network_cli, sampling_cli, cache_cli, walk_cli, pinsage_cli, subgraphs_cli, models_cli,
        roles_cli, gpu_cli,
    ):  # fmt: skip
        room.add_command(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    runs = {
        "epoch": partial(epoch_cli.run, words), "features": features_cli.run, "network": network_cli.run,
        "sampling": sampling_cli.run, "cache": cache_cli.run,
        "walk": walk_cli.run, "pinsage": pinsage_cli.run, "subgraphs": subgraphs_cli.run, "models": models_cli.run,
        "roles": roles_cli.run, "gpu": gpu_cli.run,
    }  # fmt: skip
    return cl.run_command(make_parser(), lambda args: runs[args.command](args), words)


if __name__ == "__main__":
    sys.exit(main())
