"""The manifest of a split: what it consists of, whether it leaks, how far its parts differ."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recbench_spark.config import Split
from recbench_spark.protocol.labels import GIVEN, LATER, OPEN_LOOP, TRAIN, VALID
from recbench_spark.protocol.splits import may_have_duplicates
from recbench_spark.protocol.windows import refuse_empty

FACTS = T.StructType(
    [
        T.StructField("part", T.StringType()),
        T.StructField("fact", T.StringType()),
        T.StructField("value", T.DoubleType()),
        T.StructField("detail", T.StringType()),
    ]
)
Fact = tuple[str, str, float | None, str | None]
"""part, fact, value, detail."""

NOT_HELD_OUT = (TRAIN, GIVEN, LATER, OPEN_LOOP)
"""Parts whose times say nothing about the future of training; an open loop runs beside the log."""


Parts = dict[str, Row]
"""Of each part rows, content_hash, earliest, latest."""


def manifest(
    splits: DataFrame,
    log_rows: int,
    settings: str,
    rejected: int = 0,
    reasons: str | None = None,
    of_parts: Parts | None = None,
    dropped: str | None = None,
) -> DataFrame:
    """Facts of a labelled log: counts and content hash per part, overlap, leakage in time, drift.

    Four passes: by part (nothing but a row per part is shuffled), by user and by item (combined on the map
    side; a row per user and a row per item are shuffled), by 64-bit hashes of pairs for the overlap.
    A fifth, joining training rows with their users, only where a user trains on its own future.

    Args:
        splits: labelled log of one split.
        log_rows: rows read, before duplicates were dropped.
        settings: the split's settings as JSON.
        rejected: rows of the log that could not be used.
        reasons: why they could not.
        of_parts: as `parts_of` gives them; None: they are counted.
        dropped: what the rows are that the split left out, where they are not duplicates.
    """
    of_parts = parts_of(splits) if of_parts is None else of_parts
    users, items = (_by_owner(splits, of, of_parts) for of in ("user", "item"))
    kept = sum(row["rows"] for row in of_parts.values())
    facts: list[Fact] = [
        ("log", "rows_read", float(log_rows), None),
        ("log", "settings", None, settings),
        ("log", "rejected_rows", float(rejected), reasons),
        ("log", "duplicates_dropped", float(log_rows - kept), dropped),
        ("log", "overlap", float(_overlap(splits)), "pairs in more than one row"),
    ]
    for part, row in of_parts.items():
        facts += [
            (part, "rows", float(row["rows"]), None),
            (part, "content_hash", None, row["content_hash"]),
        ]
    facts += [*_facts_of(users, "user", of_parts), *_facts_of(items, "item", of_parts)]
    facts += [*_drift(items, of_parts), *_leakage(splits, users, of_parts)]
    held_out = json.loads(settings).get("held_out")
    if held_out:
        of = held_out["of"]
        facts += _all_given(users if of == "users" else items, of, of_parts)
    return splits.sparkSession.createDataFrame(facts, FACTS)


def parts_of(splits: DataFrame) -> Parts:
    """Rows, content hash and range in time of each part: one pass."""
    return {str(row["part"]): row for row in _by_part(splits).collect()}


def refuse_empty_parts(of_parts: Parts, split: Split) -> None:
    """Refuse a split by which nothing trains or nothing is tested.

    Raises:
        ProtocolError: as `windows.refuse_empty`.
    """
    times = [row[name] for row in of_parts.values() for name in ("earliest", "latest")]
    known = [time for time in times if time is not None]
    wanted = {TRAIN: 0, **dict.fromkeys(split.parts, 0)}
    sizes = wanted | {part: int(row["rows"]) for part, row in of_parts.items()}
    refuse_empty(sizes, split, min(known, default=None), max(known, default=None))


def _by_part(splits: DataFrame) -> DataFrame:
    row_hash = F.xxhash64("user_id", "item_id", "rating", "event_time").cast("decimal(38,0)")
    return splits.groupBy("part").agg(
        F.count("*").alias("rows"),
        # A sum does not depend on the order of rows.
        F.sum(row_hash).cast("string").alias("content_hash"),
        F.min("event_time").alias("earliest"),
        F.max("event_time").alias("latest"),
    )


def _by_owner(splits: DataFrame, of: str, parts: dict[str, Row]) -> DataFrame:
    """One row per user (or item): its rows in each part, its last training and first held-out time."""
    counts = [F.count_if(F.col("part") == part).alias(_rows(part)) for part in parts]
    train, held_out = F.col("part") == TRAIN, ~F.col("part").isin(*NOT_HELD_OUT)
    return splits.groupBy(f"{of}_id").agg(
        *counts,
        F.max(F.when(train, F.col("event_time"))).alias("last_train"),
        F.min(F.when(held_out, F.col("event_time"))).alias("first_held_out"),
    )


def _rows(part: str) -> str:
    return f"rows of {part}"


def _n(part: str, parts: dict[str, Row]) -> Column:
    """An owner's rows in a part; 0 where the split has no such part."""
    return F.col(f"`{_rows(part)}`") if part in parts else F.lit(0)


