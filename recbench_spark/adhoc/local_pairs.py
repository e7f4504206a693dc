"""Item to item in this process: `pairs.evaluate_pairs` without Java."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.adhoc.local_engine import batches_of, evaluate, table_of
from recbench_spark.adhoc.spark_pairs import MEASURED, lost_told, refuse_own
from recbench_spark.data import arrow_rows
from recbench_spark.data.arrow_rows import as_table, column_of, distinct, in_one, index_in
from recbench_spark.evaluation.batch_schemas import USER_VALUES
from recbench_spark.evaluation.metrics import pairs as measures
from recbench_spark.evaluation.result import LocalResult, ShownTable
from recbench_spark.schemas import require_names


def evaluate_pairs(
    items: Any,
    pairs: Any,
    *,
    k: Sequence[int] = (10, 100, 500),
    similarity: Literal["dot", "cosine"] = "dot",
) -> LocalResult:
    """Hit rates and scaled MRR of labelled pairs; arguments and errors as `pairs.evaluate_pairs`."""
    given, vectors = as_table(pairs, "pairs"), as_table(items, "items")
    require_names(given.column_names, ["query_id", "item_id"], "pairs")
    require_names(vectors.column_names, ["item_id", "vector"], "items")
    truth = _renamed(given.select(["query_id", "item_id"]), "query_id")
    typed = arrow_rows.typed_rows(truth, {}, "pairs")
    both = (in_one(typed.column(name)) for name in ("user_id", "item_id"))
    refuse_own(pc.sum(pc.equal(*both), min_count=0).as_py())
    queries = distinct([typed.column("user_id")])
    as_users = _renamed(vectors.select(["item_id", "vector"]), "item_id")
    known = in_one(arrow_rows.text_ids(as_users, "user_id", "items")[1])
    lost = int((index_in(queries, known) < 0).sum())
    itself = pa.table({"user_id": queries, "item_id": queries})
    of_queries = as_users.filter(pc.is_in(known, value_set=queries))
    # Queries keep how their ids are stored: where all are whole numbers, ties fall to the smaller one.
    train = _stored_alike(itself, truth)
    found = evaluate(
        truth, embeddings=(of_queries, vectors), train=train, k=tuple(k), similarity=similarity, **MEASURED
    )
    assert found.rankings is not None
    ks = tuple(sorted(set(k)))
    totals = pa.Table.from_batches(measures.total_batches(ks, batches_of(found.rankings)))
    per_query = table_of(measures.value_batches(ks, batches_of(found.rankings)), USER_VALUES)
    checks = [*found.checks, lost_told(lost)]
    return LocalResult(
        ShownTable(measures.metric_rows(ks, totals)), ShownTable(per_query), found.rankings, checks
    )


def _renamed(table: pa.Table, name: str) -> pa.Table:
    """The table with one column called user_id."""
    at = table.column_names.index(name)
    return table.set_column(at, table.schema.field(at).with_name("user_id"), table.column(at))


def _stored_alike(itself: pa.Table, truth: pa.Table) -> pa.Table:
    """The queries as their own training rows, with the type and the notes that their column came with."""
    field = truth.schema.field("user_id")
    raw = column_of(truth, "user_id", "pairs")
    first = raw.take(pc.index_in(itself.column("user_id"), value_set=_texts(truth)).combine_chunks())
    return pa.table([first, first], schema=pa.schema([field, field.with_name("item_id")]))


def _texts(truth: pa.Table) -> pa.Array:
    return in_one(arrow_rows.text_ids(truth, "user_id", "pairs")[1])
