"""8-bit products in registers: AVX-512 VNNI, AVX-VNNI and AVX2.

VNNI has one instruction that adds four products of unsigned items and signed users to each whole number,
without saturation. AVX2 adds two products to 16 bits, which saturate: they fit with users' numbers up to
`LEVELS`, since 2 x 255 x 64 < 2^15. All sums stay in registers until they are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any, NamedTuple

from recbench_spark.core.compiling import compile_job
from recbench_spark.ranking.kernels import instructions as llvm
from recbench_spark.ranking.kernels.instructions import (
    ITEMS,
    LANES,
    SHARES,
    STEPS,
    USERS,
    Writer,
    make_instruction,
)

LEVELS = 64
"""The largest number of users for AVX2."""

VNNI_USERS, NARROW_USERS, AVX2_USERS = 6, 6, 3
"""Users multiplied together, with 64 items or 16: the best of some shapes."""

_VNNI_GROUPS = 4


class _Shape(NamedTuple):
    """Users and groups in a block, whole numbers in a register, and what adds products to one."""

    users: int
    groups: int
    lanes: int
    add: Callable[[Writer, Any, Any, Any], Any]


def _add_four(writer: Writer, total: Any, items: Any, users: Any) -> Any:
    name = f"llvm.x86.avx512.vpdpbusd.{32 * total.type.count}"
    return writer.call(name, total.type, total, items, users)


def _add_pairs(writer: Writer, total: Any, items: Any, users: Any) -> Any:
    """Add pairs to 16 bits, then pairs of them to 32."""
    builder, halves = writer.builder, llvm.make_vector(llvm.HALF, 16)
    bytes_ = [builder.bitcast(one, llvm.make_vector(llvm.BYTE, 32)) for one in (items, users)]
    sums = writer.call("llvm.x86.avx2.pmadd.ub.sw", halves, *bytes_)
    ones = writer.spread(llvm.HALF(1), 16)
    return builder.add(total, writer.call("llvm.x86.avx2.pmadd.wd", total.type, sums, ones))


def _emit_block(writer: Writer, _: Any, group: Any, row: Any, *, shape: _Shape) -> None:
    builder, kind = writer.builder, llvm.make_vector(llvm.WORD, shape.lanes)
    parts, steps = LANES // shape.lanes, writer.read(STEPS)
    rows = [builder.add(row, llvm.LONG(u)) for u in range(shape.users)]
    groups = [builder.add(group, llvm.LONG(g)) for g in range(shape.groups)]
    items = [writer.at(writer.read(ITEMS), one, builder.mul(steps, llvm.LONG(64))) for one in groups]
    items = [builder.add(one, llvm.LONG(4 * shape.lanes * part)) for one in items for part in range(parts)]
    users = [writer.at(writer.read(USERS), one, builder.mul(steps, llvm.LONG(4))) for one in rows]

    def add(step: Any, sums: list[Any]) -> tuple[Any, list[Any]]:
        items_n = [writer.load(kind, writer.at(one, step, 64)) for one in items]
        users_u = (writer.load(llvm.WORD, writer.at(one, step, 4)) for one in users)
        pairs = product([writer.spread(one, shape.lanes) for one in users_u], items_n)
        totals = [shape.add(writer, one, item, user) for one, (user, item) in zip(sums, pairs, strict=True)]
        return builder.add(step, llvm.LONG(1)), totals

    totals = writer.repeat(llvm.LONG(0), steps, _emit_starts(writer, groups, rows, parts), add)
    whole = [writer.join(totals[n : n + parts]) for n in range(0, len(totals), parts)]
    for n, one in enumerate(rows):
        writer.append_reaching([(one, group, whole[shape.groups * n :][: shape.groups])])


def _emit_starts(writer: Writer, groups: list[Any], rows: list[Any], parts: int) -> list[Any]:
    """Return the sums' first values: whole biases, or 0."""
    builder, plain = writer.builder, writer.builder.block
    with builder.if_then(builder.icmp_signed("!=", writer.read(SHARES), llvm.LONG(0))):
        whole = [writer.whole_biases(group, row) for row in rows for group in groups]
        biases = [part for one in whole for part in writer.split(one, parts)]
        biased = builder.block
    starts = [builder.phi(one.type) for one in biases]
    for start, bias in zip(starts, biases, strict=True):
        start.add_incoming(llvm.make_zeros(start.type), plain)
        start.add_incoming(bias, biased)
    return starts


def _make_block(*shape: Any) -> Any:
    return make_instruction(partial(_emit_block, shape=_Shape(*shape)))


_vnni_block = _make_block(VNNI_USERS, _VNNI_GROUPS, LANES, _add_four)
_narrow_block = _make_block(NARROW_USERS, 1, LANES // 2, _add_four)
_avx2_block = _make_block(AVX2_USERS, 1, LANES // 2, _add_pairs)


@compile_job
def count_vnni(job: int, groups: int, rows: int) -> None:
    """Append what reaches, as `families.count_reached` does."""
    for group in range(0, groups, _VNNI_GROUPS):
        for row in range(0, rows, VNNI_USERS):
            _vnni_block(job, group, row)


@compile_job
def count_narrow(job: int, groups: int, rows: int) -> None:
    """Append what reaches, as `families.count_reached` does."""
    for group in range(groups):
        for row in range(0, rows, NARROW_USERS):
            _narrow_block(job, group, row)


@compile_job
def count_avx2(job: int, groups: int, rows: int) -> None:
    """Append what reaches, as `families.count_reached` does."""
    for group in range(groups):
        for row in range(0, rows, AVX2_USERS):
            _avx2_block(job, group, row)
