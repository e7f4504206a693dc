"""Write the manifest of a split: its content, whether it leaks, and how much its parts differ."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recbench_spark.checks import Check
from recbench_spark.config import Split
from recbench_spark.engine.sessions import open_tasks
from recbench_spark.engine.versions import send_to_tasks
from recbench_spark.errors import ProtocolError
from recbench_spark.kernels.ids import MANY
from recbench_spark.kernels.streams import Batches
from recbench_spark.protocol import audit
from recbench_spark.protocol.audit import COLUMNS, NOT_HELD_OUT, AuditRequest, PartSummary
from recbench_spark.protocol.labels import GIVEN, LATER, TRAIN, VALID
from recbench_spark.protocol.pairs import OPEN_LOOP
from recbench_spark.protocol.splits import may_have_duplicates
from recbench_spark.protocol.windows import refuse_empty
from recbench_spark.schemas import TIME_FACTS
from recbench_spark.storage.blocks import Blocks, count_tasks
from recbench_spark.storage.packed_blocks import BLOCK_SCHEMA, Block, chunks


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


@dataclass(frozen=True)
class LogRows:
    """The rows of a log that were read, and how many of them the split left out.

    Attributes:
        n: rows to label, duplicates included: without rejected rows and rows after the log's end.
        later: rows after `dataset.until`.
        rejected, reasons: number of rows that could not be used, and the reasons.
        dropped: labelled rows that the split left out, (part, reason) -> rows; see `labels.read_dropped`.
    """

    n: int
    later: int = 0
    rejected: int = 0
    reasons: str | None = None
    dropped: Counter[tuple[str, str]] = field(default_factory=Counter)


def build_manifest(
    splits: DataFrame, log: LogRows, settings: str, *, parts: Parts | None = None, files: Sequence[str] = ()
) -> Manifest:
    """Collect the facts of a labelled log: counts, content hashes, overlap, leakage in time, drift.

    Python tasks make two passes: by part, and by user and item, where each task shuffles one row for each
    id in its rows (`audit`). If a user's rows are in several pieces of files, two more passes follow: by
    64-bit hashes of pairs for the overlap, and a join of training rows with their users for rows of their
    own future. A task holds `audit.ROWS_PER_PIECE` rows.

    Args:
        splits: the labelled log of one split.
        log: the rows that were read.
        settings: the split's settings as JSON.
        parts: the result of `count_parts`; None to compute it here.
        files: the Parquet files that `splits` reads; tasks then read them directly.
    """
    parts = count_parts(splits, files) if parts is None else parts
    protocol = json.loads(settings)
    keeps_known = protocol.get("open_loop") == "all"
    asks_repeats = protocol.get("repeats", "drop") != "drop"
    sums = _sum_audit(splits, files, parts, keeps_known=keeps_known, asks_repeats=asks_repeats)
    facts = [
        *list_log_facts(log),
        Fact("log", "settings", None, settings),
        Fact("log", "overlap", float(sums["overlap"]), "pairs in more than one row"),
    ]
    if asks_repeats:
        facts.append(Fact("log", "repeats", float(sums["repeats"]), "trained pairs that are asked"))
    for name, part in parts.items():
        facts += [Fact(name, "rows", float(part.rows)), Fact(name, "content_hash", None, part.content_hash)]
    facts += [*_owner_facts(sums, "user", parts), *_owner_facts(sums, "item", parts)]
    n_labelled = sum(part.rows for part in parts.values())
    facts += [*_suspect_facts(sums, "user", n_labelled), *_suspect_facts(sums, "item", n_labelled)]
    facts += [*_drift_facts(sums, parts), *_leakage_facts(sums, parts)]
    if keeps_known:
        facts.append(Fact(OPEN_LOOP, "known_pairs", float(sums["known"]), "pairs that training knows"))
    held_out = protocol.get("held_out")
    facts += _all_given_facts(sums, held_out["of"]) if held_out else []
    return Manifest(facts, sums["users", "all"], sums["items", "all"])


DROPPED = {
    "duplicates_dropped": "rows of a pair that has another row in the part",
    "repeats_dropped": "held-out rows of pairs that training knows",
    "new_pairs_dropped": "held-out rows of pairs that training does not know",
    "unordered_pairs": "pairs whose rows differ, and no time says which is the last: a hash chose",
}
"""Facts of rows that a split leaves out, of the whole log and of each part that has some."""


def list_log_facts(log: LogRows) -> list[Fact]:
    """Return the counts of rows that were read, and of those left out of the log and of each part."""
    facts = [
        Fact("log", "rows_read", float(log.n + log.later + log.rejected)),
        Fact("log", "rejected_rows", float(log.rejected), log.reasons),
    ]
    for fact, detail in DROPPED.items():
        of_parts = {part: n for (part, reason), n in sorted(log.dropped.items()) if reason == fact}
        facts.append(Fact("log", fact, float(sum(of_parts.values())), detail))
        facts += [Fact(part, fact, float(n), detail) for part, n in of_parts.items()]
    return facts


def describe_rows(facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say in sentences how many rows of a log were left out, and why; nothing if all stay.

    Args:
        facts: rows of the manifest (part, fact, value, detail).
    """
    of_log = {row["fact"]: row for row in facts if row["part"] == "log"}
    counts = {fact: int(row["value"]) for fact, row in of_log.items() if row["value"] is not None}
    reasons = (of_log.get("rejected_rows") or {}).get("detail")
    words = {
        "rejected_rows": f"rejected ({reasons})" if reasons else "rejected",
        "later_rows": (of_log.get("later_rows") or {}).get("detail") or "after the end of the log",
        "duplicates_dropped": "duplicates inside a part (dataset.duplicates)",
        "repeats_dropped": "of pairs that training knows (split.repeats, split.open_loop)",
        "new_pairs_dropped": "of pairs that training does not know (split.repeats: only)",
    }
    left_out = [f"{counts[fact]:,} {text}" for fact, text in words.items() if counts.get(fact)]
    read = counts.get("rows_read", 0)
    total = sum(counts.get(fact, 0) for fact in words)
    lines = [f"{total:,} of {read:,} rows left out: {', '.join(left_out)}"] if left_out else []
    if unordered := counts.get("unordered_pairs"):
        lines.append(
            f"warning: {unordered:,} pairs have rows of equal or missing times that differ: none is the "
            "last, and a hash of the row chose one"
        )
    return lines


