"""Loops over factor rows by 16-number vectors, added in fixed order.

A compiler may reorder a dot product's terms only if it is allowed to change bits. Here bits matter: sixteen
sums, one for each position modulo 16, are added in halves (16, 8, 4, 2), with no fused multiply-add. So
plain Python gives the same bits (`tests/models/rating/test_sgd.py`). Tables are contiguous float32; the
length of their rows is a multiple of 16, padded with zeros.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from recbench_spark.core.arrays import Floats32

LANES = 16
"""Factor rows are zero-padded to a multiple of this."""

DEEP = 8
"""Rows added at once by `add_rows`: each number of the sum is then loaded and stored once per eight."""

WIDE = 8
"""Sum rows updated at once by `add_gram`: each table row is then loaded once per eight."""

_VECTOR = ir.VectorType(ir.FloatType(), LANES)


def pad_dims(dims: int) -> int:
    """Return the length of a stored factor row."""
    return -(-dims // LANES) * LANES


def zero_rows(rows: int, length: int) -> Floats32:
    """Return a float32 table which begins on a cache line.

    A vector across two lines is loaded twice.
    """
    line = LANES * 4
    memory = np.zeros(rows * length + LANES, np.float32)
    first = -memory.ctypes.data % line // 4
    return memory[first : first + rows * length].reshape(rows, length)


@intrinsic  # type: ignore[untyped-decorator]
def dot_rows(typing: Any, p_ud: Any, u: Any, q_id: Any, i: Any, first: Any) -> Any:
    """Return p_u . q_i from position `first` on, as float32.

    `first` is rounded down to a multiple of 16.
    """
    signature = types.float32(p_ud, types.int64, q_id, types.int64, types.int64)

    def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        tables = _TableRows(context, builder, signature, given)
        p, q = tables.row(0, given[1]), tables.row(2, given[3])
        total = cgutils.alloca_once_value(builder, ir.Constant(_VECTOR, [0.0] * LANES))
        with _VectorLoop(builder, tables.length(0), given[4]) as at:
            product = builder.fmul(_load(builder, p, at), _load(builder, q, at))
            builder.store(builder.fadd(builder.load(total), product), total)
        return _sum_halves(builder, builder.load(total))

    return signature, build


@intrinsic  # type: ignore[untyped-decorator]
def fetch_row(typing: Any, table: Any, row: Any) -> Any:
    """Prefetch a row, so it loads during other work."""
    signature = types.void(table, types.int64)

    def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        tables = _TableRows(context, builder, signature, given)
        row = tables.row(0, given[1])
        with _VectorLoop(builder, tables.length(0)) as at:
            _fetch(builder, builder.gep(row, [at]))
        return context.get_dummy_value()

    return signature, build


@intrinsic  # type: ignore[untyped-decorator]
def fetch_number(typing: Any, array: Any, at: Any) -> Any:
    """Prefetch an element of a one-dimensional array; see `fetch_row`."""
    signature = types.void(array, at)

    def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        place = builder.gep(context.make_array(array)(context, builder, given[0]).data, [given[1]])
        _fetch(builder, place)
        return context.get_dummy_value()

    return signature, build


@intrinsic  # type: ignore[untyped-decorator]
def step_rows(typing: Any, p_ud: Any, u: Any, q_id: Any, i: Any, by: Any) -> Any:
    """Set p_u, q_i = a p_u + b q_i, c q_i + d p_u from the old rows.

    `by`: (a, b, c, d) in float32.
    """
    signature = types.void(p_ud, types.int64, q_id, types.int64, by)

    def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        tables = _TableRows(context, builder, signature, given)
        p, q = tables.row(0, given[1]), tables.row(2, given[3])
        a, b, c, d = (_splat(builder, builder.extract_value(given[4], n)) for n in range(4))
        with _VectorLoop(builder, tables.length(0)) as at:
            old_p, old_q = _load(builder, p, at), _load(builder, q, at)
            _store(builder, _mix(builder, a, old_p, b, old_q), p, at)
            _store(builder, _mix(builder, c, old_q, d, old_p), q, at)
        return context.get_dummy_value()

    return signature, build


@intrinsic  # type: ignore[untyped-decorator]
def add_rows(typing: Any, out: Any, o: Any, table: Any, row: Any, first: Any, by: Any) -> Any:
    """Compute out_o += sum_n by_n table_(row + n), n < 8.

    Rows start at `first`, rounded down to a multiple of 16. A product is added in one rounding (fma),
    even and odd n apart: two short chains, not a long one.
    """
    signature = types.void(out, types.int64, table, types.int64, types.int64, by)

    def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        tables = _TableRows(context, builder, signature, given)
        sums = tables.row(0, given[1])
        rows = [tables.row(2, builder.add(given[3], given[3].type(n))) for n in range(DEEP)]
        by = [_splat(builder, builder.extract_value(given[5], n)) for n in range(DEEP)]
        with _VectorLoop(builder, tables.length(0), given[4]) as at:
            x = [_load(builder, row, at) for row in rows]
            _store(builder, _sum_products(builder, by, x, _load(builder, sums, at)), sums, at)
        return context.get_dummy_value()

    return signature, build


@intrinsic  # type: ignore[untyped-decorator]
def add_gram(typing: Any, out: Any, o: Any, table: Any, row: Any) -> Any:
    """Compute the upper half of X'X into `out`.

    out_(o + i) += sum_n x_ni x_n for all i, with x_n = table_(row + n), n < 8. Vectors which cross the
    diagonal also write below it; ignore those numbers. It rounds as `add_rows` does.
    """
    return _gram(out, table, minus=False)


@intrinsic  # type: ignore[untyped-decorator]
def subtract_gram(typing: Any, out: Any, o: Any, table: Any, row: Any, first: Any) -> Any:
    """Compute out_(o + i) -= sum_n x_ni x_n; see `add_gram`.

    i runs from `first`, a multiple of 8.
    """
    return _gram(out, table, minus=True)


def _gram(out: Any, table: Any, minus: bool) -> Any:
    places = (types.int64,) * (2 if minus else 1)
    signature = types.void(out, types.int64, table, *places)

    def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        tables = _TableRows(context, builder, signature, given)
        length = tables.length(0)
        wide = length.type(WIDE)
        rows = [tables.row(2, builder.add(given[3], length.type(n))) for n in range(DEEP)]
        start = builder.udiv(given[4], wide) if minus else None
        with cgutils.for_range(builder, builder.udiv(length, wide), start) as loop:
            i = builder.mul(loop.index, wide)
            each = [builder.add(i, length.type(m)) for m in range(WIDE)]
            outs = [tables.row(0, builder.add(given[1], m)) for m in each]
            with _VectorLoop(builder, length, i) as at:
                x = [_load(builder, row, at) for row in rows]
                for m, sums in zip(each, outs, strict=True):
                    by = [builder.load(builder.gep(row, [m])) for row in rows]
                    by = [_splat(builder, builder.fneg(number) if minus else number) for number in by]
                    _store(builder, _sum_products(builder, by, x, _load(builder, sums, at)), sums, at)
        return context.get_dummy_value()

    return signature, build


class _TableRows:
    """Finds row addresses in the tables among the arguments."""

    def __init__(self, context: Any, builder: Any, signature: Any, given: Any) -> None:
        self.context, self.builder, self.types, self.given = context, builder, signature.args, given

    def length(self, at: int) -> Any:
        return self.builder.extract_value(self._array(at).shape, 1)

    def row(self, at: int, row: Any) -> Any:
        return self.builder.gep(self._array(at).data, [self.builder.mul(row, self.length(at))])

    def _array(self, at: int) -> Any:
        return self.context.make_array(self.types[at])(self.context, self.builder, self.given[at])


class _VectorLoop:
    """Loops over the first position of each vector.

    Use it as `with _VectorLoop(builder, length, first) as at:`.
    """

    def __init__(self, builder: Any, length: Any, first: Any = None) -> None:
        self.builder, self.width = builder, length.type(LANES)
        start = None if first is None else builder.udiv(first, self.width)
        self.loop = cgutils.for_range(builder, builder.udiv(length, self.width), start)

    def __enter__(self) -> Any:
        return self.builder.mul(self.loop.__enter__().index, self.width)

    def __exit__(self, *error: Any) -> Any:
        return self.loop.__exit__(*error)


def _at(builder: Any, row: Any, at: Any) -> Any:
    return builder.bitcast(builder.gep(row, [at]), _VECTOR.as_pointer())


def _fetch(builder: Any, place: Any) -> None:
    byte, kind = ir.IntType(8).as_pointer(), ir.IntType(32)
    form = ir.FunctionType(ir.VoidType(), [byte, kind, kind, kind])
    fetch = cgutils.get_or_insert_function(builder.module, form, "llvm.prefetch.p0")
    # Arguments of llvm.prefetch: for reading, into all caches, data.
    builder.call(fetch, [builder.bitcast(place, byte), kind(0), kind(3), kind(1)])


def _load(builder: Any, row: Any, at: Any) -> Any:
    return builder.load(_at(builder, row, at), align=4)


def _store(builder: Any, vector: Any, row: Any, at: Any) -> None:
    builder.store(vector, _at(builder, row, at), align=4)


def _mix(builder: Any, a: Any, x: Any, b: Any, y: Any) -> Any:
    return builder.fadd(builder.fmul(a, x), builder.fmul(b, y))


def _sum_products(builder: Any, by: list[Any], x: list[Any], start: Any) -> Any:
    even, odd = _multiply_add(builder, by[0], x[0], start), builder.fmul(by[1], x[1])
    for n in range(2, DEEP, 2):
        even, odd = (
            _multiply_add(builder, by[n], x[n], even),
            _multiply_add(builder, by[n + 1], x[n + 1], odd),
        )
    return builder.fadd(even, odd)


def _multiply_add(builder: Any, a: Any, x: Any, y: Any) -> Any:
    """Return a x + y in one rounding, if the machine can."""
    may = ("contract",)
    return builder.fadd(builder.fmul(a, x, flags=may), y, flags=may)


def _splat(builder: Any, number: Any) -> Any:
    nothing = ir.Constant(_VECTOR, ir.Undefined)
    first = builder.insert_element(nothing, number, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, nothing, _positions([0] * LANES))


def _sum_halves(builder: Any, vector: Any) -> Any:
    width = LANES // 2
    while width:
        low, high = _positions(list(range(width))), _positions(list(range(width, 2 * width)))
        halves = (builder.shuffle_vector(vector, vector, part) for part in (low, high))
        vector, width = builder.fadd(*halves), width // 2
    return builder.extract_element(vector, ir.Constant(ir.IntType(32), 0))


def _positions(places: list[int]) -> Any:
    return ir.Constant(ir.VectorType(ir.IntType(32), len(places)), places)
