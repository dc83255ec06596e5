"""A random order of the ids 0 .. n - 1 that is computed for any of them, in either direction, without a table.

A Feistel network on mixed radices (Luby and Rackoff, 1988; Black and Rogaway, CT-RSA 2002, section 5): a number is
(left, right) with left * width + right, both below width = ceil(sqrt(n)); a round adds a random function of one half,
tabulated, to the other. The few numbers that leave 0 .. n - 1 walk along their cycle until they are back.
"""

from __future__ import annotations

import math

import numpy as np

ROUNDS = 6


class IdOrder:
    """A permutation of 0 .. num_ids - 1.

    Args:
      num_ids: at least 1, at most 2**62.
      key: plain integers >= 0 that name it, as numpy.random.PCG64 takes them.
    Cost: about 40 ns a number and direction; memory: ROUNDS * sqrt(num_ids) * 8 bytes.
    """

    def __init__(self, num_ids: int, key: list[int]) -> None:
        self.num_ids = num_ids
        self._width = max(1, math.isqrt(num_ids - 1) + 1)
        draws = np.random.PCG64(key).random_raw(ROUNDS * self._width) >> np.uint64(32)
        self._tables = (draws * np.uint64(self._width) >> np.uint64(32)).astype(np.int64).reshape(ROUNDS, -1)

    def places(self, numbers: np.ndarray) -> np.ndarray:
        """The id at each of these places: int64 [n] for integers [n] below num_ids."""
        return self._walk(numbers, range(ROUNDS), 1)

    def numbers(self, places: np.ndarray) -> np.ndarray:
        """The place of each of these ids: `places` undone."""
        return self._walk(places, range(ROUNDS - 1, -1, -1), -1)

    def _walk(self, values: np.ndarray, rounds: range, sign: int) -> np.ndarray:
        values = self._once(values.astype(np.int64), rounds, sign)
        while len(outside := np.flatnonzero(values >= self.num_ids)):
            values[outside] = self._once(values[outside], rounds, sign)
        return values

    def _once(self, values: np.ndarray, rounds: range, sign: int) -> np.ndarray:
        halves = list(np.divmod(values, self._width))
        for number in rounds:
            changed = halves[number % 2]
            added = self._tables[number].take(halves[1 - number % 2])
            if sign > 0:
                changed += added
                changed -= self._width * (changed >= self._width)
            else:
                changed -= added
                changed += self._width * (changed < 0)
        return halves[0] * self._width + halves[1]