def refuse_empty_parts(parts: Parts, split: Split, log: LogRows) -> None:
    """Refuse a split without training rows or without test rows.

    Raises:
        ProtocolError: `split.repeats` leaves no test rows; and as `windows.refuse_empty`.
    """
    settled = ("repeats_dropped", "new_pairs_dropped")
    n = sum(n for (part, why), n in log.dropped.items() if part in split.parts and why in settled)
    if n and not any(part in parts for part in split.parts):
        what = "does not know" if split.repeats == "only" else "knows"
        raise ProtocolError(
            f"no test rows: all {n:,} are of pairs that training {what} (split.repeats: {split.repeats})",
            "split.repeats: keep",
        )
    times = [time for part in parts.values() for time in (part.earliest, part.latest)]
    known_times = [time for time in times if time is not None]
    required = {TRAIN: 0, **dict.fromkeys(split.parts, 0)}
    sizes = required | {name: part.rows for name, part in parts.items()}
    refuse_empty(sizes, split, min(known_times, default=None), max(known_times, default=None))


# ------------------------------------------------------------------------------------ passes


def count_parts(splits: DataFrame, files: Sequence[str] = ()) -> Parts:
    """Return rows, content hash and range in time of each part: one pass, without a shuffle."""
    if files:
        read = open_tasks(splits.sparkSession).parallelize(files, len(files))
        return audit.merge_parts(read.mapPartitions(_summarise_files).collect())
    rows = splits.select(*COLUMNS).mapInArrow(_summarise_batches, "summary BINARY").collect()
    return audit.merge_parts(pickle.loads(row["summary"]) for row in rows)


def _summarise_files(paths: Iterable[str]) -> Iterator[Any]:
    yield audit.summarise_parts(table for path in paths for table in audit.read_pieces(path, COLUMNS))


def _summarise_batches(batches: Batches) -> Batches:
    summary = pickle.dumps(audit.summarise_parts(chunks(batches, audit.ROWS_PER_PIECE)))
    yield pa.RecordBatch.from_arrays([pa.array([summary], pa.binary())], ["summary"])


def _sum_audit(
    splits: DataFrame, files: Sequence[str], parts: Parts, *, keeps_known: bool, asks_repeats: bool
) -> Counter[Any]:
    """Sum `audit.sum_counts` over all users and items."""
    times = [part.earliest for name, part in parts.items() if name not in NOT_HELD_OUT]
    request = AuditRequest(
        {name: part.rows for name, part in parts.items()},
        min((time for time in times if time is not None), default=None),
        keeps_known,
        asks_repeats,
    )
    totals = _count_blocks(splits, files, request).each(partial(audit.sum_counts, request=request))
    sums: Counter[Any] = Counter()
    for one in totals:
        sums.update(one)
    if sums["parted"]:
        sums.update({name: -sums[name] for name in ("overlap", "known", "repeats")})
        sums.update(_count_repeated_pairs(splits, request))
        sums["own_later"] = _count_own_future(splits)
    return sums


