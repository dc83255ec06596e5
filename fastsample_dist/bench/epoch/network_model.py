"""What a run would take on 2 to 64 machines of a given network: an alpha-beta model on measured figures.

Measured: the seconds of a step of batch_size seeds without communication (sample s, fetch f, compute c, on one rank,
hybrid without prefetching); on the most ranks k that were run, for every purpose the calls n and the bytes b that a
rank sends in such a step, and the share r of its input rows that it gets from others; on the fewest ranks that are
several, what messages take of a processor, in the form of a network: seconds each, and bytes per second; of smaller
batches, by sampling, the share i of a full batch's input rows and the share m of its matrix products (an epoch's last
batch is smaller, and on many machines the only one). Assumed: one rank per machine; what messages cost is in
fastsample_dist/graph/network.py. With P machines:

    all_to_all of purpose x   n_x calls that send i b_x(P) bytes
      b_x(P) = b_x (P - 1)/P * k/(k - 1)        nodes are spread evenly over the machines; 16 n_x (P - 1) for the counts
    sum of gradients          n calls, b bytes
    messages                  the longer one of what the network and what a processor takes
    make                      u i (s + f (1 + r(P))) + all_to_alls
      r(P) as b_x(P)                            the owner reads a row before it is sent
    use                       u m c + gradients
      u                                         all wait for the largest batch of a step: its products over the mean
    step, prefetch 0          make + use
    step, prefetch > 0        max(make, use), and no less than both without network and u, by the cores of a rank
    epoch                     seeds / (P batch_size) full steps, rounded down, and one of the seeds that are left

Where the model is compared with runs on one machine, whose ranks share its cores, s, f, c and the processor's share of
messages are multiplied by their crowding first: how much longer than alone the slowest rank takes to train a batch that
it has, when all do so at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from fastsample_dist.graph.network import COUNTS_BYTES, Network
from fastsample_dist.train.metrics import PAYLOAD_PURPOSES

MACHINES = (2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, kw_only=True)
class Host:
    """What a rank has of its machine, and of the work.

    Attributes:
      crowding: how much longer than alone the ranks of the machine take for the same work.
      busy: threads of its ranks per core, 1 where there are more.
      largest: of a step's batches, the products of the largest over the mean.
    """

    crowding: float = 1.0
    busy: float = 0.0
    largest: float = 1.0


ALONE = Host()


@dataclass(frozen=True, kw_only=True)
class BatchWork:
    """What a batch has to do.

    Attributes:
      seeds: of it.
      inputs: rows that are fetched.
      products: multiplications of the model's matrix products.
    """

    seeds: float
    inputs: float
    products: float


@dataclass(frozen=True, kw_only=True)
class Share:
    """Of the work of a full batch: of its input rows, and of its products."""

    inputs: float = 1.0
    products: float = 1.0


FULL = Share()


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What the model is fed, per step.

    Attributes:
      sample_s, fetch_s, compute_s: without communication, of a full batch.
      comm: {purpose: {"calls", "bytes_sent"}} of a rank, of full batches.
      remote_share: of its input rows, those that others own.
      num_ranks: on which these two were measured, at least 2.
      processor: what messages take of a processor.
      num_seeds: of an epoch, over all ranks.
      batch_size: seeds per rank and step.
      batches: of batch_size seeds, the first one, and fewer and fewer.
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
    batches: Sequence[BatchWork]

    def growth(self, machines: int) -> float:
        """By how much more of the rows are others' than when they were counted."""
        return (machines - 1) / machines * self.num_ranks / (self.num_ranks - 1)


def steps_of(num_seeds: float, machines: int, batch_size: int) -> list[float]:
    """Seeds of every step of a machine: full batches, and what is left."""
    seeds = num_seeds / machines
    full = int(seeds // batch_size)
    rest = seeds - full * batch_size
    return [float(batch_size)] * full + ([rest] if rest > 0 else [])


def share_of(batches: Sequence[BatchWork], seeds: float) -> Share:
    """The share of a batch of so many seeds in the work of the first of `batches`: between two of them a power of the
    seeds, below the smallest in proportion to them.
    """
    first = batches[0]
    for larger, smaller in pairwise(batches):
        if smaller.seeds <= seeds <= larger.seeds:
            place = math.log(larger.seeds / seeds) / math.log(larger.seeds / smaller.seeds)
            inputs = larger.inputs * (smaller.inputs / larger.inputs) ** place
            products = larger.products * (smaller.products / larger.products) ** place
            return Share(inputs=inputs / first.inputs, products=products / first.products)
    last = batches[-1]
    part = seeds / last.seeds
    return Share(inputs=part * last.inputs / first.inputs, products=part * last.products / first.products)


def mean_share(batches: Sequence[BatchWork], steps: Sequence[float]) -> Share:
    """The mean over steps of so many seeds."""
    shares = [share_of(batches, seeds) for seeds in steps]
    return Share(
        inputs=sum(share.inputs for share in shares) / len(shares),
        products=sum(share.products for share in shares) / len(shares),
    )


def exchange_s(measured: Measured, network: Network, machines: int, share: Share = FULL) -> float:
    """Seconds of a step's all_to_all calls."""
    others, grown, seconds = machines - 1, share.inputs * measured.growth(machines), 0.0
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


def step_s(
    measured: Measured, network: Network, machines: int, prefetch: int, host: Host = ALONE, share: Share = FULL
) -> float:
    """Seconds of a step on `machines` machines; the formula is at the top of this file."""
    exchanged_s = exchange_s(measured, network, machines, share)
    summed_s = gradients_s(measured, network, machines)
    of_exchanges_s = exchange_s(measured, measured.processor, machines, share)
    of_sums_s = gradients_s(measured, measured.processor, machines)
    read = measured.fetch_s * (1 + measured.remote_share * measured.growth(machines))
    made_s, used_s = share.inputs * (measured.sample_s + read), share.products * measured.compute_s
    slowest = host.crowding * host.largest
    make = slowest * made_s + max(exchanged_s, host.crowding * of_exchanges_s)
    use = slowest * used_s + max(summed_s, host.crowding * of_sums_s)
    if not prefetch:
        return make + use
    return max(make, use, host.busy * host.crowding * (made_s + used_s + of_exchanges_s + of_sums_s))


def epoch_s(measured: Measured, network: Network, machines: int, prefetch: int, host: Host = ALONE) -> float:
    """Seconds of an epoch on `machines` machines."""
    return sum(
        step_s(measured, network, machines, prefetch, host, share_of(measured.batches, seeds))
        for seeds in steps_of(measured.num_seeds, machines, measured.batch_size)
    )
