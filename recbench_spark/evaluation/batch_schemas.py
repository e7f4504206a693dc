"""What goes into the functions of Arrow batches, and what comes out of them: one schema a kind of row.

Ranking, measuring and checks are functions `Iterator[RecordBatch] -> Iterator[RecordBatch]` that know no
Spark. `mapInArrow` calls them on executors, anyone else in a process of one's own:

    users --rank_batches, score_batches--> RANKED --user_value_batches--> USER_VALUES
                                             |---total_batches--> TOTALS --metric_batches--> METRIC_ROWS
                                             +---count_batches--> RANKING_COUNTS --> rows of `checks`

Columns are found by name: an input may hold more, and their order is free.
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
"""One row a user and held-out part: the truth by item index; `masked`: items that are not candidates.

Models that score also want `history` and `vector`, and `candidates` where the definition asks for them.
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
"""Users with the lists given of them: keys of the items, their ids (where lists are asked for), and ranks
or scores. Without `masked` the lists stay as they are."""

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
    }
)
"""One row a user and part: where the truth items stand. The table `rankings` without the run."""

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
"""One row a user, part and metric. The table `user_metrics` without the run."""

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
"""One row a task and slice: sums over its users, whole numbers (`accuracy.MetricTotals`)."""

LISTS_WITH_COUNTS = pa.schema(
    {
        "user_id": pa.string(),
        "part": pa.string(),
        "user_key": pa.int64(),
        "n_relevant": pa.int32(),
        "counts": _LONGS,
        "item_index": _LONGS,
    }
)
"""One row a user and part with a list: of each item of it how many training users have it, and its place in
the catalogue (-1: not there), in the order of the list."""

LISTING_COUNTS = pa.schema(
    {
        "part": pa.string(),
        "bucket": pa.int64(),
        "item_index": pa.int64(),
        "c": pa.int32(),
        "times": pa.int64(),
    }
)
"""One row a task, part, item and cut-off: in how many lists the item stands between this cut-off (its place
among them) and the one before; `bucket`: a range of items."""

HISTOGRAM = pa.schema({"part": pa.string(), "c": pa.int32(), "times": pa.int64(), "items": pa.int64()})
"""One row a part, cut-off and number of lists: how many items stand in so many lists up to the cut-off."""

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
"""One row a metric, cut-off and slice. The table `metrics` without the run."""

RANKING_COUNTS = pa.schema(
    {
        "part": pa.string(),
        **dict.fromkeys(("users", "silent", "barren", "truth", "unranked", "tied"), pa.int64()),
    }
)
"""One row a task and part: how many users, without output, without relevant items; how many truth items,
not ranked, tied."""

_SPARK = {pa.string(): "STRING", pa.int32(): "INT", pa.int64(): "LONG", pa.float64(): "DOUBLE"}


def to_ddl(schema: pa.Schema) -> str:
    """The columns as Spark wants them told."""
    return ", ".join(f"{field.name} {_spark_type(field.type)}" for field in schema)


def _spark_type(kind: pa.DataType) -> str:
    if pa.types.is_map(kind):
        return f"MAP<{_spark_type(kind.key_type)}, {_spark_type(kind.item_type)}>"
    return f"ARRAY<{_spark_type(kind.value_type)}>" if pa.types.is_list(kind) else _SPARK[kind]
