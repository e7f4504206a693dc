"""Lay out an auction log in tasks, for all models.

One content has one layout, made without Spark. One pass counts each query class's rows. Then all
rows are shuffled once by part, in blocks (`piece_shuffle`), checked and written. Mistakes that need a whole
auction are looked for again only if there are any: then a second shuffle, by auction, counts them, and
finds good auctions' rows. A task holds a part's rows. The driver holds CLASSES counts, a few facts
for each part, and at most SHOWN_REJECTS rejected rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from recbench_spark.auctions import log_layout, piece_shuffle
from recbench_spark.auctions.auction_values import ID_COLUMNS, RowRules, convert_rows, has_number_times
from recbench_spark.auctions.auctions import (
    BadRows,
    count_shown_rejects,
    find_auction_problems,
    find_bad_rows,
    make_reach_error,
    name_columns,
    pack_rows,
    sort_rows,
    unpack_rows,
)
from recbench_spark.auctions.log_layout import LayoutPlan, LogLayout
from recbench_spark.auctions.piece_shuffle import PieceProblem
from recbench_spark.auctions.settings import AuctionLog
from recbench_spark.config import digest
from recbench_spark.core.arrays import Bools, Ints
from recbench_spark.core.hashed_ids import hash_ids
from recbench_spark.core.hashing import Hashes
from recbench_spark.core.inputs import require_unchanged
from recbench_spark.errors import DataError, FallbackToSpark, RecbenchError
from recbench_spark.sources.arrow_rows import combine_column, encode_ids, has_numeric_order
from recbench_spark.sources.formats import TablePiece
from recbench_spark.sources.table_pieces import open_pieces
from recbench_spark.storage.blocks import Engine
from recbench_spark.storage.leases import Report, hold_lease
from recbench_spark.storage.marks import mark_used
from recbench_spark.storage.packed_blocks import Block, partition_rows, unpack_blocks
from recbench_spark.storage.publish import remove_tree


@dataclass(frozen=True)
class LogSource:
    """A log in pieces, and rules for converting it.

    Attributes:
        pieces: the table's pieces.
        names: our name -> the name in the file, for present columns.
        rules: conversion rules for all rows.
        where: the log's name in errors.
    """

    pieces: tuple[TablePiece, ...]
    names: dict[str, str]
    rules: RowRules
    where: str

    @classmethod
    def open(cls, settings: AuctionLog) -> LogSource:
        """Open the log in the settings, and check column types.

        Raises:
            SchemaError, DataError, MissingError: as `read_auctions`.
        """
        where = f"log {settings.path}"
        try:
            table = open_pieces(settings.path or "")
        except FallbackToSpark as error:
            raise make_reach_error(where, error) from None
        names = name_columns(table.schema.names, settings, where)
        source = cls(table.pieces, names, RowRules(settings.time_unit), where)
        empty = source.select(table.schema.empty_table())
        convert_rows(empty, source.rules, where)
        return replace(source, rules=_choose_rules(empty, source.rules))

    def select(self, table: pa.Table) -> pa.Table:
        """Return a log's columns under our names."""
        fields = [table.schema.field(own).with_name(name) for name, own in self.names.items()]
        return pa.table([table.column(own) for own in self.names.values()], schema=pa.schema(fields))

    @property
    def columns(self) -> tuple[str, ...]:
        """Column names in the file."""
        return tuple(dict.fromkeys(self.names.values()))

    def refuse(self, engine: Engine, problems: Sequence[PieceProblem]) -> None:
        """Raise what a reader of the whole log would raise.

        Nothing is raised without problems.
        """
        if any(problem.kind == DataError.__name__ for problem in problems):
            ids = {name: self.names[name] for name in (*ID_COLUMNS, "user_id") if name in self.names}
            piece_shuffle.refuse_wrong_ids(engine, self.pieces, ids, self.where)
        piece_shuffle.refuse_problems(problems, self.where)


def _choose_rules(empty: pa.Table, rules: RowRules) -> RowRules:
    """Return the rules which types decide; `_scan_pieces` looks at texts.

    Values decide on times in texts and floats, and on ids of other types than numbers.
    """
    names = [name for name in ("ad_id", "event_time") if name in empty.column_names]
    kinds = {name: combine_column(empty.column(name)).type for name in names}
    ad, time = kinds["ad_id"], kinds.get("event_time", pa.timestamp("us"))
    is_number = pa.types.is_floating(ad) or (pa.types.is_integer(ad) and ad != pa.uint64())
    is_decided = pa.types.is_timestamp(time) or pa.types.is_date(time) or pa.types.is_integer(time)
    numeric = _has_numeric_ads(empty) if is_number else None
    return replace(rules, numeric_ads=numeric, number_times=False if is_decided else None)


