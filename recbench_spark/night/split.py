"""Split a log, and write the split's tables.

They are `splits`, `items`, `user_blocks`, `propensities`, `manifests`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from functools import partial

import pyarrow as pa

from recbench_spark.config import Benchmark, Dataset, Split
from recbench_spark.core.definitions import Definition
from recbench_spark.core.inputs import require_unchanged
from recbench_spark.errors import ConfigError, EmptyPartError, FallbackToSpark, StoreError
from recbench_spark.models.settings import ListsModel
from recbench_spark.night.run_keys import hash_split
from recbench_spark.ranking.known_items import KnownItems, share_items
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import (
    ITEMS,
    MANIFESTS,
    PROPENSITIES,
    REJECTS,
    SPLITS,
    TABLES,
    USER_BLOCKS,
    Table,
)
from recbench_spark.sources.log_sources import open_raw_log
from recbench_spark.sources.opened_logs import OpenedLog, check_log, choose_identity
from recbench_spark.sources.paths import refuse_empty
from recbench_spark.sources.times import describe_units
from recbench_spark.splits.item_counts import Catalogue, count_catalogue, number_by_tasks
from recbench_spark.splits.labelled_rows import open_by_user, open_labelled
from recbench_spark.splits.labels import read_dropped, sum_dropped
from recbench_spark.splits.least import LeastCounts, keep_frequent, prune_labelled
from recbench_spark.splits.manifests import (
    Fact,
    LogRows,
    build_manifest,
    count_parts,
    describe_rows,
    refuse_empty_parts,
    report_events,
)
from recbench_spark.splits.rules import label_log, open_plain_log, open_world
from recbench_spark.splits.slice_tables import label_slices
from recbench_spark.splits.user_blocks import BlockPlan, build_user_blocks, label_queries, label_times
from recbench_spark.splits.windows import list_age_facts, list_time_facts
from recbench_spark.splits.worlds import list_propensities
from recbench_spark.storage.blocks import PieceRows, Rows, TaskRows, run_pieces
from recbench_spark.storage.commits import Addition, add_blocks, commit
from recbench_spark.storage.file_tables import FileTables, RowReader

HELD_OUT_PARTS = ("valid", "probe", "quiz", "test", "open_loop")
"""Parts that may be held out, beside those in `split.parts`.

