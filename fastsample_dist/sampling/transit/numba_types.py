"""What compiled applications are made of: memory by address, and calls that may leave early.

A compiled `next` sees the values of values.py as Numba types over raw pointers. They are structures of words without a
reference count: arrays of Numba in their place made an opaque uniform `next` three times slower. Nothing here
allocates, nothing takes the GIL.

This module and its neighbours numba_draws.py, numba_rows.py, numba_sample.py and numba_kernels.py load Numba when they
are loaded, so compile_cpu.py, which is the way in, imports them on use.
"""

from __future__ import annotations

import ctypes

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.callconv import RETCODE_USEREXC, Status, excinfo_ptr_t
from numba.extending import (
    intrinsic,
    register_jitable,
)

# Only compiled code calls what is compiled here. Wrappers for C and Python, in each of which LLVM would put a function
# once more, were a fifth of the time that a small application takes to compile.
UNWRAPPED = {"no_cfunc_wrapper": True, "no_cpython_wrapper": True}
FORCED = {"forceinline": True, **UNWRAPPED}  # small functions become part of `next`, and their structures registers
NULL = -1
_CACHE_LINE = 64


def forced(function):
    """`function`, usable by Python and by compiled code, which takes it in whole."""
    return register_jitable(**FORCED)(function)


# ---- memory ----


def place(builder, address, offset, dtype):
    """The typed pointer `offset` bytes behind an address."""
    return builder.bitcast(builder.gep(address, [offset]), dtype.as_pointer())


def _size_of(dtype: types.Type) -> int:
    return 8 if dtype == types.voidptr else dtype.bitwidth // 8


def reader(dtype: types.Type):
    """An intrinsic (address, offset in bytes) -> the value there."""
    size = _size_of(dtype)

    @intrinsic
    def read(typing, address, offset):
        def generate(context, builder, signature, arguments):
            return builder.load(place(builder, *arguments, context.get_value_type(dtype)), align=size)

        return dtype(types.voidptr, types.intp), generate

    return read


def field(structure: type[ctypes.Structure], name: str):
    """An intrinsic (address of a structure) -> its field. On the CPU nobody may write there while a kernel runs: what
    was read is good for the whole call.
    """
    offset, size = getattr(structure, name).offset, getattr(structure, name).size
    c_type = dict(structure._fields_)[name]
    dtype = {ctypes.c_int64: types.int64, ctypes.c_uint64: types.uint64, ctypes.c_uint32: types.uint32}.get(
        c_type, types.voidptr
    )

    @intrinsic
    def read(typing, address):
        def generate(context, builder, signature, arguments):
            source = place(builder, arguments[0], ir.IntType(64)(offset), context.get_value_type(dtype))
            value = builder.load(source, align=size)
            if context.target_name == "cpu":  # a GPU's thread writes its task from call to call, in code it is part of
                value.set_metadata("invariant.load", builder.module.add_metadata([]))
            return value

        return dtype(types.voidptr), generate

    return read


def writer(dtype: types.Type):
    """An intrinsic (address, offset in bytes, value) that stores a value."""
    size = _size_of(dtype)

    @intrinsic
    def write(typing, address, offset, value):
        def generate(context, builder, signature, arguments):
            target = place(builder, *arguments[:2], context.get_value_type(dtype))
            builder.store(arguments[2], target, align=size)
            return context.get_dummy_value()

        return types.void(types.voidptr, types.intp, dtype), generate

    return write


read_int64, read_int32, read_uint32 = reader(types.int64), reader(types.int32), reader(types.uint32)
read_float64, read_float32 = reader(types.float64), reader(types.float32)
read_uint64, read_address = reader(types.uint64), reader(types.voidptr)
write_int64, write_uint32, write_address = writer(types.int64), writer(types.uint32), writer(types.voidptr)
READERS = {  # by dtype of an array
    types.int32: read_int32,
    types.int64: read_int64,
    types.uint32: read_uint32,
    types.float32: read_float32,
    types.float64: read_float64,
}


@intrinsic
def shift(typing, address, offset):
    """The address `offset` bytes further."""

    def generate(context, builder, signature, arguments):
        return builder.gep(arguments[0], [arguments[1]])

    return types.voidptr(types.voidptr, types.intp), generate


@intrinsic
def bit_length(typing, number):
    """Bits of a number >= 0; 0 of 0."""

    def generate(context, builder, signature, arguments):
        bits = ir.IntType(64)
        zeros = builder.ctlz(arguments[0], ir.IntType(1)(0))
        return builder.sub(bits(64), zeros)

    return types.int64(types.int64), generate


@intrinsic
def quotient(typing, number, divisor):
    """number // divisor of integers that are not negative; the divisor is not 0, and nothing is there to raise: a
    kernel that went on behind an error would have to keep its structures in memory.
    """

    def generate(context, builder, signature, arguments):
        return builder.udiv(*arguments)

    return types.int64(types.int64, types.int64), generate


