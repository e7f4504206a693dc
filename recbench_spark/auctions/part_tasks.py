"""Count, match and replay a log's parts in tasks.

The log is in its layout, and no Spark is needed. Each pass is a job over the parts, whose tasks send sums.
So the driver holds sums alone: replicates at POINTS_AT_ONCE operating points are the largest, and
nothing grows with queries, ads, pairs or auctions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from recbench_spark.auctions import auction_log, part_files, piece_shuffle
from recbench_spark.auctions.auction_values import pack_ids
from recbench_spark.auctions.auctions import make_reach_error
from recbench_spark.auctions.log_layout import LogLayout, find_parts
from recbench_spark.auctions.part_files import FACTS
from recbench_spark.core.arrays import Ints
from recbench_spark.core.hashed_ids import hash_ids
from recbench_spark.errors import DataError, FallbackToSpark
from recbench_spark.schemas import require_names
from recbench_spark.sources.arrow_rows import as_double, combine_column, encode_ids
from recbench_spark.sources.table_pieces import open_pieces
from recbench_spark.splits.kernels.positions import number_slots
from recbench_spark.storage.blocks import Engine
from recbench_spark.storage.leases import Report, hold_lease
from recbench_spark.storage.marks import mark_used
from recbench_spark.storage.packed_blocks import Block, partition_rows, unpack_blocks
from recbench_spark.storage.publish import remove_tree
from recbench_spark.storage.scratch import scratch_folder


@dataclass(frozen=True, eq=False)
class CountedLog:
    """A log's replayed rows, in files.

    Attributes:
        layout: all rows.
        until: time in microseconds after which rows are replayed; None: all.
        folder: the parts' arrays.
        facts: facts about the replayed rows.
        parts: parts with some.
    """

    layout: LogLayout
    until: int | None
    folder: Path
    facts: auction_log.LogFacts
    parts: tuple[int, ...]

    @property
    def has_probabilities(self) -> bool:
        """True if the log has its own model's probabilities."""
        place = part_files.find_folder(self.folder, self.parts[0])
        return (place / "probability.npy").exists()


@dataclass(frozen=True, eq=False)
class LaidOutParts:
    """A log's parts in files, with models' probabilities.

    Attributes:
        engine: the runner.
        log: the replayed rows.
        probabilities: each model's folder.
        scratch: folder in which tasks make scratch.
    """

    engine: Engine
    log: CountedLog
    probabilities: Mapping[str, Path]
    scratch: str

    @property
    def facts(self) -> auction_log.LogFacts:
        """Facts about the replayed rows."""
        return self.log.facts

    @property
    def models(self) -> tuple[str, ...]:
        """Names of models with probabilities in the parts."""
        return tuple(self.probabilities)

    def add(
        self, work: auction_log.PartWork, count_showings: auction_log.CountShowings | None = None
    ) -> auction_log.Sums:
        """Return a pass's sums over all parts.

        A task adds up its parts' sums.
        """
        reader = PartReader(self.log, self.probabilities)
        cut = [part for part in self.log.parts if part in self.log.layout.peers]
        if count_showings is None or not cut:
            return self._add(reader, work)
        folder = Path(scratch_folder(self.scratch))
        self._spread(cut).foreach(
            partial(_share_showings, reader=reader, count_showings=count_showings, folder=folder)
        )
        try:
            return self._add(replace(reader, showings=folder), work)
        finally:
            remove_tree(folder)

    def keep(self, name: str, make: Callable[[], auction_log.LogArrays]) -> auction_log.LogArrays:
        """Return arrays from a file, which later runs read again.

        The file lies beside the parts' counts.
        """
        return part_files.keep_sums(self.log.folder, name, make)

    def _add(self, reader: PartReader, work: auction_log.PartWork) -> auction_log.Sums:
        run = partial(_add_some, reader=reader, work=work)
        total: auction_log.Sums = (
            self._spread(self.log.parts).mapPartitions(run).treeReduce(auction_log.add_sums)
        )
        return total

    def count_users(self) -> Ints:
        """Return auctions, squares and users, (3,).

        All parts' users are shuffled, 16 bytes each.
        """
        tasks = max(len(self.log.parts), self.engine.cores)
        reader = PartReader(self.log, {})
        users = self._spread(self.log.parts).flatMap(partial(_cut_users, reader=reader, tasks=tasks))
        total: Ints = users.partitionBy(tasks, int).mapPartitions(_square_auctions).treeReduce(add)
        return total

    def _spread(self, parts: Sequence[int]) -> Any:
        """Spread parts over tasks, two rounds of all cores."""
        return self.engine.parallelize(parts, min(len(parts), 2 * self.engine.cores))