def _count_blocks(splits: DataFrame, files: Sequence[str], request: AuditRequest) -> Blocks:
    """Count each piece, in blocks by id."""
    spark = splits.sparkSession
    tasks = count_tasks(spark, sum(request.rows.values()))
    if files:
        count = partial(_count_files, request=request, tasks=tasks)
        counted = open_tasks(spark).parallelize(files, len(files)).mapPartitions(count)
        return Blocks(counted.partitionBy(tasks, int), audit.merge_pieces, T.StructType())
    batches = partial(_count_batches, request=request, tasks=tasks)
    packed = send_to_tasks(splits.select(*COLUMNS).mapInArrow(batches, BLOCK_SCHEMA), tasks, F.col("task"))
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


def _suspect_facts(sums: Counter[Any], owner: str, rows: int) -> list[Fact]:
    """Return the share of ids that have an extreme part of the log, and of texts for a missing id.

    A fact stands only where there is something to tell: a log of few ids has large shares by nature.
    """
    facts = []
    for what in ("extreme", "placeholder"):
        suspects = {key[2]: n for key, n in sums.items() if key[:2] == (what, f"{owner}s")}
        few = what == "extreme" and sums[f"{owner}s", "all"] < MANY
        if suspects and not few:
            names = sorted(suspects, key=lambda name: (-suspects[name], name))[:SHOWN_SUSPECTS]
            detail = ", ".join(f"{name!r} {suspects[name]:,} rows" for name in names)
            share = max(suspects.values()) / rows if what == "extreme" else sum(suspects.values()) / rows
            facts.append(Fact("log", f"{what}_{owner}_share", share, f"{detail}, of {rows:,}"))
    return facts


SHOWN_SUSPECTS = 3
"""Number of suspect ids that a fact names."""


def check_suspects(facts: Iterable[Mapping[str, Any]]) -> list[Check]:
    """Return a warning for each fact of a manifest on suspect ids."""
    whats = {"extreme": "one id has so many rows", "placeholder": "texts that often stand for a missing id"}
    names = {f"{what}_{owner}_share": (what, owner) for what in whats for owner in ("user", "item")}
    checks = []
    for row in facts:
        if row["fact"] in names:
            what, owner = names[row["fact"]]
            detail = f"{whats[what]}: {row['detail']}; {SUSPECT_HINT}"
            bound = audit.EXTREME_SHARE if what == "extreme" else 0.0
            checks.append(Check(f"log: {what} {owner} share", row["value"], bound, "warning", detail))
    return checks


SUSPECT_HINT = "rows without an id are counted as missing only where the id is empty: leave such rows out"


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


def _count_repeated_pairs(splits: DataFrame, request: AuditRequest) -> dict[str, int]:
    """Count as `audit.count_repeated_pairs` does, by a shuffle of the pairs."""
    if not may_have_duplicates(splits):
        return {"overlap": 0, "known": 0, "repeats": 0}
    by_part = splits.groupBy("user_id", "item_id", "part").agg(F.count("*").alias("n"))
    part, keeps, asks = F.col("part"), F.lit(request.keeps_known), F.lit(request.asks_repeats)
    of = {
        "opened": part == OPEN_LOOP,
        "others": ~part.isin(OPEN_LOOP, LATER),
        "trained": part.isin(TRAIN, GIVEN),
        "known": part.isin(TRAIN, GIVEN, VALID),
    }
    counts = (F.sum(F.when(inside, F.col("n")).otherwise(0)).alias(name) for name, inside in of.items())
    pairs = by_part.groupBy("user_id", "item_id").agg(F.max("n").alias("most"), *counts)
    both = (F.col("opened") > 0) & (F.col("known") > 0)
    twice = F.when(asks, F.col("most") > 1).otherwise(F.col("others") > 1)
    doubled = (F.col("opened") > 1) | (both & ~keeps) | twice
    repeats = asks & (F.col("trained") > 0) & (F.col("others") > F.col("trained"))
    named = {"overlap": doubled, "known": both, "repeats": repeats}
    (row,) = pairs.agg(*(F.count_if(column).alias(name) for name, column in named.items())).collect()
    return {name: int(row[name]) for name in named}


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