@intrinsic
def is_nowhere(typing, address):
    """Whether an address is a null pointer."""

    def generate(context, builder, signature, arguments):
        return builder.icmp_unsigned("==", arguments[0], arguments[0].type(None))

    return types.boolean(types.voidptr), generate


@intrinsic(prefer_literal=True)
def local_memory(typing, size):
    """An address of `size` bytes (a literal) that last as long as the call of the function they are taken in."""
    num_bytes = size.literal_value

    def generate(context, builder, signature, arguments):
        with builder.goto_entry_block():
            memory = builder.alloca(ir.ArrayType(ir.IntType(8), num_bytes))
            memory.align = _CACHE_LINE
        return builder.bitcast(memory, cgutils.voidptr_t)

    return types.voidptr(size), generate


@intrinsic
def prefetch(typing, address, offset):
    """Asks for the cache line `offset` bytes behind an address."""

    def generate(context, builder, signature, arguments):
        word = ir.IntType(32)
        name = "llvm.prefetch.p0"
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, name)
        read, keep, data = word(0), word(3), word(1)
        builder.call(function, [builder.gep(*[arguments[0], [arguments[1]]]), read, keep, data])
        return context.get_dummy_value()

    return types.void(types.voidptr, types.intp), generate


# ---- structures, leaving and calling ----


class AppType(types.Type):
    """A type that only applications meet.

    Args:
      name: as users know it, for messages; types of different keys may share it.
      key: what makes it differ.
    """

    def __init__(self, name: str, *key):
        self._key = key
        super().__init__(name)

    @property
    def key(self):
        """What types are compared by."""
        return self.name, *self._key

    @property
    def mangling_args(self):
        """A name of its own for the symbols of functions that take it."""
        return repr(self.key), ()


def maker(structure: types.Type):
    """An intrinsic that puts a structure together from a tuple of its members."""

    @intrinsic
    def make(typing, members):
        def generate(context, builder, signature, arguments):
            made = cgutils.create_struct_proxy(structure)(context, builder)
            names = context.data_model_manager[structure]._fields
            for name, value in zip(names, cgutils.unpack_tuple(builder, arguments[0]), strict=True):
                setattr(made, name, value)
            return made._getvalue()

        return structure(members), generate

    return make


@intrinsic
def leave(typing, address, offset):
    """Ends the probing of `next` with the address that it would read, `offset` bytes behind another: unwinds to the
    kernel as an exception does, the address in the exception's place.
    """

    def generate(context, builder, signature, arguments):
        asked = builder.bitcast(builder.gep(arguments[0], [arguments[1]]), excinfo_ptr_t)
        status = Status(
            code=RETCODE_USEREXC, excinfoptr=asked, is_user_exc=None, is_ok=None, is_none=None, is_error=None,
            is_python_exc=None, is_stop_iteration=None,
        )  # fmt: skip
        context.call_conv.return_status_propagate(builder, status)
        return context.get_dummy_value()

    return types.void(types.voidptr, types.intp), generate


def _callee(context, builder, descriptor):
    """A compiled function in the module at hand, and how it is called; numba-cuda's descriptors know both."""
    if hasattr(descriptor, "call_conv"):
        return descriptor.declare_function(builder.module), descriptor.call_conv
    return context.declare_function(builder.module, descriptor), context.call_conv


def _call(context, builder, compiled, arguments):
    """(status, result) of calling a compiled function with a tuple of arguments."""
    signature = compiled.signature
    context.active_code_library.add_linking_library(compiled.library)
    function, convention = _callee(context, builder, compiled.fndesc)
    unpacked = cgutils.unpack_tuple(builder, arguments)
    return convention.call_function(builder, function, signature.return_type, signature.args, unpacked)


def caught_call(compiled):
    """An intrinsic that calls a compiled function: its arguments as one tuple -> (raised or left, int64 result).

    Args:
      compiled: of a dispatcher's `overloads`; returns an integer, or nothing, which becomes transit.NULL.
    """
    return_type = compiled.signature.return_type

    @intrinsic
    def call(typing, arguments):
        def generate(context, builder, _, packed):
            status, result = _call(context, builder, compiled, packed[0])
            if isinstance(return_type, types.Integer):
                result = context.cast(builder, result, return_type, types.int64)
            else:
                result = context.get_constant(types.int64, NULL)
            return context.make_tuple(builder, returned, [builder.zext(status.is_error, ir.IntType(64)), result])

        returned = types.UniTuple(types.int64, 2)
        return returned(arguments), generate

    return call


def asking_call(compiled):
    """An intrinsic that calls a compiled function with probing arguments, as one tuple -> the address with which it
    left; null: it did not.
    """

    @intrinsic
    def call(typing, arguments):
        def generate(context, builder, _, packed):
            status, _ = _call(context, builder, compiled, packed[0])
            asked = builder.bitcast(status.excinfoptr, cgutils.voidptr_t)
            return builder.select(status.is_user_exc, asked, cgutils.voidptr_t(None))

        return types.voidptr(arguments), generate

    return call