def _has_numeric_ads(rows: pa.Table) -> bool:
    field, coded = encode_ids(rows, "ad_id", "log")
    return has_numeric_order([pa.table([coded], schema=pa.schema([field]))], "ad_id")


# ------------------------------------------------------------------------------------ layout


def open_layout(
    engine: Engine, settings: AuctionLog, identity: str, *, folder: Path, most: int, report: Report
) -> LogLayout:
    """Return a log's layout, made by the first run.

    The first run makes the layout under a lease.

    Args:
        engine: the runner.
        settings: the log.
        identity: identity for the log's content.
        folder: folder for layouts, on storage that all workers see.
        most: rows in a part.
        report: gets lines about the progress.

    Raises:
        SchemaError, DataError, MissingError: as `read_auctions`.
    """
    rules = settings.model_dump(mode="json", exclude={"path", "world"})
    target = folder / digest(log_layout.LAYOUT_VERSION, identity, rules, most)[:24]
    with hold_lease(target, (target / log_layout.MANIFEST).is_file, report) as lease:
        if lease is not None:
            try:
                layout = _make_layout(engine, settings, lease.work, most)
                require_unchanged()  # the name of the layout says which content it has
            except RecbenchError:  # files of a log that is refused help nobody
                remove_tree(lease.work)
                raise
            lease.publish()
            report(f"{layout.rows:,} participants are laid out in {layout.parts} parts, {target.name}")
    mark_used(target / log_layout.MANIFEST)
    return LogLayout.read(target)


def _make_layout(engine: Engine, settings: AuctionLog, folder: Path, most: int) -> LogLayout:
    source = LogSource.open(settings)
    numbers = piece_shuffle.spread_pieces(engine, len(source.pieces))
    scan: LogScan = LogScan.make_empty()
    scan += numbers.mapPartitions(partial(_scan_pieces, source=source)).treeReduce(add)
    source.refuse(engine, scan.problems)
    if not scan.rows_k.sum():
        raise DataError(f"{source.where}: no rows", "check the path")
    source = replace(source, rules=scan.rules(source.rules))
    plan = LayoutPlan.from_counts(scan.rows_k, most)
    cut = partial(_cut_rows, source=source, plan=plan)
    rows = piece_shuffle.send_rows(engine, source.pieces, source.columns, cut, plan.parts)
    (dirty, ranges), bad = _write_parts(engine, rows, folder, plan, source), None
    total = int(scan.rows_k.sum())
    if dirty:
        bad, rows = _find_good_rows(engine, settings, source, plan, total)
        if bad.reasons:
            _, ranges = _write_parts(engine, rows, folder, plan, source)
    layout = LogLayout(
        folder, plan.parts, ranges, tuple(plan.list_cuts()), bool(source.rules.numeric_ads),
        "event_time" in source.names, bad.good if bad else total, total - bad.good if bad else 0,
    )  # fmt: skip
    layout.write(bad.list_rejects() if bad else ())
    return layout


@dataclass(frozen=True, eq=False)
class LogScan:
    """Counts and flags from one look at all rows' ids and texts.

    Attributes:
        rows_k: (CLASSES,) rows in each query class.
        numeric_ads: whether all ad ids are whole numbers.
        number_times: whether all times are digits.
        problems: pieces that cannot be read or converted.
    """

    rows_k: Ints
    numeric_ads: bool
    number_times: bool
    problems: tuple[PieceProblem, ...]

    @classmethod
    def make_empty(cls, *problems: PieceProblem) -> LogScan:
        """Return a scan without rows."""
        return cls(np.zeros(log_layout.CLASSES, np.int64), True, True, problems)

    def __add__(self, other: LogScan) -> LogScan:
        """Return the scan of both sides' rows."""
        return LogScan(
            self.rows_k + other.rows_k,
            self.numeric_ads and other.numeric_ads,
            self.number_times and other.number_times,
            self.problems + other.problems,
        )

    def rules(self, rules: RowRules) -> RowRules:
        """Return rules with all that texts decide."""
        ads = self.numeric_ads if rules.numeric_ads is None else rules.numeric_ads
        times = self.number_times if rules.number_times is None else rules.number_times
        return replace(rules, numeric_ads=ads, number_times=times)


