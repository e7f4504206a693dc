"""Item-to-item evaluation in this process: `spark_pairs.evaluate_pairs` without Java."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.adhoc.local_engine import evaluate, to_batches, to_table
from recbench_spark.adhoc.pair_checks import METRIC_OPTIONS, lost_queries_check, refuse_self_pairs
from recbench_spark.data import arrow_rows
from recbench_spark.data.arrow_rows import as_table, combine_column, distinct_ids, find_indices, read_column
from recbench_spark.engine.measures import reduce_pieces
from recbench_spark.evaluation.batch_schemas import USER_VALUES
from recbench_spark.evaluation.metrics.pairs import pair_measure, value_batches
from recbench_spark.evaluation.result import Result, ShownTable
from recbench_spark.schemas import require_names


def evaluate_pairs(
    items: Any,
    pairs: Any,
    *,
    k: Sequence[int] = (10, 100, 500),
    similarity: Literal["dot", "cosine"] = "dot",
) -> Result:
    """Compute hit rates and scaled MRR of labelled pairs: see `spark_pairs.evaluate_pairs`."""
    pair_table, vectors = as_table(pairs, "pairs"), as_table(items, "items")
    require_names(pair_table.column_names, ["query_id", "item_id"], "pairs")
    require_names(vectors.column_names, ["item_id", "vector"], "items")
    truth = _rename_to_user_id(pair_table.select(["query_id", "item_id"]), "query_id")
    typed = arrow_rows.convert_rows(truth, {}, "pairs")
    both = (combine_column(typed.column(name)) for name in ("user_id", "item_id"))
    refuse_self_pairs(pc.sum(pc.equal(*both), min_count=0).as_py())
    queries = distinct_ids([typed.column("user_id")])
    as_users = _rename_to_user_id(vectors.select(["item_id", "vector"]), "item_id")
    vector_ids = combine_column(arrow_rows.encode_ids(as_users, "user_id", "items")[1])
    lost = int((find_indices(queries, vector_ids) < 0).sum())
    self_pairs = pa.table({"user_id": queries, "item_id": queries})
    query_vectors = as_users.filter(pc.is_in(vector_ids, value_set=queries))
    # Queries keep the type of their ids: where all are whole numbers, ties go to the smaller number.
    train = _copy_stored_types(self_pairs, truth)
    result = evaluate(
        truth,
        embeddings=(query_vectors, vectors),
        train=train,
        k=tuple(k),
        similarity=similarity,
        **METRIC_OPTIONS,
    )
    assert result.rankings is not None
    ks = tuple(sorted(set(k)))
    batches = list(to_batches(result.rankings))
    rows = reduce_pieces({"pairs": pair_measure(ks)}, [batches])["pairs"]
    per_query = to_table(value_batches(ks, iter(batches)), USER_VALUES)
    checks = [*result.checks, lost_queries_check(lost)]
    return Result(ShownTable(rows), ShownTable(per_query), result.rankings, checks)


def _rename_to_user_id(table: pa.Table, name: str) -> pa.Table:
    at = table.column_names.index(name)
    return table.set_column(at, table.schema.field(at).with_name("user_id"), table.column(at))


def _copy_stored_types(self_pairs: pa.Table, truth: pa.Table) -> pa.Table:
    """Return the queries as their own training rows, with the type and metadata of the caller's column."""
    field = truth.schema.field("user_id")
    raw = read_column(truth, "user_id", "pairs")
    first = raw.take(
        pc.index_in(self_pairs.column("user_id"), value_set=_text_columns(truth)).combine_chunks()
    )
    return pa.table([first, first], schema=pa.schema([field, field.with_name("item_id")]))


def _text_columns(truth: pa.Table) -> pa.Array:
    return combine_column(arrow_rows.encode_ids(truth, "user_id", "pairs")[1])