def _facts_of(owners: DataFrame, of: str, parts: dict[str, Row]) -> list[Fact]:
    """How many users (or items) each part has, and how many of them training has never seen."""
    unseen = _n(TRAIN, parts) == 0
    found = owners.agg(
        F.count_if(unseen).alias("log"),
        *(F.count_if(_n(part, parts) > 0).alias(f"all {part}") for part in parts),
        *(F.count_if((_n(part, parts) > 0) & unseen).alias(f"cold {part}") for part in parts),
    ).first()
    assert found is not None
    facts: list[Fact] = [(part, f"{of}s", float(found[f"all {part}"]), None) for part in parts]
    facts += [
        (part, f"cold_{of}s", float(found[f"cold {part}"]), f"{of}s without training rows")
        for part in parts
        if part != TRAIN
    ]
    return [*facts, ("log", f"test_only_{of}s", float(found["log"]), None)]


def _all_given(owners: DataFrame, of: str, parts: Parts) -> list[Fact]:
    """Held-out users (or items) all of whose rows are given, such as those with one row: never tested."""
    others = [_n(part, parts) for part in parts if part not in (GIVEN, LATER, "open_loop")]
    nothing = reduce(add, others, F.lit(0)) == 0
    (found,) = owners.agg(F.count_if((_n(GIVEN, parts) > 0) & nothing).alias("n")).collect()
    return [(GIVEN, f"untested_{of}", float(found.n), f"held-out {of} all of whose rows are given")]


def _drift(items: DataFrame, parts: dict[str, Row]) -> list[Fact]:
    """Total variation between the items' shares in training and in each other part.

    1/2 sum over items of |n_train(i) / n_train - n_part(i) / n_part|: the share of a part's rows that
    would have to go to other items to be spread as training is; 0 equal, 1 no item in common.
    """
    others = [part for part in parts if part != TRAIN]
    if TRAIN not in parts or not others:
        return []
    rows = {part: int(parts[part]["rows"]) for part in parts}
    # Over the common denominator 2 n_train n_part: whole numbers, whose sum knows no order of rows.
    gaps = {p: _n(TRAIN, parts) * F.lit(rows[p]) - _n(p, parts) * F.lit(rows[TRAIN]) for p in others}
    sums = [F.sum(F.abs(gap).cast("decimal(38,0)")).alias(part) for part, gap in gaps.items()]
    found = items.agg(*sums).first()
    assert found is not None
    detail = "total variation between item shares of this part and of train"
    return [
        (part, "popularity_drift", int(found[part]) / (2 * rows[TRAIN] * rows[part]), detail)
        for part in others
    ]


def _overlap(splits: DataFrame) -> int:
    if not may_have_duplicates(splits):
        return 0
    # What is tested on may be shown in the open loop too; what was trained on must not.
    opened, known = F.col("part") == OPEN_LOOP, F.col("part").isin(TRAIN, GIVEN, VALID)
    pairs = splits.groupBy("user_id", "item_id").agg(
        F.count_if(opened).alias("opened"),
        F.count_if(~opened).alias("others"),
        F.count_if(known).alias("known"),
    )
    return pairs.where("opened > 1 OR others > 1 OR (opened > 0 AND known > 0)").count()


def _leakage(splits: DataFrame, users: DataFrame, parts: dict[str, Row]) -> list[Fact]:
    """Training rows later than the earliest held-out row, of all users and of the same user."""
    times = [row["earliest"] for part, row in parts.items() if part not in NOT_HELD_OUT]
    known = [time for time in times if time is not None]
    if not known or TRAIN not in parts:
        return []
    train = splits.where(F.col("part") == TRAIN)
    late = _later(train, parts[TRAIN], min(known))
    own = _own_future(train, users)
    rows = parts[TRAIN]["rows"]
    return [
        (TRAIN, "future_rows", float(late), "training rows later than the earliest held-out row"),
        (TRAIN, "future_share", late / rows, "share of training rows later than the earliest held-out row"),
        (
            TRAIN,
            "own_future_rows",
            float(own),
            "training rows later than the user's own earliest held-out row",
        ),
    ]


def _later(train: DataFrame, facts: Row, earliest: int) -> int:
    if facts["latest"] is None or facts["latest"] <= earliest:
        return 0
    return train.where(F.col("event_time") > earliest).count()


def _own_future(train: DataFrame, users: DataFrame) -> int:
    leaking = users.where("last_train > first_held_out").select("user_id", "first_held_out")
    if leaking.isEmpty():
        return 0
    return train.join(leaking, "user_id").where("event_time > first_held_out").count()


# ----------------------------------------------------------------------------------- reading


def table(facts: Sequence[dict[str, Any]]) -> str:
    """The manifest for a terminal: a row per fact, a column per part, texts below."""
    parts = sorted({row["part"] for row in facts if row["value"] is not None}, key=_part_order)
    names = sorted({row["fact"] for row in facts if row["value"] is not None})
    cells = {(row["fact"], row["part"]): row["value"] for row in facts}
    lines = [["", *parts]]
    lines += [[name, *(_formatted(cells.get((name, part))) for part in parts)] for name in names]
    widths = [max(len(line[column]) for line in lines) for column in range(len(parts) + 1)]
    text = [
        "  ".join(
            [line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]
        ).rstrip()
        for line in lines
    ]
    hashes = [
        f"{row['part']} {row['fact']} {row['detail']}" for row in facts if row["fact"] == "content_hash"
    ]
    return "\n".join([*text, *sorted(hashes)])


PART_ORDER = ("log", TRAIN, GIVEN, "valid", "probe", "quiz", "test", "open_loop", LATER)


def _part_order(part: str) -> tuple[int, str]:
    return (PART_ORDER.index(part) if part in PART_ORDER else len(PART_ORDER), part)


def _formatted(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value == int(value) else f"{value:.4f}"
