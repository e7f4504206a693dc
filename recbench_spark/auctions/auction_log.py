"""Cut a checked auction log into parts, with models' probabilities.

A hash of the query chooses the part. Here one process holds the log; `log_layout` cuts a log whose parts
are files. A pass takes one part at a time: it is a function from a part to whole numbers, which are added
over all parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.auctions.auctions import CheckedAuctions
from recbench_spark.auctions.kernels.auction_parts import AuctionPart, AuctionRows
from recbench_spark.auctions.kernels.mechanism import NOT_SHOWN, SlotCounts
from recbench_spark.auctions.kernels.user_bootstrap import PairShowings
from recbench_spark.core.arrays import Bools, Floats, Ints
from recbench_spark.core.hashed_ids import hash_ids
from recbench_spark.errors import DataError
from recbench_spark.schemas import require_names
from recbench_spark.sources.arrow_rows import as_double, combine_column, encode_ids, find_indices

Sums = tuple[Ints, ...]
"""A part's whole numbers, in any shapes. They are added over all parts, so no order changes a bit."""

LogArrays = tuple[npt.NDArray[Any], ...]
"""Arrays about a log which no model changes: sums, and the position curve."""


@dataclass(frozen=True, eq=False)
class LoggedPart:
    """Some queries' auctions, with each model's probabilities, (r,).

    Attributes:
        auctions: the auctions.
        probabilities: by model, for the participants.
        whole_auctions_q: (q,) each query's auctions in the whole log; 0 if another part counts it.
        read_elsewhere: returns the showings of this part's pairs in other parts, at a
            numbered operating point; None: no query in this part is cut, or the pass shares nothing.
    """

    auctions: AuctionPart
    probabilities: Mapping[str, Floats]
    whole_auctions_q: Ints
    read_elsewhere: Callable[[int], PairShowings] | None = None


PartWork = Callable[[LoggedPart], Sums]
"""A pass: what a part adds."""

CountShowings = Callable[[LoggedPart], Iterable[PairShowings]]
"""First half of a pass that shares showings: those of a part's pairs, point by point."""


@dataclass(frozen=True)
class LogFacts:
    """Facts about the replayed rows for all parts to know.

    Attributes:
        slots: the log's slots in each block.
        largest_bid: the unit of revenue; None: the log has no bids.
        losers: participants that were not shown.
        has_blocks: whether the log says which ads stood on the main line.
        rows: participants.
    """

    slots: SlotCounts
    largest_bid: float | None
    losers: int
    has_blocks: bool
    rows: int

    @classmethod
    def from_log(cls, log: CheckedAuctions) -> LogFacts:
        """Return the facts about a log's rows, or a part's."""
        shown = log.position_r > 0
        block_r = np.zeros(len(shown), np.int64) if log.block_r is None else log.block_r
        main, side = (int(log.position_r[shown & (block_r == n)].max(initial=0)) for n in (0, 1))
        largest = None if log.bid_r is None else float(log.bid_r.max(initial=0.0))
        losers = int((~shown).sum())
        return cls(SlotCounts(main, side), largest, losers, log.block_r is not None, len(shown))

    def __add__(self, other: LogFacts) -> LogFacts:
        """Return the facts about both logs' rows."""
        bids = [bid for bid in (self.largest_bid, other.largest_bid) if bid is not None]
        slots = SlotCounts(max(self.slots.main, other.slots.main), max(self.slots.side, other.slots.side))
        rows = self.rows + other.rows
        return LogFacts(slots, max(bids, default=None), self.losers + other.losers, self.has_blocks, rows)

    @property
    def bid_unit(self) -> float:
        """The largest bid, or 1 if none is above 0."""
        return self.largest_bid or 1.0


class AuctionLogParts(Protocol):
    """A log in parts, in this process or in files."""

    @property
    def facts(self) -> LogFacts:
        """Facts about the replayed rows."""

    @property
    def models(self) -> tuple[str, ...]:
        """Names of models with probabilities in the parts."""

    def add(self, work: PartWork, count_showings: CountShowings | None = None) -> Sums:
        """Return a pass's sums over all parts.

        Args:
            work: the pass.
            count_showings: counts the showings which a query's other parts need before the pass.
        """

    def keep(self, name: str, make: Callable[[], LogArrays]) -> LogArrays:
        """Return arrays about the log, made once if in files.

        The arrays depend on the log and on what `name` says.
        """

    def count_users(self) -> Ints:
        """Return auctions, their squares summed by user, and users, (3,)."""


