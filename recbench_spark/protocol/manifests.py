"""Write the manifest of a split: its content, whether it leaks, and how much its parts differ."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recbench_spark.config import Split
from recbench_spark.kernels.streams import Batches
from recbench_spark.protocol import audit
from recbench_spark.protocol.audit import COLUMNS, NOT_HELD_OUT, AuditRequest, PartSummary
from recbench_spark.protocol.labels import GIVEN, LATER, OPEN_LOOP, TRAIN, VALID
from recbench_spark.protocol.splits import may_have_duplicates
from recbench_spark.protocol.windows import refuse_empty
from recbench_spark.schemas import TIME_FACTS
from recbench_spark.storage.blocks import BLOCK_SCHEMA, Block, Blocks, chunks, count_tasks


class Fact(NamedTuple):
    """A fact about a part, or about the whole log: a number, or a text."""

    part: str
    fact: str
    value: float | None
    detail: str | None = None


class Manifest(NamedTuple):
    """The facts of a labelled log, and its numbers of distinct users and items."""

    facts: list[Fact]
    users: int
    items: int


Parts = Mapping[str, PartSummary]


def build_manifest(
    splits: DataFrame,
    log_rows: int,
    settings: str,
    rejected: int = 0,
    reasons: str | None = None,
    *,
    parts: Parts | None = None,
    dropped: str | None = None,
    files: Sequence[str] = (),
) -> Manifest:
    """Collect the facts of a labelled log: counts, content hashes, overlap, leakage in time, drift.

    Python tasks make two passes: by part, and by user and item, where each task shuffles one row for each
    id in its rows (`audit`). If a user's rows are in several pieces of files, two more passes follow: by
    64-bit hashes of pairs for the overlap, and a join of training rows with their users for rows of their
    own future. A task holds `audit.ROWS_PER_PIECE` rows.

    Args:
        splits: the labelled log of one split.
        log_rows: rows read, before duplicates were dropped.
        settings: the split's settings as JSON.
        rejected: number of rejected rows of the log.
        reasons: the reasons of the rejection.
        parts: the result of `count_parts`; None to compute it here.
        dropped: a description of the rows that the split left out, where they are not duplicates.
        files: the Parquet files that `splits` reads; tasks then read them directly.
    """
    parts = count_parts(splits, files) if parts is None else parts
    protocol = json.loads(settings)
    keeps_known = protocol.get("open_loop") == "all"
    sums = _sum_audit(splits, files, parts, keeps_known=keeps_known)
    n_labelled = sum(part.rows for part in parts.values())
    facts = [
        Fact("log", "rows_read", float(log_rows)),
        Fact("log", "settings", None, settings),
        Fact("log", "rejected_rows", float(rejected), reasons),
        Fact("log", "duplicates_dropped", float(log_rows - n_labelled), dropped),
        Fact("log", "overlap", float(sums["overlap"]), "pairs in more than one row"),
    ]
    for name, part in parts.items():
        facts += [Fact(name, "rows", float(part.rows)), Fact(name, "content_hash", None, part.content_hash)]
    facts += [*_owner_facts(sums, "user", parts), *_owner_facts(sums, "item", parts)]
    facts += [*_drift_facts(sums, parts), *_leakage_facts(sums, parts)]
    if keeps_known:
        facts.append(Fact(OPEN_LOOP, "known_pairs", float(sums["known"]), "pairs that training knows"))
    held_out = protocol.get("held_out")
    facts += _all_given_facts(sums, held_out["of"]) if held_out else []
    return Manifest(facts, sums["users", "all"], sums["items", "all"])


def refuse_empty_parts(parts: Parts, split: Split) -> None:
    """Refuse a split without training rows or without test rows.

    Raises:
        ProtocolError: as `windows.refuse_empty`.
    """
    times = [time for part in parts.values() for time in (part.earliest, part.latest)]
    known_times = [time for time in times if time is not None]
    required = {TRAIN: 0, **dict.fromkeys(split.parts, 0)}
    sizes = required | {name: part.rows for name, part in parts.items()}
    refuse_empty(sizes, split, min(known_times, default=None), max(known_times, default=None))


# ------------------------------------------------------------------------------------ passes


def count_parts(splits: DataFrame, files: Sequence[str] = ()) -> Parts:
    """Return rows, content hash and range in time of each part: one pass, without a shuffle."""
    if files:
        read = splits.sparkSession.sparkContext.parallelize(files, len(files))
        return audit.merge_parts(read.mapPartitions(_summarise_files).collect())
    rows = splits.select(*COLUMNS).mapInArrow(_summarise_batches, "summary BINARY").collect()
    return audit.merge_parts(pickle.loads(row["summary"]) for row in rows)


def _summarise_files(paths: Iterable[str]) -> Iterator[Any]:
    yield audit.summarise_parts(table for path in paths for table in audit.read_pieces(path, COLUMNS))


def _summarise_batches(batches: Batches) -> Batches:
    summary = pickle.dumps(audit.summarise_parts(chunks(batches, audit.ROWS_PER_PIECE)))
    yield pa.RecordBatch.from_arrays([pa.array([summary], pa.binary())], ["summary"])


def _sum_audit(splits: DataFrame, files: Sequence[str], parts: Parts, *, keeps_known: bool) -> Counter[Any]:
    """Sum `audit.sum_counts` over all users and items."""
    times = [part.earliest for name, part in parts.items() if name not in NOT_HELD_OUT]
    request = AuditRequest(
        {name: part.rows for name, part in parts.items()},
        min((time for time in times if time is not None), default=None),
        keeps_known,
    )
    totals = _count_blocks(splits, files, request).each(partial(audit.sum_counts, request=request))
    sums: Counter[Any] = Counter()
    for one in totals:
        sums.update(one)
    if sums["parted"]:
        sums["overlap"], sums["known"] = _count_repeated_pairs(splits, keeps_known)
        sums["own_later"] = _count_own_future(splits)
    return sums


def _count_blocks(splits: DataFrame, files: Sequence[str], request: AuditRequest) -> Blocks:
    """Count each piece, in blocks by id."""
    spark = splits.sparkSession
    tasks = count_tasks(spark, sum(request.rows.values()))
    if files:
        count = partial(_count_files, request=request, tasks=tasks)
        counted = spark.sparkContext.parallelize(files, len(files)).mapPartitions(count)
        return Blocks(counted.partitionBy(tasks, int), audit.merge_pieces, T.StructType())
    batches = partial(_count_batches, request=request, tasks=tasks)
    packed = splits.select(*COLUMNS).mapInArrow(batches, BLOCK_SCHEMA).repartitionById(tasks, F.col("task"))
    return Blocks(packed, audit.merge_pieces, T.StructType())


def _count_files(paths: Iterable[str], request: AuditRequest, tasks: int) -> Iterator[Block]:
    columns = [name for name in COLUMNS if name != "rating"]
    tables = (table for path in paths for table in audit.read_pieces(path, columns))
    return audit.count_in_blocks(tables, request, tasks)


def _count_batches(batches: Batches, request: AuditRequest, tasks: int) -> Batches:
    for task, rows in audit.count_in_blocks(chunks(batches, audit.ROWS_PER_PIECE), request, tasks):
        columns = [pa.array([task], pa.int32()), pa.array([rows], pa.binary())]
        yield pa.RecordBatch.from_arrays(columns, ["task", "rows"])


# ------------------------------------------------------------------------------------ facts


def _owner_facts(sums: Counter[Any], owner: str, parts: Parts) -> list[Fact]:
    """Return the number of users (or items) of each part, and of those without training rows."""
    facts = [Fact(part, f"{owner}s", float(sums[f"{owner}s of", part])) for part in parts]
    facts += [
        Fact(
            part,
            f"cold_{owner}s",
            float(sums[f"cold {owner}s of", part]),
            f"{owner}s without training rows",
        )
        for part in parts
        if part != TRAIN
    ]
    return [*facts, Fact("log", f"test_only_{owner}s", float(sums[f"{owner}s", "cold"]))]


def _all_given_facts(sums: Counter[Any], owners: str) -> list[Fact]:
    """Count held-out users (or items) whose rows are all given; they are never tested."""
    detail = f"held-out {owners} all of whose rows are given"
    return [Fact(GIVEN, f"untested_{owners}", float(sums[owners, "untested"]), detail)]


def _drift_facts(sums: Counter[Any], parts: Parts) -> list[Fact]:
    """Compute the total variation between the items' shares in training and in each other part.

    It is 1/2 sum over items of |n_train(i) / n_train - n_part(i) / n_part|: the share of a part's rows that
    would have to move to other items to be distributed as in training. 0 means equal, 1 no item in common.
    """
    if TRAIN not in parts:
        return []
    detail = "total variation between item shares of this part and of train"
    # The gaps are whole numbers over the common denominator 2 n_train n_part, so that their sum does not
    # depend on the order of rows.
    return [
        Fact(name, "popularity_drift", sums["gap", name] / (2 * parts[TRAIN].rows * part.rows), detail)
        for name, part in parts.items()
        if name != TRAIN
    ]


def _leakage_facts(sums: Counter[Any], parts: Parts) -> list[Fact]:
    """Count training rows later than the earliest held-out row, of all users and of the same user."""
    held_out = [part for name, part in parts.items() if name not in NOT_HELD_OUT]
    if TRAIN not in parts or all(part.earliest is None for part in held_out):
        return []
    late = "later than the earliest held-out row"
    own = "training rows later than the user's own earliest held-out row"
    return [
        Fact(TRAIN, "future_rows", float(sums["later"]), f"training rows {late}"),
        Fact(TRAIN, "future_share", sums["later"] / parts[TRAIN].rows, f"share of training rows {late}"),
        Fact(TRAIN, "own_future_rows", float(sums["own_later"]), own),
    ]


# ------------------------------------------------------- users with rows in several pieces


def _count_repeated_pairs(splits: DataFrame, keeps_known: bool) -> tuple[int, int]:
    """Count as `audit.count_repeated_pairs` does, by a shuffle of the pairs."""
    if not may_have_duplicates(splits):
        return 0, 0
    opened, known = F.col("part") == OPEN_LOOP, F.col("part").isin(TRAIN, GIVEN, VALID)
    pairs = splits.groupBy("user_id", "item_id").agg(
        F.count_if(opened).alias("opened"),
        F.count_if(~opened).alias("others"),
        F.count_if(known).alias("known"),
    )
    both = (F.col("opened") > 0) & (F.col("known") > 0)
    doubled = (F.col("opened") > 1) | (F.col("others") > 1) | (both & F.lit(not keeps_known))
    (row,) = pairs.agg(F.count_if(doubled).alias("overlap"), F.count_if(both).alias("known")).collect()
    return row.overlap, row.known


def _count_own_future(splits: DataFrame) -> int:
    """Count training rows later than their user's own earliest held-out row."""
    held_out = splits.where(~F.col("part").isin(*NOT_HELD_OUT))
    first = held_out.groupBy("user_id").agg(F.min("event_time").alias("first"))
    train = splits.where(F.col("part") == TRAIN).join(first, "user_id")
    return train.where("event_time > first").count()


