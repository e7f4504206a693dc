"""Cut a checked log of auctions into parts by a hash of the query, with the probabilities of the models.

One process holds the log; each part holds the auctions of its queries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from recbench_spark.data.arrow_rows import as_double, combine_column, encode_ids, find_indices
from recbench_spark.data.readers.auctions import CheckedAuctions
from recbench_spark.errors import DataError
from recbench_spark.kernels.arrays import Bools, Floats, Ints
from recbench_spark.kernels.hashed_ids import hash_ids
from recbench_spark.kernels.simulation.auction_parts import AuctionPart, AuctionRows
from recbench_spark.kernels.simulation.mechanism import NOT_SHOWN, SlotCounts
from recbench_spark.schemas import require_names


@dataclass(frozen=True, eq=False)
class LoggedPart:
    """Auctions of some queries, and the probabilities of each model for their participants, (r,)."""

    auctions: AuctionPart
    probabilities: Mapping[str, Floats]


@dataclass(frozen=True, eq=False)
class AuctionParts:
    """A log in parts.

    Attributes:
        parts: auctions by hash of their query.
        slots: slots of the log in each block.
        largest_bid: the unit of revenue; None: the log has no bids.
        losers: participants that were not shown.
        has_blocks: whether the log says which ads stood on the main line.
    """

    parts: tuple[LoggedPart, ...]
    slots: SlotCounts
    largest_bid: float | None
    losers: int
    has_blocks: bool


def make_parts(log: CheckedAuctions, models: Mapping[str, Floats], count: int) -> AuctionParts:
    """Cut a log into parts.

    Args:
        log: the checked log.
        models: probabilities of each model, (r,) in the order of the log.
        count: number of parts; parts without a query are left out.
    """
    slots, slot_r = _number_slots(log)
    bid_r = np.ones(len(log.click_r)) if log.bid_r is None else log.bid_r
    largest = float(bid_r.max(initial=0.0)) or 1.0
    quality_r = np.ones(len(bid_r)) if log.quality_r is None else log.quality_r
    key_q = hash_ids(log.query_ids).view(np.int64)
    part_r = (key_q.view(np.uint64) % np.uint64(count)).astype(np.int64)[log.query_r]
    parts = []
    for number in np.unique(part_r):
        mine = np.flatnonzero(part_r == number)
        queries, query_r = np.unique(log.query_r[mine], return_inverse=True)
        rows = AuctionRows(
            query_r, log.auction_r[mine], log.ad_r[mine], bid_r[mine], quality_r[mine],
            slot_r[mine].astype(np.int32), log.click_r[mine].astype(np.int32),
        )  # fmt: skip
        part = AuctionPart.from_rows(rows, key_q[queries], len(slots))
        parts.append(LoggedPart(part, {name: values[mine] for name, values in models.items()}))
    losers = int((slot_r == NOT_SHOWN).sum())
    return AuctionParts(
        tuple(parts), slots, None if log.bid_r is None else largest, losers, log.block_r is not None
    )


def _number_slots(log: CheckedAuctions) -> tuple[SlotCounts, Ints]:
    """Return the slots of the log, and the slot of each row: the sidebar comes after the main line."""
    shown = log.position_r > 0
    block_r = np.zeros(len(shown), np.int64) if log.block_r is None else log.block_r
    main, side = (int(log.position_r[shown & (block_r == n)].max(initial=0)) for n in (0, 1))
    slot_r = log.position_r - 1 + np.where(block_r == 1, main, 0)
    return SlotCounts(main, side), np.where(shown, slot_r, NOT_SHOWN)


def select_rows(log: CheckedAuctions, keep: Bools) -> CheckedAuctions:
    """Return the log with some of its rows, whole auctions each."""
    columns: dict[str, Any] = {
        name: None if (values := getattr(log, name)) is None else values[keep]
        for name in (
            "query_r", "auction_r", "ad_r", "time_r", "bid_r", "quality_r", "probability_r", "block_r",
            "position_r", "click_r",
        )
    }  # fmt: skip
    return replace(log, **columns)


def read_later_rows(log: CheckedAuctions, time: int) -> CheckedAuctions:
    """Return the auctions after a time in microseconds; an auction counts by its latest row.

    Raises:
        DataError: the log has no times, or no auction is later.
    """
    if log.time_r is None:
        raise DataError(
            "the log has no event_time, so rows after trained_until cannot be told from others",
            "add the column, or --same-log, which marks the results",
        )
    earlier = np.unique(log.auction_r[log.time_r <= time])
    keep = ~np.isin(log.auction_r, earlier)
    if not keep.any():
        raise DataError(
            "no auction of the log is later than trained_until of every model",
            "replay a later log, or --same-log, which marks the results",
        )
    return select_rows(log, keep)


def match_probabilities(log: CheckedAuctions, table: pa.Table, where: str) -> Floats:
    """Return the probability of each row of the log, (r,), from rows auction_id, ad_id, probability.

    Raises:
        SchemaError: a column is missing. DataError: a participant has no probability or two, or one that
            is outside 0..1.
    """
    require_names(table.column_names, ["auction_id", "ad_id", "probability"], where)
    auction = _find_places(table, "auction_id", log.auction_ids, where)
    ad = _find_places(table, "ad_id", log.ad_ids, where)
    numbers = as_double(combine_column(table.column("probability")), "probability")
    value = numbers.fill_null(np.nan).to_numpy(zero_copy_only=False)
    known = (auction >= 0) & (ad >= 0)
    keys = auction[known] * len(log.ad_ids) + ad[known]
    order = np.argsort(keys, kind="stable")
    keys, value = keys[order], value[known][order]
    if (keys[1:] == keys[:-1]).any():
        place = int(keys[1:][keys[1:] == keys[:-1]][0])
        raise DataError(f"{where}: {_describe(log, place)} stands there twice", "keep one row of each")
    wanted = log.auction_r * len(log.ad_ids) + log.ad_r
    at = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
    missing = (keys[at] != wanted) if len(keys) else np.ones(len(wanted), bool)
    if missing.any():
        place = int(wanted[np.argmax(missing)])
        raise DataError(
            f"{where}: {int(missing.sum()):,} participants of the log have no probability, e.g. "
            f"{_describe(log, place)}",
            "a model scores every participant, also those that were not shown",
        )
    probability: Floats = value[at]
    bad = ~((probability >= 0) & (probability <= 1))
    if bad.any():
        place = int(wanted[np.argmax(bad)])
        raise DataError(
            f"{where}: {int(bad.sum()):,} probabilities are not in 0..1, e.g. of {_describe(log, place)}",
            "probabilities of a click, not scores",
        )
    return probability


def _find_places(table: pa.Table, name: str, known: pa.Array, where: str) -> Ints:
    """Return the place of each id of a table among the log's ids; -1 where the log does not have it."""
    _, coded = encode_ids(table, name, where)
    return find_indices(coded, known)


def _describe(log: CheckedAuctions, place: int) -> str:
    auction, ad = divmod(place, len(log.ad_ids))
    return f"ad {log.ad_ids[ad]} in auction {log.auction_ids[auction]}"
