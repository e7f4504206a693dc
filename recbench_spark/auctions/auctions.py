"""Read auction logs: one row per participant, shown or not.

Everything is checked before anything is computed. One process reads the whole log, about 100 bytes for each
row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from recbench_spark.auctions.auction_values import (
    ID_COLUMNS,
    ConvertedRows,
    RowRules,
    convert_rows,
    pack_ids,
    read_ids,
)
from recbench_spark.auctions.settings import AUCTION_COLUMNS, AuctionLog
from recbench_spark.core.arrays import Bools, Floats, Ints
from recbench_spark.errors import DataError, FallbackToSpark
from recbench_spark.schemas import require_names
from recbench_spark.sources import arrow_files
from recbench_spark.sources.text_layouts import TEXT_NOTES

REQUIRED = ("auction_id", "query_id", "ad_id", "position", "clicked")
SHOWN_REJECTS = 100_000
"""Most rows kept in `rejects`; the number of all is reported."""


@dataclass(frozen=True, eq=False)
class CheckedAuctions:
    """A log as arrays, (r,), by query, auction and ad.

    Attributes:
        query_ids, auction_ids, ad_ids: distinct ids as text; ad ids in the order that decides ties.
        query_r, auction_r, ad_r: places in them.
        time_r: microseconds since 1970 UTC; None: the log has no times.
        bid_r, quality_r, probability_r: None if the log has no such column.
        block_r: 0 main line, 1 sidebar; None if the log has no blocks.
        position_r: from 1; 0: not shown.
        click_r: 0 or 1.
        user_r: the user's hash, -1 if it is missing; None: the log has no users.
        rejects: rows left out, as JSON, each with the reason.
        left_out: rows in the auctions left out.
    """

    query_ids: pa.Array
    auction_ids: pa.Array
    ad_ids: pa.Array
    query_r: Ints
    auction_r: Ints
    ad_r: Ints
    time_r: Ints | None
    bid_r: Floats | None
    quality_r: Floats | None
    probability_r: Floats | None
    block_r: Ints | None
    position_r: Ints
    click_r: Ints
    rejects: tuple[tuple[str, str], ...] = ()
    left_out: int = 0
    user_r: Ints | None = None


def read_auctions(settings: AuctionLog) -> CheckedAuctions:
    """Read and check the log which the settings name.

    Raises:
        ConfigError, SchemaError, MissingError: the table or a column is not there.
        DataError: rows cannot be used; the message has their number and an example.
    """
    path = settings.path or ""
    return check_auctions(read_local_table(path, "log"), settings, f"log {path}")


def read_local_table(path: str, what: str) -> pa.Table:
    """Read a table on this machine as it is stored.

    Raises:
        DataError: the table has lines with another layout, or only Spark's readers read it.
    """
    try:
        stored = arrow_files.open_path(path)
    except FallbackToSpark as error:
        raise make_reach_error(f"{what} {path}", error) from None
    stored.refuse_lines(f"{what} {path}")
    if not stored.line:
        return stored.table
    fields = [pa.field(one.name, one.type, metadata=TEXT_NOTES) for one in stored.table.schema]
    return stored.table.cast(pa.schema(fields))


def make_reach_error(where: str, error: FallbackToSpark) -> DataError:
    """Return the error for a table which only Spark reads."""
    return DataError(f"{where}: {error.message}", "a replay reads Parquet, Delta and CSV of this machine")


def check_auctions(table: pa.Table, settings: AuctionLog, where: str) -> CheckedAuctions:
    """Check a table as `read_auctions` does."""
    rows = select_columns(table, settings, where)
    if not rows.num_rows:
        raise DataError(f"{where}: no rows", "check the path")
    converted = convert_rows(rows, RowRules(settings.time_unit), where)
    bad, good = find_bad_rows(rows, converted, most=count_shown_rejects(settings))
    bad.refuse(settings, where)
    return sort_rows(converted, good, bad.list_rejects())


def count_shown_rejects(settings: AuctionLog) -> int:
    """Return the most rows to keep in `rejects`."""
    return SHOWN_REJECTS if settings.bad_rows == "reject" else 0


def select_columns(table: pa.Table, settings: AuctionLog, where: str) -> pa.Table:
    """Return a log's columns under our names.

    Raises:
        SchemaError: a column is missing.
    """
    wanted = name_columns(table.column_names, settings, where)
    return pa.table({name: table.column(own) for name, own in wanted.items()})


def name_columns(names: Sequence[str], settings: AuctionLog, where: str) -> dict[str, str]:
    """Return our name -> the file's name, for present columns.

    Errors are those of `select_columns`.
    """
    wanted = {name: settings.columns.get(name, name) for name in AUCTION_COLUMNS}
    needed = [wanted[name] for name in AUCTION_COLUMNS if name in REQUIRED or name in settings.columns]
    require_names(names, needed, where)
    return {name: own for name, own in wanted.items() if own in names}


def _find_row_problems(converted: ConvertedRows) -> dict[str, Bools]:
    """Mask mistakes which a row shows by itself."""
    columns = converted.columns
    problems = {f"{name} is missing": place < 0 for name, (_, place) in converted.ids.items()}
    shown = ~columns["no_position"].astype(bool)
    position, clicked = columns["position"], columns["clicked"]
    for name in ("bid", "quality"):
        if name in columns:
            good = np.isfinite(columns[name]) & (columns[name] >= 0)
            problems[f"{name} is not a number from 0 on"] = ~good
    if "probability" in columns:
        inside = (columns["probability"] >= 0) & (columns["probability"] <= 1)
        problems["probability is not in 0..1"] = ~inside
    problems["position is not a whole number from 1 to 999"] = shown & ~_is_position(position)
    problems["clicked is not 0 or 1"] = ~np.isin(clicked, (0.0, 1.0))
    problems["a click on an ad that was not shown"] = (clicked == 1) & ~shown
    if "block" in columns:
        problems["block of an ad that was shown is not main or side"] = shown & (columns["block"] < 0)
    if "event_time" in columns:
        problems["event_time is missing or no time"] = np.isnan(columns["event_time"])
    return problems


def _is_position(position: Floats) -> Bools:
    mask: Bools = (position >= 1) & (position == np.floor(position)) & (position < 1000)
    return mask


def find_auction_problems(converted: ConvertedRows) -> dict[str, Bools]:
    """Mask mistakes which need a whole auction."""
    columns = converted.columns
    shown = ~columns["no_position"].astype(bool) & _is_position(columns["position"])
    auction, query, ad = (converted.ids[name][1] for name in ID_COLUMNS)
    block = columns.get("block", np.zeros(len(auction)))
    twice = _mark_repeated((auction, ad), np.ones(len(auction), bool))
    order = np.lexsort((query, auction))
    mixed = np.zeros(len(auction), bool)
    same = auction[order][1:] == auction[order][:-1]
    mixed[order[1:]] = same & (query[order][1:] != query[order][:-1])
    place = (auction, block.astype(np.int64), np.nan_to_num(columns["position"]).astype(np.int64))
    return {
        "an ad twice in an auction": twice,
        "an auction with two queries": mixed,
        "two ads at one slot": _mark_repeated(place, shown),
        "a slot without the one before it": _mark_gaps(place, shown),
    }


def _mark_repeated(keys: tuple[Ints, ...], among: Bools) -> Bools:
    """Mark rows whose keys stand in an earlier row."""
    rows = np.flatnonzero(among)
    order = rows[np.lexsort([key[rows] for key in reversed(keys)])]
    equal = np.ones(max(len(order) - 1, 0), bool)
    for key in keys:
        equal &= key[order][1:] == key[order][:-1]
    marked = np.zeros(len(among), bool)
    marked[order[1:][equal]] = True
    return marked


def _mark_gaps(place: tuple[Ints, Ints, Ints], shown: Bools) -> Bools:
    """Mark ads whose position leaves a gap before it.

    Equal positions are another mistake.
    """
    rows = np.flatnonzero(shown)
    auction, block, position = (key[rows] for key in place)
    order = np.lexsort((position, block, auction))
    auction, block, position = auction[order], block[order], position[order]
    follows = np.zeros(len(rows), np.int64)
    same = (auction[1:] == auction[:-1]) & (block[1:] == block[:-1])
    follows[1:] = np.where(same, position[:-1], 0)
    marked = np.zeros(len(shown), bool)
    marked[rows[order]] = position > follows + 1
    return marked


@dataclass(frozen=True, eq=False)
class BadRows:
    """Bad rows in a log, or in some whole auctions.

    Attributes:
        counts: rows by reason, also reasons without a row, in the order in which they are reported.
        examples: the first row for each reason with rows: its place in the log and the row as JSON.
        rejects: the first rows: place in the log, the row as JSON, and its reason.
        rows, good: rows in all, and rows in auctions without a bad row.
    """

    counts: Mapping[str, int]
    examples: Mapping[str, tuple[int, str]]
    rejects: tuple[tuple[int, str, str], ...]
    rows: int
    good: int

    def __add__(self, other: BadRows) -> BadRows:
        """Return the bad rows from both parts of a log."""
        return BadRows(
            {why: self.counts[why] + other.counts[why] for why in self.counts},
            {
                why: min(one.examples[why] for one in (self, other) if why in one.examples)
                for why in self.examples.keys() | other.examples.keys()
            },
            tuple(sorted((*self.rejects, *other.rejects))[:SHOWN_REJECTS]),
            self.rows + other.rows,
            self.good + other.good,
        )

    @property
    def reasons(self) -> list[str]:
        """Reasons with rows."""
        return [why for why, count in self.counts.items() if count]

    def refuse(self, settings: AuctionLog, where: str) -> None:
        """Raise DataError for bad rows, unless the settings reject them.

        The error is also raised if no auction is good.
        """
        if self.reasons and settings.bad_rows == "fail":
            listed = "; ".join(f"{reason}: {self.counts[reason]:,} rows" for reason in self.reasons)
            raise DataError(
                f"{where}: {listed}; e.g. {self.examples[self.reasons[0]][1]}",
                "repair them, or log.bad_rows: reject leaves out their auctions and keeps them in rejects",
            )
        if not self.good:
            raise DataError(f"{where}: every auction has a row that cannot be used, e.g. {self.reasons[0]}")

    def list_rejects(self) -> tuple[tuple[str, str], ...]:
        """Return the first bad rows as JSON, with reasons."""
        return tuple((line, why) for _, line, why in self.rejects)


def find_bad_rows(
    rows: pa.Table, converted: ConvertedRows, place_r: Ints | None = None, most: int = SHOWN_REJECTS
) -> tuple[BadRows, Bools]:
    """Find unusable rows, and a mask of good rows.

    Good rows are in auctions without a bad one.

    Args:
        rows: rows as they are stored, whole auctions.
        converted: the same rows.
        place_r: (r,) the rows' rising places in the log; None: the rows are the log.
        most: most rejects.
    """
    masks = _find_row_problems(converted) | find_auction_problems(converted)
    bad_r = np.any(list(masks.values()), axis=0)
    auction_r = converted.ids["auction_id"][1]
    good = ~np.isin(auction_r, auction_r[bad_r]) & (auction_r >= 0)
    place_r = np.arange(rows.num_rows) if place_r is None else place_r

    def describe(row: int) -> tuple[int, str]:
        """Return a row's place, and the row as JSON."""
        return int(place_r[row]), json.dumps(rows.slice(row, 1).to_pylist()[0], default=str)

    bad_rows = BadRows(
        {why: int(bad.sum()) for why, bad in masks.items()},
        {why: describe(int(np.argmax(bad))) for why, bad in masks.items() if bad.any()},
        tuple(
            (*describe(row), next(why for why, bad in masks.items() if bad[row]))
            for row in np.flatnonzero(bad_r)[:most].tolist()
        ),
        rows.num_rows,
        int(good.sum()),
    )
    return bad_rows, good


