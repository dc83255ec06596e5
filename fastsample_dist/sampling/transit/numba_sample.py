"""The sample, its states and columns, transits and parameters, as compiled applications see them.

values.py defines what they give. States and columns are attributes of the sample, parameters of `par`; which there are
is part of the type. While `next` is probed, a state is read as ever, but writing one ends the probing, as reading the
graph does: what comes behind it could take another way.
"""

from __future__ import annotations

import operator

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.errors import TypingError
from numba.core.typing.templates import AttributeTemplate
from numba.extending import (
    infer_getattr,
    lower_getattr_generic,
    make_attribute_wrapper,
    models,
    overload,
    overload_attribute,
    overload_method,
    register_model,
)  # fmt: skip

from fastsample_dist.ops.transit_layouts import StepTask, TableArguments
from fastsample_dist.sampling.transit.app import ROOTS
from fastsample_dist.sampling.transit.numba_rows import (
    RowTraits,
    RowType,
    element_reader,
    graph_rows,
    require_index,
    row_functions,
    task_graph,
    task_tables,
)  # fmt: skip
from fastsample_dist.sampling.transit.numba_types import (
    FORCED,
    NULL,
    AppType,
    field,
    forced,
    leave,
    place,
    read_address,
    read_int64,
    shift,
    write_int64,
)

task_ids, task_step, task_roots = (field(StepTask, name) for name in ("sample_ids", "step_index", "num_roots"))
task_vertices, task_strides, task_widths = (field(StepTask, name) for name in ("vertices", "strides", "widths"))
task_state, task_state_words = field(StepTask, "state"), field(StepTask, "state_words")
table_columns = field(TableArguments, "columns")

SIZE_BYTES = 16  # memory of `s.size`: the sample that was counted last, and its vertices
_OUTSIDE = "index outside the array"


class SampleType(AppType):
    """`s`.

    Attributes:
      traits: of its rows.
      state: fields of the state (binding.StateField), in order.
      columns: names, in order.
    """

    def __init__(self, traits: RowTraits, state: tuple, columns: tuple[str, ...]):
        self.traits, self.state, self.columns = traits, state, columns
        self.known_row, self.any_row = row_functions(RowType(traits))
        super().__init__("s", traits, state, columns)


class StateType(AppType):
    """`s.<name>` of a state."""

    def __init__(self, narrow: bool, leaves: bool):
        self.narrow, self.leaves = narrow, leaves
        super().__init__("state", narrow, leaves)


class ArrayType(AppType):
    """Elements to read: a parameter, a column, the transits."""

    def __init__(self, dtype: types.Number, leaves: bool = False, wraps: bool = False):
        self.dtype, self.leaves, self.wraps = dtype, leaves, wraps
        super().__init__("array", dtype, leaves, wraps)


class ParamsType(AppType):
    """`par`: (name, kind) of each value, as binding.Layout has them."""

    def __init__(self, kinds: tuple[tuple[str, str], ...]):
        self.kinds = kinds
        super().__init__("par", kinds)


class _SpanModel(models.StructModel):
    def __init__(self, manager, span):
        super().__init__(manager, span, [("address", types.voidptr), ("length", types.int64)])


@register_model(SampleType)
class _SampleModel(models.StructModel):
    def __init__(self, manager, sample):
        members = [
            ("task", types.voidptr),
            ("sample", types.int64),  # in its block
            ("slot", types.int64),
            ("counted", types.voidptr),  # SIZE_BYTES
        ]
        super().__init__(manager, sample, members)


@register_model(ParamsType)
class _ParamsModel(models.StructModel):
    def __init__(self, manager, par):
        super().__init__(manager, par, [("words", types.voidptr)])


for _span in (StateType, ArrayType):
    register_model(_span)(_SpanModel)
    for _name in ("address", "length"):
        make_attribute_wrapper(_span, _name, f"_{_name}")
for _name in ("task", "sample", "slot", "counted"):
    make_attribute_wrapper(SampleType, _name, f"_{_name}")


# ---- vertices ----


