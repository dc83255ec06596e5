"""The random draws of compiled applications: Philox4x32-10 and bounded draws, bit for bit those of core/philox.h.

A draw is a structure of words (DrawState); `draw.word64()` has a type of its own, because Numba would make a float of
an unsigned and a signed integer.
"""

from __future__ import annotations

import ctypes
import operator

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic, make_attribute_wrapper, models, overload, overload_method, register_model

from fastsample_dist.sampling.transit.numba_types import (
    FORCED,
    AppType,
    forced,
    maker,
    place,
    read_int64,
    read_uint32,
    write_int64,
    write_uint32,
)

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
LOW_WORD = np.uint64(0xFFFFFFFF)
_WORD_BITS = np.uint64(32)
_ZERO = np.uint64(0)


class DrawState(ctypes.Structure):
    """Where a stream of words stands: four words of the block in hand, how many of them are used, what follows."""

    _fields_ = (
        ("words", ctypes.c_uint32 * 4),
        ("used", ctypes.c_int64),
        ("sample_id", ctypes.c_int64),
        ("next_block", ctypes.c_int64),
        ("key0", ctypes.c_uint32),
        ("key1", ctypes.c_uint32),
    )


_USED, _SAMPLE_ID = DrawState.used.offset, DrawState.sample_id.offset
_NEXT_BLOCK, _KEY0, _KEY1 = DrawState.next_block.offset, DrawState.key0.offset, DrawState.key1.offset
DRAW_BYTES = ctypes.sizeof(DrawState)


def philox_rounds(builder, counters, keys, weyl, multiply):
    """The four words of a block, from its four counters.

    Args:
      counters, keys, weyl: four, two and two LLVM values of one type.
      multiply: (builder, value, multiplier) -> low and high word of the product, of that type.
    """
    c0, c1, c2, c3 = counters
    key0, key1 = keys
    for _ in range(_ROUNDS):
        low0, high0 = multiply(builder, c0, _MULTIPLIERS[0])
        low1, high1 = multiply(builder, c2, _MULTIPLIERS[1])
        c0, c1 = builder.xor(builder.xor(high1, c1), key0), low1
        c2, c3 = builder.xor(builder.xor(high0, c3), key1), low0
        key0, key1 = builder.add(key0, weyl[0]), builder.add(key1, weyl[1])
    return c0, c1, c2, c3


@intrinsic
def philox_words(typing, sample_id, block, key0, key1, words):
    """Writes the four words of a block."""
    word, double = ir.IntType(32), ir.IntType(64)

    def halves(builder, value):
        return builder.trunc(value, word), builder.trunc(builder.lshr(value, double(32)), word)

    def multiply(builder, value, multiplier):
        return halves(builder, builder.mul(builder.zext(value, double), double(multiplier)))

    def generate(context, builder, signature, arguments):
        sample_id, block, key0, key1, words = arguments
        counters = halves(builder, block) + halves(builder, sample_id)
        made = philox_rounds(builder, counters, (key0, key1), [word(weyl) for weyl in WEYL], multiply)
        for i, value in enumerate(made):
            builder.store(value, place(builder, words, double(4 * i), word), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.uint32, types.uint32, types.voidptr), generate


@intrinsic
def word_at(typing, state, number):
    """The number-th word of the block in hand. On a GPU an array that is indexed by a variable is in memory, so there
    the word is selected.
    """

    def generate(context, builder, signature, arguments):
        state, number = arguments
        word, double = ir.IntType(32), ir.IntType(64)
        if context.target_name == "cpu":
            return builder.load(place(builder, state, builder.mul(number, double(4)), word), align=4)
        chosen = word(0)
        for i in range(4):  # by disjunction: LLVM would make one load of a selected place of two selected loads
            own = builder.load(place(builder, state, double(4 * i), word), align=4)
            is_chosen = builder.icmp_unsigned("==", number, double(i))
            chosen = builder.or_(chosen, builder.select(is_chosen, own, word(0)))
        return chosen

    return types.uint32(types.voidptr, types.int64), generate


