"""Counts over rankings, and the checks they give, without Spark.

Each batch is counted, and the counts are added up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.arrays import Ints
from recbench_spark.core.checks import TRAINING_ROWS, Check, warn_above_zero
from recbench_spark.core.definitions import Definition
from recbench_spark.core.resampling import FEW_USERS
from recbench_spark.core.streams import Batches
from recbench_spark.engine.measures import Measure
from recbench_spark.engine.whole_users import has_questions, keep_users_whole, number_users
from recbench_spark.errors import DataError
from recbench_spark.ranking.batch_schemas import RANKING_COUNTS
from recbench_spark.ranking.kernels.rankings import mark_relevant
from recbench_spark.schemas import QUERY_ID
from recbench_spark.storage.shared_arrays import flatten_lists

COUNTED_COLUMNS = ("user_id", "part", "length", "relevance", "above", "tied", "query_id")
"""Columns of `RANKED_USERS` read for the counts."""

HEAVY_TIES = 0.1
"""Share of truth items that may tie with another candidate before a warning."""


def count_measure(threshold: float | None, *, profiles: bool = False) -> Measure:
    """Return the measure counting what rankings hold; `profiles`: also users without training items.

    `checks_from_counts` makes checks from its results.
    """
    needs = (*COUNTED_COLUMNS, *(["profile"] if profiles else []))
    return Measure(partial(count_batches, threshold), ("part",), _add_counts, needs)


def count_batches(threshold: float | None, batches: Batches) -> Batches:
    """Count rankings: a row of `RANKING_COUNTS` per batch and part.

    Args:
        threshold: relevance from which an item is relevant; None: above 0.
        batches: rows of `RANKED_USERS`; the columns in COUNTED_COLUMNS are enough.
    """
    for batch in keep_users_whole(batches):
        for part in pc.unique(batch.column("part")).to_pylist():
            yield _part_counts(batch, part, threshold)


def _add_counts(counts: pa.Table) -> pa.Table:
    """Add up `RANKING_COUNTS` for one part."""
    sums = {name: pc.sum(counts.column(name)).as_py() for name in RANKING_COUNTS.names[1:]}
    return pa.Table.from_pylist([{"part": counts.column("part")[0].as_py(), **sums}], RANKING_COUNTS)


def _part_counts(batch: pa.RecordBatch, part: str, threshold: float | None) -> pa.RecordBatch:
    users = batch.filter(pc.equal(batch.column("part"), part))
    offsets, relevance_p = flatten_lists(users.column("relevance"))
    before_p = np.concatenate([[0], np.cumsum(mark_relevant(relevance_p, threshold))])
    above_p, tied_p = (flatten_lists(users.column(name))[1] for name in ("above", "tied"))
    row = {
        "part": part,
        "users": int(number_users(users)[-1]) + 1 if has_questions(users) else users.num_rows,
        "silent": int((users.column("length").to_numpy() == 0).sum()),
        "barren": int((np.diff(before_p[offsets]) == 0).sum()),
        "truth": len(above_p),
        "unranked": int((above_p < 0).sum()),
        "tied": int((tied_p > 0).sum()),
        "questions": users.num_rows,
        "named": users.num_rows - users.column(QUERY_ID).null_count if has_questions(users) else 0,
        "untrained": _count_untrained(users),
    }
    return pa.RecordBatch.from_pylist([row], schema=RANKING_COUNTS)


def _count_untrained(users: pa.RecordBatch) -> int | None:
    if "profile" not in users.schema.names:
        return None
    lengths = pc.fill_null(pc.list_value_length(users.column("profile")), 0)
    return int(pc.sum(pc.equal(lengths, 0)).as_py() or 0)


def checks_from_counts(
    counts: pa.Table | None, parts: Sequence[str], *, lists: bool = False
) -> list[Check]:
    """Make checks on rankings from their counts.

    Args:
        counts: result of `count_measure`: one row per part; None: there are no rankings.
        parts: held-out parts.
        lists: the rankings come from recommendation lists. These are short by design, so missing items are
            no warning.
    """
    rows = {} if counts is None else {row["part"]: row for row in counts.to_pylist()}
    return [check for part in parts for check in _part_checks(part, rows.get(part), lists)]


def _part_checks(part: str, row: Mapping[str, int] | None, lists: bool) -> list[Check]:
    if row is None:
        return [Check(f"{part}: users", 0, None, "warning", "no user has truth in this part")]
    unit = "queries" if row["named"] else "users"
    ties = f"{row['tied']} of {row['truth']} items; ties are broken by item id, see ties=expected"
    return [
        Check(f"{part}: users", row["users"], None, "info", "users in the truth"),
        *([Check(f"{part}: queries", row["questions"], None, "info", "queries in the truth")]
          if row["named"] else []),
        *mark_few_users(part, row["users"]),
        Check(f"{part}: {unit} without relevant items", row["barren"], None, "info",
              "left out of the averages, or 0, as `empty_users` says"),
        *([] if row["untrained"] is None
          else [Check(f"{part}: {unit} without training items", row["untrained"], None, "info",
                      "without a value where a metric reads the history")]),
        warn_above_zero(
            f"{part}: {unit} without output", row["silent"], "they count 0, or as `users` says"
        ),
        Check(f"{part}: unranked truth items", float(row["unranked"]), None if lists else 0.0,
              "info" if lists else "warning", "not scored or listed"),
        Check(f"{part}: tied truth items", row["tied"] / max(row["truth"], 1), HEAVY_TIES, "warning", ties),
    ]  # fmt: skip


def mark_few_users(part: str, users: int) -> list[Check]:
    """Return a note where too few users make the intervals."""
    name = f"{part}: intervals over fewer than {FEW_USERS} users"
    detail = "they hold the true value less often than they say; below 6 none has width 0"
    return [Check(name, users, None, "info", detail)] if users < FEW_USERS else []


def row_checks(
    rows: int, duplicates: int, unknown_items: int, lost: int, lost_queries: int | None = None
) -> list[Check]:
    """Make the checks on rows with lists or scores.

    `lost`, `lost_queries`: listed users and queries without truth; None: there are no queries.
    """
    name = "listed queries without truth"
    queries = [] if lost_queries is None else [Check(name, lost_queries, None, "info", "not averaged")]
    empty = Check(NO_ROWS, 1, 0, "warning", "no user has a row: coverage is 0, gini undefined")
    return [
        *([] if rows else [empty]),
        Check("list rows", rows, None, "info", "rows read"),
        warn_above_zero("duplicate list rows", duplicates, "the best-ranked one is kept"),
        warn_above_zero("list rows of unknown items", unknown_items, "they keep their place"),
        Check("listed users without truth", lost, None, "info", "not averaged"),
        *queries,
    ]


NO_ROWS = "lists without rows"
"""Name of the check for lists or scores without any row."""

TRUTH_IN_TRAIN = "truth rows that are training rows"
"""Name of the check counting truth pairs found in training, too."""


def truth_in_train_check(known: int, pairs: int, *, masked: bool) -> Check:
    """Make the check on truth rows repeated from training.

    Args:
        known: truth pairs found in training.
        pairs: truth pairs.
        masked: training items are no candidates.
    """
    share = f"all {pairs}" if known == pairs else f"{known} of {pairs}"
    if masked:
        detail = f"{share}: training items are no candidates (candidates=unseen), so these are misses"
        return warn_above_zero(TRUTH_IN_TRAIN, known, detail)
    limit = 0.0 if known == pairs else None
    return Check(TRUTH_IN_TRAIN, known, limit, "info" if limit is None else "warning", share)


GAPS = "gaps between ranks"
"""Name of the check counting list places without a row."""


def count_gaps(user_r: Ints, rank_r: Ints) -> int:
    """Count places without a row before each user's last rank.

    Rows with the same rank take one place each.
    """
    order = np.lexsort((rank_r, user_r))
    user, rank = user_r[order], rank_r[order]
    place = np.arange(len(user))
    new_user = np.append(True, user[1:] != user[:-1])[: len(user)]
    new_rank = new_user | np.append(True, rank[1:] != rank[:-1])[: len(user)]
    start = np.maximum.accumulate(np.where(new_user, place, 0))
    first = np.maximum.accumulate(np.where(new_rank, place, 0)) - start
    gaps = np.zeros(int(new_user.sum()), np.int64)
    np.maximum.at(gaps, np.cumsum(new_user) - 1, rank - 1 - first)
    return int(gaps.sum())


def count_pairs(listed_r: Ints, train_p: Ints, asked_r: Ints | None = None) -> dict[str, int]:
    """Count listed rows, repeated pairs, and training pairs among them.

    Args:
        listed_r: (r,) one number for each row's user and item.
        train_p: (p,) the same numbers for the training pairs.
        asked_r: (r,) one number for each row's query and item; None: users have no queries.
    """
    ordered = np.sort(listed_r if asked_r is None else asked_r)
    return {
        "listed": len(listed_r),
        "twice": int(np.count_nonzero(ordered[1:] == ordered[:-1])),
        "trained": int(np.count_nonzero(np.isin(listed_r, train_p))) if len(train_p) else 0,
    }


def gap_checks(gaps: int | None, definition: Definition) -> list[Check]:
    """Make the check on gaps between given ranks.

    None: no ranks are given.
    """
    if gaps is None:
        return []
    if definition.gaps == "close":
        return [Check(GAPS, gaps, None, "info", "items move up into them (gaps=close)")]
    return [warn_above_zero(GAPS, gaps, "these places stay empty: rows may have been left out (gaps=keep)")]


def finish_row_checks(
    checks: list[Check], definition: Definition, training_rows: int | None = None
) -> list[Check]:
    """Refuse duplicates if so defined; add the training-item check.

    Args:
        checks: on the rows of lists or scores.
        definition: treatment of duplicates.
        training_rows: list rows found in training, too; None: not counted.

    Raises:
        DataError: a check counts duplicates, and the definition allows none.
    """
    if definition.duplicates == "error":
        refuse_duplicates(checks)
    if training_rows is None:
        return checks
    return [*checks, warn_above_zero(TRAINING_ROWS, training_rows, "lists count as they are")]


def refuse_duplicates(checks: Sequence[Check]) -> None:
    """Refuse duplicate rows, where a definition allows none.

    Raises:
        DataError: a check counts duplicates.
    """
    for check in checks:
        if "duplicate" in check.check and check.observed:
            raise DataError(f"{check.check}: {check.observed:.0f}", "or set definition.duplicates=drop")
