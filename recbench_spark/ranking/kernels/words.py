"""Vectors as 16-bit whole numbers, whose products bound scores.

Users and the items in a tile are rounded to 16-bit whole numbers,

    u = a x_u + e_u        w_i = c x_i + e_i        w_i = v_i / n_i

with a and c such that any 64 dimensions of x have a length below 2^15. Their product then fits into 31 bits
by the Cauchy-Schwarz inequality, whatever the vectors are, and is exact on any hardware. With n such parts,
each shifted by r = ceil(log2 n) bits, and g = a c 2^r,

    T = sum of floor(x_u'x_i / 2^r)        a c x_u'x_i = g (T + f),  0 <= f < n
    |u'w_i - a c x_u'x_i| <= |e_u| |w_i| + |a x_u| |e_i| <= |e_u| L + (|u| + |e_u|) e = E

where L and e are the tile's largest |w_i| and |e_i| (triangle and Cauchy-Schwarz inequalities; the errors
are measured, not assumed). Without biases the upper half of T is kept: g becomes 2^16 g, and
f < 1 + n / 2^16. With biases T has 32 bits, is shifted further where a bias has no room beside it, and
round(b_i / g) is added. So

    g T - E <= s < g (T + f) + E

decides where T is at `high` or above, or below `low`, of a score; what lies between is scored in float64 by
the score's definition. The bits of ranks depend on neither processor nor tiles: whole numbers decide only
what the bound has proven.

Source: items by length, and whole numbers bounding a product, as in `cutoff`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from recbench_spark.core.arrays import Floats, Floats32, Ints
from recbench_spark.core.compiling import compile_kernel
from recbench_spark.ranking.kernels.instructions import CHUNK, LANES
from recbench_spark.ranking.kernels.products import Order, Products
from recbench_spark.ranking.kernels.rounding import round_row
from recbench_spark.ranking.kernels.word_loops import BLOCK, Whole, Words, make_aligned, pack

KEPT = 2**28
"""Most bytes of rounded items kept with a model; more are rounded anew for each block of users."""

_DIMS = 2 * CHUNK  # in a part
_LEVELS = 2.0**15 - 8.0  # largest length in a part: rounding adds 4 at most
_MOST_BIAS = 2.0**30 - 8.0  # beside a product below 2^30
TINY = 2.0**-1000
_ROUNDING = 2.0**-50  # of (dims + 16) (|u| L + B): float64 roundings of scores, errors and limits


class TileSize(NamedTuple):
    """A tile's scale c, error e, length L, largest |b|; dimensions, and bits of shift."""

    scale: float
    error: float
    length: float
    bias: float
    dims: int
    bits: int


class WordTile(NamedTuple):
    """Items at places from `start` on, as whole numbers.

    `items_t` int64; `bias_t` float64, (0,) if all are 0; `packed` as in `word_loops`.
    """

    start: int
    items_t: Ints
    bias_t: Floats
    packed: Words
    size: TileSize


class WordRows(NamedTuple):
    """Users' rows as whole numbers, with scale a, error |e_u|."""

    rows: Words
    scale: Floats
    error: Floats


class WordFit(NamedTuple):
    """A user and a tile: g, E, the bound on f; further bits of shift."""

    unit: float
    bound: float
    slack: float
    bits: int


