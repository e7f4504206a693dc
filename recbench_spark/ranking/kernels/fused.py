"""Ranks up to a cut-off, by fused kernels on GPUs.

8-bit products are made on tensor cores and compared where they arise.

The equation and its bounds are those in `ranking.kernels.cutoff`: users and items rounded to 8-bit whole
numbers, products exact in 32 bits on any hardware, E the proven bound for rounding errors. Here a row is
one open positive, not one user. On tensor cores a product costs less than its comparison with one positive,
so it is cheap to multiply a user once for each open positive. Then no row is padded to the user with most
positives, and decided rows leave no holes. Items are in tiles by falling length; for each tile

    1. rows are dropped if K candidates beat them, or if no item from here on can reach them;
    2. a kernel multiplies and counts #{P >= high} and #{P >= low}: it never writes a product to
       memory, only two numbers per row;
    3. products with masked items and with the user's positives are computed again, pair by pair, and
       subtracted from the counts: they are whole numbers, so exactly what was added;
    4. a second kernel writes down the undecided pairs in rows still open. Their number is
       known from the counts, so the buffer has the right size and cannot overflow;
    5. these pairs are scored in float64 in index order: products of float32 are exact in float64, so
       the sums have the bits of `products.exact_score`, with or without fused multiply-add.

All but the four kernels are torch operations on a few values per row. Only integers are added atomically,
so thread order changes nothing. Imported only where a device is used; runs without one under
TRITON_INTERPRET=1.

Source: as `ranking.kernels.cutoff`; counting in a product's epilogue as in T. Dao et al. 2022,
"FlashAttention", section 3.1 (values reduced over columns need not be stored).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl

from recbench_spark.ranking.kernels.counting import (
    CountingSettings,
    PreparedBlock,
    count_products,
    prepare_products,
)
from recbench_spark.ranking.kernels.cutoff import TINY
from recbench_spark.ranking.kernels.families import LEVELS
from recbench_spark.ranking.kernels.memory import to_device, to_host
from recbench_spark.ranking.kernels.positives import ItemLists
from recbench_spark.ranking.kernels.products import Products, make_products

ROWS, ITEMS = 128, 64
"""Rows and items in one program at a time, the fastest on an H200: 32 products and 64 counts per thread."""

WHOLE_DIMS = 256
"""Dimensions up to which a product is one step. Longer vectors take steps, and programs twice the items."""

MOST_DIMS = 2**29 // LEVELS**2
"""Most dimensions: the distance from a product with a bias to a limit must fit into 32 bits."""

FIRST_TILE, LAST_TILE = 4096, 32768
"""Items in the first and last tile: few at first, since the longest items decide most positives.

