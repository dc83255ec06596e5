"""What a run would take on 2 to 64 machines of a given network: an alpha-beta model on measured figures.

Measured: the seconds of one step without communication (sample s, fetch f, compute c, on one rank, hybrid without
prefetching) and, on the most ranks k that were run, for every purpose the calls n and the bytes b that a rank sends in
a step. Assumed: one rank per machine, full-duplex links of beta bytes/s without contention in the
switch, alpha seconds per message, one message after the other. With P machines:

    all_to_all of purpose x   n_x (P - 1) alpha + b_x(P) / beta
      b_x(P) = b_x (P - 1)/P * k/(k - 1)        nodes lie on any machine alike; 16 n_x (P - 1) for the counts
    sum of gradients (ring)   2 n (P - 1) alpha + 2 (P - 1)/P b / beta
    step, prefetch 0          s + f + c + all_to_alls + gradients
    step, prefetch > 0        max(s + f + all_to_alls, c + gradients)     the background thread has a core of its own
    epoch                     ceil(seeds / (P batch_size)) steps
Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH, 2005, section 2.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from fastsample_dist.train.metrics import PAYLOAD_PURPOSES

MACHINES = (2, 4, 8, 16, 32, 64)
COUNTS_BYTES = 16  # to every other rank
BITS = {"G": 1e9, "M": 1e6}
PER_SECOND = {"ms": 1e3, "us": 1e6}


@dataclass(frozen=True)
class Network:
    """A network.

    Attributes:
      alpha_s: seconds that a message takes besides its bytes.
      beta_bytes_s: bytes per second of a link in each direction.
    """

    alpha_s: float
    beta_bytes_s: float

    @classmethod
    def parse(cls, text: str) -> Network:
        """Read "25Gb/s,20us": bits per second and latency.

        Raises:
          ValueError: another form, or a speed of 0.
        """
        match = re.fullmatch(r"([\d.]+)\s*([GM])b(?:it)?/s\s*,\s*([\d.]+)\s*(us|ms)", text)
        try:
            speed, latency = (float(match[1]), float(match[3])) if match else (0.0, 0.0)
        except ValueError:
            speed = 0.0
        if match is None or speed <= 0:
            raise ValueError(f"network is {text!r}; expected speed and latency such as 25Gb/s,20us or 1Gb/s,0.1ms.")
        return cls(latency / PER_SECOND[match[4]], speed * BITS[match[2]] / 8)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What the model is fed with, per step.

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
        seconds += counted["calls"] * others * network.alpha_s + sent_bytes / network.beta_bytes_s
    return seconds


def gradients_s(measured: Measured, network: Network, machines: int) -> float:
    """Seconds of a step's sums of gradients."""
    counted = measured.comm.get("gradients", {"calls": 0, "bytes_sent": 0})
    others = machines - 1
    return 2 * others * (
        counted["calls"] * network.alpha_s + counted["bytes_sent"] / machines / network.beta_bytes_s
    )  # fmt: skip


def epoch_s(measured: Measured, network: Network, machines: int, prefetch: int) -> float:
    """Seconds of an epoch on `machines` machines; the formula is at the top of this file."""
    make = measured.sample_s + measured.fetch_s + exchange_s(measured, network, machines)
    use = measured.compute_s + gradients_s(measured, network, machines)
    step = max(make, use) if prefetch else make + use
    return math.ceil(measured.num_seeds / (machines * measured.batch_size)) * step
