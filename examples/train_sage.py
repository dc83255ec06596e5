"""Train GraphSAGE, GCN or GAT on a partitioned graph.

One script for every launcher; each process is one rank and owns one part (or an equal run of parts):

    torchrun --nproc-per-node 2 examples/train_sage.py --data PARTS --scheme hybrid --epochs 10 --json out.json
    mpirun -n 2 python examples/train_sage.py --data PARTS
    python examples/train_sage.py --data PARTS --device cuda

With --device cuda every rank samples, fetches and trains on a GPU of its own; topology and features go into its memory,
or into pinned host memory where they do not fit (--placement). The mini-batches are those of the CPU; losses differ by
the rounding of the matrix products alone.

Evaluation sees sampled neighbours, as many as --eval-fanouts says (the training fanouts by default; -1 is all), or with
--eval full all of them, layer by layer.
Rank 0 prints; the communication it reports is its own, evaluation left out.

With --checkpoint-dir the run saves itself every --checkpoint-every steps, at its end, and at Ctrl-C or SIGTERM, which
then ends it with status 130 (a second Ctrl-C ends it at once; Open MPI's mpirun alone ends its ranks unasked, under
fastsample-launch --mpi they are asked). --resume resumes from the newest valid checkpoint; under torchrun
--max-restarts a run whose rank was killed does so by itself.

The installed command `fastsample-train` is the same; in Python it is fastsample_dist.train.run.
"""

import sys

from fastsample_dist.entry import train


def main(argv: list[str] | None = None) -> int:
    """The command on its own arguments or given ones; returns the exit status."""
    from fastsample_dist.train.cli import main as run  # loads torch; `train` answers Ctrl-C while it does

    return run(argv)


if __name__ == "__main__":
    sys.exit(train())