def pack_rows(rows: pa.Table, converted: ConvertedRows, where: str) -> pa.Table | None:
    """Pack rows for a shuffle, if all are usable.

    None: a row cannot be used. Mistakes which need a whole auction are not found here.

    Args:
        rows: rows as they are stored.
        converted: the same rows.
        where: the log's name in errors.
    """
    columns = converted.columns
    if np.any(list(_find_row_problems(converted).values())):
        return None
    ids = {name: pack_ids(rows.column(name), f"{where}: {name}") for name in ID_COLUMNS}
    packed = {"position": np.nan_to_num(columns["position"]), **columns}
    packed["position"] = np.where(columns["no_position"].astype(bool), 0, packed["position"])
    kinds = {"position": np.int16, "clicked": np.int8, "block": np.int8, "event_time": np.int64}
    values = {
        name: pa.array(packed[name].astype(kinds.get(name, np.float64)))
        for name in AUCTION_COLUMNS[3:]
        if name in packed
    }
    return pa.table({**ids, **values})


def unpack_rows(packed: pa.Table, numeric_ads: bool, where: str) -> ConvertedRows:
    """Return packed rows as arrays."""
    rules = RowRules("us", numeric_ads=numeric_ads)
    columns = {
        name: packed.column(name).to_numpy().astype(np.float64)
        for name in packed.column_names
        if name not in ID_COLUMNS
    }
    columns["no_position"] = columns["position"] == 0
    return ConvertedRows(read_ids(packed, rules, where), columns)


def sort_rows(
    converted: ConvertedRows, good: Bools, rejects: tuple[tuple[str, str], ...] = ()
) -> CheckedAuctions:
    """Return the good rows by query, auction and ad."""
    columns = converted.columns
    (auctions, auction_r), (queries, query_r), (ads, ad_r) = converted.ids.values()
    rows = np.flatnonzero(good)
    rows = rows[np.lexsort((ad_r[rows], auction_r[rows], query_r[rows]))]
    taken = {name: columns[name][rows] if name in columns else None for name in AUCTION_COLUMNS[3:]}
    time, block, user = taken["event_time"], taken["block"], taken["user_id"]
    position, clicked = columns["position"][rows], columns["clicked"][rows]
    return CheckedAuctions(
        queries, auctions, ads, query_r[rows], auction_r[rows], ad_r[rows],
        None if time is None else time.astype(np.int64),
        taken["bid"], taken["quality"], taken["probability"],
        None if block is None else block.astype(np.int64),
        np.nan_to_num(position).astype(np.int64), clicked.astype(np.int64),
        rejects, int((~good).sum()),
        None if user is None else np.where(np.isnan(user), -1, user).astype(np.int64),
    )  # fmt: skip
