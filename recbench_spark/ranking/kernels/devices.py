"""Counts on a GPU, equal to those on a CPU.

Any torch device can count; tasks choose theirs here. Products, comparisons and counts run on the device
with the bounds in `counting`. Undecided pairs come back to the CPU, where they are scored in float64 by the
score's definition. So the counts equal those of the CPU, bit for bit. Tests need no GPU: "cpu" is a torch
device too. Up to a cut-off, without lists, a GPU counts by the kernels in `fused`. Copies to the device
overlap with work on it (`memory.prefetch`). Free memory decides how many users are in a block; too large
ones are halved.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch

from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.errors import ConfigError
from recbench_spark.ranking.kernels import counting, cutoff, memory, positives, tiles, top
from recbench_spark.ranking.kernels.counting import CountingSettings, PreparedBlock
from recbench_spark.ranking.kernels.positives import Tally
from recbench_spark.ranking.kernels.products import Products, error_bounds, uncertainty_limits
from recbench_spark.ranking.kernels.tiles import FloatTile

USER_TILE, ITEM_TILE = 4096, 16384
"""Most users and items in one tile on a device: 256 MB of scores."""

_MOST_USERS = 2**20  # at once, if only counts stay on the device

_SPARE = 64  # candidates beyond K: rounding then seldom leaves a list undecided


class RecbenchWarning(UserWarning):
    """Warns about a slower way to the same numbers."""


def choose_device(addresses: Sequence[str]) -> torch.device:
    """Choose a task's device by its GPU addresses.

    `addresses`: assigned to the task by Spark; none: CPU. If CUDA_VISIBLE_DEVICES hides or reorders GPUs,
    torch counts within it: an address in its list becomes the place there, and any other is taken as a
    place.
    """
    if not addresses:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        message = f"Spark gave GPU {addresses[0]} to this task, torch sees none: counting on CPU"
        warnings.warn(message, RecbenchWarning, stacklevel=2)
        return torch.device("cpu")
    return torch.device("cuda", _place(addresses[0], torch.cuda.device_count()))


def _place(address: str, count: int) -> int:
    visible = [one.strip() for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    place = visible.index(address) if address in visible else -1
    place = int(address) if place < 0 and address.isdigit() else place
    if not 0 <= place < count:
        raise ConfigError(
            f"GPU address '{address}' is none of the {count} GPUs that torch sees",
            "compare the discovery script of Spark with CUDA_VISIBLE_DEVICES of the executor",
        )
    return place


def count_products(
    prepared: PreparedBlock, settings: CountingSettings, device: str | torch.device
) -> tuple[Ints, Floats] | None:
    """Count all tiles on `device` into `prepared.tally`.

    Users are in blocks; blocks too large for the device's memory are halved. Returns the first K if `top_k`
    is set.
    """
    users, device = len(prepared.pairing.length_u), torch.device(device)
    tops = _no_lists(users, settings.top_k)
    with counting.plain_products(), torch.inference_mode(), _current(device):
        way = _choose_method(prepared, settings, device, tops)
        step, start = min(users, settings.user_tile or way.step), 0
        while start < users:
            start, full = _count_from(start, step, users, way, device)
            if full:
                step = _halve(step, device)
    return tops if settings.top_k else None


def _halve(step: int, device: torch.device) -> int:
    if step == 1:
        raise torch.OutOfMemoryError(f"{device} has no room for one user beside the items")
    torch.cuda.empty_cache()
    return step // 2


def _current(device: torch.device) -> AbstractContextManager[Any]:
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


class _CountMethod(NamedTuple):
    """Functions to load and count a block of users.

    `users`: how many are in a block.
    """

    make: Callable[[Ints], Any]
    scan: Callable[[Ints, Any], None]
    step: int


def _count_from(
    start: int, step: int, users: int, way: _CountMethod, device: torch.device
) -> tuple[int, bool]:
    """Count blocks from user `start`; return the end.

    Also returns true if memory ran out there.
    """
    blocks = (np.arange(at, min(at + step, users)) for at in range(start, users, step))
    try:
        with closing(memory.prefetch(way.make, blocks, device)) as blocks_made:
            for users_u, block in blocks_made:
                way.scan(users_u, block)
                start = int(users_u[-1]) + 1
    except torch.OutOfMemoryError:
        return start, True
    return start, False


def _choose_method(
    prepared: PreparedBlock, settings: CountingSettings, device: torch.device, tops: tuple[Ints, Floats]
) -> _CountMethod:
    fused = _load_fused(device) if settings.may_reduce and cutoff.fits(prepared) else None
    if fused is not None and prepared.products.dims <= fused.MOST_DIMS:
        items = fused.load_items(prepared.products, device, settings.item_tile)
        if items is not None:
            make = partial(fused.make_block, prepared=prepared, items=items)
            scan = partial(fused.count_block, prepared=prepared, settings=settings, items=items)
            return _CountMethod(make, scan, _step(device, fused.bytes_a_user(prepared), _MOST_USERS))
        _warn(f"the items do not fit into the memory of {device}: they are copied tile by tile")
    make = partial(_make_block, prepared=prepared, device=device)
    scan = partial(_count_block, prepared=prepared, settings=settings, tops=tops)
    tile = settings.item_tile or ITEM_TILE  # products, the same again, and two comparisons
    return _CountMethod(make, scan, _step(device, 10 * tile, USER_TILE))


def _load_fused(device: torch.device) -> ModuleType | None:
    """Return the kernels for this device.

    Without a GPU there are some only if Triton is set to interpret them.
    """
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return None
    try:
        from recbench_spark.ranking.kernels import fused  # noqa: PLC0415
    except ImportError:
        _warn("triton is not installed: ranks up to a cut-off are counted by torch, slower")
        return None
    why = fused.try_kernels(device)
    if why:
        _warn(f"the kernels fail on {device} ({why}): ranks up to a cut-off are counted by torch, slower")
    return None if why else fused


def _warn(message: str) -> None:
    warnings.warn(f"{message}; the numbers are the same", RecbenchWarning, stacklevel=2)


def _step(device: torch.device, bytes_a_user: float, most: int) -> int:
    """Return how many users are counted at once.

    Twice as many are in memory, since the next block is copied meanwhile.
    """
    room = memory.device_room(device)
    return most if room is None else min(most, memory.users_at_once(room, 2 * bytes_a_user))


def _no_lists(users: int, top_k: int) -> tuple[Ints, Floats]:
    return np.full((users, top_k), -1, np.int64), np.full((users, top_k), np.nan)


class _OperandBlock(NamedTuple):
    """A block of users on the device.

    Rows are sorted by falling number of positives.
    """

    users_r: Ints
    operand_rd: torch.Tensor
    slots_n: list[Ints]
    """The n-th positive in each row with at least n: rows 0, 1, ... in order."""
    slot_rows: Ints
    slots: Ints
    masked_rows: Ints
    masked_items: Ints


def _make_block(users_u: Ints, prepared: PreparedBlock, device: torch.device) -> _OperandBlock:
    plan = prepared.plan
    count_u = np.diff(plan.slot_offsets)
    users_r = users_u[np.argsort(-count_u[users_u], kind="stable")]
    most = int(count_u[users_u].max(initial=0))
    slots_n = [plan.slot_offsets[users_r[count_u[users_r] > n]] + n for n in range(most)]
    slot_rows, slots = _entries(users_r, plan.slot_offsets)
    masked_rows, masked = _entries(users_r, plan.masked_offsets)
    vectors_rd = prepared.pairing.vectors_ud[users_r]
    operand_rd = memory.to_device(prepared.products.user_operand(vectors_rd), device)
    masked_items = plan.masked_items[masked]
    return _OperandBlock(users_r, operand_rd, slots_n, slot_rows, slots, masked_rows, masked_items)


def _entries(users_r: Ints, offsets_u: Ints) -> tuple[Ints, Ints]:
    """Return row and place for each of these users' entries."""
    count_r = offsets_u[users_r + 1] - offsets_u[users_r]
    rows = np.repeat(np.arange(len(users_r)), count_r)
    first_r = np.cumsum(count_r) - count_r
    return rows, np.arange(len(rows)) - first_r[rows] + offsets_u[users_r][rows]


