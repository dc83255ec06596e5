"""What messages cost on a network: alpha seconds each, and their bytes at beta bytes per second (an alpha-beta model).

With P machines, full-duplex links and no contention in the switch, one message after the other:

    all_to_all of n calls that send b bytes in all   n (P - 1) alpha + b / beta
    sum over all (ring) of n calls and b bytes       2 n (P - 1) alpha + 2 (P - 1)/P b / beta
Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH, 2005, section 2.

The plan of a partitioning feeds it with estimated bytes (partition/plan/training.py), fastsample-bench with measured
ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

COUNTS_BYTES = 16  # that a collective of purpose "counts" sends to every other rank
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
        bandwidth, _, latency = text.partition(",")
        try:
            return cls(parse_latency(latency), parse_bandwidth(bandwidth))
        except ValueError:
            raise ValueError(
                f"network is {text!r}; expected speed and latency such as 25Gb/s,20us or 1Gb/s,0.1ms."
            ) from None

    def __str__(self) -> str:
        """Speed and latency, as `parse` reads them."""
        return f"{8e-9 * self.beta_bytes_s:.3g}Gb/s,{1e6 * self.alpha_s:.3g}us"

    def all_to_all_s(self, calls: float, sent_bytes: float, machines: int) -> float:
        """Seconds of so many all_to_all calls, in which a machine sends so many bytes to all others."""
        return calls * (machines - 1) * self.alpha_s + sent_bytes / self.beta_bytes_s

    def ring_sum_s(self, calls: float, summed_bytes: float, machines: int) -> float:
        """Seconds of so many sums over all machines of so many bytes."""
        return 2 * (machines - 1) * (calls * self.alpha_s + summed_bytes / machines / self.beta_bytes_s)


def parse_bandwidth(text: str) -> float:
    """Bytes per second of "25Gb/s" or "100 Mbit/s".

    Raises:
      ValueError: another form, or a speed of 0.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)\s*([GM])b(?:it)?/s", text.strip())
    speed = float(match[1]) * BITS[match[2]] / 8 if match else 0.0
    if speed <= 0:
        raise ValueError(f"{text!r} is not a bandwidth; expected bits per second such as 25Gb/s or 100Mb/s.")
    return speed


def parse_latency(text: str) -> float:
    """Seconds of "20us" or "0.1ms".

    Raises:
      ValueError: another form.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)\s*(us|ms)", text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a latency; expected the time of an empty message such as 20us or 0.1ms.")
    return float(match[1]) / PER_SECOND[match[2]]
