"""Make a split of a log: the tables `splits`, `items`, `user_blocks`, `propensities`, `manifests`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date
from functools import partial

import pyarrow as pa
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recbench_spark.config import TABLE_READERS, Benchmark, Dataset, Slice, Split
from recbench_spark.config.models import ListsModel
from recbench_spark.data import worlds
from recbench_spark.data.columnar import COLUMNAR_READERS, COLUMNS, open_columnar_log
from recbench_spark.data.identity import identity
from recbench_spark.data.paths import refuse_empty
from recbench_spark.data.readers.ids import id_order
from recbench_spark.data.readers.logs import open_log
from recbench_spark.data.readers.tables import read_table
from recbench_spark.data.times import describe_units
from recbench_spark.definitions import Definition
from recbench_spark.errors import ConfigError, DataError, EmptyPartError, FallbackToSpark, StoreError
from recbench_spark.evaluation.ranking.known_items import KnownItems
from recbench_spark.evaluation.ranking.source_rows import share_items
from recbench_spark.inputs import require_unchanged
from recbench_spark.nightly.run_keys import hash_split
from recbench_spark.placeholders import log_end_micros
from recbench_spark.protocol.audit_passes import build_manifest, count_parts
from recbench_spark.protocol.catalogue import build_catalogue
from recbench_spark.protocol.labels import OpenLoop, label_rows, sum_dropped
from recbench_spark.protocol.manifests import Fact, LogRows, Manifest, describe_rows, refuse_empty_parts
from recbench_spark.protocol.splits import (
    count_dropped_rows,
    deal_log,
    label_blocks,
    labels_independently,
    make_rule,
)
from recbench_spark.protocol.time_facts import list_age_facts, list_time_facts
from recbench_spark.protocol.user_blocks import BlockPlan, build_user_blocks, label_slices
from recbench_spark.runtime.journal import Journal
from recbench_spark.runtime.session import cache_scope, narrow_rows
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
from recbench_spark.storage.blocks import Blocks, count_tasks, open_files, shuffle_blocks
from recbench_spark.storage.packed_blocks import are_whole
from recbench_spark.storage.spark_types import spark_schema
from recbench_spark.storage.store import Store

HELD_OUT_PARTS = ("valid", "probe", "quiz", "test", "open_loop")
"""Parts that a log or a protocol may hold out, beside those that `split.parts` names."""


LABELLED_SCHEMA = T.StructType(
    [field for field in spark_schema(SPLITS) if field.name in (*COLUMNS, "part")]
)
"""Schema of labelled rows that Python tasks write: such a log has no attributes."""

BLOCK_COLUMNS = T.StructType([field for field in spark_schema(USER_BLOCKS) if field.name != "split_id"])
"""Schema of user blocks that Python tasks write."""

DROPPED_FACT = "dropped"
"""Fact of a manifest: the number of times that retention has removed the splits of this hash."""


def identify_split(store: Store, benchmark: Benchmark) -> tuple[str, dict[str, str]]:
    """Return the name of a split (a hash of all its inputs) and the identity of the log.

    A split that retention removed is made again under the new name `HASH.1`: Delta would take rows of the
    old name for a repetition of the removed ones.
    """
    refuse_empty(str(benchmark.dataset.path or ""))
    split_hash, inputs = hash_split(partial(identity, store.spark), benchmark)
    return current_split_id(store, split_hash), inputs


def current_split_id(store: Store, split_id: str) -> str:
    """Return the name under which this split is made now."""
    base = split_id.partition(".")[0]
    rows = store.rows(MANIFESTS, [("split_id", "=", base), ("fact", "=", DROPPED_FACT)], ["value"])
    dropped = max((row["value"] for row in rows), default=0)
    return f"{base}.{dropped:.0f}" if dropped else base


def choose_open_loop(dataset: Dataset, split: Split) -> OpenLoop:
    """Return whether the open loop is a separate log of any pairs, and which of its pairs stay."""
    shows_all = dataset.reader == "world" and dataset.world.open_items == "all"
    keeps_known = split.open_loop == "all"
    return OpenLoop(shows_all or keeps_known or dataset.closed_loop == "split", keeps_known)


def check_open_loop(benchmark: Benchmark, definition: Definition) -> None:
    """Refuse candidates without the pairs that training knows, if those are tested. Raises ConfigError."""
    tested = benchmark.split.open_loop == "all" and "open_loop" in benchmark.evaluation.parts
    if tested and benchmark.evaluation.task != "rating" and definition.candidates not in ("all", "rated"):
        raise ConfigError(
            "split.open_loop 'all' tests pairs that training knows, and they are no candidates under "
            f"definition.candidates '{definition.candidates}'",
            "evaluation.definition.candidates: all, or split.open_loop: unseen",
        )


def check_repeats(benchmark: Benchmark, definition: Definition) -> None:
    """Refuse masks of training items if the split asks for pairs of training. Raises ConfigError."""
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


def prepare_split(
    store: Store, benchmark: Benchmark, split_id: str, journal: Journal, logical_date: date | None = None
) -> None:
    """Write a log to `splits`, `items`, `user_blocks`, `propensities`, and at last `manifests`.

    A split with a manifest is complete and is not made again. With a logical date the manifest has the ages
    of the log's ends on that day.

    Raises:
        ProtocolError: a split without training or test rows; and all that `write_labelled_log` raises.
        StoreError: a table of the split lacks rows; the split is dropped, and the next run makes it again.
    """
    if store.has(MANIFESTS, "split_id", split_id):
        journal.say(f"split {split_id}: already made")
    else:
        _make_split(store, benchmark, split_id, journal, logical_date)
    for line in describe_rows(store.rows(MANIFESTS, [("split_id", "=", split_id)])):
        journal.say(f"split {split_id}: {line}")


def _make_split(
    store: Store, benchmark: Benchmark, split_id: str, journal: Journal, logical_date: date | None
) -> None:
    split = benchmark.split
    stage = journal.stage("splits", f"split {split_id}: {split.describe()}", split_id=split_id)
    with name_time_unit(benchmark.dataset), stage as counts:
        written = write_labelled_log(store, benchmark.dataset, split, split_id)
        log = written.rows
        counts |= {"rows": log.n, "later_rows": log.later, "rejected": log.rejected}
    splits = read_split(store, SPLITS, split_id)
    files = store.list_partition_files(SPLITS, {"split_id": split_id}, max_bytes=math.inf)
    part_counts = count_parts(splits, files)
    with name_time_unit(benchmark.dataset):
        refuse_empty_parts(part_counts, split, log)
    with cache_scope():  # a session may make a split of this name again, in another warehouse at this place
        _write_blocks(
            store, benchmark, splits, split_id, files=files, numeric=written.numeric, journal=journal
        )
    with journal.stage("manifests", "audit the split", split_id=split_id):
        manifest = build_manifest(splits, log, split.model_dump_json(), parts=part_counts, files=files)
        _require_whole(store, split_id, manifest)
        facts = manifest.facts
        if benchmark.dataset.until:
            facts.append(_later_fact(benchmark.dataset, log.later))
        facts += list_time_facts(part_counts, split, benchmark.dataset.zone)
        if logical_date:
            known = [fact._asdict() for fact in facts]
            facts += list_age_facts(known, logical_date, benchmark.dataset.zone)
        rows = [{"split_id": split_id, **fact._asdict()} for fact in facts]
        require_unchanged()
        store.append_rows(rows, MANIFESTS, split_id)


@contextmanager
def name_time_unit(dataset: Dataset) -> Iterator[None]:
    """Say what a log's times would be in other units, where a part that is cut by time is empty.

    Raises:
        EmptyPartError: as in the block, with a longer hint where `time_unit` counts.
    """
    try:
        yield
    except EmptyPartError as error:
        if error.ends is None or dataset.reader not in TABLE_READERS or dataset.time_unit == "timestamp":
            raise
        hint = f"{error.hint}; {describe_units(error.ends, dataset.time_unit)}"
        raise EmptyPartError(error.message, hint, error.ends) from None


def _require_whole(store: Store, split_id: str, manifest: Manifest) -> None:
    """Compare the rows of the catalogue and of the user blocks with the items and users of the log.

    The rows are counted from the statistics of the commits. A table that lacks rows would stay under its
    name for good, and every later night would read it. So the split is dropped: its next name is made anew.

    Raises:
        StoreError: a table has more or fewer rows than the log has users or items.
    """
    for table, wanted, what in (
        (ITEMS, manifest.items, "items"),
        (USER_BLOCKS, manifest.users, "users"),
    ):
        actual = store.count_rows(table, "split_id", split_id)
        if actual != wanted:
            drop_splits(store, [split_id], "incomplete")
            raise StoreError(
                f"split {split_id}: {table.name} has {actual:,} rows, and the log has {wanted:,} {what}",
                "the rows of this split were removed: run again, and it is made anew",
            )


def drop_splits(store: Store, split_ids: Sequence[str], reason: str) -> None:
    """Delete the rows of splits. Each is first recorded as removed, so that no run on it is published."""
    for split_id in split_ids:
        base, _, times = split_id.partition(".")
        row = (base, "log", DROPPED_FACT, int(times or 0) + 1.0, f"{split_id} {reason}")
        schema = "split_id string, part string, fact string, value double, detail string"
        frame = store.spark.createDataFrame([row], schema)
        store.append(frame, MANIFESTS, once=f"{DROPPED_FACT}/{split_id}")
    for table, column in list_split_tables():
        if store.exists(table.name):
            store.delete(table.name, column, split_ids)


def list_split_tables() -> list[tuple[Table, str]]:
    """Return tables partitioned by split, or by a name that begins with a split's; `splits` comes last.

    `splits` shows which splits exist.
    """
    columns = {"split_id": "split_id"}
    name_columns = ("model_id", "graph_id", "neighbourhood_id", "nearest_id")
    columns |= {name: f"substring_index({name}, '-', 1)" for name in name_columns}
    tables = [
        (table, columns[table.partition_by[0]])
        for table in TABLES.values()
        if table.partition_by and table.partition_by[0] in columns
    ]
    return sorted(tables, key=lambda pair: pair[0] == SPLITS)


@dataclass(frozen=True)
class LogCounts:
    """Counts of a log whose labelled rows are in `splits`; `numeric`: item ids are ordered as numbers."""

    rows: LogRows
    numeric: bool


def write_labelled_log(store: Store, dataset: Dataset, split: Split, split_id: str) -> LogCounts:
    """Read, check and label a log and write it to `splits`, with one shuffle and one commit.

    Parquet with plain values is read, labelled and written by Python tasks alone. Any other log, and splits
    that need an instant or the log's own parts, use Spark's readers (`open_log`). A value that Python tasks
    cannot take ends the first attempt (on a cluster after all retries of its task).

    Args:
        store: the warehouse.
        dataset: the log, and the rule for two rows of a pair.
        split: the protocol.
        split_id: the split's name.

    Raises:
        ConfigError, SchemaError, DataError, ProtocolError: as `open_log` and `label_blocks`.
    """
    files = open_columnar_log(dataset) if labels_independently(split, has_times=True) else None
    if files is None or not labels_independently(split, "event_time" in files.theirs):
        return _write_by_spark(store, dataset, split, split_id)
    rule, tasks = make_rule(split, dataset.duplicates), count_tasks(store.spark, files.n)
    rule = replace(rule, numeric=rule.tie in files.whole)
    packed = deal_log(store.spark, files, rule.owner, tasks)
    blocks = Blocks(packed, partial(label_rows, rule=rule), LABELLED_SCHEMA, rule.owner)
    try:
        dropped = _append_labelled(store, blocks, split_id, files.n)
    except PythonException as error:
        if FallbackToSpark.__name__ not in str(error):
            raise
        return _write_by_spark(store, dataset, split, split_id)
    return LogCounts(LogRows(files.n, dropped=dropped), "item_id" in files.whole)


def _append_labelled(store: Store, blocks: Blocks, split_id: str, n: int) -> Counter[tuple[str, str]]:
    """Write labelled rows, and count those of n that they leave out, by part and reason.

    Tasks that write files count; where Spark writes, or has written before, a second pass counts.
    """
    if files := store.append_blocks(blocks, SPLITS, split_id):
        return sum_dropped(file.notes for file in files)
    left_out = store.count_rows(SPLITS, "split_id", split_id) < n
    return count_dropped_rows(blocks) if left_out else Counter()


def _write_by_spark(store: Store, dataset: Dataset, split: Split, split_id: str) -> LogCounts:
    """Write any log with Spark's readers; unusable rows are an error, or go to `rejects`."""
    opened = open_log(store.spark, dataset)
    if opened.rejects is not None:
        _append_split(store, REJECTS, opened.rejects, split_id)
    # Cache parsed text; reading columnar files again is faster than caching them.
    log = opened.stored if dataset.reader in COLUMNAR_READERS else opened.stored.cache()
    log, later = drop_later_rows(log, dataset)
    n = log.count() if opened.n is None else opened.n - later
    if not n:
        raise DataError(f"dataset {dataset.name} has no rows", "check dataset.path")
    # Do not shuffle a column that is empty.
    narrow = log if dataset.attributes or dataset.reader == "world" else log.drop("attributes")
    numeric = id_order([log]) == "numeric"
    tie = make_rule(split, None).tie
    ordered = numeric if tie == "item_id" else id_order([log], tie) == "numeric"
    with narrow_rows(store.spark):
        open_loop = choose_open_loop(dataset, split)
        blocks = label_blocks(
            narrow, split, dataset.duplicates, n, ordered, open_loop=open_loop, zone=dataset.zone
        )
        dropped = _append_labelled(store, blocks, split_id, n)
    opened.stored.unpersist()
    return LogCounts(LogRows(n, later, opened.rejected, opened.describe_reasons(), dropped), numeric)