@forced
def earlier_vertex(s, at, position):
    """Vertex of the roots (at = 0) or of step at - 1, by its place in the sample."""
    stride = read_int64(task_strides(s._task), 8 * at)
    return read_int64(read_address(task_vertices(s._task), 8 * at), 8 * (s._sample * stride + position))


@forced
def vertex_before(s, i, position):
    """s.prev_vertex(i, position)."""
    at = task_step(s._task) + 1 - i
    if i < 1 or at < 0 or position < 0 or position >= read_int64(task_widths(s._task), 8 * at):
        return NULL
    return earlier_vertex(s, at, position)


@forced
def count_vertices(s):
    """Roots and picks of earlier steps that are not NULL; counted once per sample and call of a kernel."""
    if read_int64(s._counted, 0) != s._sample:
        count = 0
        for at in range(task_step(s._task) + 1):
            for position in range(read_int64(task_widths(s._task), 8 * at)):
                if earlier_vertex(s, at, position) != NULL:
                    count += 1
        write_int64(s._counted, 0, s._sample)
        write_int64(s._counted, 8, count)
    return read_int64(s._counted, 8)


@overload_attribute(SampleType, "id", jit_options=FORCED)
def _sample_id(s):
    return lambda s: read_int64(task_ids(s._task), 8 * s._sample)


@overload_attribute(SampleType, "num_roots", jit_options=FORCED)
def _sample_num_roots(s):
    return lambda s: task_roots(s._task)


@overload_attribute(SampleType, "size", jit_options=FORCED)
def _sample_size(s):
    return lambda s: count_vertices(s) + s._slot


@overload_method(SampleType, "root", jit_options=FORCED)
def _sample_root(s, i):
    require_index(i, "s.root(i)")
    return lambda s, i: earlier_vertex(s, 0, np.int64(i)) if 0 <= i < task_roots(s._task) else NULL


@overload_method(SampleType, "vertex", jit_options=FORCED)
def _sample_vertex(s, j):
    require_index(j, "s.vertex(j)")

    def vertex(s, j):
        position = np.int64(j)
        if position < 0:
            return NULL
        for at in range(task_step(s._task) + 1):
            width = read_int64(task_widths(s._task), 8 * at)
            if position < width:
                return earlier_vertex(s, at, position)
            position -= width
        return NULL

    return vertex


@overload_method(SampleType, "prev_vertex", jit_options=FORCED)
def _prev_vertex(s, i, pos):
    require_index(i, "s.prev_vertex(i, pos)")
    require_index(pos, "s.prev_vertex(i, pos)")
    return lambda s, i, pos: vertex_before(s, np.int64(i), np.int64(pos))


@overload_method(SampleType, "prev_edges", jit_options=FORCED)
def _prev_edges(s, i, pos):
    require_index(i, "s.prev_edges(i, pos)")
    require_index(pos, "s.prev_edges(i, pos)")
    any_row = s.any_row
    return lambda s, i, pos: any_row(s._task, vertex_before(s, np.int64(i), np.int64(pos)))


@overload_method(SampleType, "row", jit_options=FORCED)
def _sample_row(s, v):
    require_index(v, "s.row(v)")
    any_row = s.any_row
    return lambda s, v: any_row(s._task, np.int64(v))


# ---- attributes by name ----


@infer_getattr
class _SampleAttributes(AttributeTemplate):
    key = SampleType

    def generic_resolve(self, sample, name):
        for entry in sample.state:
            if entry.name == name:
                return StateType(entry.dtype is np.int32, sample.traits.probing is not None)
        return ArrayType(types.int64, sample.traits.leaves_at_reads) if name in sample.columns else None


@infer_getattr
class _ParamsAttributes(AttributeTemplate):
    key = ParamsType

    def generic_resolve(self, par, name):
        kind = dict(par.kinds).get(name)
        if kind is None:
            raise TypingError(f"there is no parameter {name!r}; the application has {sorted(dict(par.kinds))}")
        scalar = {"int": types.int64, "float": types.float64}.get(kind)
        return scalar or ArrayType(getattr(types, kind), wraps=True)