A log or a protocol holds them out.
"""


BLOCK_COLUMNS = tuple(name for name in USER_BLOCKS.names if name != "split_id")
"""User block columns written by tasks."""

DROPPED_FACT = "dropped"
"""Manifest fact: how often retention removed splits with this hash."""


def identify_split(store: FileTables, benchmark: Benchmark) -> tuple[str, dict[str, str]]:
    """Return a split's name and the log's identity.

    The name is a hash of all inputs. A split removed by retention is made again under the new name
    `HASH.1`: Delta would take rows under the old name for a repetition of the removed ones.
    """
    if benchmark.dataset.path:
        refuse_empty(str(benchmark.dataset.path))
    split_hash, inputs = hash_split(choose_identity(store), benchmark)
    return current_split_id(store.rows, split_hash), inputs


def current_split_id(read: RowReader, split_id: str) -> str:
    """Return the name under which this split is made now."""
    base = split_id.partition(".")[0]
    rows = read(MANIFESTS, [("split_id", "=", base), ("fact", "=", DROPPED_FACT)], ["value"])
    dropped = max((row["value"] for row in rows), default=0)
    return f"{base}.{dropped:.0f}" if dropped else base


def check_open_loop(benchmark: Benchmark, definition: Definition) -> None:
    """Refuse candidates without known pairs where these are tested.

    Known pairs are those in training.

    Raises:
        ConfigError: candidates lack known pairs, which are tested.
    """
    tested = benchmark.split.open_loop == "all" and "open_loop" in benchmark.evaluation.parts
    if tested and benchmark.evaluation.task != "rating" and definition.candidates not in ("all", "rated"):
        raise ConfigError(
            "split.open_loop 'all' tests pairs that training knows, and they are no candidates under "
            f"definition.candidates '{definition.candidates}'",
            "evaluation.definition.candidates: all, or split.open_loop: unseen",
        )


def check_repeats(benchmark: Benchmark, definition: Definition) -> None:
    """Refuse to mask training items if training pairs are wanted.

    Raises:
        ConfigError: training items are masked, and training pairs are wanted.
    """
    split, evaluation = benchmark.split, benchmark.evaluation
    if not split.asks_repeats or evaluation.task == "rating":
        return
    clash = f"split.repeats '{split.repeats}' asks for pairs that training knows"
    if definition.candidates == "unseen":
        raise ConfigError(
            f"{clash}, and they are no candidates under definition.candidates 'unseen'",
            "evaluation.definition.candidates: all, or split.repeats: drop",
        )
    for model in benchmark.models:
        if isinstance(model, ListsModel) and model.training_items == "drop":
            raise ConfigError(
                f"{clash}, and models.{model.name}.training_items 'drop' takes them out of the lists",
                "training_items: keep, or split.repeats: drop",
            )
    if evaluation.learning_curve is not None:
        raise ConfigError(f"{clash}, and a learning curve has each item once", "split.repeats: drop")


def check_events(benchmark: Benchmark) -> None:
    """Refuse events where no measure can tell them apart.

    Raises:
        ConfigError: a learning curve masks all trained items.
    """
    if benchmark.dataset.events and benchmark.evaluation.learning_curve is not None:
        message = "evaluation.learning_curve masks all trained items, and dataset.events those of targets"
        raise ConfigError(message, "leave out one of both")


def prepare_split(
    store: FileTables,
    benchmark: Benchmark,
    split_id: str,
    journal: Journal,
    logical_date: date | None = None,
    *,
    audit_only: bool = False,
) -> None:
    """Write a log to a split's tables, `manifests` last.

    The others are `splits`, `items`, `user_blocks` and `propensities`. A split with a manifest is
    complete and is not made again. With a logical date the manifest has the ages of the log's ends on
    this day. With `audit_only` there are no items and no blocks: no model can run on such a split.

    Raises:
        ProtocolError: a split without training or test rows; and all errors of `write_labelled_log`.
        StoreError: one of the split's tables lacks rows; the split is dropped, and the next run makes it
            again.
    """
    if store.has(MANIFESTS, "split_id", split_id):
        journal.say(f"split {split_id}: already made")
    else:
        _make_split(store, benchmark, split_id, journal, logical_date, whole=not audit_only)
    for line in describe_rows(store.rows(MANIFESTS, [("split_id", "=", split_id)])):
        journal.say(f"split {split_id}: {line}")


def _make_split(
    store: FileTables,
    benchmark: Benchmark,
    split_id: str,
    journal: Journal,
    day: date | None,
    *,
    whole: bool,
) -> None:
    split = benchmark.split
    stage = journal.stage("splits", f"split {split_id}: {split.describe()}", split_id=split_id)
    with name_time_unit(benchmark.dataset), stage as counts:
        written = write_labelled_log(store, benchmark.dataset, split, split_id)
        log = written.rows
        counts |= {"rows": log.n, "later_rows": log.later, "rejected": log.rejected}
    rows = open_labelled(store, split_id)
    part_counts = count_parts(rows)
    with name_time_unit(benchmark.dataset):
        refuse_empty_parts(part_counts, split, log)
    if whole:
        _write_blocks(store, benchmark, rows, split_id, numeric=written.numeric, journal=journal)
    with journal.stage("manifests", "audit the split", split_id=split_id):
        timed, settings = benchmark.definition.candidates_as_of != "none", split.model_dump_json()
        manifest = build_manifest(rows, log, settings, store.engine, parts=part_counts, by_time=timed)
        if whole:
            _require_whole(store, split_id, USER_BLOCKS, manifest.users)
        facts = manifest.facts
        if until := benchmark.dataset.until:
            detail = f"rows after {until} ({benchmark.dataset.time_zone}), left out"
            facts.append(Fact("log", "later_rows", float(log.later), detail))
        facts += list_time_facts(part_counts, split, benchmark.dataset.zone)
        if day:
            facts += list_age_facts([fact._asdict() for fact in facts], day, benchmark.dataset.zone)
        require_unchanged()
        named = [{"split_id": split_id, **fact._asdict()} for fact in facts]
        commit(store, Addition(MANIFESTS, split_id, named))


@contextmanager
def name_time_unit(dataset: Dataset) -> Iterator[None]:
    """Explain an empty part by the log's time unit.

    Where a part cut by time is empty, the hint says what its times would be in other units.

    Raises:
        EmptyPartError: as in the block, with a longer hint where `time_unit` counts.
    """
    try:
        yield
    except EmptyPartError as error:
        if error.ends is None or not dataset.is_table or dataset.time_unit == "timestamp":
            raise
        hint = f"{error.hint}; {describe_units(error.ends, dataset.time_unit)}"
        raise EmptyPartError(error.message, hint, error.ends) from None


def _require_whole(store: FileTables, split_id: str, table: Table, wanted: int) -> None:
    """Compare a table's row count with the log.

    The log has so many items or users.

    The table is the catalogue, or the user blocks; rows are counted from the commits' statistics. A table
    that lacks rows would stay under its name for good, and every later night would read it. So the split
    is dropped: its next name is made anew.

    Raises:
        StoreError: a table has more or fewer rows than the log has users or items.
    """
    actual = store.count_rows(table, "split_id", split_id)
    if actual != wanted:
        drop_splits(store, [split_id], "incomplete")
        what = "items" if table is ITEMS else "users"
        raise StoreError(
            f"split {split_id}: {table.name} has {actual:,} rows, and the log has {wanted:,} {what}",
            "the rows of this split were removed: run again, and it is made anew",
        )


def drop_splits(store: FileTables, split_ids: Sequence[str], reason: str) -> None:
    """Delete the rows of splits.

    Each split is first recorded as removed, so no run on it is published.
    """
    for split_id in split_ids:
        base, _, times = split_id.partition(".")
        fact = Fact("log", DROPPED_FACT, int(times or 0) + 1.0, f"{split_id} {reason}")
        dropped = [{"split_id": base, **fact._asdict()}]
        commit(store, Addition(MANIFESTS, f"{DROPPED_FACT}/{split_id}", dropped))
    for table in list_split_tables():
        if store.exists(table.name):
            column = table.partition_by[0]
            names = [n for n in store.list_values(table, column) if n.partition("-")[0] in set(split_ids)]
            if names:
                store.delete(table.name, column, names)


def list_split_tables() -> list[Table]:
    """Return tables partitioned by split; `splits` comes last.

    A partition may also begin with the split's name. `splits` shows which splits exist.
    """
    columns = ("split_id", "model_id", "graph_id", "neighbourhood_id", "nearest_id")
    tables = [one for one in TABLES.values() if one.partition_by and one.partition_by[0] in columns]
    return sorted(tables, key=lambda one: one == SPLITS)


@dataclass(frozen=True)
class LogCounts:
    """Counts of a log whose labelled rows are in `splits`.

    `numeric`: item ids are ordered as numbers.
    """

    rows: LogRows
    numeric: bool


def write_labelled_log(store: FileTables, dataset: Dataset, split: Split, split_id: str) -> LogCounts:
    """Read, check and label a log into `splits`.

    The log takes one shuffle and one commit. A log with columns of plain types is read once. A value that
    this reading cannot take ends it (on a cluster after all retries of its task); the log is then checked
    and labelled in two passes, like others.

    Args:
        store: the warehouse.
        dataset: the log, and the rule for two rows of a pair.
        split: the protocol.
        split_id: the split's name.

    Raises:
        ConfigError, SchemaError, DataError, ProtocolError: see `check_log` and `label_log`.
        FallbackToSpark: the warehouse has no Spark, which must read the log.
    """
    return write_labelled(
        store, dataset, split, partial(_append_labelled, store, split_id), rejects_of=split_id
    )


def write_labelled(
    store: FileTables,
    dataset: Dataset,
    split: Split,
    write: Callable[[TaskRows, int], Counter[tuple[str, str]]],
    *,
    rejects_of: str = "",
    every_fold: bool = False,
) -> LogCounts:
    """Read, check and label a log for another writer.

    The steps are those of `write_labelled_log`, and `write` writes the rows.

    Args:
        store: the warehouse.
        dataset: the log, and the rule for two rows of a pair.
        split: the protocol.
        write: writes labelled rows of so many, and counts those it leaves out.
        rejects_of: the split in whose name rejected rows are kept; empty: they are not.
        every_fold: true if `part` is the row's fold number.
    """

    def label(log: OpenedLog) -> LogCounts:
        if log.rejects is not None and rejects_of:
            commit(store, add_blocks(REJECTS, rejects_of, log.rejects))
        with keep_frequent(log, dataset.least, store.engine) as (left, before):
            labelled = label_log(left, dataset, split, store.engine, every_fold=every_fold)
            with prune_labelled(labelled, dataset.least, log.n, store.engine) as (frequent, after):
                dropped = write(frequent, left.n)
        rows = _describe_log(log, dataset, dropped, before or after)
        if dataset.events:
            report_events(dataset.events, rows)
        return LogCounts(rows, "item_id" in log.numeric)

    _refuse_unwritten(dataset, split, every_fold)
    plain = open_plain_log(store.engine, dataset, split)
    try:
        if plain is not None:
            return label(plain)
    except Exception as error:  # the text of Spark's error names the worker's
        if FallbackToSpark.__name__ not in f"{type(error).__name__} {error}":
            raise
    return label(open_any_log(store, dataset, placed=split.holdout == "consecutive"))


def _describe_log(
    log: OpenedLog, dataset: Dataset, dropped: Counter[tuple[str, str]], counts: LeastCounts | None
) -> LogRows:
    """Return what a log's rows became."""
    return LogRows(
        log.n,
        log.later,
        log.rejected,
        log.describe_reasons(),
        log.condition_counts,
        dropped,
        bool(dataset.events and dataset.events.repeats_of == "targets"),
        (counts.before - counts.rows, counts.describe()) if counts else None,
        bool(dataset.least and dataset.least.on == "log"),
        dataset.query or "",
    )


