"""Loops in LLVM's vector language, behind `word_loops`.

Its vectors have fixed lengths; a machine with narrower registers uses several for one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types

from recbench_spark.ranking.kernels.instructions import (
    BIT,
    CHUNK,
    GROUPS,
    HALF,
    LANES,
    LONG,
    NOTHING,
    POINTER,
    REAL,
    ROWS,
    SIDES,
    WORD,
    WORDS,
    ZEROS,
    Value,
    Writer,
    intrinsic,
)

_NARROW = (2, 2)  # rows and groups multiplied together where registers have less than 64 bytes
_LINE = 64  # bytes in a line of the cache
_PAIRS, _PRODUCTS = ir.VectorType(HALF, 2 * LANES), ir.VectorType(WORD, 2 * LANES)
_SINGLES, _REALS = ir.VectorType(REAL, SIDES), ir.VectorType(ir.DoubleType(), SIDES)


@intrinsic
def multiply_block(context: Any, packed: Any, rows: Any, out: Any, group: Any, row: Any, shift: Any) -> Any:
    """Multiply ROWS rows from `row` by GROUPS groups from `group`."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Value:
        writer = Writer(context, builder)
        (items, pairs), (users, dims), (out, width) = (
            writer.open(context, signature, arguments, at) for at in range(3)
        )
        pairs = builder.lshr(dims, LONG(1))
        group, row, shift = arguments[3:]
        shift, size = writer.spread(shift), signature.args[2].dtype.bitwidth // 8
        group_size, row_size, out_size = (
            builder.mul(count, LONG(step)) for count, step in ((pairs, 4 * LANES), (dims, 2), (width, size))
        )
        wide = "+avx512bw" in writer.features
        more_rows, more_groups = (ROWS, GROUPS) if wide else _NARROW
        for r in range(0, ROWS, more_rows):
            rows = [builder.add(row, LONG(r + n)) for n in range(more_rows)]
            users_at = [writer.at(users, one, row_size) for one in rows]
            for g in range(0, GROUPS, more_groups):
                groups = [builder.add(group, LONG(g + n)) for n in range(more_groups)]
                items_at = [writer.at(items, one, group_size) for one in groups]
                ends = [writer.at(writer.at(out, one, out_size), groups[0], LANES * size) for one in rows]
                _write_products(writer, (users_at, items_at), (pairs, shift), ends, size)
        return context.get_dummy_value()

    return types.void(packed, rows, out, group, row, types.int32), build


def _write_products(
    writer: Writer,
    sides: tuple[list[Value], list[Value]],
    counts: tuple[Value, Value],
    ends: list[Value],
    size: int,
) -> None:
    """Write sums over dimensions.

    More than one chunk takes a loop over chunks, whose sums are shifted and added.
    """
    builder, (users, items), (pairs, shift) = writer.builder, sides, counts
    zeros = [ZEROS] * (len(users) * len(items))

    def add_pair(pair: Value, sums: list[Value]) -> tuple[Value, list[Value]]:
        items_g = [writer.load(_PAIRS, writer.at(one, pair, 4 * LANES)) for one in items]
        users_r = [writer.spread(writer.load(WORD, writer.at(one, pair, 4))) for one in users]
        both_r = [builder.bitcast(user, _PAIRS) for user in users_r]
        terms = [_multiply_pairs(writer, item, user) for user in both_r for item in items_g]
        return builder.add(pair, LONG(1)), list(map(builder.add, sums, terms))

    def add_chunk(start: Value, totals: list[Value]) -> tuple[Value, list[Value]]:
        stop = builder.add(start, LONG(CHUNK))
        stop = builder.select(builder.icmp_signed("<", stop, pairs), stop, pairs)
        sums = writer.repeat(start, stop, zeros, add_pair)
        return stop, [
            builder.add(one, builder.ashr(more, shift)) for one, more in zip(totals, sums, strict=True)
        ]

    with builder.if_else(builder.icmp_signed(">", pairs, LONG(CHUNK))) as branches:
        for branch, add in zip(branches, (add_chunk, add_pair), strict=True):
            with branch:
                totals = writer.repeat(LONG(0), pairs, zeros, add)
                for n, end in enumerate(ends):
                    _store(writer, totals[n * len(items) :][: len(items)], end, size)


