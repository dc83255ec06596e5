"""One DistDGL server: holds one part's topology and features until the trainers end.

Everything it needs comes from the DGL_* variables that session.py sets. Its own generators are seeded
because a server samples on behalf of remote trainers.
"""

from __future__ import annotations

import argparse
import os

import dgl
import torch
from settings import Settings


def main() -> None:
    """Serve one part. Ends when trainer 0 says so; dgl.distributed.initialize never returns here."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", required=True)
    args = parser.parse_args()
    settings = Settings.read(args.settings)
    torch.set_num_threads(1)
    torch.manual_seed(settings.seed)
    dgl.seed(settings.seed)
    dgl.distributed.initialize(os.environ["DGL_IP_CONFIG"])


if __name__ == "__main__":
    main()
