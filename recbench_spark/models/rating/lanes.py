"""Two loops over rows of factors in vectors of 16 numbers, in an order that is written down.

A compiler may add the terms of a dot product in any order only where it is told that bits do not matter.
Here they do: sixteen sums, one for each position modulo 16, are added in halves (16, 8, 4, 2), with no
fused multiply-add, so plain Python gives the same bits (`tests/models/rating/test_sgd.py`).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

LANES = 16
"""Rows of factors are zero-padded to a multiple of this."""

_VECTOR = ir.VectorType(ir.FloatType(), LANES)


def padded(dims: int) -> int:
    """The length of a stored row of factors."""
    return -(-dims // LANES) * LANES


@intrinsic  # type: ignore[untyped-decorator]
def dot_rows(typing: Any, p_ud: Any, u: Any, q_id: Any, i: Any, length: Any) -> Any:
    """p_u . q_i of two contiguous float32 tables whose rows have this length, a multiple of 16."""
    signature = types.float32(p_ud, types.int64, q_id, types.int64, types.int64)

    def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        p, q = (_row(context, builder, signature, given, at) for at in (0, 2))
        total = cgutils.alloca_once_value(builder, ir.Constant(_VECTOR, [0.0] * LANES))
        with _lanes(builder, given[4]) as at:
            product = builder.fmul(_load(builder, p, at), _load(builder, q, at))
            builder.store(builder.fadd(builder.load(total), product), total)
        return _sum_of_halves(builder, builder.load(total))

    return signature, build


@intrinsic  # type: ignore[untyped-decorator]
def step_rows(typing: Any, p_ud: Any, u: Any, q_id: Any, i: Any, length: Any, by: Any) -> Any:
    """p_u, q_i = a p_u + b q_i, c q_i + d p_u, both from the old rows; `by` is (a, b, c, d) in float32."""
    signature = types.void(p_ud, types.int64, q_id, types.int64, types.int64, by)

    def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        p, q = (_row(context, builder, signature, given, at) for at in (0, 2))
        a, b, c, d = (_splat(builder, builder.extract_value(given[5], n)) for n in range(4))
        with _lanes(builder, given[4]) as at:
            old_p, old_q = _load(builder, p, at), _load(builder, q, at)
            _store(builder, _mixed(builder, a, old_p, b, old_q), p, at)
            _store(builder, _mixed(builder, c, old_q, d, old_p), q, at)
        return context.get_dummy_value()

    return signature, build


def _row(context: Any, builder: Any, signature: Any, given: Any, at: int) -> Any:
    """Where row `given[at + 1]` of the table `given[at]` begins."""
    table = context.make_array(signature.args[at])(context, builder, given[at])
    return builder.gep(table.data, [builder.mul(given[at + 1], given[4])])


class _lanes:  # noqa: N801 - used as a statement
    """`with _lanes(builder, length) as at:` a loop over the first number of each vector."""

    def __init__(self, builder: Any, length: Any) -> None:
        self.builder, self.width = builder, ir.Constant(length.type, LANES)
        self.loop = cgutils.for_range(builder, builder.udiv(length, self.width))

    def __enter__(self) -> Any:
        return self.builder.mul(self.loop.__enter__().index, self.width)

    def __exit__(self, *error: Any) -> Any:
        return self.loop.__exit__(*error)


def _at(builder: Any, row: Any, at: Any) -> Any:
    return builder.bitcast(builder.gep(row, [at]), _VECTOR.as_pointer())


def _load(builder: Any, row: Any, at: Any) -> Any:
    return builder.load(_at(builder, row, at), align=4)


def _store(builder: Any, vector: Any, row: Any, at: Any) -> None:
    builder.store(vector, _at(builder, row, at), align=4)


def _mixed(builder: Any, a: Any, x: Any, b: Any, y: Any) -> Any:
    return builder.fadd(builder.fmul(a, x), builder.fmul(b, y))


def _splat(builder: Any, number: Any) -> Any:
    nothing = ir.Constant(_VECTOR, ir.Undefined)
    first = builder.insert_element(nothing, number, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, nothing, _positions([0] * LANES))


def _sum_of_halves(builder: Any, vector: Any) -> Any:
    width = LANES // 2
    while width:
        low, high = _positions(list(range(width))), _positions(list(range(width, 2 * width)))
        halves = (builder.shuffle_vector(vector, vector, part) for part in (low, high))
        vector, width = builder.fadd(*halves), width // 2
    return builder.extract_element(vector, ir.Constant(ir.IntType(32), 0))


def _positions(places: list[int]) -> Any:
    return ir.Constant(ir.VectorType(ir.IntType(32), len(places)), places)