def drop_later_rows(log: DataFrame, dataset: Dataset) -> tuple[DataFrame, int]:
    """Return the rows before the end of `dataset.until`, and the number of later ones.

    This takes one pass and no shuffle.

    Raises:
        DataError: rows without a time, which belong to no night.
    """
    end, time = log_end_micros(dataset), F.col("event_time")
    if end is None:
        return log, 0
    (counts,) = log.agg(
        F.count_if(time >= end).alias("later"), F.count_if(time.isNull()).alias("undated")
    ).collect()
    if counts.undated:
        raise DataError(
            f"dataset.until is set, and {counts.undated} rows of {dataset.name} have no event_time",
            "map dataset.columns.event_time, or remove dataset.until",
        )
    return log.where(time < end), counts.later


def _later_fact(dataset: Dataset, later: int) -> Fact:
    detail = f"rows after {dataset.until} ({dataset.time_zone}), left out"
    return Fact("log", "later_rows", float(later), detail)


def _write_blocks(
    store: Store,
    benchmark: Benchmark,
    splits: DataFrame,
    split_id: str,
    *,
    files: Sequence[str],
    numeric: bool,
    journal: Journal,
) -> None:
    with journal.stage("items", "catalogue of items", split_id=split_id):
        catalogue = build_catalogue(splits, numeric, files)
        if isinstance(catalogue.rows, pa.Table):
            named = catalogue.rows.append_column("split_id", pa.repeat(split_id, len(catalogue.rows)))
            store.append_rows(named, ITEMS, split_id)
        else:
            _append_split(store, ITEMS, catalogue.rows, split_id)
        _append_propensities(store, benchmark, split_id)
    with journal.stage("user_blocks", "blocks of users", split_id=split_id):
        known = KnownItems(share_items(store, split_id), catalogue.n)
        plan = BlockPlan(
            known.find,
            catalogue.bounds,
            list_held_out_parts(benchmark.split),
            label_slices(benchmark.evaluation.slices),
        )
        blocks = make_user_blocks(store, split_id, files, benchmark.evaluation.slices, plan)
        store.append_blocks(blocks, USER_BLOCKS, split_id)


