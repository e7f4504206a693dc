"""Give numba fused multiply-add, half precision and fast row sums.

The row sums stay in registers.

A lane is a column of a vector. Lanes never mix, so the machine's number of lanes changes no bit. Within a
lane, terms are added one after the other in the given order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from llvmlite import ir
from numba import extending, types

Function = TypeVar("Function", bound=Callable[..., Any])

intrinsic: Callable[[Function], Any] = extending.intrinsic
overload: Callable[[Any], Callable[[Function], Function]] = extending.overload

LANES = 16
"""Columns in a vector of registers.

A machine with narrower registers uses several.
"""

FLOAT, HALF, I16, I32, I64 = ir.FloatType(), ir.HalfType(), ir.IntType(16), ir.IntType(32), ir.IntType(64)


@intrinsic
def fma(context: Any, a: Any, b: Any, c: Any) -> Any:
    """Return a b + c (float32), rounded once, on every machine."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return types.float32(types.float32, types.float32, types.float32), build


@intrinsic
def half_to_single(context: Any, bits: Any) -> Any:
    """Convert half precision, as its 16 bits, to float32."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fpext(builder.bitcast(arguments[0], HALF), FLOAT)

    return types.float32(types.uint16), build


@intrinsic
def single_to_half(context: Any, number: Any) -> Any:
    """Convert float32 to the nearest half's bits (ties to even)."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(builder.fptrunc(arguments[0], HALF), I16)

    return types.uint16(types.float32), build


def as_single(x: Any) -> Any:
    """Convert a stored number to float32.

    The stored number is float32 already, or the bits of a half.
    """
    raise NotImplementedError("inside compiled functions only")


@overload(as_single)
def _as_single(x: Any) -> Any:
    def from_half(x: Any) -> Any:
        return half_to_single(x)

    def pass_through(x: Any) -> Any:
        return x

    return from_half if x == types.uint16 else pass_through


def as_stored(x: Any, like: Any) -> Any:
    """Convert a float32 to the type of `like`.

    `like` is an element of the target array.
    """
    raise NotImplementedError("inside compiled functions only")


@overload(as_stored)
def _as_stored(x: Any, like: Any) -> Any:
    def as_half(x: Any, like: Any) -> Any:
        return single_to_half(x)

    def pass_through(x: Any, like: Any) -> Any:
        return x

    return as_half if like == types.uint16 else pass_through


def _make_row_kernel(kind: str, vectors: int) -> Any:
    """Make an intrinsic to sum or maximise rows over edges.

    The intrinsic aggregates edges a to b into one row.

    Its arguments are (out, at, x, column, d, src, w, a, b).
    """

    @intrinsic
    def row(  # noqa: PLR0913, PLR0917
        context: Any, out: Any, at: Any, x: Any, column: Any, d: Any, src: Any, w: Any, a: Any, b: Any
    ) -> Any:
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return _build_loop(context, builder, signature, arguments, kind, vectors=vectors)

        whole = types.int64
        return types.void(out, whole, x, whole, whole, src, w, whole, whole), build

    return row


PREFETCH_EDGES = 16
"""Edges whose vectors are fetched into the cache ahead."""


