"""A chunk of slots in memory: a lane for each, and the lanes' first random words, made by vector instructions."""

from __future__ import annotations

import ctypes

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from fastsample_dist.sampling.transit.numba_draws import WEYL, DrawState, philox_rounds
from fastsample_dist.sampling.transit.numba_types import forced, place, shift, write_int64

CHUNK = 16  # slots per stage. Uniform walks (AVX2): 8: 0.94 of the rate of 16, 32: 0.91, 64: 0.83
_TOGETHER = 8  # lanes whose words are made at once: two vectors of AVX2, one of AVX-512


class Lane(DrawState):
    """What is known of a slot: where its draw stands, its place in the block of samples, and what it asks for.

    Attributes:
      transit: NULL: `next` is not asked.
      sample, number: of the slot, in the block and in its sample.
      line: address that the probing asked for; 0: none.
    """

    _fields_ = (
        ("transit", ctypes.c_int64),
        ("sample", ctypes.c_int64),
        ("number", ctypes.c_int64),
        ("line", ctypes.c_int64),
    )


TRANSIT, SAMPLE, NUMBER, LINE = (getattr(Lane, name).offset for name in ("transit", "sample", "number", "line"))
LANE_BYTES = ctypes.sizeof(Lane)
# Behind the lanes, as vectors: their sample ids and their first blocks.
_IDS = CHUNK * LANE_BYTES
_BLOCKS = _IDS + 8 * CHUNK
CHUNK_BYTES = _BLOCKS + 8 * CHUNK


@forced
def lane_of(chunk, number):
    """Address of a lane."""
    return shift(chunk, LANE_BYTES * number)


@forced
def set_stream(chunk, number, sample_id, block):
    """Writes down which words a lane's are."""
    write_int64(chunk, _IDS + 8 * number, sample_id)
    write_int64(chunk, _BLOCKS + 8 * number, block)


@forced
def make_words(chunk, count, key0, key1):
    """Puts the draws of the first `count` lanes to their first blocks; lanes behind them may get words of nothing."""
    for first in range(0, count, _TOGETHER):
        _philox_lanes(
            shift(chunk, _IDS + 8 * first), shift(chunk, _BLOCKS + 8 * first), key0, key1, lane_of(chunk, first)
        )


@intrinsic
def _philox_lanes(typing, ids, blocks, key0, key1, lanes):
    """Writes the words of a block of each of _TOGETHER neighbouring lanes; ids and blocks are the addresses of theirs.

    A word is the lower half of a 64-bit lane, as vector instructions multiply; what is in the upper half does not
    matter.
    """
    double, index = ir.IntType(64), ir.IntType(32)
    vector = ir.VectorType(double, _TOGETHER)

    def all_of(number):
        return ir.Constant(vector, [number] * _TOGETHER)

    def spread(builder, word):
        single = builder.insert_element(ir.Constant(vector, ir.Undefined), builder.zext(word, double), index(0))
        return builder.shuffle_vector(single, single, ir.Constant(ir.VectorType(index, _TOGETHER), [0] * _TOGETHER))

    def low(builder, words):
        return builder.and_(words, all_of(0xFFFFFFFF))

    def multiply(builder, words, multiplier):
        product = builder.mul(low(builder, words), all_of(multiplier))
        return product, builder.lshr(product, all_of(32))

    def generate(context, builder, signature, arguments):
        ids, blocks = (builder.load(place(builder, at, double(0), vector), align=8) for at in arguments[:2])
        counters = [half for value in (blocks, ids) for half in (value, builder.lshr(value, all_of(32)))]
        keys = [spread(builder, key) for key in arguments[2:4]]
        words = philox_rounds(builder, counters, keys, [all_of(weyl) for weyl in WEYL], multiply)
        pairs = [builder.or_(low(builder, words[i]), builder.shl(words[i + 1], all_of(32))) for i in (0, 2)]
        for lane in range(_TOGETHER):
            own = builder.shuffle_vector(*pairs, ir.Constant(ir.VectorType(index, 2), [lane, _TOGETHER + lane]))
            builder.store(own, place(builder, arguments[4], double(LANE_BYTES * lane), own.type), align=16)
        return context.get_dummy_value()

    return types.void(types.voidptr, types.voidptr, types.uint32, types.uint32, types.voidptr), generate