def make_user_blocks(
    store: Store, split_id: str, files: Sequence[str], slices: Sequence[Slice], plan: BlockPlan
) -> Blocks:
    """Build user blocks from a labelled log; a task holds all rows of its users.

    Tasks open the log's files as they are. Its rows are shuffled once by user where files are not whole
    by user (items are held out, or files were compacted), and where Spark joins labels from a table.
    """
    build = partial(build_user_blocks, plan=plan)
    joined = [(cut, label.column) for cut, label in zip(slices, plan.slices, strict=True) if cut.path]
    if are_whole(files, "user_id") and not joined:
        return open_files(store.spark, files, plan.columns, build, BLOCK_COLUMNS)
    rows = read_split(store, SPLITS, split_id)
    for cut, column in joined:
        rows = rows.join(_read_slice_column(store.spark, cut, column), f"{cut.of[:-1]}_id", "left")
    tasks = count_tasks(store.spark, store.count_rows(SPLITS, "split_id", split_id))
    packed = shuffle_blocks(rows.select(*plan.columns), F.xxhash64("user_id"), tasks)
    return Blocks(packed, build, BLOCK_COLUMNS)


def list_held_out_parts(split: Split) -> tuple[str, ...]:
    """Return every part that can hold the truth of a user."""
    return tuple(dict.fromkeys([*HELD_OUT_PARTS, *split.parts]))