@intrinsic
def multiply_high(typing, a, b):
    """High word of a product of uint64."""
    wide = ir.IntType(128)

    def generate(context, builder, signature, arguments):
        product = builder.mul(*(builder.zext(value, wide) for value in arguments))
        return builder.trunc(builder.lshr(product, wide(64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


class DrawType(AppType):
    """`draw`: the random words of one pick."""

    def __init__(self):
        super().__init__("draw")


DRAW = DrawType()


@register_model(DrawType)
class _DrawModel(models.StructModel):
    def __init__(self, manager, numba_type):
        super().__init__(manager, numba_type, [("state", types.voidptr), ("index", types.int64), ("turn", types.int64)])


make_attribute_wrapper(DrawType, "state", "_state")
for _name in ("index", "turn"):
    make_attribute_wrapper(DrawType, _name, _name)


@forced
def save_draw(state):
    """Where a stream stands, for restore_draw before a block has passed."""
    return read_int64(state, _USED), read_int64(state, _NEXT_BLOCK)


@forced
def restore_draw(state, saved):
    """Puts a stream back to where save_draw found it; a block that is no longer in hand is made again."""
    used, next_block = saved
    if read_int64(state, _NEXT_BLOCK) != next_block and used < 4:
        key0, key1 = read_uint32(state, _KEY0), read_uint32(state, _KEY1)
        philox_words(read_int64(state, _SAMPLE_ID), next_block - 1, key0, key1, state)
    write_int64(state, _USED, used)
    write_int64(state, _NEXT_BLOCK, next_block)


@forced
def set_keys(state, key0, key1):
    """Sets the stage key of a DrawState, once per call of a kernel."""
    write_uint32(state, _KEY0, key0)
    write_uint32(state, _KEY1, key1)


@forced
def start_draw(state, sample_id, first_block):
    """Puts a DrawState at the first word of block `first_block` of the stream of a sample."""
    write_int64(state, _USED, 4)
    write_int64(state, _SAMPLE_ID, sample_id)
    write_int64(state, _NEXT_BLOCK, first_block)


@forced
def enter_block(state, sample_id, block):
    """Says that the words of a DrawState are those of a block of the stream of a sample."""
    write_int64(state, _SAMPLE_ID, sample_id)
    write_int64(state, _NEXT_BLOCK, block + 1)


@forced
def rewind_draw(state):
    """Puts a DrawState back to the first word of the block in hand."""
    write_int64(state, _USED, 0)


@forced
def next_word(state):
    """The next word of a stream, as uint32."""
    used = read_int64(state, _USED)
    if used == 4:
        block = read_int64(state, _NEXT_BLOCK)
        philox_words(read_int64(state, _SAMPLE_ID), block, read_uint32(state, _KEY0), read_uint32(state, _KEY1), state)
        write_int64(state, _NEXT_BLOCK, block + 1)
        used = 0
    write_int64(state, _USED, used + 1)
    return word_at(state, used)


@forced
def next_word64(state):
    """The next two words of a stream, the first one low, as uint64."""
    first = np.uint64(next_word(state))
    return first | np.uint64(next_word(state)) << _WORD_BITS


@forced
def draw_below(state, bound):
    """Uniform in 0 .. bound - 1, exactly (Lemire, as core/philox.h draw_below)."""
    if bound <= 0:
        raise ValueError("draw.below needs a bound of at least 1")
    n = np.uint64(bound)
    if n <= LOW_WORD:
        product = np.uint64(next_word(state)) * n
        if product & LOW_WORD < n:
            biased = ((LOW_WORD - n) + np.uint64(1)) % n
            while product & LOW_WORD < biased:
                product = np.uint64(next_word(state)) * n
        return np.int64(product >> _WORD_BITS)
    biased = (_ZERO - n) % n
    while True:
        word = next_word64(state)
        if word * n >= biased:
            return np.int64(multiply_high(word, n))


# ---- word64: 0 .. 2^64 - 1, which no signed integer holds ----


class Word64Type(AppType):
    """What draw.word64() gives. Numba would make a float of an unsigned and a signed integer; this compares exactly
    with integers, and offers `>> n`, `& n` and `% n`; anything else is refused when it is compiled.
    """

    def __init__(self):
        super().__init__("word64")


WORD64 = Word64Type()


@register_model(Word64Type)
class _Word64Model(models.StructModel):
    def __init__(self, manager, word):
        super().__init__(manager, word, [("bits", types.uint64)])


make_attribute_wrapper(Word64Type, "bits", "_bits")
make_word64 = maker(WORD64)


@forced
def compare_word64(bits, n):
    """Sign of word64 - n."""
    if n < 0:
        return 1
    return np.int64(bits > np.uint64(n)) - np.int64(bits < np.uint64(n))


def _is_word_and_integer(a, b) -> bool:
    return isinstance(a, Word64Type) and isinstance(b, types.Integer | types.IntegerLiteral) and b.signed


def _overload_comparison(compare):
    @overload(compare, jit_options=FORCED)
    def compared(a, b):
        if _is_word_and_integer(a, b):
            return lambda a, b: compare(compare_word64(a._bits, b), 0)
        if _is_word_and_integer(b, a):
            return lambda a, b: compare(0, compare_word64(b._bits, a))
        if isinstance(a, Word64Type) and isinstance(b, Word64Type):
            return lambda a, b: compare(a._bits, b._bits)
        return None


for _compare in (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne):
    _overload_comparison(_compare)


@overload(operator.rshift, jit_options=FORCED)
def _shift_word64(word, n):
    if not _is_word_and_integer(word, n):
        return None

    def shifted(word, n):
        if n < 0:
            raise ValueError("negative shift count")
        return make_word64((word._bits >> np.uint64(n) if n < 64 else _ZERO,))

    return shifted


@overload(operator.and_, jit_options=FORCED)
def _mask_word64(word, mask):
    if not _is_word_and_integer(word, mask):
        return None
    return lambda word, mask: make_word64((word._bits & np.uint64(mask),))


@overload(operator.mod, jit_options=FORCED)
def _word64_modulo(word, n):
    if not _is_word_and_integer(word, n):
        return None

    def modulo(word, n):
        if n == 0:
            raise ZeroDivisionError("integer modulo by zero")
        rest = np.int64(word._bits % np.uint64(n if n > 0 else -n))
        return rest + n if n < 0 and rest else rest

    return modulo


@overload_method(DrawType, "word", jit_options=FORCED)
def _draw_word(draw):
    return lambda draw: np.int64(next_word(draw._state))


@overload_method(DrawType, "word64", jit_options=FORCED)
def _draw_word64(draw):
    return lambda draw: make_word64((next_word64(draw._state),))


@overload_method(DrawType, "below", jit_options=FORCED)
def _draw_below(draw, bound):
    if isinstance(bound, types.Integer | types.IntegerLiteral):
        return lambda draw, bound: draw_below(draw._state, bound)
    return None


@overload_method(DrawType, "coin", jit_options=FORCED)
def _draw_coin(draw, threshold):
    if isinstance(threshold, types.Integer | types.IntegerLiteral):
        return lambda draw, threshold: np.int64(next_word(draw._state)) < threshold
    return None