def _span(context, builder, kind, address, length):
    span = cgutils.create_struct_proxy(kind)(context, builder)
    span.address, span.length = address, length
    return span._getvalue()


@lower_getattr_generic(SampleType)
def _lower_sample_attribute(context, builder, sample, value, name):
    names = [entry.name for entry in sample.state]
    kind = _SampleAttributes.generic_resolve(None, sample, name)
    if name in names:
        place_of = _state_span(sample.state[: names.index(name)], sample.state[names.index(name)])
    else:
        place_of = _column_span(sample.columns.index(name))
    address_and_length = types.Tuple((types.voidptr, types.int64))
    made = context.compile_internal(builder, place_of, address_and_length(sample), [value])
    return _span(context, builder, kind, *cgutils.unpack_tuple(builder, made, 2))


def _column_span(number: int):
    return lambda s: (read_address(table_columns(task_tables(s._task)), 8 * number), graph_rows(task_graph(s._task)))


def _state_span(before: tuple, own):
    """Address and length of a state: fields before it have some entries, and some as many as there are roots."""
    words = sum(entry.count for entry in before if entry.count != ROOTS)
    rooted = sum(entry.count == ROOTS for entry in before)
    count, of_roots = own.count, own.count == ROOTS

    def span(s):
        roots = task_roots(s._task)
        first = s._sample * task_state_words(s._task) + words + rooted * roots
        return shift(task_state(s._task), 8 * first), roots if of_roots else np.int64(count)

    return span


@lower_getattr_generic(ParamsType)
def _lower_parameter(context, builder, par, value, name):
    words = cgutils.create_struct_proxy(par)(context, builder, value).words
    at = 0
    for own, kind in par.kinds:
        if own == name:
            break
        at += 8 if kind in ("int", "float") else 16
    returned = _ParamsAttributes.generic_resolve(None, par, name)

    def load(dtype, offset):
        return builder.load(place(builder, words, ir.IntType(64)(offset), context.get_value_type(dtype)))

    if not isinstance(returned, ArrayType):
        return load(returned, at)
    return _span(context, builder, returned, load(types.voidptr, at), load(types.int64, at + 8))


# ---- elements ----


@overload(len, jit_options=FORCED)
def _length(span):
    if isinstance(span, ArrayType):
        return lambda span: span._length
    return None


@overload(operator.getitem, jit_options=FORCED)
def _element(span, i):
    if not isinstance(span, ArrayType) or not require_index(i, "[i]"):
        return None
    read, wraps = element_reader(span.dtype, span.leaves), span.wraps
    widest = np.float64 if isinstance(span.dtype, types.Float) else np.int64

    def element(span, i):
        index = np.int64(i)
        if wraps and index < 0:
            index += span._length
        if index < 0 or index >= span._length:
            raise IndexError(_OUTSIDE)
        return widest(read(span._address, index))

    return element


@overload(operator.getitem, jit_options=FORCED)
def _state_entry(state, i):
    if not isinstance(state, StateType) or not require_index(i, "s.<state>[i]"):
        return None

    def entry(state, i):
        if i < 0 or i >= state._length:
            raise IndexError(_OUTSIDE)
        return read_int64(state._address, 8 * np.int64(i))

    return entry


@overload(operator.setitem, jit_options=FORCED)
def _set_state(state, i, value):
    if not isinstance(state, StateType) or not require_index(i, "s.<state>[i]"):
        return None
    if not isinstance(value, types.Integer | types.IntegerLiteral | types.Boolean):
        raise TypingError(f"a state holds integers, got {value}")
    leaves, narrow = state.leaves, state.narrow

    def set_entry(state, i, value):
        if i < 0 or i >= state._length:
            raise IndexError(_OUTSIDE)
        if leaves:
            leave(state._address, 0)
        wrapped = np.int64(np.int32(value)) if narrow else np.int64(value)
        write_int64(state._address, 8 * np.int64(i), wrapped)

    return set_entry