def _multiply_pairs(writer: Writer, left: Value, right: Value) -> Value:
    """Return the sums of two neighbouring products, exact in 32 bits.

    ARM sorts even and odd numbers first: it multiplies and adds in one instruction (smlal), x86 on pairs.
    """
    builder, places = writer.builder, [range(at, 2 * LANES, 2) for at in range(2)]
    if "+neon" in writer.features:
        sides = [[builder.sext(writer.pick(one, one, at), WORDS) for one in (left, right)] for at in places]
        even, odd = (builder.mul(*both) for both in sides)
    else:
        product = builder.mul(builder.sext(left, _PRODUCTS), builder.sext(right, _PRODUCTS))
        even, odd = (writer.pick(product, product, at) for at in places)
    return builder.add(even, odd)


def _store(writer: Writer, totals: Sequence[Value], at: Value, size: int) -> None:
    """Write sums, or their upper halves in the order of `word_loops.place`."""
    builder = writer.builder
    if size == 2:
        bits, upper = ir.Constant(WORDS, [16] * LANES), ir.Constant(WORDS, [-(1 << 16)] * LANES)
        totals = [
            builder.or_(builder.lshr(even, bits), builder.and_(odd, upper))
            for even, odd in zip(totals[::2], totals[1::2], strict=True)
        ]
    for n, total in enumerate(totals):
        writer.store(total, writer.at(at, LONG(n), 4 * LANES))


@intrinsic
def scan_row(context: Any, rows: Any, row: Any, low: Any, high: Any, places: Any, at: Any) -> Any:
    """Count x >= high in a row; write places with low <= x < high."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Value:
        writer = Writer(context, builder)
        (rows, width), (places, _) = (writer.open(context, signature, arguments, n) for n in (0, 4))
        kind = signature.args[0].dtype.bitwidth
        low, high = (writer.spread(arguments[n], 8 * 4 * LANES // kind) for n in (2, 3))
        begin = writer.at(rows, builder.mul(arguments[1], width), kind // 8)
        blocks = builder.udiv(width, LONG(GROUPS * LANES))
        write = _compress if "+avx512f," in writer.features else _write_bits
        return _write_scan(writer, begin, blocks, (low, high), (places, arguments[5]), write=write)

    pair = types.UniTuple(types.int64, 2)
    return pair(rows, row, rows.dtype, rows.dtype, places, at), build


def _write_scan(
    writer: Writer,
    row: Value,
    blocks: Value,
    limits: tuple[Value, Value],
    out: tuple[Value, Value],
    *,
    write: Callable[..., Value],
) -> Value:
    """Write the loop over blocks; only one with a place has a branch."""
    builder, (low, high), (places, start) = writer.builder, limits, out
    vector = low.type
    vectors, width = GROUPS * LANES // vector.count, builder.sub(high, low)

    def compare(block: Value, counts: list[Value]) -> tuple[Value, list[Value]]:
        end, *above = counts
        at = writer.at(row, block, 4 * LANES * vectors)
        values = [writer.load(vector, writer.at(at, LONG(n), 4 * LANES)) for n in range(vectors)]
        over = [builder.sext(builder.icmp_signed(">=", one, high), vector) for one in values]
        inside = [builder.icmp_unsigned("<", builder.sub(one, low), width) for one in values]
        first, before = builder.mul(block, LONG(GROUPS * LANES)), builder.block
        with builder.if_then(writer.is_any(inside)):
            more, last = write(writer, inside, first, places, end), builder.block
        out = builder.phi(LONG)
        out.add_incoming(end, before)
        out.add_incoming(more, last)
        return builder.add(block, LONG(1)), [out, *map(builder.sub, above, over)]

    zero = ir.Constant(vector, [0] * vector.count)
    end, *above = writer.repeat(LONG(0), blocks, [start, *[zero] * vectors], compare)
    wide = ir.VectorType(LONG, vector.count)
    total = builder.zext(above[0], wide)
    for one in above[1:]:
        total = builder.add(total, builder.zext(one, wide))
    return writer.pack(writer.call(f"llvm.vector.reduce.add.v{vector.count}i64", LONG, total), end)


def _write_bits(writer: Writer, inside: Sequence[Value], first: Value, places: Value, end: Value) -> Value:
    """Write places one by one."""
    builder, bits = writer.builder, LONG(0)
    for n, one in enumerate(inside):
        lanes = builder.zext(builder.bitcast(one, ir.IntType(one.type.count)), LONG)
        bits = builder.or_(bits, builder.shl(lanes, LONG(n * one.type.count)))

    def write(bits: Value, ends: list[Value]) -> tuple[Value, list[Value]]:
        place = builder.add(first, builder.cttz(bits, BIT(1)))
        writer.store(builder.trunc(place, WORD), writer.at(places, ends[0], 4))
        return builder.and_(bits, builder.sub(bits, LONG(1))), [builder.add(ends[0], LONG(1))]

    return writer.repeat(bits, None, [end], write)[0]


def _compress(writer: Writer, inside: Sequence[Value], first: Value, places: Value, end: Value) -> Value:
    """Write places LANES at a time, without a branch; the last ones are overwritten."""
    builder, begin = writer.builder, writer.spread(writer.builder.trunc(first, WORD))
    for at in range(0, GROUPS * LANES, LANES):
        one, lane = inside[at // inside[0].type.count], at % inside[0].type.count
        steps = ir.Constant(WORDS, list(range(at, at + LANES)))
        mask = writer.pick(one, one, range(lane, lane + LANES))
        end = writer.compress(mask, end, (builder.add(begin, steps), places))
    return end


@intrinsic
def sum_block(context: Any, users: Any, rows: Any, items: Any, sums: Any, at: Any) -> Any:
    """Write SIDES exact sums from `at` on: rows stand side by side."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Value:
        writer = Writer(context, builder)
        (user, _), (rows, dims), (items, _), (sums, _) = (
            writer.open(context, signature, arguments, n) for n in range(4)
        )
        items_at, size = writer.at(items, arguments[4], 4), builder.mul(dims, LONG(4))
        item_n = [writer.load(WORD, writer.at(items_at, LONG(n), 4)) for n in range(SIDES)]
        rows_n = [writer.at(rows, builder.zext(one, LONG), size) for one in item_n]
        total = _write_sums(writer, user, rows_n, dims)
        writer.store(total, writer.at(sums, arguments[4], 8))
        return context.get_dummy_value()

    return types.void(users, rows, items, sums, at), build


