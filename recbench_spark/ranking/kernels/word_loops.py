"""Products of 16-bit whole numbers, and a search among them.

The products' sums stay in registers, which numba's own loops cannot ask for. So both loops are written in
LLVM's vector language (`word_instructions`). It names no processor's instructions: LLVM makes them
(vpdpwssd, vpmaddwd, smlal) from what the processor has, and numba's cache has these features in its
key. Beside each stands the loop in plain Python: it has the same results and serves where numba is missing.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from recbench_spark.core.arrays import Floats, Floats32, Ints32
from recbench_spark.core.compiling import compile_kernel
from recbench_spark.ranking.kernels.instructions import CHUNK, GROUPS, LANES, ROWS, SIDES

Words = npt.NDArray[np.int16]
Whole: TypeAlias = npt.NDArray[np.int16] | npt.NDArray[np.int32]

BLOCK = LANES * GROUPS
"""Products compared together."""


def make_aligned(count: int, kind: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return zeros that begin with a cache line: no vector lies in two."""
    size = np.dtype(kind).itemsize
    room = np.zeros(count * size + 64, np.uint8)
    first = -room.ctypes.data % 64
    return room[first : first + count * size].view(kind)


def multiply_plain(packed: Words, rows_rd: Words, shift: int, out_rt: Whole) -> None:
    """Write products as `multiply`."""
    halves = out_rt.dtype == np.int16
    items_td = unpack(packed, halves)
    total_rt = np.zeros(out_rt.shape, np.int64)
    for at in range(0, rows_rd.shape[1], 2 * CHUNK):
        part_rd, part_td = (rows[:, at : at + 2 * CHUNK].astype(np.float64) for rows in (rows_rd, items_td))
        total_rt += (part_rd @ part_td.T).astype(np.int64) >> shift
    out_rt[:] = total_rt >> 16 if halves else total_rt


def scan_plain(rows_rt: Whole, r: int, low: int, high: int, *out: Any) -> tuple[int, int]:
    """Count and find as `scan`."""
    places, at = out
    within = np.flatnonzero((rows_rt[r] >= low) & (rows_rt[r] < high))
    places[at : at + len(within)] = within
    return int(np.count_nonzero(rows_rt[r] >= high)), at + len(within)


def add_plain(user_d: Floats, rows_nd: Floats32, items: Ints32, sums: Floats) -> None:
    """Write exact sums as `add_in_order`."""
    for n in range(len(items)):
        total = 0.0
        for user, item in zip(user_d, rows_nd[items[n]], strict=True):
            total += user * np.float64(item)
        sums[n] = total


def fetch_plain(rows_nd: Floats32, item: int) -> None:
    """Do nothing where `fetch` asks the cache for a row."""


try:
    from recbench_spark.ranking.kernels.word_instructions import (
        fetch_row,
        multiply_block,
        scan_row,
        sum_block,
    )
except ImportError:  # without numba
    multiply, scan, add_in_order, fetch = multiply_plain, scan_plain, add_plain, fetch_plain
else:

    @compile_kernel
    def multiply(packed: Words, rows_rd: Words, shift: int, out_rt: Whole) -> None:
        """Multiply all rows by all items.

        The sums of `CHUNK` pairs of dimensions are shifted by `shift` bits, then added; 16-bit products are
        the upper halves.

        Args:
            packed: int16 (groups, pairs, 2 LANES), GROUPS or a multiple.
            rows_rd: int16, ROWS rows or a multiple.
            shift: bits.
            out_rt: int16 or int32 (rows, items), overwritten.
        """
        for group in range(0, packed.shape[0], GROUPS):
            for row in range(0, rows_rd.shape[0], ROWS):
                multiply_block(packed, rows_rd, out_rt, group, row, np.int32(shift))

    @compile_kernel
    def scan(
        rows_rt: Whole, r: int, low: int, high: int, places: npt.NDArray[np.int32], at: int
    ) -> tuple[int, int]:
        """Return #{x >= high} in a row, and where the written places end.

        Args:
            rows_rt: products, BLOCK in a row or a multiple.
            r: the row.
            low, high: places with low <= x < high are written, rising.
            places: int32, with room for a row and LANES more from `at` on.
        """
        above, end = scan_row(rows_rt, r, low, high, places, at)
        return above, end

    @compile_kernel
    def add_in_order(user_d: Floats, rows_nd: Floats32, items: Ints32, sums: Floats) -> None:
        """Write a user's products with some rows, added in index order.

        Args:
            user_d: the user's numbers.
            rows_nd: all rows.
            items: int32, which of them, SIDES or a multiple.
            sums: overwritten.
        """
        for at in range(0, len(items), SIDES):
            sum_block(user_d, rows_nd, items, sums, at)

    @compile_kernel
    def fetch(rows_nd: Floats32, item: int) -> None:
        """Ask the cache for a row that will be read soon."""
        fetch_row(rows_nd, item)


@compile_kernel
def pack(row_d: Words, t: int, halves: bool, packed: Words) -> None:
    """Put item t's row into `packed`, (groups, pairs, 2 LANES).

    For upper halves an even item's group stands before an odd item's: two products share 32 bits.
    """
    group, lane = t // LANES, t % LANES
    if halves:
        group, lane = t // (2 * LANES) * 2 + t % 2, t % (2 * LANES) // 2
    for d in range(len(row_d)):
        packed[group, d // 2, 2 * lane + d % 2] = row_d[d]


def unpack(packed: Words, halves: bool) -> Words:
    """Return the items' rows, (items, dims), from packed ones."""
    groups, pairs, _ = packed.shape
    rows = packed.reshape(groups // 2, 2, pairs, LANES, 2).transpose(0, 1, 3, 2, 4)
    rows = rows.swapaxes(1, 2) if halves else rows
    return np.asarray(rows.reshape(groups * LANES, 2 * pairs))
