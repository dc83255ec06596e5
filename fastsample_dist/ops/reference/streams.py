"""Random words: Philox4x32-10 by a node's original id, and Lemire's bounded draw from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

MASK32 = 2**32 - 1
SAMPLING, DROPOUT, LAYER_SAMPLING = 1, 2, 3  # domains of the streams (core/philox.h)
TRANSIT, STEP_TRANSITS, INITIAL, RACE = 4, 5, 6, 7
NEGATIVES, EMBEDDING = 8, 9
SUBGRAPH_ROOTS, SUBGRAPH_POPS, SUBGRAPH_HOPS, SUBGRAPH_DRAWS = 10, 11, 12, 13
SUBGRAPH_PROBES, SUBGRAPH_EGO, SUBGRAPH_ORDER = 14, 15, 16


def philox(key: tuple[int, int], counter: Sequence[int]) -> tuple[int, int, int, int]:
    """Philox4x32-10 (Salmon et al., SC'11): four 32-bit words for a 64-bit key and a 128-bit counter."""
    k0, k1 = key
    c0, c1, c2, c3 = counter
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & MASK32, (p0 >> 32) ^ c3 ^ k1, p0 & MASK32
        k0, k1 = (k0 + 0x9E3779B9) & MASK32, (k1 + 0xBB67AE85) & MASK32
    return c0, c1, c2, c3


def stage_key(rng_seed: int, domain: int, stage: int, step: int) -> tuple[int, int]:
    """Key of one hop's or one layer's streams."""
    words = philox((rng_seed & MASK32, rng_seed >> 32), (domain, stage, step & MASK32, step >> 32))
    return words[0], words[1]


def node_words(key: tuple[int, int], orig_id: int, first_block: int = 0) -> Iterator[int]:
    """The endless stream of 32-bit words of one node."""
    block = first_block
    while True:
        yield from philox(key, (block & MASK32, block >> 32, orig_id & MASK32, orig_id >> 32))
        block += 1


def below(words: Iterator[int], n: int) -> int:
    """Uniform in 0 .. n - 1: multiply by n, keep the high word, reject what would bias it (Lemire, 2019)."""
    bits = 32 if n < 2**32 else 64
    while True:
        word = next(words)
        if bits == 64:
            word |= next(words) << 32
        product = word * n
        if product & (2**bits - 1) >= 2**bits % n:
            return product >> bits
