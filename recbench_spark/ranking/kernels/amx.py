"""8-bit products on AMX: 32 users x 16 items in matrix tiles.

A tile holds 16 rows of 64 bytes. One instruction adds the products of 16 users' and 16 items' 64 numbers to
256 sums, which are stored in a small buffer and compared from there. Linux lets a process use tiles only if
it asks, and each job loads its shape of tiles.
"""

from __future__ import annotations

import ctypes
import platform
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

TOGETHER, WIDTH = 32, 1
"""Users and groups of 16 items multiplied together."""

_USER_TILES, _ITEM_TILE, _SUM_TILES, _LAST_USERS, _LAST_ITEMS = (0, 1), 2, (3, 4), 5, 6
_ROWS, _DEPTH, _COMPARED = 16, 16, 4  # rows in a tile, steps in one, rows compared together
_ARCH_PRCTL, _ASK, _TILE_DATA = 158, 0x1023, 18  # Linux: arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA)


def ask_permission() -> bool:
    """Ask Linux for tiles, and return whether it gives them."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return False
    return int(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ASK, _TILE_DATA)) == 0


def _emit_shapes(writer: Writer, *_: Any) -> None:
    """Load the shapes of tiles: the last ones have the rest of the steps."""
    builder, byte, half = writer.builder, llvm.BYTE, llvm.HALF
    steps, whole = writer.read(STEPS), llvm.LONG(_DEPTH)
    depth = builder.select(builder.icmp_signed("<", steps, whole), steps, whole)
    rest = builder.srem(steps, whole)
    rest = builder.select(builder.icmp_signed("==", rest, llvm.LONG(0)), depth, rest)  # 0 is no shape
    shape = writer.make_room(64)
    for at in range(8):
        writer.store(llvm.LONG(1 if at == 0 else 0), writer.at(shape, llvm.LONG(at), 8))
    rows, full = llvm.LONG(_ROWS), llvm.LONG(64)
    sizes = {_ITEM_TILE: (depth, full), _LAST_USERS: (rows, rest), _LAST_ITEMS: (rest, full)}
    sizes |= dict.fromkeys(_USER_TILES, (rows, depth)) | dict.fromkeys(_SUM_TILES, (rows, full))
    for tile, (height, width) in sizes.items():
        size = width if width is full else builder.mul(width, llvm.LONG(4))
        writer.store(builder.trunc(size, half), builder.add(shape, llvm.LONG(16 + 2 * tile)))
        writer.store(builder.trunc(height, byte), builder.add(shape, llvm.LONG(48 + tile)))
    writer.call("llvm.x86.ldtilecfg", llvm.NOTHING, builder.inttoptr(shape, llvm.POINTER))


def _emit_release(writer: Writer, *_: Any) -> None:
    writer.call("llvm.x86.tilerelease", llvm.NOTHING)


def _move(writer: Writer, name: str, tile: int, address: Any, stride: Any) -> None:
    pointer = writer.builder.inttoptr(address, llvm.POINTER)
    writer.call(f"llvm.x86.{name}64", llvm.NOTHING, llvm.BYTE(tile), pointer, stride)


def _emit_rows(writer: Writer, _: Any, groups: Any, row: Any) -> None:
    """Multiply 32 users by all groups, and compare."""
    builder, steps, room = writer.builder, writer.read(STEPS), writer.make_room(64 * TOGETHER)
    width, depth = builder.mul(steps, llvm.LONG(4)), llvm.LONG(_DEPTH)
    users = [writer.at(writer.read(USERS), writer.at(row, llvm.LONG(at), 1), width) for at in (0, _ROWS)]
    rows = [writer.at(row, llvm.LONG(at), 1) for at in range(TOGETHER)]
    buffer = [writer.at(room, llvm.LONG(at), 64) for at in range(TOGETHER)]
    # Steps beyond whole tiles are multiplied by smaller ones.
    short = builder.icmp_signed("<=", steps, depth)
    whole = builder.select(short, llvm.LONG(1), builder.sdiv(steps, depth))
    rest = builder.icmp_signed(">", steps, builder.mul(whole, depth))
    with writer.loop(groups) as group:
        items = writer.at(writer.read(ITEMS), builder.mul(group, steps), 64)
        _emit_starts(writer, group, rows, buffer)
        with writer.loop(whole) as at:
            _emit_products(writer, users, items, at, (*_USER_TILES, _ITEM_TILE))
        with builder.if_then(rest):
            _emit_products(writer, users, items, whole, (_LAST_USERS, _LAST_USERS, _LAST_ITEMS))
        for tile, first in zip(_SUM_TILES, buffer[::_ROWS], strict=True):
            _move(writer, "tilestored", tile, first, llvm.LONG(64))
        for first in range(0, TOGETHER, _COMPARED):
            last = first + _COMPARED
            sums = [writer.load(llvm.WORDS, address) for address in buffer[first:last]]
            writer.append_reaching(
                [(row, group, [one]) for row, one in zip(rows[first:last], sums, strict=True)]
            )


def _emit_products(writer: Writer, users: list[Any], items: Any, at: Any, tiles: tuple[int, ...]) -> None:
    """Add the products of 64 dimensions, the `at`-th ones."""
    *user_tiles, item_tile = tiles
    width = writer.builder.mul(writer.read(STEPS), llvm.LONG(4))
    _move(writer, "tileloadd", item_tile, writer.at(items, at, 64 * _DEPTH), llvm.LONG(64))
    for user_tile, total, user in zip(user_tiles, _SUM_TILES, users, strict=True):
        _move(writer, "tileloadd", user_tile, writer.at(user, at, 64), width)
        writer.call("llvm.x86.tdpbsud", llvm.NOTHING, *map(llvm.BYTE, (total, user_tile, item_tile)))


def _emit_starts(writer: Writer, group: Any, rows: list[Any], buffer: list[Any]) -> None:
    """Set the sums to whole biases, or to 0."""
    builder = writer.builder
    with builder.if_else(builder.icmp_signed("==", writer.read(SHARES), llvm.LONG(0))) as (plain, biased):
        with plain:
            for tile in _SUM_TILES:
                writer.call("llvm.x86.tilezero", llvm.NOTHING, llvm.BYTE(tile))
        with biased:
            for row, place in zip(rows, buffer, strict=True):
                writer.store(writer.whole_biases(group, row), place)
            for tile, first in zip(_SUM_TILES, buffer[::_ROWS], strict=True):
                _move(writer, "tileloadd", tile, first, llvm.LONG(64))


_load_shapes, _multiply_rows, _release = map(make_instruction, (_emit_shapes, _emit_rows, _emit_release))


@compile_job
def count_reached(job: int, groups: int, rows: int) -> None:
    """Append what reaches, as `families.count_reached` does."""
    _load_shapes(job, 0, 0)
    for row in range(0, rows, TOGETHER):
        _multiply_rows(job, groups, row)
    _release(job, 0, 0)
