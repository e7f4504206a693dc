"""Schemas for Arrow batches read and written by evaluation functions.

Ranking, metrics and checks are functions `Iterator[RecordBatch] -> Iterator[RecordBatch]` without Spark.
`mapInArrow` calls them on executors; the local engine calls them in its own process. Whatever is added up
over users is a `Measure` (`engine.measures`): it sums over some users, and finishes all sums in a cell.

    users --rank_batches, score_batches--> RANKED_USERS --user_value_batches--> USER_VALUES
                                             |---total_batches--> TOTALS --finish_metrics--> METRIC_ROWS
                                             +---count_batches--> RANKING_COUNTS --> rows of `checks`

Columns are read by name: an input may hold more columns, in any order.
"""

from __future__ import annotations

import pyarrow as pa

_TEXTS, _INTS = pa.list_(pa.string()), pa.list_(pa.int32())
_LONGS, _DOUBLES = pa.list_(pa.int64()), pa.list_(pa.float64())

USERS = pa.schema(
    {
        "user_id": pa.string(),
        "part": pa.string(),
        "user_key": pa.int64(),
        "item_ids": _TEXTS,
        "items": _INTS,
        "relevance": _DOUBLES,
        "slices": pa.map_(pa.string(), _TEXTS),
        "masked": _INTS,
    }
)
"""One row per user and held-out part: the truth by item index; `masked` items are no candidates.

Scoring models also read `history` and `vector`, and `candidates` where the definition requires them.
"""

LISTED_USERS = pa.schema(
    [
        *USERS,
        pa.field("list_items", _LONGS),
        pa.field("list_ids", _TEXTS),
        pa.field("list_ranks", _LONGS),
        pa.field("list_scores", _DOUBLES),
    ]
)
"""Users with their recommendation lists: item keys, ids (where lists are requested), ranks or scores.
Without a column `masked`, no item is taken out."""

RANKED_USERS = pa.schema(
    {
        "user_id": pa.string(),
        "part": pa.string(),
        "user_key": pa.int64(),
        "item_ids": _TEXTS,
        "relevance": _DOUBLES,
        "above": _LONGS,
        "tied": _LONGS,
        "before": _LONGS,
        "length": pa.int64(),
        "drawn": pa.int32(),
        "pool": pa.int64(),
        "top_items": _TEXTS,
        "slices": pa.map_(pa.string(), _TEXTS),
        "propensity": _DOUBLES,
        "query_id": pa.string(),
    }
)
"""One row per user, part and query: positions of the truth items. The table `rankings` without its run
columns. A user's rows follow one another; query_id is NULL where a user has one."""

PROFILES = pa.schema({"profile": _INTS, "closed": _INTS, "offered": _INTS})
"""Columns of `RANKED_USERS` for metrics that know a user's training items, by item_index; they are not
stored. `profile`: training items that make a user's history. `closed`: items that were no candidates.
`offered`: candidates of a user who has own ones, else NULL."""

USER_VALUES = pa.schema(
    {
        "user_id": pa.string(),
        "part": pa.string(),
        "metric": pa.string(),
        "definition": pa.string(),
        "estimator": pa.string(),
        "ks": _INTS,
        "values": _DOUBLES,
        "n_relevant": pa.int32(),
    }
)
"""One row per user, part and metric. The table `user_metrics` without its run columns."""

USER_PREDICTIONS = pa.schema(
    {
        "user_id": pa.string(),
        "part": pa.string(),
        "user_key": pa.int64(),
        "prediction": _DOUBLES,
        "outcome": _DOUBLES,
    }
)
"""One row per user and part: predicted ratings or clicks, and the true outcomes."""

TOTALS = pa.schema(
    {
        "part": pa.string(),
        "slice_key": pa.string(),
        "slice_value": pa.string(),
        "moments_c5": _LONGS,
        "boot_bc": _LONGS,
        "weights_bc": _LONGS,
    }
)
"""One row per task and slice: sums over its users as whole numbers (`accuracy.MetricTotals`)."""

LISTS_WITH_COUNTS = pa.schema(
    {
        "user_id": pa.string(),
        "part": pa.string(),
        "user_key": pa.int64(),
        "n_relevant": pa.int32(),
        "counts": _LONGS,
        "item_index": _LONGS,
        "query_id": pa.string(),
    }
)
"""One row per user and part with a list. Each item in list order has its number of training users, and its
index in the catalogue (-1: not there)."""

LISTS_WITH_TRUTH = pa.schema(
    [
        *LISTS_WITH_COUNTS,
        pa.field("hits", pa.list_(pa.bool_())),
        pa.field("truth_items", _LONGS),
        pa.field("truth_counts", _LONGS),
        *PROFILES,
    ]
)
"""Lists with marks at relevant items, and all relevant items with their training users."""

LISTING_COUNTS = pa.schema(
    {
        "part": pa.string(),
        "bucket": pa.int64(),
        "item_index": pa.int64(),
        "c": pa.int32(),
        "group": pa.int32(),
        "times": pa.int64(),
    }
)
"""One row per task, part, item, cut-off and group of users: how many lists hold the item between this
cut-off (`c`: its place among the cut-offs) and the one before. `bucket`: a range of items."""

HISTOGRAM = pa.schema(
    {
        "part": pa.string(),
        "c": pa.int32(),
        "without": pa.int64(),
        "times": pa.int64(),
        "items": pa.int64(),
    }
)
"""One row per part, cut-off and number of lists (`times`): how many items are in so many lists. `without`:
-1; else the number of a group of users, and by how many items the row differs without them."""

METRIC_ROWS = pa.schema(
    {
        "part": pa.string(),
        "slice_key": pa.string(),
        "slice_value": pa.string(),
        "metric": pa.string(),
        "definition": pa.string(),
        "k": pa.int32(),
        "estimator": pa.string(),
        "value": pa.float64(),
        "stderr": pa.float64(),
        "ci_low": pa.float64(),
        "ci_high": pa.float64(),
        "n": pa.int64(),
    }
)
"""One row per metric, cut-off and slice. The table `metrics` without its run columns."""

RANKING_COUNTS = pa.schema(
    {
        "part": pa.string(),
        **dict.fromkeys(
            ("users", "silent", "barren", "truth", "unranked", "tied", "questions", "named", "untrained"),
            pa.int64(),
        ),
    }
)
"""One row per task and part: counts of users, rows without output, rows without relevant items, truth
items, and unranked or tied truth items; all rows, and those with a query, and without training items (NULL:
these were not read)."""

_SPARK = {pa.string(): "STRING", pa.int32(): "INT", pa.int64(): "LONG", pa.float64(): "DOUBLE"}


def to_ddl(schema: pa.Schema) -> str:
    """Write a schema as a DDL string for Spark."""
    return ", ".join(f"{field.name} {_spark_type(field.type)}" for field in schema)


def _spark_type(kind: pa.DataType) -> str:
    if pa.types.is_map(kind):
        return f"MAP<{_spark_type(kind.key_type)}, {_spark_type(kind.item_type)}>"
    return f"ARRAY<{_spark_type(kind.value_type)}>" if pa.types.is_list(kind) else _SPARK[kind]