def _write_sums(writer: Writer, user: Value, rows_n: list[Value], dims: Value) -> Value:
    """Write sums by SIDES dimensions, then by single ones."""
    builder = writer.builder

    def add(total: Value, column: Value, d: Value) -> Value:
        one = writer.spread(writer.load(_REALS.element, writer.at(user, d, 8)), SIDES)
        product = builder.fmul(builder.fpext(column, _REALS), one, flags=("contract",))
        return builder.fadd(total, product, flags=("contract",))

    def add_block(block: Value, sums: list[Value]) -> tuple[Value, list[Value]]:
        total, d = sums[0], builder.mul(block, LONG(SIDES))
        parts = [writer.load(_SINGLES, writer.at(row, d, 4)) for row in rows_n]
        for n, column in enumerate(_transpose(writer, parts)):
            total = add(total, column, builder.add(d, LONG(n)))
        return builder.add(block, LONG(1)), [total]

    def add_dim(d: Value, sums: list[Value]) -> tuple[Value, list[Value]]:
        column = ir.Constant(_SINGLES, ir.Undefined)
        for n, row in enumerate(rows_n):
            column = builder.insert_element(column, writer.load(REAL, writer.at(row, d, 4)), WORD(n))
        return builder.add(d, LONG(1)), [add(sums[0], column, d)]

    blocks, zeros = builder.udiv(dims, LONG(SIDES)), ir.Constant(_REALS, [0.0] * SIDES)
    sums = writer.repeat_any(LONG(0), blocks, [zeros], add_block)
    return writer.repeat_any(builder.mul(blocks, LONG(SIDES)), dims, sums, add_dim)[0]


def _transpose(writer: Writer, rows: list[Value]) -> list[Value]:
    """Swap rows and lanes, in blocks of half the size each time."""
    step = SIDES // 2
    while step:
        for n in range(SIDES):
            if not n & step:
                upper, lower = rows[n], rows[n + step]
                left = [SIDES + k - step if k & step else k for k in range(SIDES)]
                right = [SIDES + k if k & step else k + step for k in range(SIDES)]
                rows[n], rows[n + step] = (writer.pick(upper, lower, places) for places in (left, right))
        step //= 2
    return rows


@intrinsic
def fetch_row(context: Any, rows: Any, item: Any) -> Any:
    """Ask the cache for a row that will be read soon."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Value:
        writer = Writer(context, builder)
        rows, dims = writer.open(context, signature, arguments, 0)
        start, how = writer.at(rows, builder.mul(arguments[1], dims), 4), (WORD(0), WORD(2), WORD(1))

        def fetch(line: Value, _: list[Value]) -> tuple[Value, list[Value]]:
            at = builder.inttoptr(writer.at(start, line, _LINE), POINTER)
            writer.call("llvm.prefetch.p0i8", NOTHING, at, *how)  # to read, into the second cache, data
            return builder.add(line, LONG(1)), []

        numbers = _LINE // 4
        lines = builder.udiv(builder.add(dims, LONG(numbers - 1)), LONG(numbers))
        writer.repeat_any(LONG(0), lines, [], fetch)
        return context.get_dummy_value()

    return types.void(rows, types.int64), build
