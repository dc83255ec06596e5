"""What a run would take on 2 to 64 machines of a given network: an alpha-beta model on measured figures.

Measured: the seconds of one step without communication (sample s, fetch f, compute c, on one rank, hybrid without
prefetching); on the most ranks k that were run, for every purpose the calls n and the bytes b that a rank sends in a
step, and the share r of its input rows that it gets from others; on the fewest ranks that are several, what messages
take of a processor, in the form of a network: seconds each, and bytes per second. Assumed: one rank per machine; what
messages cost is in fastsample_dist/graph/network.py. With P machines:

    all_to_all of purpose x   n_x calls that send b_x(P) bytes
      b_x(P) = b_x (P - 1)/P * k/(k - 1)        nodes are spread evenly over the machines; 16 n_x (P - 1) for the counts
    sum of gradients          n calls, b bytes
    messages                  the longer one of what the network and what a processor takes
    make                      s + f (1 + r(P)) + all_to_alls, r(P) as b_x(P): the owner reads a row before it is sent
    use                       c + gradients
    step, prefetch 0          make + use
    step, prefetch > 0        max(make, use), and no less than both without the network, divided by the cores of a rank
    epoch                     ceil(seeds / (P batch_size)) steps

Where the model is compared with runs on one machine, whose ranks share its cores, s, f, c and the processor's share of
messages are multiplied by their crowding first: how much longer than alone the slowest rank takes for the products of
bench/epoch/floor.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fastsample_dist.graph.network import COUNTS_BYTES, Network
from fastsample_dist.train.metrics import PAYLOAD_PURPOSES

MACHINES = (2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, kw_only=True)
class Host:
    """What a rank has of its machine.

    Attributes:
      crowding: how much longer than alone the ranks of the machine take for the same work.
      busy: threads of its ranks per core, 1 where there are more.
    """

    crowding: float = 1.0
    busy: float = 0.0


ALONE = Host()


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What the model is fed, per step.

    Attributes:
      sample_s, fetch_s, compute_s: without communication.
      comm: {purpose: {"calls", "bytes_sent"}} of a rank.
      remote_share: of its input rows, those that others own.
      num_ranks: on which these two were measured, at least 2.
      processor: what messages take of a processor.
      num_seeds: of an epoch, over all ranks.
      batch_size: seeds per rank and step.
    """

    sample_s: float
    fetch_s: float
    compute_s: float
    comm: Mapping[str, Mapping[str, float]]
    remote_share: float
    num_ranks: int
    processor: Network
    num_seeds: int
    batch_size: int

    def growth(self, machines: int) -> float:
        """By how much more of the rows are others' than when they were counted."""
        return (machines - 1) / machines * self.num_ranks / (self.num_ranks - 1)


def exchange_s(measured: Measured, network: Network, machines: int) -> float:
    """Seconds of a step's all_to_all calls."""
    others, grown, seconds = machines - 1, measured.growth(machines), 0.0
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


def step_s(measured: Measured, network: Network, machines: int, prefetch: int, host: Host = ALONE) -> float:
    """Seconds of a step on `machines` machines; the formula is at the top of this file."""
    processor_s, messages = 0.0, []
    for messages_s in (exchange_s, gradients_s):
        own_s = messages_s(measured, measured.processor, machines)
        messages.append(max(messages_s(measured, network, machines), host.crowding * own_s))
        processor_s += own_s
    made_s = measured.sample_s + measured.fetch_s * (1 + measured.remote_share * measured.growth(machines))
    make, use = host.crowding * made_s + messages[0], host.crowding * measured.compute_s + messages[1]
    if not prefetch:
        return make + use
    return max(make, use, host.busy * host.crowding * (made_s + measured.compute_s + processor_s))


def epoch_s(measured: Measured, network: Network, machines: int, prefetch: int, host: Host = ALONE) -> float:
    """Seconds of an epoch on `machines` machines."""
    steps = math.ceil(measured.num_seeds / (machines * measured.batch_size))
    return steps * step_s(measured, network, machines, prefetch, host)
