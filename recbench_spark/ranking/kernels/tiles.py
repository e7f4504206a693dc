"""One tile, users x items, multiplied, masked and compared."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from recbench_spark.core.arrays import Bools, Floats, Floats32, Ints
from recbench_spark.core.compiling import compile_kernel
from recbench_spark.ranking.kernels.positives import Positives, Tally
from recbench_spark.ranking.kernels.products import (
    Pairing,
    error_bound,
    exact_score,
    exact_scores,
    uncertainty_range,
)
from recbench_spark.ranking.kernels.top import BLOCK, TopCandidates, collect, count_within


class FloatTile(NamedTuple):
    """A tile's first item, largest length and largest |bias|."""

    start: int
    length: float
    bias: float


@compile_kernel
def scan_tile(
    x_ri: Floats32,
    users_r: Ints,
    tile: FloatTile,
    pairing: Pairing,
    plan: Positives,
    scores_s: Floats,
    limits: tuple[int, int],
    progress: tuple[Tally, TopCandidates],
) -> None:
    """Count one tile of float32 products.

    The tile's shape is (users, items from `tile.start`).
    """
    tally, work = progress
    cutoff, top_k = limits
    dims, start = pairing.vectors_ud.shape[1], tile.start
    scores_c = np.empty(x_ri.shape[1])
    for r in range(x_ri.shape[0]):
        u, row = users_r[r], x_ri[r]
        first, last = plan.slot_offsets[u], plan.slot_offsets[u + 1]
        bound = error_bound(pairing.length_u[u], tile.length, tile.bias, dims)
        if bound == np.inf:
            _forget(row, start, pairing.scored_i)
        masked_end = plan.masked_offsets[u + 1]
        work.masked_at[u] = _hide(row, start, plan.masked_items, work.masked_at[u], masked_end)
        if top_k > 0:
            collect(row, start, u, pairing, top_k, work)
        work.slot_at[u] = _hide(row, start, plan.slot_items, work.slot_at[u], last)
        fresh = False
        for s in range(first, last):
            if tally.above[s] >= cutoff:
                continue
            low, high = uncertainty_range(scores_s[s], bound)
            above, not_below = _count_limits(row, low, high)
            if not_below != above:
                if not fresh:
                    scores_c[:], fresh = np.nan, True
                own = scores_s[s], plan.slot_items[s]
                more, tied, before = _resolve_slot(row, scores_c, start, (low, high), own, u, pairing)
                above += more
                tally.tied[s] += tied
                tally.before[s] += before
            tally.above[s] += above


@compile_kernel
def _forget(row: Floats32, start: int, scored_i: Bools) -> None:
    """Set possibly overflowed products to 0; their bound is infinite."""
    for c in range(len(row)):
        row[c] = 0.0 if scored_i[start + c] else np.nan


@compile_kernel
def _hide(row: Floats32, start: int, items: Ints, at: int, last: int) -> int:
    """Remove `items` from the row by NaN.

    NaN is neither above nor below anything.
    """
    while at < last and items[at] < start + len(row):
        row[items[at] - start] = np.nan
        at += 1
    return at


@compile_kernel
def _count_limits(row: Floats32, low: np.float32, high: np.float32) -> tuple[int, int]:
    """Return #{x > high}, #{x >= low}.

    The casts give 32-bit counters, so 16 lanes instead of 8.
    """
    above, not_below = np.int32(0), np.int32(0)
    for c in range(len(row)):
        above = np.int32(above + (row[c] > high))
        not_below = np.int32(not_below + (row[c] >= low))
    return int(above), int(not_below)


@compile_kernel
def _resolve_slot(
    row: Floats32,
    scores_c: Floats,
    start: int,
    limits: tuple[np.float32, np.float32],
    own: tuple[float, int],
    u: int,
    pairing: Pairing,
) -> tuple[int, int, int]:
    """Return above, tied, before among undecided items.

    These items are scored in float64, each once per row.
    """
    low, high = limits
    score, own_item = own
    above, tied, before = 0, 0, 0
    for begin in range(0, len(row), BLOCK):
        block, scored = row[begin : begin + BLOCK], scores_c[begin : begin + BLOCK]
        if count_within(block, low, high) == 0:
            continue
        for c in range(len(block)):
            if block[c] >= low and block[c] <= high:
                item = start + begin + c
                if np.isnan(scored[c]):
                    scored[c] = exact_score(pairing, u, item)
                above += scored[c] > score
                tied += scored[c] == score
                before += scored[c] == score and item < own_item
    return above, tied, before


@compile_kernel
def count_pairs(
    slots_c: Ints, items_c: Ints, pairing: Pairing, plan: Positives, scores_s: Floats, tally: Tally
) -> None:
    """Score and count (slot, item) pairs left undecided by devices.

    Scores are float64.
    """
    scores_c = exact_scores(pairing, plan.slot_users[slots_c], items_c)
    for c in range(len(slots_c)):
        s = slots_c[c]
        tally.above[s] += scores_c[c] > scores_s[s]
        tally.tied[s] += scores_c[c] == scores_s[s]
        tally.before[s] += scores_c[c] == scores_s[s] and items_c[c] < plan.slot_items[s]