# ----------------------------------------------------------------------------------- text


def format_manifest(facts: Sequence[dict[str, Any]]) -> str:
    """Format the manifest for a terminal: a row per fact, a column per part, texts below."""
    numbers = [row for row in facts if row["value"] is not None and row["fact"] not in TEXT_FACTS]
    parts = sorted({row["part"] for row in numbers}, key=_part_order)
    names = sorted({row["fact"] for row in numbers})
    cells = {(row["fact"], row["part"]): row["value"] for row in facts}
    lines = [["", *parts]]
    lines += [[name, *(_format_value(cells.get((name, part))) for part in parts)] for name in names]
    widths = [max(len(line[column]) for line in lines) for column in range(len(parts) + 1)]
    text = [
        "  ".join(
            [line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]
        ).rstrip()
        for line in lines
    ]
    texts = [f"{row['part']} {row['fact']} {row['detail']}" for row in facts if row["fact"] in TEXT_FACTS]
    return "\n".join([*text, *sorted(texts)])


TEXT_FACTS = ("content_hash", *TIME_FACTS)
"""Facts that are read as text."""


PART_ORDER = ("log", TRAIN, GIVEN, "valid", "probe", "quiz", "test", "open_loop", LATER)


def _part_order(part: str) -> tuple[int, str]:
    return (PART_ORDER.index(part) if part in PART_ORDER else len(PART_ORDER), part)


def _format_value(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value == int(value) else f"{value:.4f}"
