"""Vectors rounded to 8-bit whole numbers, with measured errors.

`cutoff` has the equation. Users are rounded for each block; a model's items once, tile by tile, and kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from recbench_spark.core.arrays import Floats, Floats32, Ints, Ints32
from recbench_spark.core.compiling import compile_kernel, readonly
from recbench_spark.ranking.kernels.families import DEPTH, LEVELS, UNSIGNED, Bytes, Packed
from recbench_spark.ranking.kernels.instructions import GROUPS, LANES
from recbench_spark.ranking.kernels.products import Products

_SHARED = 2**22  # numbers from which tiles are shared: rounding them takes more than files

FIRST_TILE, LAST_TILE = 256, 4096
"""Items in the first and last tile: few at first, since the longest items decide most positives."""


class RoundedUsers(NamedTuple):
    """Users as whole numbers, each with its own scale.

    `rows` int8 (u, steps x 4), padded with zeros; `scale` a, `error` |e|, `length` |u| float64 (u,);
    `shift` float64 (u,): the sum of the row times `UNSIGNED`.
    """

    rows: Bytes
    scale: Floats
    error: Floats
    length: Floats
    shift: Floats


class ItemTile(NamedTuple):
    """Items at places [start, stop) as whole numbers with one scale.

    `packed` and `shares` as in `families.count_reached`, padded to whole blocks of groups; `items_t` int32;
    `scale` c, `error` and `length` the largest |e| and |w|, `bias` the largest |b|; `reach` the largest b
    from here on; `shortest` and `longest`: the least and the largest divisor n_i.
    """

    start: int
    items_t: Ints32
    packed: Packed
    shares: Floats32
    scale: float
    error: float
    length: float
    bias: float
    reach: float
    shortest: float
    longest: float


_NUMBERS, _BIAS = ItemTile._fields.index("scale"), ItemTile._fields.index("bias")


@compile_kernel
def round_users(
    vectors_ud: Floats32, length_u: Floats, users_u: Ints, width: int, levels: int
) -> RoundedUsers:
    """Round users' vectors up to `levels`, padded to `width` numbers."""
    count = len(users_u)
    rows = np.zeros((count, width), np.int8)
    scale, error, shift = np.zeros(count), np.zeros(count), np.zeros(count)
    for r in range(count):
        row = vectors_ud[users_u[r]]
        scale[r] = np.float64(_find_largest(row)) / levels
        if scale[r] > 0.0:
            error[r] = round_row(row, 1.0, scale[r], rows[r])
            total = np.int32(0)
            for d in range(width):
                total = np.int32(total + np.int32(rows[r, d]))
            shift[r] = np.float64(total) * UNSIGNED
    return RoundedUsers(rows, scale, error, length_u[users_u], shift)


@compile_kernel
def _find_largest(row: Floats32) -> np.float32:
    """Return the largest |number|: its bits are the largest, too."""
    bits, largest = row.view(np.int32), np.int32(0)
    for d in range(len(row)):
        largest = max(largest, bits[d] & np.int32(0x7FFFFFFF))
    one = np.empty(1, np.int32)
    one[0] = largest
    return np.float32(one.view(np.float32)[0])


def _round_row(row_d: Floats32, divisor: float, scale: float, out_d: Any) -> float:
    """Round row / divisor / scale to whole numbers; return the errors' length."""
    squares, shrink, one = 0.0, np.float64(1.0) / divisor, np.float64(1.0) / (divisor * scale)
    for d in range(len(row_d)):
        whole = np.rint(np.float64(row_d[d]) * one)
        out_d[d] = np.int16(whole)
        rest = np.float64(row_d[d]) * shrink - whole * scale
        squares += rest * rest
    return float(np.sqrt(squares))


round_row = compile_kernel(_round_row, fastmath={"reassoc", "contract"})
"""Function (row, divisor, scale, out): rounds as `_round_row` does."""


