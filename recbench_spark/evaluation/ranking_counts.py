"""What rankings say of themselves: counted a batch, added up, told as checks. Without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.checks import TRAINING_ROWS, Check, warn_above_zero
from recbench_spark.errors import DataError
from recbench_spark.evaluation.batch_schemas import RANKING_COUNTS
from recbench_spark.kernels.streams import Batches
from recbench_spark.storage.shared_arrays import flatten_lists

COUNTED_COLUMNS = ("part", "length", "relevance", "above", "tied")
"""The columns of `RANKED` that are looked at."""

HEAVY_TIES = 0.1
"""Share of truth items that tie with another candidate from which a model is flagged."""


def count_batches(threshold: float | None, batches: Batches) -> Batches:
    """Rows of `RANKING_COUNTS` of rows of `RANKED`: one a part.

    Args:
        threshold: relevance from which an item is relevant; None: above 0.
        batches: rankings; the columns of COUNTED are enough.
    """
    counts = (_part_counts(batch, part, threshold) for batch in batches for part in _count_parts(batch))
    yield from merge_counts(counts)


def merge_counts(batches: Batches) -> Batches:
    """Rows of `RANKING_COUNTS` added up: one a part, in one batch; none where there are none."""
    found: dict[str, dict[str, int]] = {}
    for batch in batches:
        for row in batch.to_pylist():
            sums = found.setdefault(row["part"], dict.fromkeys(RANKING_COUNTS.names[1:], 0))
            for name in sums:
                sums[name] += row[name]
    if found:
        rows = [{"part": part, **sums} for part, sums in found.items()]
        yield pa.RecordBatch.from_pylist(rows, schema=RANKING_COUNTS)


def merge_counts_table(counts: pa.Table) -> pa.Table:
    """The same of a table."""
    return pa.Table.from_batches(list(merge_counts(iter(counts.to_batches()))))


def _count_parts(batch: pa.RecordBatch) -> list[str]:
    names: list[str] = pc.unique(batch.column("part")).to_pylist()
    return names


def _part_counts(batch: pa.RecordBatch, part: str, threshold: float | None) -> pa.RecordBatch:
    users = batch.filter(pc.equal(batch.column("part"), part))
    offsets, relevance_p = flatten_lists(users.column("relevance"))
    relevant_p = relevance_p > 0 if threshold is None else relevance_p >= threshold
    before_p = np.concatenate([[0], np.cumsum(relevant_p)])
    above_p, tied_p = (flatten_lists(users.column(name))[1] for name in ("above", "tied"))
    row = {
        "part": part,
        "users": users.num_rows,
        "silent": int((users.column("length").to_numpy() == 0).sum()),
        "barren": int((np.diff(before_p[offsets]) == 0).sum()),
        "truth": len(above_p),
        "unranked": int((above_p < 0).sum()),
        "tied": int((tied_p > 0).sum()),
    }
    return pa.RecordBatch.from_pylist([row], schema=RANKING_COUNTS)


def checks_from_counts(batches: Batches, parts: Sequence[str], *, lists: bool = False) -> list[Check]:
    """The checks of rankings, from their counts.

    Args:
        batches: rows of `RANKING_COUNTS`, of all tasks.
        parts: held-out parts.
        lists: whether they are of given lists, which end somewhere: what they leave out is no warning.
    """
    counts = {row["part"]: row for batch in merge_counts(batches) for row in batch.to_pylist()}
    return [check for part in parts for check in _part_checks(part, counts.get(part), lists)]


def _part_checks(part: str, row: Mapping[str, int] | None, lists: bool) -> list[Check]:
    if row is None:
        return [Check(f"{part}: users", 0, None, "warning", "no user has truth in this part")]
    ties = "ties are broken by item id; see ties=expected"
    return [
        Check(f"{part}: users", row["users"], None, "info", "users in the truth"),
        Check(f"{part}: users without relevant items", row["barren"], None, "info",
              "left out of the averages, or 0, as `empty_users` says"),
        warn_above_zero(f"{part}: users without output", row["silent"], "they count 0, or as `users` says"),
        Check(f"{part}: unranked truth items", float(row["unranked"]), None if lists else 0.0,
              "info" if lists else "warning", "not scored or listed"),
        Check(f"{part}: tied truth items", row["tied"] / max(row["truth"], 1), HEAVY_TIES, "warning", ties),
    ]  # fmt: skip


def row_checks(rows: int, duplicates: int, unknown_items: int, lost: int) -> list[Check]:
    """The checks of the rows of given lists or scores; `lost`: users of theirs without truth."""
    return [
        Check("list rows", rows, None, "info", "rows read"),
        warn_above_zero("duplicate list rows", duplicates, "the best-ranked one is kept"),
        warn_above_zero("list rows of unknown items", unknown_items, "they keep their place"),
        Check("listed users without truth", lost, None, "info", "not averaged"),
    ]


def training_item_check(rows: int) -> Check:
    """The check of given rows that recommend what the user already has."""
    return warn_above_zero(TRAINING_ROWS, rows, "lists count as they are")


def refuse_duplicates(found: Sequence[Check]) -> None:
    """DataError where the checks of given rows tell of duplicates, for definitions that allow none."""
    for check in found:
        if "duplicate" in check.check and check.observed:
            raise DataError(f"{check.check}: {check.observed:.0f}", "or set definition.duplicates=drop")
