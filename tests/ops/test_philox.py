"""The generator against the known answers published with it, and the statistics of what is built on it."""

import itertools

import pytest

from fastsample_dist.ops import reference


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [  # Random123, kat_vectors: philox4x32 with 10 rounds
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_words(counter, key, words):
    assert reference.philox(key, counter) == words


def test_bounded_draw_is_exactly_uniform_over_all_words():
    """Scaled down to 8-bit words: of 256 words each value is hit equally often, the rest is rejected."""
    counts = [0] * 6
    for word in range(256):
        product = word * 6
        if product & 255 >= 256 % 6:
            counts[product >> 8] += 1
    assert counts == [42] * 6


def test_bounded_draw_above_32_bits_uses_64_bit_words():
    words = reference.node_words((1, 2), 3)
    low, high = itertools.islice(reference.node_words((1, 2), 3), 2)
    assert reference.below(words, 2**40) == ((high << 32 | low) * 2**40) >> 64