def _scan_pieces(numbers: Iterable[int], source: LogSource) -> Iterator[LogScan]:
    total = LogScan.make_empty()
    wanted = [name for name in ("query_id", "ad_id", "event_time") if name in source.names]
    narrow = replace(source, names={name: source.names[name] for name in wanted})
    for number in numbers:
        for item in piece_shuffle.read_piece(source.pieces[number], number, narrow.columns):
            one = item if isinstance(item, PieceProblem) else _scan_rows(narrow, item, number)
            if isinstance(one, PieceProblem):
                one = LogScan.make_empty(one)
            total = total + one
    yield total


def _scan_rows(source: LogSource, table: pa.Table, number: int) -> LogScan | PieceProblem:
    rows = source.select(table)
    try:
        class_r = log_layout.find_classes(_hash_column(rows, "query_id", source.where))
        ads = source.rules.numeric_ads is not None or _has_numeric_ads(rows)
    except DataError as error:
        return piece_shuffle.describe_problem(number, error)
    times = source.rules.number_times is not None or has_number_times(
        combine_column(rows.column("event_time").cast(pa.string()))
    )
    return LogScan(np.bincount(class_r, minlength=log_layout.CLASSES), bool(ads), bool(times), ())


def _hash_column(rows: pa.Table, name: str, where: str) -> Hashes:
    """Return each id's hash, (r,); 0 if it is missing."""
    _, coded = encode_ids(rows, name, where)
    hashes = np.append(hash_ids(coded.dictionary), np.uint64(0))
    places: Ints = coded.indices.fill_null(len(coded.dictionary)).to_numpy()
    hashed: Hashes = hashes[places]
    return hashed


# ------------------------------------------------------------------------------------ rows to parts


def _cut_rows(table: pa.Table, place: int, source: LogSource, plan: LayoutPlan) -> Iterator[Block]:
    del place
    rows = source.select(table)
    packed = pack_rows(rows, convert_rows(rows, source.rules, source.where), source.where)
    if packed is None:
        raise _DirtyRowsError("rows that cannot be used")
    yield from _cut_packed(packed, plan, source.where)


class _DirtyRowsError(DataError):
    """Signal from a task with an unusable row."""


def _cut_packed(packed: pa.Table, plan: LayoutPlan, where: str) -> Iterator[Block]:
    hashes = [_hash_column(packed, name, where) for name in ("query_id", "auction_id")]
    return partition_rows(packed.combine_chunks(), plan.assign(hashes[0], hashes[1]))


def _write_parts(
    engine: Engine, rows: Any, folder: Path, plan: LayoutPlan, source: LogSource
) -> tuple[bool, int]:
    """Write all parts and the index.

    Returns:
        Whether the log must be checked auction by auction, and the number of ranges in the index.

    Raises:
        DataError: a piece cannot be read or converted.
    """
    write = partial(_write_part, folder=folder, source=source)
    results = rows.mapPartitionsWithIndex(write).collect()
    problems = [problem for some, _, _ in results for problem in some]
    source.refuse(engine, [one for one in problems if one.kind != _DirtyRowsError.__name__])
    ranges = log_layout.count_ranges(sum(auctions for _, _, auctions in results))
    if problems or any(dirty for _, dirty, _ in results):
        return True, ranges
    return _write_ranges(engine, folder, plan.parts, ranges), ranges


def _write_part(
    part: int, blocks: Iterable[Block], folder: Path, source: LogSource
) -> Iterator[tuple[list[PieceProblem], bool, int]]:
    """Write a part; yield problems, a flag, its auctions' number.

    The flag tells whether it has bad auctions.
    """
    rows, problems = piece_shuffle.receive_rows(blocks)
    if rows is None:
        log_layout.write_no_rows(folder, part)
        yield problems, False, 0
        return
    converted = unpack_rows(rows, bool(source.rules.numeric_ads), source.where)
    if problems or np.any(list(find_auction_problems(converted).values())):
        yield problems, True, 0
        return
    log = sort_rows(converted, np.ones(rows.num_rows, bool))
    log_layout.write_part(folder, part, log)
    yield problems, False, len(log.auction_ids)


def _write_ranges(engine: Engine, folder: Path, parts: int, ranges: int) -> bool:
    """Write the index; return whether a hash is there twice.

    All auctions' hashes are shuffled by range, twelve bytes for each.
    """
    numbers = engine.parallelize(range(parts), min(parts, 4 * engine.cores))
    hashes = numbers.flatMap(partial(_cut_hashes, folder=folder, ranges=ranges)).partitionBy(ranges, int)
    return any(hashes.mapPartitionsWithIndex(partial(_write_range, folder=folder)).collect())