def list_made_parts(split: Split) -> tuple[str, ...]:
    """Return the held-out parts that a protocol itself makes, whatever parts the log names."""
    held_out = split.held_out.valid if split.held_out else 0.0
    is_ratio = split.holdout == "ratio" and split.ratio[1] > 0
    return (*split.parts, *(("valid",) if is_ratio or split.valid or held_out else ()))


def _append_split(store: Store, table: Table, frame: DataFrame, split_id: str) -> None:
    store.append(frame.withColumn("split_id", F.lit(split_id)), table, once=split_id)


def _append_propensities(store: Store, benchmark: Benchmark, split_id: str) -> None:
    if benchmark.dataset.reader == "world":
        propensities = worlds.true_propensities(store.spark, benchmark.dataset.world)
        _append_split(store, PROPENSITIES, propensities.withColumn("method", F.lit("true")), split_id)


def read_split(store: Store, table: Table, split_id: str) -> DataFrame:
    """Return the rows of one split."""
    return store.read_partition(table, "split_id", split_id)


def _read_slice_column(spark: SparkSession, cut: Slice, column: str) -> DataFrame:
    id_column, value_column = f"{cut.of[:-1]}_id", cut.column or cut.key
    table = read_table(spark, str(cut.path), [id_column, value_column], f"slice {cut.key}")
    rows = table.select(
        F.col(id_column).cast("string"), F.col(f"`{value_column}`").cast("string").alias(column)
    )
    if rows.count() > rows.select(id_column).distinct().count():
        raise DataError(f"slice {cut.key}: {cut.path} has a {id_column} twice", "keep one row per id")
    return rows
