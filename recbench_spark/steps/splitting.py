"""From a log to a split: `splits`, `items`, `user_blocks`, `propensities`, `manifests`."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from recbench_spark import schemas
from recbench_spark.config import Benchmark, Dataset, Slice, Split, digest
from recbench_spark.data import worlds
from recbench_spark.data.identity import identity
from recbench_spark.data.readers import id_order, open_log, read_table
from recbench_spark.errors import DataError
from recbench_spark.evaluation.user_blocks import Labels, user_blocks
from recbench_spark.journal import Journal
from recbench_spark.placeholders import end_of_log
from recbench_spark.protocol.catalogue import catalogue
from recbench_spark.protocol.manifests import FACTS, manifest
from recbench_spark.protocol.splits import labelled
from recbench_spark.schemas import ITEMS, MANIFESTS, PROPENSITIES, REJECTS, SPLITS, USER_BLOCKS
from recbench_spark.session import narrow_rows
from recbench_spark.store import Store

HELD_OUT_PARTS = ("valid", "probe", "quiz", "test", "open_loop")
"""Parts that a log or a protocol may hold out, beside those that `split.parts` names."""


COLUMNAR = ("parquet", "delta")


DROPPED = "dropped"
"""Fact of a manifest: how often retention has removed the splits of this hash."""


def split_identity(store: Store, benchmark: Benchmark) -> tuple[str, dict[str, str]]:
    """The name of a split, a hash of all it is made from, and the identity of the log.

    A split that retention removed is made again under a name of its own, `HASH.1`: Delta would take
    its rows for a repetition of those removed.
    """
    found, inputs = _split_hash(store.spark, benchmark)
    return current_name(store, found), inputs


def current_name(store: Store, split_id: str) -> str:
    """The name under which this split is made now."""
    base = split_id.partition(".")[0]
    of_base = (F.col("split_id") == base) & (F.col("fact") == DROPPED)
    dropped = store.read(MANIFESTS).where(of_base).agg(F.max("value").alias("n")).collect()[0].n
    return f"{base}.{dropped:.0f}" if dropped else base


def _split_hash(spark: SparkSession, benchmark: Benchmark) -> tuple[str, dict[str, str]]:
    dataset = benchmark.dataset
    inputs = {} if dataset.reader == "world" else {"log": identity(spark, str(dataset.path))}
    for cut in benchmark.evaluation.slices:
        if cut.path:
            inputs[f"slice {cut.key}"] = identity(spark, cut.path)
    settings = dataset.model_dump(exclude={"name", "path"})
    slices = [cut.model_dump() for cut in benchmark.evaluation.slices]
    return digest(settings, inputs, benchmark.split.model_dump(), slices), inputs


def prepare_split(store: Store, benchmark: Benchmark, split_id: str, journal: Journal) -> None:
    """Log to `splits`, `items`, `user_blocks`, `propensities`, and at last `manifests`.

    A split whose manifest stands is complete and is not made again.
    """
    if store.has(MANIFESTS, "split_id", split_id):
        journal.say(f"split {split_id}: made before")
        return
    split = benchmark.split
    with journal.stage("splits", f"split {split_id}: {split.describe()}", split_id=split_id) as counts:
        found = open_log(store.spark, benchmark.dataset)
        if found.rejects is not None:
            _append_split(store, REJECTS, found.rejects, split_id)
            counts["rejected"] = found.rejected
        # Text is parsed once; columnar files are read again faster than they are kept.
        log = found.stored if benchmark.dataset.reader in COLUMNAR else found.stored.cache()
        log, counts["later_rows"] = before_the_end(log, benchmark.dataset)
        counts["rows"] = log.count() if found.n is None else found.n - counts["later_rows"]
        if not counts["rows"]:
            raise DataError(f"dataset {benchmark.dataset.name} has no rows", "check dataset.path")
        write_rows(store, log, benchmark.dataset, split, counts["rows"], split_id)
        numeric = id_order([log]) == "numeric"
        found.stored.unpersist()
    splits = of_split(store, SPLITS, split_id)
    _write_blocks(store, benchmark, splits, split_id, numeric, journal)
    with journal.stage("manifests", "audit the split", split_id=split_id):
        facts = manifest(splits, counts["rows"], split.model_dump_json(), found.rejected, found.told())
        if benchmark.dataset.until:
            facts = facts.unionByName(_later_fact(store.spark, benchmark.dataset, counts["later_rows"]))
        _append_split(store, MANIFESTS, facts, split_id)


def write_rows(store: Store, log: DataFrame, dataset: Dataset, split: Split, n: int, split_id: str) -> None:
    """The labelled log to `splits`: one shuffle, one commit.

    Args:
        store: the warehouse.
        log: as `Log.stored`.
        dataset: what attributes it has, and which of two rows of a pair stays.
        split: the protocol.
        n: rows of the log.
        split_id: the split's name.
    """
    # What the log has not is not shuffled either.
    slim = log if dataset.attributes or dataset.reader == "world" else log.drop("attributes")
    with narrow_rows(store.spark):
        _append_split(store, SPLITS, labelled(slim, split, dataset.duplicates, n), split_id)


def before_the_end(log: DataFrame, dataset: Dataset) -> tuple[DataFrame, int]:
    """The rows until the end of `dataset.until`, and how many lie after it. One pass, nothing shuffled.

    Raises:
        DataError: rows without a time, which belong to no night.
    """
    end, time = end_of_log(dataset), F.col("event_time")
    if end is None:
        return log, 0
    (found,) = log.agg(
        F.count_if(time >= end).alias("later"), F.count_if(time.isNull()).alias("undated")
    ).collect()
    if found.undated:
        raise DataError(
            f"dataset.until is set, and {found.undated} rows of {dataset.name} have no event_time",
            "map dataset.columns.event_time, or remove dataset.until",
        )
    return log.where(time < end), found.later


def _later_fact(spark: SparkSession, dataset: Dataset, later: int) -> DataFrame:
    detail = f"rows after {dataset.until} ({dataset.time_zone}), left out"
    return spark.createDataFrame([("log", "later_rows", float(later), detail)], FACTS)


def _write_blocks(
    store: Store, benchmark: Benchmark, splits: DataFrame, split_id: str, numeric: bool, journal: Journal
) -> None:
    with journal.stage("items", "catalogue of items", split_id=split_id):
        items = catalogue(splits, numeric)
        _append_split(store, ITEMS, items, split_id)
        _append_propensities(store, benchmark, split_id)
    with journal.stage("user_blocks", "blocks of users", split_id=split_id):
        items = of_split(store, ITEMS, split_id)
        joined, labels = with_labels(store.spark, splits, benchmark.evaluation.slices)
        blocks = user_blocks(joined, items, held_out_parts(benchmark.split), labels)
        _append_split(store, USER_BLOCKS, blocks, split_id)


def held_out_parts(split: Split) -> tuple[str, ...]:
    """Every part that can hold the truth of a user."""
    return tuple(dict.fromkeys([*HELD_OUT_PARTS, *split.parts]))


def _append_split(store: Store, table: schemas.Table, frame: DataFrame, split_id: str) -> None:
    store.append(frame.withColumn("split_id", F.lit(split_id)), table, once=split_id)


def _append_propensities(store: Store, benchmark: Benchmark, split_id: str) -> None:
    if benchmark.dataset.reader == "world":
        known = worlds.true_propensities(store.spark, benchmark.dataset.world)
        _append_split(store, PROPENSITIES, known.withColumn("method", F.lit("true")), split_id)


def of_split(store: Store, table: schemas.Table, split_id: str) -> DataFrame:
    """The rows of one split."""
    return store.read(table).where(F.col("split_id") == split_id)


def with_labels(
    spark: SparkSession, splits: DataFrame, slices: Sequence[Slice]
) -> tuple[DataFrame, Labels]:
    """The log with a column for each slice, and the labels to take from it."""
    labels: Labels = {}
    for cut in slices:
        column = f"_slice_{cut.key}"
        if cut.of == "popularity":
            labels[cut.key] = F.col("popularity")
        elif cut.of == "cold_user":
            labels[cut.key] = None
        elif cut.of == "log":
            labels[cut.key] = F.col("attributes")[cut.column or cut.key]
        else:
            splits = splits.join(_attribute(spark, cut, column), f"{cut.of[:-1]}_id", "left")
            labels[cut.key] = F.col(f"`{column}`")  # a key may hold dots
    return splits, labels


def _attribute(spark: SparkSession, cut: Slice, column: str) -> DataFrame:
    name, wanted = f"{cut.of[:-1]}_id", cut.column or cut.key
    table = read_table(spark, str(cut.path), [name, wanted], f"slice {cut.key}")
    rows = table.select(F.col(name).cast("string"), F.col(f"`{wanted}`").cast("string").alias(column))
    if rows.count() > rows.select(name).distinct().count():
        raise DataError(f"slice {cut.key}: {cut.path} has a {name} twice", "keep one row an id")
    return rows