def _count_block(
    users_u: Ints,
    block: _OperandBlock,
    prepared: PreparedBlock,
    settings: CountingSettings,
    tops: tuple[Ints, Floats],
) -> None:
    """Count all items for one block; failed blocks leave nothing."""
    device, tally = block.operand_rd.device, positives.make_tally(prepared.plan)
    best = _Best(len(users_u), settings.top_k, device)
    for start, operand_id in _operands(prepared.products, settings.item_tile or ITEM_TILE, device):
        tile = FloatTile(start, *prepared.products.size(start, start + len(operand_id)))
        x_ri = _multiply(block, operand_id, prepared, tile)
        _hide(x_ri, block.masked_rows, block.masked_items, start)
        if settings.top_k:
            best.add(x_ri, start)
        _hide(x_ri, block.slot_rows, prepared.plan.slot_items[block.slots], start)
        for slots_r in block.slots_n:
            _count_tile(x_ri[: len(slots_r)], slots_r, prepared, tile, tally)
    if settings.top_k:
        _finish_lists(block.users_r, best, prepared, settings, tops)
    for total, part in zip(prepared.tally, tally, strict=True):
        np.add(total, part, out=total)


def _operands(products: Products, step: int, device: torch.device) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield each tile's first item and rows.

    The next tile is copied while one is counted.
    """
    items = len(products.scored_i)

    def make(start: int) -> tuple[torch.Tensor]:
        operand_id = products.item_operand(start, min(start + step, items))
        return (memory.to_device(operand_id, device),)

    for start, (operand_id,) in memory.prefetch(make, range(0, items, step), device):
        yield start, operand_id


def _multiply(
    block: _OperandBlock, operand_id: torch.Tensor, prepared: PreparedBlock, tile: FloatTile
) -> torch.Tensor:
    """Return float32 products; rows with possible overflow are 0.

    The bound of such a row is infinite.
    """
    device = block.operand_rd.device
    x_ri = torch.mm(block.operand_rd, operand_id.t())
    bound_r = _bounds(block.users_r, prepared, tile)
    overflow_r = torch.from_numpy(np.isinf(bound_r)).to(device)
    if bool(overflow_r.any()):
        scored_i = prepared.products.scored_i[tile.start : tile.start + len(operand_id)]
        row = np.where(scored_i, np.float32(0), np.float32(np.nan))
        x_ri[overflow_r] = torch.from_numpy(row).to(device)
    return x_ri


def _bounds(users_r: Ints, prepared: PreparedBlock, tile: FloatTile) -> Floats:
    lengths_r = prepared.pairing.length_u[users_r]
    return error_bounds(lengths_r, tile.length, tile.bias, prepared.products.dims)


def _hide(x_ri: torch.Tensor, rows: Ints, items: Ints, start: int) -> None:
    """Set products to NaN, neither above nor below anything."""
    inside = (items >= start) & (items < start + x_ri.shape[1])
    at = torch.from_numpy(rows[inside]), torch.from_numpy(items[inside] - start)
    x_ri[at[0].to(x_ri.device), at[1].to(x_ri.device)] = torch.nan


def _count_tile(
    x_ri: torch.Tensor, slots_r: Ints, prepared: PreparedBlock, tile: FloatTile, tally: Tally
) -> None:
    """Compare each row with one positive.

    Undecided pairs are scored in float64.
    """
    pairing, plan, scores_s = prepared.pairing, prepared.plan, prepared.scores_s
    bound_r = _bounds(plan.slot_users[slots_r], prepared, tile)
    limits = uncertainty_limits(scores_s[slots_r], bound_r)
    low_r, high_r = (torch.from_numpy(one).to(x_ri.device)[:, None] for one in limits)
    above_r, reach_r = (x_ri > high_r).sum(1), (x_ri >= low_r).sum(1)
    tally.above[slots_r] += above_r.cpu().numpy()
    open_rows = torch.nonzero(above_r != reach_r)[:, 0]
    x_oi = x_ri[open_rows]
    pairs = torch.nonzero((x_oi >= low_r[open_rows]) & (x_oi <= high_r[open_rows]))
    slots_c = slots_r[open_rows.cpu().numpy()][pairs[:, 0].cpu().numpy()]
    items_c = pairs[:, 1].cpu().numpy() + tile.start
    tiles.count_pairs(slots_c, items_c, pairing, plan, scores_s, tally)


class _Best:
    """Collects the K + 64 largest products in each row."""

    def __init__(self, rows: int, top_k: int, device: torch.device) -> None:
        self.room = top_k + _SPARE
        self.x_rk = torch.full((rows, self.room), -torch.inf, device=device)
        self.items_rk = torch.full((rows, self.room), -1, dtype=torch.int64, device=device)

    def add(self, x_ri: torch.Tensor, start: int) -> None:
        """Merge a tile; NaN is not a candidate."""
        x_ri = torch.where(torch.isnan(x_ri), -torch.inf, x_ri)
        x_rk, at_rk = torch.topk(x_ri, min(self.room, x_ri.shape[1]), dim=1)
        items_rk = torch.where(torch.isinf(x_rk), -1, at_rk + start)
        both_x, both = torch.cat([self.x_rk, x_rk], 1), torch.cat([self.items_rk, items_rk], 1)
        self.x_rk, at_rk = torch.topk(both_x, self.room, dim=1)
        self.items_rk = torch.gather(both, 1, at_rk)


def _finish_lists(
    users_r: Ints,
    best: _Best,
    prepared: PreparedBlock,
    settings: CountingSettings,
    tops: tuple[Ints, Floats],
) -> None:
    """Sort the candidates exactly.

    Users whose last place stays open after rounding are listed on the CPU.
    """
    everything = FloatTile(0, *prepared.products.size(0, len(prepared.products.scored_i)))
    x_rk = best.x_rk.cpu().numpy()
    kth_r = x_rk[:, settings.top_k - 1].astype(np.float64)
    bound_r = 2.0 * _bounds(users_r, prepared, everything)
    low_r, _ = uncertainty_limits(kth_r, bound_r)
    sure_r = (x_rk[:, -1] == -np.inf) | (x_rk[:, -1] < low_r)
    items_rk, sure_u = best.items_rk.cpu().numpy()[sure_r], users_r[sure_r]
    count_r = np.count_nonzero(items_rk >= 0, axis=1)
    at_rk = np.argsort(items_rk < 0, axis=1, kind="stable")
    items_rk = np.take_along_axis(items_rk, at_rk, axis=1).astype(np.int32)
    lists = top.sort_best(sure_u, prepared.pairing, items_rk, count_r, settings.top_k)
    _put(tops, sure_u, lists)
    _put(tops, users_r[~sure_r], _list_on_cpu(users_r[~sure_r], prepared, settings))


def _put(tops: tuple[Ints, Floats], users_u: Ints, lists: tuple[Ints, Floats] | None) -> None:
    if lists is not None:
        tops[0][users_u], tops[1][users_u] = lists


def _list_on_cpu(
    users_u: Ints, prepared: PreparedBlock, settings: CountingSettings
) -> tuple[Ints, Floats] | None:
    """Make lists alone: with cut-off 0 no positive is compared."""
    if len(users_u) == 0:
        return None
    alone = prepared._replace(tally=positives.make_tally(prepared.plan))
    only_lists = replace(settings, cutoff=0, user_tile=None, item_tile=None)
    return counting.count_products(alone, only_lists, users_u)
