"""Counts of candidates as of the moment, and the checks they give."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain

import numpy as np
import pyarrow as pa

from recbench_spark.core.arrays import Ints
from recbench_spark.core.checks import Check, warn_above_zero
from recbench_spark.core.definitions import Definition
from recbench_spark.errors import DataError
from recbench_spark.ranking.batches import read_item_lists, split_by_part
from recbench_spark.ranking.candidates import CandidateRule, add_candidates
from recbench_spark.ranking.kernels.moments import count_candidates, mark_available
from recbench_spark.ranking.kernels.positives import ItemLists, make_positives
from recbench_spark.ranking.moments import AS_OF, ItemMoments, OpenMoments
from recbench_spark.storage.blocks import Sides
from recbench_spark.storage.packed_blocks import unpack_blocks

Counts = dict[str, int]

COUNTED = ("part", AS_OF, "items", "masked")
"""Columns of `MOMENT_USERS` read for the counts."""

COUNTS = ("questions", "items", "truth", "unavailable", "never", "itself", "gone")
"""Counts of `count_questions` that are added up, beside `least`."""


def count_questions(
    tables: Iterable[pa.Table] | pa.Table, moments: ItemMoments, masks: bool
) -> list[tuple[str, Counts]]:
    """Count questions, candidates and truth by part.

    Args:
        tables: rows of `MOMENT_USERS` whose truth is kept as it is, with given `candidates` if any.
        moments: the times.
        masks: whether masked items are no candidates.

    Returns:
        Part and counts: questions, all their candidates (`items`) and the least of one, truth, truth that
        was no candidate (`unavailable`), among it truth that never was (`never`); truth of items that no
        earlier moment showed (`itself`); given candidates that did not exist (`gone`).
    """
    opened = moments.open()
    return [
        (part, _count_part(users, opened, masks))
        for table in ([tables] if isinstance(tables, pa.Table) else tables)
        for batch in table.filter(table.column(AS_OF).is_valid()).combine_chunks().to_batches()
        for part, users in split_by_part(batch)
    ]


def _count_part(users: pa.RecordBatch, opened: OpenMoments, masks: bool) -> Counts:
    moment_q, truth = users.column(AS_OF).to_numpy(), read_item_lists(users, "items")
    items_q, gone = _count_given(users, opened)
    if "candidates" not in users.schema.names:
        scored_i = np.ones(len(opened.periods.offsets_i) - 1, np.bool_)
        none = ItemLists.empty(len(moment_q))
        plan = make_positives(scored_i, none, read_item_lists(users, "masked") if masks else none)
        items_q = count_candidates(scored_i, opened.at(users), plan)
    moment_p = np.repeat(moment_q, np.diff(truth.offsets_u))
    known_p = mark_available(opened.periods, truth.items_p, moment_p)
    has_period_i = np.diff(opened.periods.offsets_i) > 0
    before_p = mark_available(opened.periods, truth.items_p, moment_p - 1)
    counts = (
        len(moment_q),
        items_q.sum(),
        len(known_p),
        (~known_p).sum(),
        (~has_period_i[truth.items_p]).sum(),
        (known_p & ~before_p).sum(),
        gone,
    )
    return {**dict(zip(COUNTS, map(int, counts), strict=True)), "least": int(items_q.min())}


def _count_given(users: pa.RecordBatch, opened: OpenMoments) -> tuple[Ints, int]:
    """Count each question's given candidates that existed, and all others."""
    if "candidates" not in users.schema.names:
        return np.empty(0, np.int64), 0
    given = read_item_lists(users, "candidates")
    question_c = np.repeat(np.arange(len(users)), np.diff(given.offsets_u))
    there_c = mark_available(opened.periods, given.items_p, opened.at(users).moment_u[question_c])
    return np.bincount(question_c[there_c], minlength=len(users)), int((~there_c).sum())


def join_given(sides: Sides, rule: CandidateRule) -> pa.Table:
    """Join a task's questions with their given candidates, whenever these existed."""
    users, rows = (unpack_blocks(sides.pop(number, [])) for number in (0, 1))
    if users is None:
        return pa.table({AS_OF: pa.array([], pa.int64()), "part": pa.array([], pa.string())})
    return add_candidates(users, rows, rule._replace(moments=None)).combine_chunks()


def add_counts(counts: Iterable[tuple[str, Counts]]) -> dict[str, Counts]:
    """Add up counts by part."""
    total: dict[str, Counts] = {}
    for part, one in counts:
        own = total.setdefault(part, {**dict.fromkeys(COUNTS, 0), "least": one["least"]})
        total[part] = {name: own[name] + one[name] for name in COUNTS}
        total[part]["least"] = min(own["least"], one["least"])
    return total


def refuse_left_out(counts: Mapping[str, Counts], definition: Definition) -> None:
    """Refuse a part whose truth is left out as a whole.

    Raises:
        DataError: with the part, and the axes that leave it out.
    """
    for part, own in sorted(counts.items()):
        if own["unavailable"] == own["truth"] and definition.unavailable == "left_out":
            raise DataError(
                f"part '{part}': none of its {own['truth']} items was a candidate at its moment "
                f"(definition.candidates_as_of={definition.candidates_as_of})",
                "definition.first_seen_in: log, or definition.unavailable: miss",
            )


def check_moments(
    counts: Mapping[str, Counts], moments: ItemMoments | None, definition: Definition
) -> list[Check]:
    """Make the checks on candidates as of their moments.

    Args:
        counts: by part, from `add_counts`.
        moments: the times; None: there are no checks.
        definition: the evaluation definition.
    """
    if moments is None:
        return []
    opened, items, checks = moments.open(), moments.items.n_items, []
    if moments.availability is not None:
        without = int((np.diff(opened.periods.offsets_i) == 0).sum())
        detail = f"of {items} items of the log: they are never candidates"
        checks = [
            warn_above_zero("availability: items without a period", without, detail),
            Check("availability: periods of other items", opened.unknown, None, "info", "not in the log"),
        ]
    parts = (_check_part(part, counts[part], items, definition) for part in sorted(counts))
    return [*checks, *chain.from_iterable(parts)]


def _check_part(part: str, own: Counts, items: int, definition: Definition) -> list[Check]:
    mean, rule = own["items"] / own["questions"], definition.unavailable
    number = f"mean of {own['questions']} queries, at least {own['least']}, of {items} items"
    becomes = "left out" if rule == "left_out" else "not ranked: a miss"
    gone = f"of {own['truth']} items; {own['never']} never were; {becomes} (unavailable={rule})"
    checks = [
        Check(f"{part}: candidates as of the moment", mean, None, "info", number),
        Check(f"{part}: truth that was no candidate then", own["unavailable"], None, "info", gone),
    ]
    if definition.candidates == "given":
        gone = "given candidates of all queries: left out"
        checks.append(Check(f"{part}: candidates that did not exist then", own["gone"], None, "info", gone))
    if definition.candidates_as_of != "first_seen" or definition.first_seen_in != "log":
        return checks
    itself = "no earlier row of the log showed the item (first_seen_in=log): only the asked moment does"
    return [*checks, Check(f"{part}: truth seen at its own moment", own["itself"], None, "info", itself)]