def _cut_hashes(part: int, folder: Path, ranges: int) -> Iterator[Block]:
    hashes = log_layout.read_auction_hashes(folder, part)
    if len(hashes):
        table = pa.table({"hash": hashes, "part": np.full(len(hashes), part, np.int32)})
        yield from partition_rows(table, log_layout.find_ranges(hashes, ranges))


def _write_range(number: int, blocks: Iterable[Block], folder: Path) -> Iterator[bool]:
    table = unpack_blocks(content for _, content in blocks)
    if table is None:
        table = pa.table({"hash": pa.array([], pa.uint64()), "part": pa.array([], pa.int32())})
    yield log_layout.write_index(
        folder, number, table.column("hash").to_numpy(), table.column("part").to_numpy()
    )


# ------------------------------------------------------------------------------------ bad rows


def _find_good_rows(
    engine: Engine, settings: AuctionLog, source: LogSource, plan: LayoutPlan, total: int
) -> tuple[BadRows, Any]:
    """Check whole auctions; return bad rows and good ones.

    The latter are blocks with good auctions' rows. All rows are shuffled by auction, as they are stored;
    `total` is their number.

    Raises:
        DataError: a piece cannot be read or converted, or lacks rows that were there before; there are bad
            rows, and the settings say to fail; or no auction is good.
    """
    tasks = max(plan.parts, engine.count_tasks(0))
    cut = partial(_cut_auctions, source=source, tasks=tasks)
    auctions = piece_shuffle.send_rows(engine, source.pieces, source.columns, cut, tasks)
    count = partial(_count_bad_rows, source=source, most=count_shown_rejects(settings))
    problems, bad = auctions.mapPartitions(count).treeReduce(_join_counts)
    source.refuse(engine, problems)
    if bad is None or bad.rows != total:
        raise DataError(f"{source.where} changed while it was read", "run again")
    bad.refuse(settings, source.where)
    good = auctions.mapPartitions(partial(_keep_good_rows, source=source, plan=plan))
    return bad, good.partitionBy(plan.parts, int)


def _cut_auctions(table: pa.Table, place: int, source: LogSource, tasks: int) -> Iterator[Block]:
    rows = source.select(table)
    task_r = _hash_column(rows, "auction_id", source.where) % np.uint64(tasks)
    placed = rows.append_column(PLACE, pa.array(place + np.arange(rows.num_rows)))
    return partition_rows(placed.combine_chunks(), task_r.astype(np.int64))


PLACE = "place in the log"


def _check_whole_auctions(
    placed: pa.Table, source: LogSource, most: int
) -> tuple[pa.Table, BadRows, Bools]:
    """Return rows in log order, bad ones, and a mask.

    At most `most` bad rows are kept.
    """
    placed = placed.take(pa.array(np.argsort(placed.column(PLACE).to_numpy()))).combine_chunks()
    rows, places = placed.drop_columns([PLACE]), placed.column(PLACE).to_numpy()
    bad, good = find_bad_rows(rows, convert_rows(rows, source.rules, source.where), places, most)
    return rows, bad, good


AuctionCounts = tuple[tuple[PieceProblem, ...], BadRows | None]
"""Pieces that cannot be read or converted, and the bad rows in all others."""


def _count_bad_rows(blocks: Iterable[Block], source: LogSource, most: int) -> Iterator[AuctionCounts]:
    placed, problems = piece_shuffle.receive_rows(blocks)
    try:
        yield tuple(problems), None if placed is None else _check_whole_auctions(placed, source, most)[1]
    except RecbenchError as error:
        yield (*problems, piece_shuffle.describe_problem(len(source.pieces), error)), None


def _join_counts(one: AuctionCounts, other: AuctionCounts) -> AuctionCounts:
    bad = [each for each in (one[1], other[1]) if each is not None]
    return one[0] + other[0], reduce(add, bad) if bad else None


def _keep_good_rows(blocks: Iterable[Block], source: LogSource, plan: LayoutPlan) -> Iterator[Block]:
    placed, _ = piece_shuffle.receive_rows(blocks)  # problems have been refused
    if placed is None:
        return
    rows, _, good_r = _check_whole_auctions(placed, source, most=0)
    if not good_r.any():
        return
    rows = rows.filter(pa.array(good_r))
    packed = pack_rows(rows, convert_rows(rows, source.rules, source.where), source.where)
    assert packed is not None, "rows of good auctions"
    yield from _cut_packed(packed, plan, source.where)