@dataclass(frozen=True, eq=False)
class AuctionParts:
    """A log in parts, held by this process."""

    parts: tuple[LoggedPart, ...]
    facts: LogFacts

    @property
    def models(self) -> tuple[str, ...]:
        """Names of models with probabilities in the parts."""
        return tuple(self.parts[0].probabilities)

    def add(self, work: PartWork, count_showings: CountShowings | None = None) -> Sums:
        """Return a pass's sums over all parts.

        No query is cut, so nothing is shared.
        """
        del count_showings
        return reduce(add_sums, map(work, self.parts))

    def keep(self, name: str, make: Callable[[], LogArrays]) -> LogArrays:
        """Return new arrays: nothing outlives this process."""
        del name
        return make()

    def count_users(self) -> Ints:
        """Return auctions, squares and users, (3,).

        Counting takes 16 bytes for each user in each part.
        """
        users = [part.auctions.users for part in self.parts]
        return square_auctions(
            np.concatenate([one.key_u for one in users]), np.concatenate([one.auctions_u for one in users])
        )


def square_auctions(keys: Ints, auctions: Ints) -> Ints:
    """Count auctions, their squares summed by user, and users, (3,).

    Args:
        keys: (n,) users; one in several parts is there several times.
        auctions: (n,) auctions by user.
    """
    key_u, place = np.unique(keys, return_inverse=True)
    auctions_u = np.zeros(len(key_u), dtype=np.int64)
    np.add.at(auctions_u, place, auctions)
    return np.array([auctions_u.sum(), (auctions_u * auctions_u).sum(), len(key_u)])


def add_sums(one: Sums, other: Sums) -> Sums:
    """Add two parts' whole numbers."""
    return tuple(a + b for a, b in zip(one, other, strict=True))


def make_parts(log: CheckedAuctions, models: Mapping[str, Floats], count: int) -> AuctionParts:
    """Cut a log into parts.

    Args:
        log: the checked log.
        models: each model's probabilities, (r,) in the log's order.
        count: number of parts to make; parts without a query are left out.
    """
    facts = LogFacts.from_log(log)
    part_q = (hash_ids(log.query_ids) % np.uint64(count)).astype(np.int64)
    part_r = part_q[log.query_r]
    parts = []
    for number in np.unique(part_r):
        mine = part_r == number
        auctions = make_part(select_rows(log, mine), facts)
        chosen = {name: values[mine] for name, values in models.items()}
        parts.append(LoggedPart(auctions, chosen, auctions.auctions_q))
    return AuctionParts(tuple(parts), facts)


def make_part(log: CheckedAuctions, facts: LogFacts) -> AuctionPart:
    """Make one part from all rows of a log.

    Args:
        log: rows of some queries.
        facts: facts about the whole log.
    """
    ones = np.ones(len(log.click_r))
    queries, query_r = np.unique(log.query_r, return_inverse=True)
    rows = AuctionRows(
        query_r, log.auction_r, log.ad_r,
        ones if log.bid_r is None else log.bid_r,
        ones if log.quality_r is None else log.quality_r,
        number_slots(log, facts.slots).astype(np.int32), log.click_r.astype(np.int32),
    )  # fmt: skip
    key_q = hash_ids(log.query_ids.take(pa.array(queries))).view(np.int64)
    part = AuctionPart.from_rows(rows, key_q, len(facts.slots))
    return replace(part, largest_bid=facts.bid_unit, user_key_r=log.user_r)


def number_slots(log: CheckedAuctions, slots: SlotCounts) -> Ints:
    """Return each row's slot, (r,): main line, then sidebar."""
    block_r = 0 if log.block_r is None else log.block_r
    slot_r = log.position_r - 1 + np.where(block_r == 1, slots.main, 0)
    return np.where(log.position_r > 0, slot_r, NOT_SHOWN)


def select_rows(log: CheckedAuctions, keep: Bools) -> CheckedAuctions:
    """Return the log with only some whole auctions."""
    by_row = {name: values for name, values in vars(log).items() if name.endswith("_r")}
    return replace(log, **{name: values[keep] for name, values in by_row.items() if values is not None})


def read_later_rows(log: CheckedAuctions, time: int) -> CheckedAuctions:
    """Return the auctions after a time in microseconds.

    An auction counts by its earliest row.

    Raises:
        DataError: the log has no times, or no auction is later.
    """
    if log.time_r is None:
        raise make_no_time_error()
    keep = mask_later_rows(log, time)
    if not keep.any():
        raise make_no_later_error()
    return select_rows(log, keep)


def mask_later_rows(log: CheckedAuctions, time: int) -> Bools:
    """Mask rows of auctions which are later than a time.

    All rows of such an auction are later.
    """
    assert log.time_r is not None, "the caller looks first"
    earlier = np.unique(log.auction_r[log.time_r <= time])
    return ~np.isin(log.auction_r, earlier)


def make_no_time_error() -> DataError:
    """Return the error for a log without times."""
    return DataError(
        "the log has no event_time, so rows after trained_until cannot be told from others",
        "add the column, or --same-log, which marks the results",
    )


