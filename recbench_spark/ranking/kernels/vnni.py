"""8-bit products on AVX-512 VNNI: 6 users x 64 items in registers.

One instruction adds four products of unsigned items and signed users to each of 16 whole numbers, without
saturation. All 24 sums stay in registers until they are compared.
"""

from __future__ import annotations

from typing import Any

from recbench_spark.core.compiling import compile_job
from recbench_spark.ranking.kernels import instructions as llvm
from recbench_spark.ranking.kernels.instructions import (
    ITEMS,
    SHARES,
    STEPS,
    USERS,
    Writer,
    make_instruction,
)

TOGETHER, WIDTH = 6, 4
"""Users and groups of 16 items multiplied together: the best of seven shapes."""


def _emit_block(writer: Writer, _: Any, group: Any, row: Any) -> None:
    builder = writer.builder
    grid = [(u, g) for u in range(TOGETHER) for g in range(WIDTH)]
    rows = [builder.add(row, llvm.LONG(u)) for u in range(TOGETHER)]
    starts = _emit_starts(writer, group, rows)
    steps = writer.read(STEPS)
    items = [
        writer.at(writer.read(ITEMS), builder.add(group, llvm.LONG(g)), builder.mul(steps, llvm.LONG(64)))
        for g in range(WIDTH)
    ]
    users = [writer.at(writer.read(USERS), one, builder.mul(steps, llvm.LONG(4))) for one in rows]

    def add(step: Any, sums: list[Any]) -> tuple[Any, list[Any]]:
        items_g = [writer.load(llvm.WORDS, writer.at(one, step, 64)) for one in items]
        users_u = [writer.spread(writer.load(llvm.WORD, writer.at(one, step, 4))) for one in users]
        totals = [
            writer.call("llvm.x86.avx512.vpdpbusd.512", llvm.WORDS, total, items_g[g], users_u[u])
            for total, (u, g) in zip(sums, grid, strict=True)
        ]
        return builder.add(step, llvm.LONG(1)), totals

    totals = writer.repeat(llvm.LONG(0), steps, starts, add)
    for u in range(TOGETHER):
        writer.append_reaching([(rows[u], group, totals[WIDTH * u : WIDTH * (u + 1)])])


def _emit_starts(writer: Writer, group: Any, rows: list[Any]) -> list[Any]:
    """Return the sums' first values: whole biases, or 0."""
    builder, plain = writer.builder, writer.builder.block
    with builder.if_then(builder.icmp_signed("!=", writer.read(SHARES), llvm.LONG(0))):
        biases = [
            writer.whole_biases(builder.add(group, llvm.LONG(g)), row) for row in rows for g in range(WIDTH)
        ]
        biased = builder.block
    starts = [builder.phi(llvm.WORDS) for _ in biases]
    for start, bias in zip(starts, biases, strict=True):
        start.add_incoming(llvm.ZEROS, plain)
        start.add_incoming(bias, biased)
    return starts


_multiply_block = make_instruction(_emit_block)


@compile_job
def count_reached(job: int, groups: int, rows: int) -> None:
    """Append what reaches, as `families.count_reached` does."""
    for group in range(0, groups, WIDTH):
        for row in range(0, rows, TOGETHER):
            _multiply_block(job, group, row)