@dataclass(frozen=True, eq=False)
class PartReader:
    """Reader for a log's parts, which is sent to tasks.

    Attributes:
        log: the replayed rows.
        models: folder with each model's probabilities.
        showings: folder with the showings that pieces share; None: nothing is shared.
    """

    log: CountedLog
    models: Mapping[str, Path]
    showings: Path | None = None

    def read(self, part: int) -> auction_log.LoggedPart:
        """Map a part's arrays."""
        loaded = part_files.load_part(self.log.folder, part, self.log.facts, self.models)
        pieces = self.log.layout.peers.get(part)
        if self.showings is None or pieces is None:
            return loaded
        peers = [one for one in pieces if one in self.log.parts]
        load = partial(part_files.load_showings, self.showings, part, counts=self.log.folder, peers=peers)
        return replace(loaded, read_elsewhere=load)


def _add_some(
    parts: Iterable[int], reader: PartReader, work: auction_log.PartWork
) -> Iterator[auction_log.Sums]:
    yield reduce(auction_log.add_sums, (work(reader.read(part)) for part in parts))


def _share_showings(
    part: int, reader: PartReader, count_showings: auction_log.CountShowings, folder: Path
) -> None:
    for number, showings in enumerate(count_showings(reader.read(part))):
        part_files.save_showings(folder, part, number, showings)


def _cut_users(part: int, reader: PartReader, tasks: int) -> Iterator[Block]:
    users = reader.read(part).auctions.users
    table = pa.table({"user": users.key_u, "auctions": users.auctions_u})
    yield from partition_rows(table, users.key_u % tasks)


def _square_auctions(blocks: Iterable[Block]) -> Iterator[Ints]:
    table = unpack_blocks(content for _, content in blocks)
    if table is not None:
        yield auction_log.square_auctions(
            table.column("user").to_numpy(), table.column("auctions").to_numpy()
        )


# ------------------------------------------------------------------------------------ counts


def open_counts(engine: Engine, layout: LogLayout, until: int | None, report: Report) -> CountedLog:
    """Return a layout's replayed rows; the first run counts them.

    The first run counts under a lease.

    Args:
        engine: the runner.
        layout: the log's layout.
        until: time in microseconds after which rows are replayed; None: all.
        report: gets lines about the progress.

    Raises:
        DataError: the log has no times, or no auction is later.
    """
    if until is not None and not layout.has_times:
        raise auction_log.make_no_time_error()
    target = layout.folder.with_name(f"{layout.folder.name}-after-{'all' if until is None else until}")
    with hold_lease(target, (target / FACTS).is_file, report) as lease:
        if lease is not None:
            _count_parts(engine, layout, until, lease.work)
            lease.publish()
    mark_used(target / FACTS)
    facts, parts = part_files.read_facts(target)
    return CountedLog(layout, until, target, facts, parts)


def _count_parts(engine: Engine, layout: LogLayout, until: int | None, folder: Path) -> None:
    """Count all parts.

    Cut classes need a second pass over their pieces.
    """
    numbers = engine.parallelize(range(layout.parts), layout.parts)
    each = numbers.map(partial(_find_facts, layout=layout, until=until)).collect()
    parts = [part for part, facts in enumerate(each) if facts is not None]
    if not parts:
        raise auction_log.make_no_later_error()
    facts = reduce(add, (one for one in each if one is not None))
    count = partial(part_files.count_part, layout=layout, until=until, facts=facts, folder=folder)
    engine.parallelize(parts, len(parts)).foreach(count)
    cut = [part for part in parts if part in layout.peers]
    if cut:
        join = partial(part_files.join_counts, layout=layout, parts=frozenset(parts), folder=folder)
        engine.parallelize(cut, len(cut)).foreach(join)
    part_files.write_facts(folder, facts, parts)


