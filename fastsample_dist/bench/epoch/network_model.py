"""What a run would take on 2 to 64 machines of a given network: an alpha-beta model on measured figures.

Measured: the seconds of one step without communication (sample s, fetch f, compute c, on one rank, hybrid without
prefetching) and, on the most ranks k that were run, for every purpose the calls n and the bytes b that a rank sends in
a step. Assumed: one rank per machine; what messages then cost is in fastsample_dist/graph/network.py. With P machines:

    all_to_all of purpose x   n_x calls that send b_x(P) bytes
      b_x(P) = b_x (P - 1)/P * k/(k - 1)        nodes are spread evenly over the machines; 16 n_x (P - 1) for the counts
    sum of gradients          n calls, b bytes
    step, prefetch 0          s + f + c + all_to_alls + gradients
    step, prefetch > 0        max(s + f + all_to_alls, c + gradients)     the background thread has a core of its own
    epoch                     ceil(seeds / (P batch_size)) steps

Where the model is compared with runs on one machine, whose ranks share its cores, s, f and c are multiplied by
max(1, ranks * threads / cores) first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fastsample_dist.graph.network import COUNTS_BYTES, Network
from fastsample_dist.train.metrics import PAYLOAD_PURPOSES

MACHINES = (2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What the model is fed, per step.

    Attributes:
      sample_s, fetch_s, compute_s: without communication.
      comm: {purpose: {"calls", "bytes_sent"}} of a rank.
      num_ranks: on which `comm` was measured, at least 2.
      num_seeds: of an epoch, over all ranks.
      batch_size: seeds per rank and step.
    """

    sample_s: float
    fetch_s: float
    compute_s: float
    comm: Mapping[str, Mapping[str, float]]
    num_ranks: int
    num_seeds: int
    batch_size: int


def exchange_s(measured: Measured, network: Network, machines: int) -> float:
    """Seconds of a step's all_to_all calls."""
    others = machines - 1
    grown = others / machines * measured.num_ranks / (measured.num_ranks - 1)
    seconds = 0.0
    for purpose, counted in measured.comm.items():
        if purpose == "counts":
            sent_bytes = COUNTS_BYTES * counted["calls"] * others
        elif purpose in PAYLOAD_PURPOSES:
            sent_bytes = counted["bytes_sent"] * grown
        else:
            continue
        seconds += network.all_to_all_s(counted["calls"], sent_bytes, machines)
    return seconds


def gradients_s(measured: Measured, network: Network, machines: int) -> float:
    """Seconds of a step's sums of gradients."""
    counted = measured.comm.get("gradients", {"calls": 0, "bytes_sent": 0})
    return network.ring_sum_s(counted["calls"], counted["bytes_sent"], machines)


def step_s(measured: Measured, network: Network, machines: int, prefetch: int, crowding: float = 1.0) -> float:
    """Seconds of a step on `machines` machines; the formula is at the top of this file.

    Args:
      crowding: threads per core, at least 1: by as much the ranks of one machine slow each other down.
    """
    make = (measured.sample_s + measured.fetch_s) * crowding + exchange_s(measured, network, machines)
    use = measured.compute_s * crowding + gradients_s(measured, network, machines)
    return max(make, use) if prefetch else make + use


def epoch_s(measured: Measured, network: Network, machines: int, prefetch: int) -> float:
    """Seconds of an epoch on `machines` machines."""
    steps = math.ceil(measured.num_seeds / (machines * measured.batch_size))
    return steps * step_s(measured, network, machines, prefetch)
