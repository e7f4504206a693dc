"""Loops in LLVM's vector language, behind `word_loops`.

Its vectors have fixed lengths; a machine with narrower registers uses several for one. Addresses are whole
numbers, in bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from llvmlite import ir
from numba import extending, types
from numba.core import cgutils

Function = TypeVar("Function", bound=Callable[..., Any])
Value: TypeAlias = Any
"""A value in LLVM's language."""

intrinsic: Callable[[Function], Any] = extending.intrinsic

LANES = 16
"""Items in a group: a vector has two 16-bit numbers of each."""

ROWS, GROUPS, CHUNK = 6, 4, 32
"""Rows and groups multiplied together, and pairs of dimensions added before a shift."""

_NARROW = (2, 2)  # rows and groups multiplied together where registers have less than 64 bytes
_I1, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (1, 16, 32, 64))
_SUMS, _PAIRS, _PRODUCTS = (
    ir.VectorType(of, n) for of, n in ((_I32, LANES), (_I16, 2 * LANES), (_I32, 2 * LANES))
)


@intrinsic
def multiply_block(context: Any, packed: Any, rows: Any, out: Any, group: Any, row: Any, shift: Any) -> Any:
    """Multiply ROWS rows from `row` by GROUPS groups from `group`."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Value:
        (items, pairs), (users, dims), (out, width) = (
            _open_array(context, builder, signature, arguments, at) for at in range(3)
        )
        pairs = builder.lshr(dims, _I64(1))
        group, row, shift = arguments[3:]
        shift, size = _repeat(builder, shift, _SUMS), signature.args[2].dtype.bitwidth // 8
        wide = "+avx512bw" in context.codegen().magic_tuple()[2]
        more_rows, more_groups = (ROWS, GROUPS) if wide else _NARROW
        for r in range(0, ROWS, more_rows):
            rows = [builder.add(row, _I64(r + n)) for n in range(more_rows)]
            users_at = [_move(builder, users, one, dims, 2) for one in rows]
            for g in range(0, GROUPS, more_groups):
                groups = [builder.add(group, _I64(g + n)) for n in range(more_groups)]
                items_at = [_move(builder, items, one, pairs, 4 * LANES) for one in groups]
                ends = [
                    _move(builder, _move(builder, out, one, width, size), groups[0], _I64(LANES), size)
                    for one in rows
                ]
                _build_products(builder, (users_at, items_at), (pairs, shift), ends, size)
        return context.get_dummy_value()

    return types.void(packed, rows, out, group, row, types.int32), build


def _build_products(
    builder: Any,
    sides: tuple[list[Value], list[Value]],
    counts: tuple[Value, Value],
    ends: list[Value],
    size: int,
) -> None:
    """Build the sums over dimensions, and write them.

    More than one chunk takes a loop over chunks, whose sums are shifted and added.
    """
    (users, items), (pairs, shift) = sides, counts
    zeros = [ir.Constant(_SUMS, [0] * LANES)] * (len(users) * len(items))

    def add_pair(pair: Value, sums: list[Value]) -> tuple[Value, list[Value]]:
        items_g = [_load(builder, _move(builder, at, pair, _I64(1), 4 * LANES), _PAIRS) for at in items]
        users_r = [_load(builder, _move(builder, at, pair, _I64(1), 4), _I32) for at in users]
        both_r = [builder.bitcast(_repeat(builder, user, _SUMS), _PAIRS) for user in users_r]
        terms = [_multiply_pairs(builder, item, user) for user in both_r for item in items_g]
        return builder.add(pair, _I64(1)), _add(builder, sums, terms)

    def add_chunk(start: Value, totals: list[Value]) -> tuple[Value, list[Value]]:
        stop = builder.add(start, _I64(CHUNK))
        stop = builder.select(builder.icmp_signed("<", stop, pairs), stop, pairs)
        sums = _loop(builder, start, stop, zeros, add_pair)
        return stop, _add(builder, totals, [builder.ashr(one, shift) for one in sums])

    def write(totals: list[Value]) -> None:
        for n, end in enumerate(ends):
            _store(builder, totals[n * len(items) :][: len(items)], end, size)

    with builder.if_else(builder.icmp_signed(">", pairs, _I64(CHUNK))) as (several, single):
        with several:
            write(_loop(builder, _I64(0), pairs, zeros, add_chunk))
        with single:
            write(_loop(builder, _I64(0), pairs, zeros, add_pair))


def _add(builder: Any, left: Sequence[Value], right: Sequence[Value]) -> list[Value]:
    return [builder.add(one, other) for one, other in zip(left, right, strict=True)]


def _multiply_pairs(builder: Any, left: Value, right: Value) -> Value:
    """Return the sums of two neighbouring products, exact in 32 bits."""
    product = builder.mul(builder.sext(left, _PRODUCTS), builder.sext(right, _PRODUCTS))
    even, odd = (
        builder.shuffle_vector(product, product, ir.Constant(_SUMS, list(range(at, 2 * LANES, 2))))
        for at in range(2)
    )
    return builder.add(even, odd)


def _store(builder: Any, totals: Sequence[Value], at: Value, size: int) -> None:
    """Write sums, or their upper halves in the order of `word_loops.place`."""
    if size == 2:
        bits, upper = ir.Constant(_SUMS, [16] * LANES), ir.Constant(_SUMS, [-(1 << 16)] * LANES)
        totals = [
            builder.or_(builder.lshr(even, bits), builder.and_(odd, upper))
            for even, odd in zip(totals[::2], totals[1::2], strict=True)
        ]
    for n, total in enumerate(totals):
        place = builder.inttoptr(builder.add(at, _I64(4 * LANES * n)), _SUMS.as_pointer())
        builder.store(total, place, align=size)


@intrinsic
def scan_row(context: Any, rows: Any, row: Any, low: Any, high: Any, places: Any, at: Any) -> Any:
    """Count x >= high in a row; write places with low <= x < high."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Value:
        (rows, width), (places, _) = (
            _open_array(context, builder, signature, arguments, n) for n in (0, 4)
        )
        kind = ir.IntType(signature.args[0].dtype.bitwidth)
        vector = ir.VectorType(kind, 4 * LANES * 8 // kind.width)
        low, high = (_repeat(builder, arguments[n], vector) for n in (2, 3))
        begin = _move(builder, rows, arguments[1], width, kind.width // 8)
        blocks = builder.udiv(width, _I64(GROUPS * LANES))
        return _build_scan(builder, begin, blocks, (low, high), (places, arguments[5]))

    pair = types.UniTuple(types.int64, 2)
    return pair(rows, row, rows.dtype, rows.dtype, places, at), build


def _build_scan(
    builder: Any, row: Value, blocks: Value, limits: tuple[Value, Value], out: tuple[Value, Value]
) -> Value:
    """Build the loop over blocks; only one with a place has a branch."""
    (low, high), (places, start) = limits, out
    vector = low.type
    vectors, width = GROUPS * LANES // vector.count, builder.sub(high, low)
    size = vector.element.width // 8

    def compare(block: Value, counts: list[Value]) -> tuple[Value, list[Value]]:
        end, *above = counts
        at = _move(builder, row, block, _I64(GROUPS * LANES), size)
        values = [
            _load(builder, builder.add(at, _I64(size * vector.count * n)), vector) for n in range(vectors)
        ]
        over = [builder.sext(builder.icmp_signed(">=", one, high), vector) for one in values]
        inside = [builder.icmp_unsigned("<", builder.sub(one, low), width) for one in values]
        first = builder.mul(block, _I64(GROUPS * LANES))
        end = _write_places(builder, inside, first, places, end)
        return builder.add(block, _I64(1)), [
            end,
            *(builder.sub(*one) for one in zip(above, over, strict=True)),
        ]

    zero = ir.Constant(vector, [0] * vector.count)
    end, *above = _loop(builder, _I64(0), blocks, [start, *[zero] * vectors], compare)
    wide = ir.VectorType(_I64, vector.count)
    total = builder.zext(above[0], wide)
    for one in above[1:]:
        total = builder.add(total, builder.zext(one, wide))
    name, kind = f"llvm.vector.reduce.add.v{vector.count}i64", ir.FunctionType(_I64, [wide])
    count = builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [total])
    return cgutils.pack_array(builder, [count, end])


def _write_places(builder: Any, inside: Sequence[Value], first: Value, places: Value, end: Value) -> Value:
    """Write the places of set lanes from `end` on; return the end."""
    bits_n = [builder.bitcast(one, ir.IntType(one.type.count)) for one in inside]
    any_bit = bits_n[0]
    for one in bits_n[1:]:
        any_bit = builder.or_(any_bit, one)
    before = builder.block
    hit, after = builder.append_basic_block("hit"), builder.append_basic_block("after")
    builder.cbranch(builder.icmp_unsigned("!=", any_bit, any_bit.type(0)), hit, after)
    builder.position_at_end(hit)
    bits = _I64(0)
    for n, one in enumerate(bits_n):
        bits = builder.or_(bits, builder.shl(builder.zext(one, _I64), _I64(n * one.type.width)))

    def write(bits: Value, ends: list[Value]) -> tuple[Value, list[Value]]:
        place = builder.add(first, builder.cttz(bits, _I1(1)))
        at = _move(builder, places, ends[0], _I64(1), 4)
        builder.store(builder.trunc(place, _I32), builder.inttoptr(at, _I32.as_pointer()), align=4)
        rest = builder.and_(bits, builder.sub(bits, _I64(1)))
        return rest, [builder.add(ends[0], _I64(1))]

    (last_end,) = _loop(builder, bits, None, [end], write)
    last = builder.block
    builder.branch(after)
    builder.position_at_end(after)
    out = builder.phi(_I64)
    out.add_incoming(end, before)
    out.add_incoming(last_end, last)
    return out


def _loop(
    builder: Any,
    first: Value,
    stop: Value | None,
    values: Sequence[Value],
    body: Callable[[Value, list[Value]], tuple[Value, list[Value]]],
) -> list[Value]:
    """Build a loop that runs once at least; return its last values.

    It runs while the index is below `stop`, or without one until the index is 0.
    """
    entry = builder.block
    loop, end = builder.append_basic_block("loop"), builder.append_basic_block("end")
    builder.branch(loop)
    builder.position_at_end(loop)
    index, kept = builder.phi(_I64), [builder.phi(one.type) for one in values]
    following, new = body(index, list(kept))
    for phi, start, next_value in zip([index, *kept], [first, *values], [following, *new], strict=True):
        phi.add_incoming(start, entry)
        phi.add_incoming(next_value, builder.block)
    more = (
        builder.icmp_unsigned("!=", following, _I64(0))
        if stop is None
        else builder.icmp_signed("<", following, stop)
    )
    builder.cbranch(more, loop, end)
    builder.position_at_end(end)
    return new


def _open_array(context: Any, builder: Any, signature: Any, arguments: Any, at: int) -> tuple[Value, Value]:
    """Return an array's address and last length."""
    array = context.make_array(signature.args[at])(context, builder, arguments[at])
    last = builder.extract_value(array.shape, signature.args[at].ndim - 1)
    return builder.ptrtoint(array.data, _I64), last


def _move(builder: Any, address: Value, count: Value, length: Value, size: int) -> Value:
    """Return the address after `count` rows of `length` entries."""
    return builder.add(address, builder.mul(builder.mul(count, length), _I64(size)))


def _load(builder: Any, address: Value, kind: Any) -> Value:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=2)


def _repeat(builder: Any, value: Value, vector: Any) -> Value:
    """Return a vector of one number."""
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, _I32(0))
    lanes = ir.Constant(ir.VectorType(_I32, vector.count), [0] * vector.count)
    return builder.shuffle_vector(one, one, lanes)