def _refuse_unwritten(dataset: Dataset, split: Split, every_fold: bool) -> None:
    """Refuse settings that a protocol cannot hold. Raises ConfigError."""
    by_item = split.held_out is not None and split.held_out.of == "items"
    least = dataset.least.on if dataset.least else ""
    mistakes = {
        "events: work on all folds at once has no single sum of a pair's weights": bool(dataset.events)
        and every_fold,
        "query: work on all folds at once asks once for each user": bool(dataset.query) and every_fold,
        "least: work on all folds at once has no single training part": least == "train" and every_fold,
        "least: training rows of users are not together where items are held out": least == "train"
        and by_item,
        "least: consecutive folds count the places of all rows": least == "log"
        and split.holdout == "consecutive",
    }
    for message, is_wrong in mistakes.items():
        if is_wrong:
            key = message.partition(":")[0]
            hint = f"leave dataset.{key} out, or another split.holdout"
            raise ConfigError(
                f"dataset.{message}", hint if key != "least" else f"{hint}, or another least.on"
            )


def open_any_log(store: FileTables, dataset: Dataset, *, placed: bool = False) -> OpenedLog:
    """Open and check a log, by tasks where possible.

    `placed`: rows read by Spark know their place.

    Raises:
        FallbackToSpark: the warehouse has no Spark, which must read the log. The others: see `check_log`.
    """
    if dataset.reader == "world":
        return open_world(store.engine, dataset, store.scratch if store.file_place() else None)
    if store.spark is None:
        return check_log(open_raw_log(dataset), dataset, store.engine)
    from recbench_spark.sources.readers.logs import open_log  # noqa: PLC0415

    return open_log(store.spark, dataset, placed=placed)