def make_no_later_error() -> DataError:
    """Return the error for a log older than the training."""
    return DataError(
        "no auction of the log is later than trained_until of every model",
        "replay a later log, or --same-log, which marks the results",
    )


Participant = tuple[str, str]
"""Auction and ad, as text."""


@dataclass(frozen=True)
class MatchProblems:
    """Mistakes in a model's table, over some auctions.

    Attributes:
        twice: the first participant with two rows, by auction and ad as text.
        missing: participants without a row; bad: probabilities outside 0..1; each with the first of them.
    """

    twice: Participant | None = None
    missing: tuple[int, Participant | None] = (0, None)
    bad: tuple[int, Participant | None] = (0, None)

    def __add__(self, other: MatchProblems) -> MatchProblems:
        """Return the mistakes over both sides' auctions."""
        both = ((self.missing, other.missing), (self.bad, other.bad))
        sums = ((one[0] + two[0], _find_first(one[1], two[1])) for one, two in both)
        return MatchProblems(_find_first(self.twice, other.twice), *sums)

    def refuse(self, where: str) -> None:
        """Raise DataError if there is a mistake."""
        if self.twice:
            raise DataError(f"{where}: {_describe(self.twice)} stands there twice", "keep one row of each")
        if self.missing[1]:
            raise DataError(
                f"{where}: {self.missing[0]:,} participants of the log have no probability, e.g. "
                f"{_describe(self.missing[1])}",
                "a model scores every participant, also those that were not shown",
            )
        if self.bad[1]:
            raise DataError(
                f"{where}: {self.bad[0]:,} probabilities are not in 0..1, e.g. of {_describe(self.bad[1])}",
                "probabilities of a click, not scores",
            )


def match_probabilities(log: CheckedAuctions, table: pa.Table, where: str) -> Floats:
    """Return the probability of each log row, (r,).

    The table has rows auction_id, ad_id, probability.

    Raises:
        SchemaError: a column is missing. DataError: a participant has no probability or two, or one outside
            0..1.
    """
    require_names(table.column_names, MODEL_COLUMNS, where)
    probability_r, problems = find_probabilities(log, table, where)
    problems.refuse(where)
    return probability_r


MODEL_COLUMNS = ("auction_id", "ad_id", "probability")


def find_probabilities(log: CheckedAuctions, table: pa.Table, where: str) -> tuple[Floats, MatchProblems]:
    """Return each log row's probability, (r,), and all mistakes.

    A missing probability is NaN.
    """
    known_ids = {"auction_id": log.auction_ids, "ad_id": log.ad_ids}
    auction, ad = (find_indices(encode_ids(table, n, where)[1], ids) for n, ids in known_ids.items())
    numbers = as_double(combine_column(table.column("probability")), "probability")
    value = numbers.fill_null(np.nan).to_numpy(zero_copy_only=False)
    known = (auction >= 0) & (ad >= 0)
    keys = auction[known] * len(log.ad_ids) + ad[known]
    order = np.argsort(keys, kind="stable")
    keys, value = keys[order], value[known][order]
    wanted = log.auction_r * len(log.ad_ids) + log.ad_r
    at = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
    missing = (keys[at] != wanted) if len(keys) else np.ones(len(wanted), bool)
    probability_r = np.full(len(wanted), np.nan)
    probability_r[~missing] = value[at[~missing]]
    bad = ~missing & ~((probability_r >= 0) & (probability_r <= 1))
    repeated = keys[1:][keys[1:] == keys[:-1]]
    twice = _name_first(log, repeated[np.isin(repeated, wanted)])
    counted = ((int(rows.sum()), _name_first(log, wanted[rows])) for rows in (missing, bad))
    return probability_r, MatchProblems(twice, *counted)


def _name_first(log: CheckedAuctions, keys: Ints) -> Participant | None:
    """Return the first participant by text: auction, then ad.

    Row order does not matter.
    """
    if not len(keys):
        return None
    auction, ad = np.divmod(keys, len(log.ad_ids))
    auctions = np.unique(auction)
    first = auctions[int(pc.array_sort_indices(log.auction_ids.take(pa.array(auctions)))[0].as_py())]
    ads = log.ad_ids.take(pa.array(np.unique(ad[auction == first])))
    return str(log.auction_ids[first]), str(pc.min(ads))


def _find_first(one: Participant | None, other: Participant | None) -> Participant | None:
    present = [each for each in (one, other) if each]
    # Arrow sorts texts by their bytes.
    return min(present, key=lambda each: tuple(text.encode() for text in each), default=None)


def _describe(participant: Participant) -> str:
    auction, ad = participant
    return f"ad {ad} in auction {auction}"
