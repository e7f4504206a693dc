"""The same counts on a GPU (or any torch device), and which device a task is to use.

Products, comparisons and counts run on the device with the bounds of `counting`; pairs they leave
undecided come back and are scored in float64 by the function that defines the score, so the counts
are those of the CPU, bit for bit. Needs no GPU to be tested: "cpu" is a torch device too.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from recbench_spark.errors import ConfigError
from recbench_spark.kernels import counting
from recbench_spark.kernels.counting import Floats, Ints, Prepared, Settings, Tally, Tile

USER_TILE, ITEM_TILE = 4096, 16384
"""Scores of one tile on a device: 256 MB."""

_SPARE = 64  # candidates kept beyond K, so that rounding seldom leaves a list undecided


class RecbenchWarning(UserWarning):
    """Something works otherwise than asked for, and the numbers are the same."""


def choose_device(addresses: Sequence[str]) -> torch.device:
    """The device of a task, given the GPU addresses Spark assigned to it (none: CPU).

    Where CUDA_VISIBLE_DEVICES hides or reorders GPUs, torch counts within it: an address listed
    there becomes its place in the list, any other is taken as a place.
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
    prepared: Prepared, settings: Settings, device: str | torch.device
) -> tuple[Ints, Floats] | None:
    """Count all tiles on `device` into `prepared.tally`; returns the first K if asked for.

    Users go in blocks; a block that does not fit into the device's memory is halved.
    """
    users, device = len(prepared.pairing.length_u), torch.device(device)
    step, start = settings.user_tile or USER_TILE, 0
    tops = _no_lists(users, settings.top_k)
    while start < users:
        users_u = np.arange(start, min(start + step, users))
        try:
            with counting.plain_products(), torch.inference_mode():
                _count_block(users_u, prepared, settings, device, tops)
        except torch.OutOfMemoryError:
            if step == 1:
                raise
            step = max(1, step // 2)
            torch.cuda.empty_cache()
            continue
        start += step
    return tops if settings.top_k else None


def _no_lists(users: int, top_k: int) -> tuple[Ints, Floats]:
    return np.full((users, top_k), -1, np.int64), np.full((users, top_k), np.nan)


class _Block(NamedTuple):
    """A block of users on the device; rows run by falling number of positives."""

    users_r: Ints
    operand_rd: torch.Tensor
    slots_n: list[Ints]
    """The n-th positive of each row that has so many: rows 0, 1, ... in order."""
    slot_rows: Ints
    slots: Ints
    masked_rows: Ints
    masked_items: Ints


def _make_block(users_u: Ints, prepared: Prepared, device: torch.device) -> _Block:
    plan = prepared.plan
    count_u = np.diff(plan.slot_offsets)
    users_r = users_u[np.argsort(-count_u[users_u], kind="stable")]
    most = int(count_u[users_u].max(initial=0))
    slots_n = [plan.slot_offsets[users_r[count_u[users_r] > n]] + n for n in range(most)]
    slot_rows, slots = _entries(users_r, plan.slot_offsets)
    masked_rows, masked = _entries(users_r, plan.masked_offsets)
    vectors_rd = prepared.pairing.vectors_ud[users_r]
    operand_rd = torch.from_numpy(prepared.products.user_operand(vectors_rd)).to(device)
    masked_items = plan.masked_items[masked]
    return _Block(users_r, operand_rd, slots_n, slot_rows, slots, masked_rows, masked_items)


def _entries(users_r: Ints, offsets_u: Ints) -> tuple[Ints, Ints]:
    """Row and place of every entry of these users."""
    count_r = offsets_u[users_r + 1] - offsets_u[users_r]
    rows = np.repeat(np.arange(len(users_r)), count_r)
    first_r = np.cumsum(count_r) - count_r
    return rows, np.arange(len(rows)) - first_r[rows] + offsets_u[users_r][rows]


def _count_block(
    users_u: Ints,
    prepared: Prepared,
    settings: Settings,
    device: torch.device,
    tops: tuple[Ints, Floats],
) -> None:
    """All items against one block of users; nothing is kept of a block that breaks off."""
    block, items = _make_block(users_u, prepared, device), len(prepared.products.scored_i)
    tally, best = counting.make_tally(prepared.plan), _Best(len(users_u), settings.top_k, device)
    step = settings.item_tile or ITEM_TILE
    for start in range(0, items, step):
        stop = min(start + step, items)
        tile = Tile(start, *prepared.products.size(start, stop))
        x_ri = _multiply(block, prepared, tile, stop)
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


def _multiply(block: _Block, prepared: Prepared, tile: Tile, stop: int) -> torch.Tensor:
    """float32 products; rows that may have overflowed are 0, with an infinite bound."""
    device = block.operand_rd.device
    operand_id = torch.from_numpy(prepared.products.item_operand(tile.start, stop)).to(device)
    x_ri = torch.mm(block.operand_rd, operand_id.t())
    bound_r = _bounds(block.users_r, prepared, tile)
    overflow_r = torch.from_numpy(np.isinf(bound_r)).to(device)
    if bool(overflow_r.any()):
        scored_i = prepared.products.scored_i[tile.start : stop]
        row = np.where(scored_i, np.float32(0), np.float32(np.nan))
        x_ri[overflow_r] = torch.from_numpy(row).to(device)
    return x_ri


def _bounds(users_r: Ints, prepared: Prepared, tile: Tile) -> Floats:
    lengths_r = prepared.pairing.length_u[users_r]
    return counting.error_bounds(lengths_r, tile.length, tile.bias, prepared.products.dims)


def _hide(x_ri: torch.Tensor, rows: Ints, items: Ints, start: int) -> None:
    """NaN is neither above nor below anything."""
    inside = (items >= start) & (items < start + x_ri.shape[1])
    at = torch.from_numpy(rows[inside]), torch.from_numpy(items[inside] - start)
    x_ri[at[0].to(x_ri.device), at[1].to(x_ri.device)] = torch.nan


def _count_tile(x_ri: torch.Tensor, slots_r: Ints, prepared: Prepared, tile: Tile, tally: Tally) -> None:
    """Compare each row with one positive; undecided pairs are scored in float64."""
    pairing, plan, scores_s = prepared.pairing, prepared.plan, prepared.scores_s
    bound_r = _bounds(plan.slot_users[slots_r], prepared, tile)
    limits = counting.undecided_limits(scores_s[slots_r], bound_r)
    low_r, high_r = (torch.from_numpy(one).to(x_ri.device)[:, None] for one in limits)
    above_r, reach_r = (x_ri > high_r).sum(1), (x_ri >= low_r).sum(1)
    tally.above[slots_r] += above_r.cpu().numpy()
    open_rows = torch.nonzero(above_r != reach_r)[:, 0]
    x_oi = x_ri[open_rows]
    pairs = torch.nonzero((x_oi >= low_r[open_rows]) & (x_oi <= high_r[open_rows]))
    slots_c = slots_r[open_rows.cpu().numpy()][pairs[:, 0].cpu().numpy()]
    items_c = pairs[:, 1].cpu().numpy() + tile.start
    counting.count_pairs(slots_c, items_c, pairing, plan, scores_s, tally)


class _Best:
    """The K + 64 largest products of each row so far."""

    def __init__(self, rows: int, top_k: int, device: torch.device) -> None:
        self.room = top_k + _SPARE
        self.x_rk = torch.full((rows, self.room), -torch.inf, device=device)
        self.items_rk = torch.full((rows, self.room), -1, dtype=torch.int64, device=device)

    def add(self, x_ri: torch.Tensor, start: int) -> None:
        """Merge a tile; NaN is no candidate."""
        x_ri = torch.where(torch.isnan(x_ri), -torch.inf, x_ri)
        x_rk, at_rk = torch.topk(x_ri, min(self.room, x_ri.shape[1]), dim=1)
        items_rk = torch.where(torch.isinf(x_rk), -1, at_rk + start)
        both_x, both = torch.cat([self.x_rk, x_rk], 1), torch.cat([self.items_rk, items_rk], 1)
        self.x_rk, at_rk = torch.topk(both_x, self.room, dim=1)
        self.items_rk = torch.gather(both, 1, at_rk)


def _finish_lists(
    users_r: Ints, best: _Best, prepared: Prepared, settings: Settings, tops: tuple[Ints, Floats]
) -> None:
    """Exact order of the candidates; users whose cut rounding leaves open are listed on the CPU."""
    everything = Tile(0, *prepared.products.size(0, len(prepared.products.scored_i)))
    x_rk = best.x_rk.cpu().numpy()
    kth_r = x_rk[:, settings.top_k - 1].astype(np.float64)
    bound_r = 2.0 * _bounds(users_r, prepared, everything)
    low_r, _ = counting.undecided_limits(kth_r, bound_r)
    sure_r = (x_rk[:, -1] == -np.inf) | (x_rk[:, -1] < low_r)
    items_rk, sure_u = best.items_rk.cpu().numpy()[sure_r], users_r[sure_r]
    count_r = np.count_nonzero(items_rk >= 0, axis=1)
    items_rk = np.sort(np.where(items_rk < 0, np.iinfo(np.int64).max, items_rk), axis=1)
    lists = counting.sort_best(sure_u, prepared.pairing, items_rk, count_r, settings.top_k)
    _put(tops, sure_u, lists)
    _put(tops, users_r[~sure_r], _list_on_cpu(users_r[~sure_r], prepared, settings))


def _put(tops: tuple[Ints, Floats], users_u: Ints, lists: tuple[Ints, Floats] | None) -> None:
    if lists is not None:
        tops[0][users_u], tops[1][users_u] = lists


def _list_on_cpu(users_u: Ints, prepared: Prepared, settings: Settings) -> tuple[Ints, Floats] | None:
    """Lists alone: with a cut-off of 0 no positive is compared."""
    if len(users_u) == 0:
        return None
    alone = prepared._replace(tally=counting.make_tally(prepared.plan))
    only_lists = replace(settings, cutoff=0, user_tile=None, item_tile=None)
    return counting.count_products(alone, only_lists, users_u)