def _append_labelled(
    store: FileTables, split_id: str, blocks: TaskRows, n: int
) -> Counter[tuple[str, str]]:
    """Write labelled rows, and count those left out.

    Counts are by part and reason; the log has `n` rows. Tasks that write files count; where Spark writes,
    or has written before, a second pass counts.
    """
    if files := commit(store, add_blocks(SPLITS, split_id, blocks)):
        return sum_dropped(file.notes for file in files)
    left_out = store.count_rows(SPLITS, "split_id", split_id) < n
    return sum(blocks.each(read_dropped), start=Counter()) if left_out else Counter()


def _write_blocks(
    store: FileTables, benchmark: Benchmark, rows: Rows, split_id: str, *, numeric: bool, journal: Journal
) -> None:
    with journal.stage("items", "catalogue of items", split_id=split_id):
        catalogue = _write_catalogue(store, rows, split_id, numeric)
        _require_whole(store, split_id, ITEMS, catalogue.n)
        if benchmark.dataset.reader == "world":
            true = list_propensities(benchmark.dataset.world, run=run_pieces(store.engine))
            methods, names = pa.repeat("true", len(true)), pa.repeat(split_id, len(true))
            named = true.append_column("method", methods).append_column("split_id", names)
            commit(store, Addition(PROPENSITIES, split_id, named))
    with journal.stage("user_blocks", "blocks of users", split_id=split_id):
        known = KnownItems(share_items(store, split_id), catalogue.n)
        plan = BlockPlan(
            known.find,
            catalogue.bounds,
            list_held_out_parts(benchmark.split),
            (
                *label_slices(store, benchmark.evaluation.slices),
                *label_queries(benchmark.dataset.query),
                *label_times(benchmark.definition.candidates_as_of),
            ),
            benchmark.dataset.events is not None,
            in_time=benchmark.split.successive,
        )
        blocks = make_user_blocks(store, split_id, rows, plan)
        commit(store, add_blocks(USER_BLOCKS, split_id, blocks))