@compile_kernel
def _round_items(
    vectors_id: Floats32, divisor_i: Floats, items_t: Ints32, packed: Packed
) -> tuple[float, float]:
    """Write items' numbers, packed; return scale and largest error."""
    dims = vectors_id.shape[1]
    row, largest, error = np.zeros(dims, np.int8), 0.0, 0.0
    for i in items_t:
        largest = max(largest, np.float64(_find_largest(vectors_id[i])) / divisor_i[i])
    scale = largest / LEVELS
    for t in range(len(items_t)):
        i = items_t[t]
        if scale > 0.0:
            error = max(error, round_row(vectors_id[i], divisor_i[i], scale, row))
        group, lane = t // LANES, t % LANES
        for d in range(dims):
            packed[group, d // DEPTH, DEPTH * lane + d % DEPTH] = np.uint8(np.int16(row[d]) + UNSIGNED)
    return scale, error


class RoundedItems:
    """A model's scored items as whole numbers.

    Tiles are made when they are first wanted, and kept; large ones are shared by a host's processes.
    `place_i` int32: each item's place.
    """

    def __init__(self, products: Products, item_tile: int | None) -> None:
        self.products = products
        self.place_i = readonly(products.order.place_i.astype(np.int32))
        self.cuts = list(_cut_tiles(len(products.order.items_t), item_tile))
        self._tiles: list[ItemTile] = []
        self._lock = Lock()
        if products.share and not item_tile and len(products.order.items_t) * products.dims >= _SHARED:
            self._tiles = self._split_arrays(products.share(self._join_tiles))

    @property
    def width(self) -> int:
        """Return how long rows of users are."""
        return -(-self.products.dims // DEPTH) * DEPTH

    @property
    def largest(self) -> int:
        """Return the most items in a tile, padded."""
        return max((_pad(stop - start) for start, stop in self.cuts), default=0)

    def __iter__(self) -> Iterator[ItemTile]:
        """Yield tiles by falling length of items."""
        for n, (start, stop) in enumerate(self.cuts):
            with self._lock:
                if n == len(self._tiles):
                    self._tiles.append(self._make_tile(start, stop))
            yield self._tiles[n]

    def _make_tile(self, start: int, stop: int) -> ItemTile:
        products, order = self.products, self.products.order
        items_t = order.items_t[start:stop].astype(np.int32)
        padded, shape = self._shape(start, stop)
        packed = np.full(shape, UNSIGNED, np.uint8)
        scale, error = _round_items(products.vectors_id, products.divisor_i, items_t, packed)
        bias_t = products.bias_i[items_t]
        bias = float(np.abs(bias_t).max())
        shares = np.zeros(padded if bias else 0, np.float32)
        if bias:
            shares[: len(bias_t)] = bias_t / bias
        length, reach = float(order.length_t[start]), float(order.bias_t[start])
        arrays = readonly(items_t), readonly(packed), readonly(shares)  # as mapped ones are
        ends = [float(end(products.divisor_i[items_t])) for end in (np.min, np.max)]
        return ItemTile(start, *arrays, scale, error, length, bias, reach, *ends)

    def _shape(self, start: int, stop: int) -> tuple[int, tuple[int, int, int]]:
        padded = _pad(stop - start)
        return padded, (padded // LANES, self.width // DEPTH, DEPTH * LANES)

    def _join_tiles(self) -> dict[str, Any]:
        """Return all tiles' arrays, end to end, and their numbers."""
        tiles = list(self)
        return {
            "packed": np.concatenate([tile.packed.ravel() for tile in tiles]),
            "shares": np.concatenate([tile.shares for tile in tiles]),
            "numbers": np.array([tile[_NUMBERS:] for tile in tiles]),
        }

    def _split_arrays(self, arrays: dict[str, Any]) -> list[ItemTile]:
        """Return tiles as parts of the joined arrays."""
        tiles, at, shared = [], 0, 0
        for (start, stop), numbers in zip(self.cuts, arrays["numbers"].tolist(), strict=True):
            padded, shape = self._shape(start, stop)
            end, biased = at + int(np.prod(shape)), padded if numbers[_BIAS - _NUMBERS] else 0
            packed = arrays["packed"][at:end].reshape(shape)
            shares = arrays["shares"][shared : shared + biased]
            items_t = self.products.order.items_t[start:stop].astype(np.int32)
            tiles.append(ItemTile(start, *map(readonly, (items_t, packed, shares)), *numbers))
            at, shared = end, shared + biased
        return tiles


def _pad(items: int) -> int:
    whole = GROUPS * LANES
    return -(-items // whole) * whole


def _cut_tiles(items: int, item_tile: int | None) -> Iterator[tuple[int, int]]:
    """Yield tiles, which grow unless `item_tile` is their size."""
    start, step = 0, item_tile or FIRST_TILE
    while start < items:
        stop = min(start + step, items)
        yield start, stop
        start, step = stop, item_tile or min(2 * step, LAST_TILE)


def round_items(products: Products, item_tile: int | None) -> RoundedItems:
    """Return the model's rounded items, made once."""
    key = str(item_tile)
    if key not in products.item_tiles:
        products.item_tiles[key] = RoundedItems(products, item_tile)
    items: RoundedItems = products.item_tiles[key]
    return items