def _build_loop(
    context: Any, builder: Any, signature: Any, arguments: Any, kind: str, *, vectors: int
) -> Any:
    data = [
        context.make_array(of)(context, builder, value).data if isinstance(of, types.Array) else value
        for of, value in zip(signature.args, arguments, strict=True)
    ]
    out, at, x, column, d, src, w, a, b = data
    halves = signature.args[2].dtype == types.uint16
    vector = ir.VectorType(FLOAT, LANES)
    begin = builder.bitcast(builder.gep(out, [at]), vector.as_pointer())
    places = [builder.gep(begin, [I64(v)]) for v in range(vectors)]
    first = [builder.load(place, align=4) for place in places]
    entry = builder.block
    head, body, end = (builder.append_basic_block(name) for name in ("head", "body", "end"))
    builder.branch(head)
    builder.position_at_end(head)
    edge = builder.phi(I64)
    sums = [builder.phi(vector) for _ in range(vectors)]
    edge.add_incoming(a, entry)
    for lane_sum, start in zip(sums, first, strict=True):
        lane_sum.add_incoming(start, entry)
    builder.cbranch(builder.icmp_signed("<", edge, b), body, end)
    builder.position_at_end(body)
    row = _point_to_source(builder, x, src, edge, d, column=column)
    ahead = _point_to_source(builder, x, src, builder.add(edge, I64(PREFETCH_EDGES)), d, column=column)
    _prefetch(builder, ahead, vectors, halves)
    weight = _broadcast(builder, builder.load(builder.gep(w, [edge]))) if kind == "weighted" else None
    after = [
        _accumulate(builder, kind, lane_sum, _load_vector(builder, row, v, halves), weight)
        for v, lane_sum in enumerate(sums)
    ]
    edge.add_incoming(builder.add(edge, I64(1)), builder.block)
    for lane_sum, value in zip(sums, after, strict=True):
        lane_sum.add_incoming(value, builder.block)
    builder.branch(head)
    builder.position_at_end(end)
    for lane_sum, place in zip(sums, places, strict=True):
        builder.store(lane_sum, place, align=4)
    return context.get_dummy_value()


def _point_to_source(builder: Any, x: Any, src: Any, edge: Any, d: Any, *, column: Any) -> Any:
    """Return the address of an edge's source vector."""
    source = builder.zext(builder.load(builder.gep(src, [edge])), I64)
    return builder.gep(x, [builder.add(builder.mul(source, d), column)])


def _prefetch(builder: Any, row: Any, vectors: int, halves: bool) -> None:
    byte = builder.bitcast(row, ir.IntType(8).as_pointer())
    kind = ir.FunctionType(ir.VoidType(), [byte.type, I32, I32, I32])
    name = "llvm.prefetch.p0"
    declared = builder.module.globals
    fetch = declared[name] if name in declared else ir.Function(builder.module, kind, name)
    size = vectors * LANES * (2 if halves else 4)
    for start in range(0, size, 64):
        builder.call(fetch, [builder.gep(byte, [I64(start)]), I32(0), I32(3), I32(1)])


def _load_vector(builder: Any, row: Any, v: int, halves: bool) -> Any:
    kind = ir.VectorType(HALF if halves else FLOAT, LANES)
    place = builder.gep(builder.bitcast(row, kind.as_pointer()), [I64(v)])
    value = builder.load(place, align=2 if halves else 4)
    return builder.fpext(value, ir.VectorType(FLOAT, LANES)) if halves else value


def _broadcast(builder: Any, number: Any) -> Any:
    vector = ir.VectorType(FLOAT, LANES)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), number, I32(0))
    zeros = ir.Constant(ir.VectorType(I32, LANES), [0] * LANES)
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), zeros)


def _accumulate(builder: Any, kind: str, current: Any, value: Any, weight: Any) -> Any:
    if kind == "sum":
        return builder.fadd(current, value)
    if kind == "max":
        return builder.select(builder.fcmp_ordered(">", value, current), value, current)
    name = f"llvm.fma.v{LANES}f32"
    declared = builder.module.globals
    kinds = ir.FunctionType(current.type, [current.type] * 3)
    fused = declared[name] if name in declared else ir.Function(builder.module, kinds, name)
    return builder.call(fused, [weight, value, current])


sum_row_8, sum_row_4, sum_row_1 = (_make_row_kernel("sum", vectors) for vectors in (8, 4, 1))
weighted_row_8, weighted_row_4, weighted_row_1 = (
    _make_row_kernel("weighted", vectors) for vectors in (8, 4, 1)
)
max_row_8, max_row_4, max_row_1 = (_make_row_kernel("max", vectors) for vectors in (8, 4, 1))