def _write_catalogue(store: FileTables, rows: Rows, split_id: str, numeric: bool) -> Catalogue:
    catalogue = count_catalogue(rows, numeric) if isinstance(rows, PieceRows) else None
    if catalogue is None:
        tasks = store.engine.count_tasks(store.count_rows(SPLITS, "split_id", split_id))
        with number_by_tasks(rows, numeric, tasks) as large:
            commit(store, add_blocks(ITEMS, split_id, large.rows))
            return large
    named = catalogue.rows.append_column("split_id", pa.repeat(split_id, len(catalogue.rows)))
    commit(store, Addition(ITEMS, split_id, named))
    return catalogue


def make_user_blocks(store: FileTables, split_id: str, rows: Rows, plan: BlockPlan) -> TaskRows:
    """Build user blocks from a labelled log.

    A task holds all rows of its users. Tasks open the log's files as they are. The rows are shuffled once
    by user where files are not whole by user (items are held out, or files were compacted).
    """
    return open_by_user(
        rows,
        plan.columns,
        partial(build_user_blocks, plan=plan),
        BLOCK_COLUMNS,
        lambda: store.engine.count_tasks(store.count_rows(SPLITS, "split_id", split_id)),
    )


def list_held_out_parts(split: Split) -> tuple[str, ...]:
    """List every part that can hold a user's truth."""
    return tuple(dict.fromkeys([*HELD_OUT_PARTS, *split.parts]))


def list_made_parts(split: Split) -> tuple[str, ...]:
    """List the held-out parts a protocol itself makes.

    The protocol makes them whatever parts the log names.
    """
    held_out = split.held_out.valid if split.held_out else 0.0
    is_ratio = split.holdout == "ratio" and split.ratio[1] > 0
    return (*split.parts, *(("valid",) if is_ratio or split.valid or held_out else ()))