For each tile the CPU waits for the GPU, so small tiles are slow (docs/measured/gpu.md).
"""

PAIRS_AT_ONCE = 2**22
"""Most undecided or hidden pairs in memory, about 60 bytes each."""

_PROGRAMS = 1024  # enough programs to keep all multiprocessors busy
_PAIRS = 128  # in one program
_WRITE_ROWS, _WRITE_ITEMS = 64, 32  # running sums need room: 100 registers, 33 KB of shared memory
_MOST_BIAS = 2.0**28  # in products, which stay below 2^29
_BEYOND = 2**30  # larger than any product with a bias: both together stay below 2^29 + 2^28
_ROUNDING = 2.0**-19  # of |u| L + |b|: as in `cutoff`, and the same for the bias in float32


@cache
def try_kernels(device: torch.device) -> str:
    """Return why the kernels fail on this device.

    Empty: they work. They are compiled on first use, perhaps for new hardware: they count a small world
    with counts known from the CPU. Checked once per process.
    """
    draws = np.random.default_rng(0)
    products = make_products(draws.integers(-9, 10, (300, 40)).astype(np.float32), np.arange(300) % 5 / 4)
    vectors_ud = draws.integers(-9, 10, (20, 40)).astype(np.float32)
    truth = ItemLists(np.arange(0, 101, 5), draws.integers(0, 300, 100))
    masked = ItemLists(np.arange(0, 201, 10), draws.integers(0, 300, 200))
    settings, users_u = CountingSettings(cutoff=40), np.arange(20)
    here, there = (prepare_products(products, vectors_ud, truth, masked) for _ in range(2))
    count_products(here, settings)
    try:
        items = _put_items(products, device, 128)
        count_block(users_u, make_block(users_u, there, items), there, settings, items)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # compilers and drivers raise anything
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    inside = here.tally.above < 40
    same = np.array_equal(np.minimum(here.tally.above, 40), np.minimum(there.tally.above, 40)) and all(
        np.array_equal(one[inside], other[inside])
        for one, other in zip(here.tally, there.tally, strict=True)
    )
    return "" if same else "counts differ from the CPU's"


# ------------------------------------------------------------------------------------------- kernels


@triton.jit  # type: ignore[untyped-decorator]
def _load_rows(rows_ptr, row_n, d, dims: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return (n, d) matrix rows with `dims` columns."""
    return tl.load(rows_ptr + row_n.to(tl.int64)[:, None] * dims + d[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def _multiply(  # type: ignore[no-untyped-def]
    users_ptr, items_ptr, bias_ptr, user_r, one_r, item_t,
    dims: tl.constexpr, depth: tl.constexpr, rows: tl.constexpr, items: tl.constexpr, biased: tl.constexpr,
):  # fmt: skip
    """Return P from the module's equation, int32 (rows, items)."""
    found_rt = tl.zeros((rows, items), dtype=tl.int32)
    for at in range(0, dims, depth):
        d = at + tl.arange(0, depth)
        users_rd = _load_rows(users_ptr, user_r, d, dims)
        items_td = _load_rows(items_ptr, item_t, d, dims)
        found_rt = tl.dot(users_rd, tl.trans(items_td), found_rt, out_dtype=tl.int32)
    if biased:
        bias_t = tl.load(bias_ptr + item_t)
        found_rt += (bias_t[None, :] * one_r[:, None]).to(tl.int32)
    return found_rt


@triton.jit  # type: ignore[untyped-decorator]
def _load_open(user_ptr, one_ptr, low_ptr, high_ptr, count, rows: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return a program's rows, mask, users, B / (a c), limits."""
    row_r = tl.program_id(0) * rows + tl.arange(0, rows)
    inside_r = row_r < count
    user_r = tl.load(user_ptr + row_r, mask=inside_r, other=0)
    one_r = tl.load(one_ptr + row_r, mask=inside_r, other=0.0)
    low_r = tl.load(low_ptr + row_r, mask=inside_r, other=0)
    high_r = tl.load(high_ptr + row_r, mask=inside_r, other=0)
    return row_r, inside_r, user_r, one_r, low_r, high_r


@triton.jit
def _sign_bits(x_rt):  # type: ignore[no-untyped-def]
    """Return 1 where a whole number is negative, else 0."""
    return (x_rt.to(tl.uint32, bitcast=True) >> 31).to(tl.int32, bitcast=True)


@triton.jit(do_not_specialize=["count", "stop", "span"])  # type: ignore[untyped-decorator]
def _count_kernel(  # type: ignore[no-untyped-def]
    users_ptr, items_ptr, bias_ptr, user_ptr, one_ptr, low_ptr, high_ptr, above_ptr, reached_ptr,
    count, start, stop, span,
    dims: tl.constexpr, depth: tl.constexpr, rows: tl.constexpr, items: tl.constexpr, biased: tl.constexpr,
):  # fmt: skip
    """Count #{P >= high} and #{P >= low} in each row.

    Counts `span` items of the tile [start, stop). The sign bit of P - limit is 1 where P is below: this
    takes a subtraction and a shifted addition, where a comparison costs five instructions. The differences
    fit into 32 bits (`MOST_DIMS`). Sums stay in each thread's registers to the end.
    """
    row_r, inside_r, user_r, one_r, low_r, high_r = _load_open(
        user_ptr, one_ptr, low_ptr, high_ptr, count, rows
    )
    under_high_rt = tl.zeros((rows, items), dtype=tl.int32)
    under_low_rt = tl.zeros((rows, items), dtype=tl.int32)
    begin = start + tl.program_id(1) * span
    end = tl.minimum(begin + span, stop)
    for first in range(begin, end, items):
        item_t = first + tl.arange(0, items)
        found_rt = _multiply(
            users_ptr, items_ptr, bias_ptr, user_r, one_r, item_t, dims, depth, rows, items, biased
        )
        under_high_rt += _sign_bits(found_rt - high_r[:, None])
        under_low_rt += _sign_bits(found_rt - low_r[:, None])
    # Items are padded with zeros to whole blocks: their products are 0.
    length = tl.maximum(end - begin, 0)
    visited = (length + items - 1) // items * items
    pads = visited - length
    above_r = visited - tl.sum(under_high_rt, axis=1) - pads * (high_r <= 0).to(tl.int32)
    reached_r = visited - tl.sum(under_low_rt, axis=1) - pads * (low_r <= 0).to(tl.int32)
    tl.atomic_add(above_ptr + row_r, above_r, mask=inside_r)
    tl.atomic_add(reached_ptr + row_r, reached_r, mask=inside_r)


@triton.jit(do_not_specialize=["count", "stop", "span"])  # type: ignore[untyped-decorator]
def _write_kernel(  # type: ignore[no-untyped-def]
    users_ptr, items_ptr, bias_ptr, user_ptr, one_ptr, low_ptr, high_ptr, next_ptr, found_ptr,
    count, start, stop, span,
    dims: tl.constexpr, depth: tl.constexpr, rows: tl.constexpr, items: tl.constexpr, biased: tl.constexpr,
):  # fmt: skip
    """Write each row's places with low <= P < high.

    Places begin at the row's `next`, in any order.
    """
    row_r, inside_r, user_r, one_r, low_r, high_r = _load_open(
        user_ptr, one_ptr, low_ptr, high_ptr, count, rows
    )
    begin = start + tl.program_id(1) * span
    end = tl.minimum(begin + span, stop)
    for first in range(begin, end, items):
        item_t = first + tl.arange(0, items)
        found_rt = _multiply(
            users_ptr, items_ptr, bias_ptr, user_r, one_r, item_t, dims, depth, rows, items, biased
        )
        within_rt = (found_rt >= low_r[:, None]) & (found_rt < high_r[:, None])
        wanted_rt = (within_rt & (item_t < stop)[None, :] & inside_r[:, None]).to(tl.int32)
        more_r = tl.sum(wanted_rt, axis=1)
        if tl.sum(more_r, axis=0) > 0:
            next_r = tl.atomic_add(next_ptr + row_r, more_r.to(tl.int64), mask=inside_r)
            at_rt = next_r[:, None] + tl.cumsum(wanted_rt, axis=1) - 1
            place_rt = item_t[None, :] + tl.zeros((rows, items), dtype=tl.int32)
            tl.store(found_ptr + at_rt, place_rt, mask=wanted_rt > 0)


@triton.jit(do_not_specialize=["count"])  # type: ignore[untyped-decorator]
def _subtract_hidden_kernel(  # type: ignore[no-untyped-def]
    users_ptr, items_ptr, bias_ptr, user_ptr, one_ptr, low_ptr, high_ptr, above_ptr, reached_ptr,
    row_ptr, place_ptr, count,
    dims: tl.constexpr, depth: tl.constexpr, pairs: tl.constexpr, biased: tl.constexpr,
):  # fmt: skip
    """Subtract pairs (row, place) from the counts by `_count_kernel`."""
    pair_c = tl.program_id(0) * pairs + tl.arange(0, pairs)
    inside_c = pair_c < count
    row_c = tl.load(row_ptr + pair_c, mask=inside_c, other=0)
    place_c = tl.load(place_ptr + pair_c, mask=inside_c, other=0)
    user_c = tl.load(user_ptr + row_c)
    found_c = tl.zeros((pairs,), dtype=tl.int32)
    for at in tl.static_range(0, dims, depth):
        d = at + tl.arange(0, depth)
        users_cd = _load_rows(users_ptr, user_c, d, dims).to(tl.int32)
        items_cd = _load_rows(items_ptr, place_c, d, dims).to(tl.int32)
        found_c += tl.sum(users_cd * items_cd, axis=1)
    if biased:
        found_c += (tl.load(bias_ptr + place_c) * tl.load(one_ptr + row_c)).to(tl.int32)
    above_c = inside_c & (found_c >= tl.load(high_ptr + row_c))
    reached_c = inside_c & (found_c >= tl.load(low_ptr + row_c))
    less_c = tl.full((pairs,), -1, dtype=tl.int32)
    tl.atomic_add(above_ptr + row_c, less_c, mask=above_c)
    tl.atomic_add(reached_ptr + row_c, less_c, mask=reached_c)


@triton.jit(do_not_specialize=["count"])  # type: ignore[untyped-decorator]
def _sum_kernel(  # type: ignore[no-untyped-def]
    users_ptr, items_ptr, user_ptr, item_ptr, sum_ptr, count, dims, pairs: tl.constexpr
):
    """Sum u_d v_d over d for pairs, in index order.

    float64; one thread computes one pair.
    """
    pair_c = tl.program_id(0) * pairs + tl.arange(0, pairs)
    inside_c = pair_c < count
    user_c = tl.load(user_ptr + pair_c, mask=inside_c, other=0).to(tl.int64) * dims
    item_c = tl.load(item_ptr + pair_c, mask=inside_c, other=0).to(tl.int64) * dims
    sum_c = tl.zeros((pairs,), dtype=tl.float64)
    for d in range(0, dims):
        user = tl.load(users_ptr + user_c + d).to(tl.float64)
        sum_c += user * tl.load(items_ptr + item_c + d).to(tl.float64)
    tl.store(sum_ptr + pair_c, sum_c, mask=inside_c)


# ---------------------------------------------------------------------------------- the side of items


class DeviceTile(NamedTuple):
    """Scalars for items at places [start, stop), as in `cutoff`.

    `scale` c, `error` e, `length` L, `bias` the largest |b|; `reach` the largest b from here on.
    """

    start: int
    stop: int
    scale: float
    error: float
    length: float
    bias: float
    reach: float


class DeviceItems(NamedTuple):
    """Items on a device, stored and as whole numbers.

    Places t run by falling length and are padded. `vectors_id` float32; `divisor_i`, `bias_i` float64;
    `items_t` int64, the item at each place, and `place_i` int64, each item's place; `rows_td` int8;
    `share_t` float32, b / B of the item's tile, (0,) without biases.
    """

    vectors_id: torch.Tensor
    divisor_i: torch.Tensor
    bias_i: torch.Tensor
    items_t: torch.Tensor
    place_i: torch.Tensor
    rows_td: torch.Tensor
    share_t: torch.Tensor
    tiles: list[DeviceTile]

    @property
    def depth(self) -> int:
        """Dimensions multiplied at once."""
        return _depth(self.vectors_id.shape[1])

    @property
    def block(self) -> int:
        """Items that a counting program takes at once.

        Tiles have whole blocks.
        """
        return _block_items(self.vectors_id.shape[1])


def load_items(products: Products, device: torch.device, item_tile: int | None) -> DeviceItems | None:
    """Move items to `device`; None if they do not fit.

    The items take 5 bytes per dimension and about 40 per item. They move once, and a failure to fit is
    stored too.
    """
    key = f"{device} {item_tile}"
    if key not in products.on_devices:
        try:
            products.on_devices[key] = _put_items(products, device, item_tile)
        except torch.OutOfMemoryError:
            products.on_devices[key] = None
    items: DeviceItems | None = products.on_devices[key]
    return items


def _put_items(products: Products, device: torch.device, item_tile: int | None) -> DeviceItems:
    order, dims = products.order, products.dims
    vectors_id = torch.empty(products.vectors_id.shape, dtype=torch.float32, device=device)
    for start in range(0, len(vectors_id), LAST_TILE):  # in pieces, since pinned memory is scarce
        cut = slice(start, start + LAST_TILE)
        vectors_id[cut] = to_device(products.vectors_id[cut], device)
    places = len(order.items_t)
    block, depth = _block_items(dims), _depth(dims)
    padded = (-(-places // block) * block, -(-dims // depth) * depth)
    items = DeviceItems(
        vectors_id,
        to_device(products.divisor_i, device),
        to_device(products.bias_i, device),
        to_device(order.items_t, device),
        to_device(order.place_i, device),
        torch.zeros(padded, dtype=torch.int8, device=device),
        torch.zeros(padded[0] if products.bias_i.any() else 0, dtype=torch.float32, device=device),
        [],
    )
    for start, stop in _cuts(places, item_tile, block):
        length, reach = float(order.length_t[start]), float(order.bias_t[start])
        items.tiles.append(_round_tile(items, start, stop, length, reach))
    return items


def _depth(dims: int) -> int:
    """Return a power of 2, as kernels need.

    The tensor cores take 32 bytes at once.
    """
    return 128 if dims > WHOLE_DIMS else int(max(32, 2 ** (dims - 1).bit_length()))


def _block_items(dims: int) -> int:
    return ITEMS if dims <= WHOLE_DIMS else 2 * ITEMS


def _cuts(places: int, item_tile: int | None, block: int) -> Iterator[tuple[int, int]]:
    """Yield tiles in whole item blocks.

    All tiles have one size if `item_tile` is set, else they grow.
    """
    step, start = item_tile or FIRST_TILE, 0
    while start < places:
        stop = min(start + -(-step // block) * block, places)
        yield start, stop
        start, step = stop, step if item_tile else min(2 * step, LAST_TILE)


def _round_tile(items: DeviceItems, start: int, stop: int, length: float, reach: float) -> DeviceTile:
    items_t = items.items_t[start:stop]
    rows_td = items.vectors_id[items_t].to(torch.float64) / items.divisor_i[items_t, None]
    scale = rows_td.abs().max() / LEVELS
    whole_td, error_t = _round_rows(rows_td, scale)
    items.rows_td[start:stop, : rows_td.shape[1]] = whole_td
    bias_t = items.bias_i[items_t]
    bias = float(bias_t.abs().max())
    if bias:
        items.share_t[start:stop] = (bias_t / bias).to(torch.float32)
    return DeviceTile(start, stop, float(scale), float(error_t.max()), length, bias, reach)


def _round_rows(rows_nd: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round float64 rows / scale to int8.

    Returns them, and the length of the rounding errors.
    """
    whole_nd = (rows_nd / torch.where(scale > 0.0, scale, 1.0)).round_().clamp_(-LEVELS, LEVELS)
    rest_nd = rows_nd - whole_nd * scale
    return whole_nd.to(torch.int8), rest_nd.square_().sum(1).sqrt_()


# ----------------------------------------------------------------------------------- a block of users


class DeviceBlock(NamedTuple):
    """Users on a device; s are their positives.

    `vectors_ud` float32, `rows_ud` int8 (padded); `scale_u`, `error_u`, `length_u` float64; `user_s` int64,
    within the block; `score_s` float64; `item_s` int64; `hidden`: user x places + place, for masked items
    and positives, ascending; `tally`: int64 (3, s), above, tied, before.
    """

    vectors_ud: torch.Tensor
    rows_ud: torch.Tensor
    scale_u: torch.Tensor
    error_u: torch.Tensor
    length_u: torch.Tensor
    user_s: torch.Tensor
    score_s: torch.Tensor
    item_s: torch.Tensor
    hidden: torch.Tensor
    tally: torch.Tensor


def bytes_a_user(prepared: PreparedBlock) -> float:
    """Return the approximate bytes a user takes on the device.

    The bytes are the user's vectors, 200 bytes per positive and 60 per hidden item.
    """
    plan, users = prepared.plan, max(1, len(prepared.pairing.length_u))
    hidden = len(plan.masked_items) + len(plan.slot_items)
    return 32 * prepared.products.dims + (200 * len(plan.slot_items) + 60 * hidden) / users


def make_block(
    users_u: np.typing.NDArray[np.int64], prepared: PreparedBlock, items: DeviceItems
) -> DeviceBlock:
    """Copy consecutive users and lists; round their vectors there."""
    plan, pairing, device = prepared.plan, prepared.pairing, items.rows_td.device
    cut = slice(users_u[0], users_u[-1] + 1)
    slots = _entries(cut, plan.slot_offsets)
    vectors_ud = to_device(pairing.vectors_ud[cut], device)
    rows_ud = torch.zeros((len(vectors_ud), items.rows_td.shape[1]), dtype=torch.int8, device=device)
    wide_ud = vectors_ud.to(torch.float64)
    scale_u = wide_ud.abs().amax(1) / LEVELS
    whole_ud, error_u = _round_rows(wide_ud, scale_u[:, None])
    rows_ud[:, : wide_ud.shape[1]] = whole_ud
    return DeviceBlock(
        vectors_ud,
        rows_ud,
        scale_u,
        error_u,
        to_device(pairing.length_u[cut], device),
        to_device(plan.slot_users[slots] - cut.start, device),
        to_device(prepared.scores_s[slots], device),
        to_device(plan.slot_items[slots], device),
        _find_hidden(cut, prepared, items),
        to_device(np.stack([one[slots] for one in prepared.tally]), device),
    )


def _entries(cut: slice, offsets_u: np.typing.NDArray[np.int64]) -> slice:
    """Return the entries for consecutive users."""
    return slice(offsets_u[cut.start], offsets_u[cut.stop])


def _find_hidden(cut: slice, prepared: PreparedBlock, items: DeviceItems) -> torch.Tensor:
    plan, device, keys = prepared.plan, items.place_i.device, []
    for offsets_u, ids in ((plan.masked_offsets, plan.masked_items), (plan.slot_offsets, plan.slot_items)):
        count_u = to_device(np.diff(offsets_u[cut.start : cut.stop + 1]), device)
        item_c = to_device(ids[_entries(cut, offsets_u)], device)
        user_c = torch.repeat_interleave(count_u, output_size=len(item_c))
        keys.append(user_c * len(items.items_t) + items.place_i[item_c])
    return torch.cat(keys).sort().values


def count_block(
    users_u: np.typing.NDArray[np.int64],
    block: DeviceBlock,
    prepared: PreparedBlock,
    settings: CountingSettings,
    items: DeviceItems,
) -> None:
    """Count all items for one block; failed blocks leave nothing."""
    assert settings.cutoff is not None
    above_s = block.tally[0]
    slot_r = torch.arange(len(above_s), device=above_s.device)
    for tile in items.tiles:
        within_r = block.score_s[slot_r] <= _reach(slot_r, block, tile)
        slot_r = slot_r[(above_s[slot_r] < settings.cutoff) & within_r]
        if not len(slot_r):
            break
        rows = _make_rows(slot_r, block, tile)
        above_r, reached_r = _count_tile(rows, block, items, tile)
        raw_r = reached_r - above_r
        _subtract_hidden(rows, above_r, reached_r, block, items, tile=tile)
        above_s.index_add_(0, slot_r, above_r.to(torch.int64))
        owed_r = torch.nonzero((above_s[slot_r] < settings.cutoff) & (reached_r > above_r))[:, 0]
        for part in _portions(raw_r[owed_r]):
            _settle(rows.take(owed_r[part]), raw_r[owed_r[part]], block, items, tile)
    cut = _entries(slice(users_u[0], users_u[-1] + 1), prepared.plan.slot_offsets)
    for total, counts in zip(prepared.tally, to_host(block.tally), strict=True):
        total[cut] = counts


def _reach(slot_r: torch.Tensor, block: DeviceBlock, tile: DeviceTile) -> torch.Tensor:
    """Return the highest score possible from this tile on."""
    size_r = block.length_u[block.user_s[slot_r]] * tile.length
    return size_r + tile.reach + _ROUNDING * (size_r + abs(tile.reach))


class _Rows(NamedTuple):
    """Open positives against a tile, with thresholds for P.

    `slot_r`, `user_r` int64; `low_r`, `high_r` int32; `one_r` float32, the tile's largest bias in units of
    P.
    """

    slot_r: torch.Tensor
    user_r: torch.Tensor
    low_r: torch.Tensor
    high_r: torch.Tensor
    one_r: torch.Tensor

    def take(self, at: torch.Tensor) -> _Rows:
        """Return a selection of rows."""
        return _Rows(*(part[at] for part in self))


def _make_rows(slot_r: torch.Tensor, block: DeviceBlock, tile: DeviceTile) -> _Rows:
    """Make the rows' limits, in whole units.

    P from `high` on is certainly above the score, P below `low` below it.
    """
    user_r, score_r = block.user_s[slot_r], block.score_s[slot_r]
    own_r, error_r = block.length_u[user_r], block.error_u[user_r]
    scale_r = block.scale_u[user_r] * tile.scale
    # If all products are 0, any scale is valid.
    scale_r = torch.where(scale_r > 0.0, scale_r, max(tile.bias / _MOST_BIAS, TINY))
    bound_r = error_r * tile.length + (own_r + error_r) * tile.error + scale_r
    bound_r = bound_r + _ROUNDING * (own_r * tile.length + tile.bias)
    one_r = tile.bias / scale_r
    sure_r = (one_r <= _MOST_BIAS) & (bound_r < torch.inf)
    low_r = torch.floor((score_r - bound_r) / scale_r) - 1.0
    high_r = torch.floor((score_r + bound_r) / scale_r) + 2.0
    return _Rows(
        slot_r,
        user_r,
        _whole(torch.where(sure_r, low_r, -_BEYOND)),
        _whole(torch.where(sure_r, high_r, _BEYOND)),
        torch.where(sure_r, one_r, 0.0).to(torch.float32),
    )


def _whole(limit_r: torch.Tensor) -> torch.Tensor:
    return limit_r.clamp(-_BEYOND, _BEYOND).to(torch.int32)


def _sides(rows: _Rows, block: DeviceBlock, items: DeviceItems) -> tuple[torch.Tensor, ...]:
    """Return the first arguments of every kernel."""
    return (block.rows_ud, items.rows_td, items.share_t, rows.user_r, rows.one_r, rows.low_r, rows.high_r)


def _shape(items: DeviceItems) -> dict[str, Any]:
    return {"dims": items.rows_td.shape[1], "depth": items.depth, "biased": len(items.share_t) > 0}


def _grid(count: int, tile: DeviceTile, rows: int, items: int) -> tuple[tuple[int, int], int]:
    """Return the program grid, and each part's items.

    Programs run over rows, and over parts of the tile if rows are few.
    """
    over_rows, blocks = -(-count // rows), -(-(tile.stop - tile.start) // items)
    span = -(-blocks // min(blocks, max(1, _PROGRAMS // over_rows)))
    return (over_rows, -(-blocks // span)), span * items


def _count_tile(
    rows: _Rows, block: DeviceBlock, items: DeviceItems, tile: DeviceTile
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return #{P >= high}, #{P >= low} per row, with hidden items."""
    above_r, reached_r = torch.zeros_like(rows.low_r), torch.zeros_like(rows.low_r)
    grid, span = _grid(len(above_r), tile, ROWS, items.block)
    sides, counts = _sides(rows, block, items), (above_r, reached_r)
    cut = len(above_r), tile.start, tile.stop, span
    size = {"rows": ROWS, "items": items.block, "num_warps": 8}
    _count_kernel[grid](*sides, *counts, *cut, **_shape(items), **size)
    return above_r, reached_r


def _subtract_hidden(
    rows: _Rows,
    above_r: torch.Tensor,
    reached_r: torch.Tensor,
    block: DeviceBlock,
    items: DeviceItems,
    *,
    tile: DeviceTile,
) -> None:
    """Subtract the hidden items from the counts."""
    first_r = rows.user_r * len(items.items_t)
    begin_r = torch.searchsorted(block.hidden, first_r + tile.start)
    count_r = torch.searchsorted(block.hidden, first_r + tile.stop) - begin_r
    for part in _portions(count_r):
        row_c, at_c = _spread(count_r[part], begin_r[part])
        if not len(row_c):
            continue
        row_c += part.start
        place_c = block.hidden[at_c] - first_r[row_c]
        grid = (-(-len(row_c) // _PAIRS),)
        pairs = above_r, reached_r, row_c, place_c, len(row_c)
        _subtract_hidden_kernel[grid](*_sides(rows, block, items), *pairs, **_shape(items), pairs=_PAIRS)


def _spread(count_r: torch.Tensor, begin_r: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return row and place for entries of consecutive lists.

    A list begins at its `begin_r` and has `count_r` entries.
    """
    row_c = torch.repeat_interleave(count_r)
    first_r = count_r.cumsum(0) - count_r
    return row_c, torch.arange(len(row_c), device=row_c.device) + (begin_r - first_r)[row_c]


def _portions(count_r: torch.Tensor) -> Iterator[slice]:
    """Yield consecutive rows with at most `PAIRS_AT_ONCE` pairs."""
    if not len(count_r):
        return
    end_r = count_r.cumsum(0, dtype=torch.int64).cpu().numpy()
    start, before = 0, 0
    while start < len(end_r):
        stop = max(start + 1, int(np.searchsorted(end_r, before + PAIRS_AT_ONCE, "right")))
        yield slice(start, stop)
        start, before = stop, int(end_r[stop - 1])


def _settle(
    rows: _Rows, count_r: torch.Tensor, block: DeviceBlock, items: DeviceItems, tile: DeviceTile
) -> None:
    """Score and count the undecided pairs in these rows.

    `count_r`: their number in each row, hidden ones included.
    """
    row_c = torch.repeat_interleave(count_r.to(torch.int64))
    place_c = _find_undecided(rows, count_r, len(row_c), block, items, tile=tile)
    known_c = _is_hidden(rows.user_r[row_c] * len(items.items_t) + place_c, block.hidden)
    row_c, place_c = row_c[~known_c], place_c[~known_c]
    slot_c, item_c = rows.slot_r[row_c], items.items_t[place_c]
    score_c, own_c = _scores(rows.user_r[row_c], item_c, block, items), block.score_s[slot_c]
    tied_c = score_c == own_c
    above, tied, before = block.tally
    above.index_add_(0, slot_c, (score_c > own_c).to(torch.int64))
    tied.index_add_(0, slot_c, tied_c.to(torch.int64))
    before.index_add_(0, slot_c, (tied_c & (item_c < block.item_s[slot_c])).to(torch.int64))


def _find_undecided(
    rows: _Rows,
    count_r: torch.Tensor,
    total: int,
    block: DeviceBlock,
    items: DeviceItems,
    *,
    tile: DeviceTile,
) -> torch.Tensor:
    """Return the places with undecided pairs, row after row."""
    next_r = count_r.cumsum(0, dtype=torch.int64) - count_r
    place_c = torch.empty(total, dtype=torch.int32, device=count_r.device)
    grid, span = _grid(len(count_r), tile, _WRITE_ROWS, _WRITE_ITEMS)
    sides, cut = _sides(rows, block, items), (len(count_r), tile.start, tile.stop, span)
    size = {"rows": _WRITE_ROWS, "items": _WRITE_ITEMS, "num_stages": 2}
    _write_kernel[grid](*sides, next_r, place_c, *cut, **_shape(items), **size)
    return place_c.to(torch.int64)


def _is_hidden(key_c: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """Mark hidden keys.

    Rows have positives, and these are hidden, so `hidden` is never empty.
    """
    at_c = torch.searchsorted(hidden, key_c).clamp_(max=len(hidden) - 1)
    return hidden[at_c] == key_c


def _scores(
    user_c: torch.Tensor, item_c: torch.Tensor, block: DeviceBlock, items: DeviceItems
) -> torch.Tensor:
    """Score pairs as `products.exact_score` does.

    Division and addition round once each (IEEE 754).
    """
    sum_c = torch.empty(len(user_c), dtype=torch.float64, device=user_c.device)
    if len(user_c):
        sides = block.vectors_ud, items.vectors_id, user_c, item_c
        dims = items.vectors_id.shape[1]
        _sum_kernel[(-(-len(user_c) // _PAIRS),)](*sides, sum_c, len(user_c), dims, pairs=_PAIRS)
    return sum_c / items.divisor_i[item_c] + items.bias_i[item_c]