def _find_facts(part: int, layout: LogLayout, until: int | None) -> auction_log.LogFacts | None:
    log = part_files.read_replayed(layout, part, until)
    return None if log is None else auction_log.LogFacts.from_log(log)


# ------------------------------------------------------------------------------------ models


def match_model(engine: Engine, log: CountedLog, path: str, where: str, folder: Path) -> None:
    """Write a model's probabilities for all parts.

    Rows are shuffled once, by their auction's part, which the layout's index gives. A task holds a part's
    rows.

    Args:
        engine: the runner.
        log: the replayed rows.
        path: table auction_id, ad_id, probability.
        where: the table's name in errors.
        folder: folder to write to, which all workers see.

    Raises:
        SchemaError, DataError, MissingError: as `auction_log.match_probabilities`.
    """
    try:
        table = open_pieces(path)
    except FallbackToSpark as error:
        raise make_reach_error(f"model {path}", error) from None
    require_names(table.schema.names, auction_log.MODEL_COLUMNS, where)
    empty = table.schema.empty_table().select(list(auction_log.MODEL_COLUMNS))
    _convert_predictions(empty, where)
    cut = partial(_cut_predictions, layout=log.layout, where=where)
    blocks = piece_shuffle.send_rows(engine, table.pieces, auction_log.MODEL_COLUMNS, cut, log.layout.parts)
    match = partial(_match_part, log=log, where=where, empty=empty, folder=folder)
    results = blocks.mapPartitionsWithIndex(match).collect()
    all_problems = [problem for some, _ in results for problem in some]
    if any(problem.kind == DataError.__name__ for problem in all_problems):
        piece_shuffle.refuse_wrong_ids(
            engine, table.pieces, {name: name for name in auction_log.MODEL_COLUMNS[:2]}, where
        )
    piece_shuffle.refuse_problems(all_problems, f"model {path}")
    reduce(add, (problems for _, problems in results)).refuse(where)


def _convert_predictions(table: pa.Table, where: str) -> pa.Table:
    columns = {
        name: pack_ids(table.column(name), f"{where}: {name}") for name in auction_log.MODEL_COLUMNS[:2]
    }
    probability = as_double(combine_column(table.column("probability")), "probability")
    return pa.table({**columns, "probability": probability})


def _cut_predictions(table: pa.Table, place: int, layout: LogLayout, where: str) -> Iterator[Block]:
    """Cut rows by their auction's part; drop unknown auctions."""
    del place
    _, coded = encode_ids(table, "auction_id", where)
    each = list(find_parts(layout, hash_ids(coded.dictionary)))
    if not each:
        return
    places, parts = (np.concatenate(some) for some in zip(*each, strict=True))
    parts = parts[np.argsort(places, kind="stable")]
    missing = len(coded.dictionary)
    count_c = np.bincount(places, minlength=missing + 1)
    code_r = coded.indices.fill_null(missing).to_numpy()
    row, number_r = number_slots(count_c[code_r])
    if len(row):
        rows = _convert_predictions(table, where).combine_chunks()
        first_c = np.cumsum(count_c) - count_c
        part_r = parts[first_c[code_r[row]] + number_r]
        whole = len(row) == len(code_r) and bool((count_c[:missing] == 1).all())
        yield from partition_rows(rows if whole else rows.take(pa.array(row)), part_r)


def _match_part(
    part: int, blocks: Iterable[Block], *, log: CountedLog, where: str, empty: pa.Table, folder: Path
) -> Iterator[tuple[list[piece_shuffle.PieceProblem], auction_log.MatchProblems]]:
    rows, problems = piece_shuffle.receive_rows(blocks)
    replayed = part_files.read_replayed(log.layout, part, log.until)
    if replayed is None:
        yield problems, auction_log.MatchProblems()
        return
    table = _convert_predictions(empty, where) if rows is None else rows
    probability_r, mistakes = auction_log.find_probabilities(replayed, table, where)
    part_files.save_probabilities(folder, part, probability_r)
    yield problems, mistakes