def part_bits(dims: int) -> int:
    """Return r, the bits by which a part's sum is shifted."""
    return (max(1, -(-dims // _DIMS)) - 1).bit_length()


def even_dims(dims: int) -> int:
    """Return the length of rows with whole pairs, at least one."""
    return max(2, dims + dims % 2)


def word_tiles(products: Products, size: int) -> Iterator[WordTile]:
    """Yield tiles of at most `size` items, by falling length.

    They are kept with the items up to `KEPT` bytes.
    """
    made = (make_tile(products, *cut) for cut in cut_tiles(products.order.length_t, size))
    if 2 * len(products.order.items_t) * products.dims > KEPT:
        yield from made
        return
    if size not in products.words:
        products.words[size] = list(made)
    yield from products.words[size]


def cut_tiles(length_t: Floats, size: int) -> Iterator[tuple[int, int]]:
    """Yield the places of tiles, smaller ones where lengths fall fast.

    A long item makes the scale of all in its tile coarse.
    """
    start, items = 0, len(length_t)
    part = size // 8 if size % (8 * BLOCK) == 0 else size
    while start < items:
        count = size
        while count > part and length_t[start] > 2.0 * length_t[min(start + count // 2, items - 1)]:
            count //= 2
        yield start, min(start + count, items)
        start += count


def make_tile(products: Products, start: int, stop: int) -> WordTile:
    """Round and pack the items at places [start, stop)."""
    order: Order = products.order
    items_t = order.items_t[start:stop]
    bias_t = products.bias_i[items_t]
    bias = float(np.abs(bias_t).max())
    groups = -(-len(items_t) // BLOCK) * BLOCK // LANES
    pairs = even_dims(products.dims) // 2
    packed = make_aligned(groups * pairs * 2 * LANES, np.int16).reshape(groups, pairs, 2 * LANES)
    halves = not products.has_biases
    scale, error = _round_items(products.vectors_id, products.divisor_i, items_t, halves, packed)
    size = TileSize(
        scale, error, float(order.length_t[start]), bias, products.dims, part_bits(products.dims)
    )
    return WordTile(start, items_t, bias_t if bias else bias_t[:0], packed, size)


@compile_kernel
def _round_items(
    vectors_id: Floats32, divisor_i: Floats, items_t: Ints, halves: bool, packed: Words
) -> tuple[float, float]:
    """Round and pack items with one scale; return it and the largest error."""
    largest, error = 0.0, 0.0
    for i in items_t:
        largest = max(largest, _longest_part(vectors_id[i]) / divisor_i[i])
    scale, row = largest / _LEVELS, np.zeros(2 * packed.shape[1], np.int16)
    if scale > 0.0:
        for t in range(len(items_t)):
            i = items_t[t]
            error = max(error, round_row(vectors_id[i], divisor_i[i], scale, row))
            pack(row, t, halves, packed)
    return scale, error


@compile_kernel
def round_users(vectors_ud: Floats32, users_r: Ints, rows: int, dims: int) -> WordRows:
    """Round users' vectors, each with its own scale; pad the rows."""
    words, scale, error = np.zeros((rows, dims), np.int16), np.zeros(rows), np.zeros(rows)
    for r in range(len(users_r)):
        row = vectors_ud[users_r[r]]
        scale[r] = _longest_part(row) / _LEVELS
        if scale[r] > 0.0:
            error[r] = round_row(row, 1.0, scale[r], words[r])
    return WordRows(words, scale, error)


def _measure_parts(row_d: Floats32) -> float:
    """Return the largest length among the row's parts."""
    largest = 0.0
    for start in range(0, len(row_d), _DIMS):
        squares = 0.0
        for d in range(start, min(start + _DIMS, len(row_d))):
            squares += np.float64(row_d[d]) * np.float64(row_d[d])
        largest = max(largest, squares)
    return float(np.sqrt(largest))


_longest_part = compile_kernel(_measure_parts, fastmath={"reassoc", "contract"})


@compile_kernel
def fit(own: float, scale: float, error: float, size: TileSize, halves: bool) -> WordFit:
    """Return g, E, f and the further shift for a user with length `own`.

    The errors of bias and further shift are in E and f.
    """
    parts, bits = max(1, -(-size.dims // _DIMS)), 0  # f < parts, also where no part is shifted
    unit, slack = scale * size.scale * 2.0 ** np.ceil(np.log2(parts)), np.float64(parts)
    bound = error * size.length + (own + error) * size.error
    bound += (size.dims + 16) * _ROUNDING * (own * size.length + size.bias)
    if halves:
        unit, slack = unit * 65536.0, 1.0 + slack / 65536.0
    if unit == 0.0:  # all products are 0, on any scale
        unit = max(size.bias / _MOST_BIAS, TINY)
    elif size.bias > _MOST_BIAS * unit:
        more = np.ceil(np.log2(size.bias / _MOST_BIAS / unit))
        bits = 31 if more > 30.0 else int(more)
        unit = size.bias / _MOST_BIAS if more > 30.0 else unit * 2.0**more
        slack += 1.0
    if size.bias > 0.0:
        bound += 2.0 * unit
    return WordFit(unit, bound, slack, bits)


@compile_kernel
def fit_rows(
    found_rt: Whole, users_r: Ints, length_u: Floats, sides: WordRows, size: TileSize, bias_t: Floats
) -> Floats:
    """Add biases to a tile's products; return g, E, f and 1 / g, (rows, 4)."""
    fits, halves, scale_r, error_r = (
        np.empty((len(users_r), 4)),
        found_rt.itemsize == 2,
        sides.scale,
        sides.error,
    )
    for r in range(len(users_r)):
        on = fit(length_u[users_r[r]], scale_r[r], error_r[r], size, halves)
        one = 1.0 / on.unit
        fits[r, 0], fits[r, 1], fits[r, 2], fits[r, 3] = on.unit, on.bound, on.slack, one
        for t in range(len(bias_t)):
            found_rt[r, t] = (found_rt[r, t] >> on.bits) + np.int32(np.rint(bias_t[t] * one))
    return fits


@compile_kernel
def limits(score: float, fit_4: Floats, most: int) -> tuple[int, int]:
    """Return `low` and `high` for a score, within -most and most.

    `fit_4`: g, E, f and 1 / g.
    """
    low = np.floor((score - fit_4[1]) * fit_4[3] - fit_4[2]) + 1.0
    high = np.floor((score + fit_4[1]) * fit_4[3]) + 1.0
    largest = np.float64(most)
    return int(min(max(low, -largest), largest)), int(min(max(high, -largest), largest))
