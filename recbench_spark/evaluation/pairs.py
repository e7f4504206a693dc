"""Item-to-item evaluation on either runner.

For labelled pairs query -> item, all items but the query are ranked. A query is a user with an item's
vector, whose only training item is the query itself: ranks, ties and ids are those in every other
evaluation. The metrics are in `metrics.pairs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.config import Bootstrap
from recbench_spark.core.checks import Check
from recbench_spark.errors import DataError
from recbench_spark.evaluation.evaluation import DealtEvaluation, start_evaluation
from recbench_spark.evaluation.input_tables import open_place
from recbench_spark.evaluation.options import EvaluationRequest
from recbench_spark.evaluation.outputs import measure_pairs, open_outputs
from recbench_spark.evaluation.request_checks import check_request
from recbench_spark.evaluation.task_tables import LISTED, TRAIN, TRUTH, TaskTables
from recbench_spark.metrics.result import Result
from recbench_spark.schemas import IDS, require_names
from recbench_spark.sources.dealt_ids import apply_both
from recbench_spark.sources.input_rows import check_input, open_input


def evaluate_pairs(
    items: Any,
    pairs: Any,
    *,
    k: Sequence[int] = (10, 100, 500),
    similarity: Literal["dot", "cosine"] = "dot",
    scratch: str | None = None,
) -> Result:
    """Compute hit rates and scaled MRR for labelled pairs.

    A pair without both vectors is a miss.

    Args:
        items: item_id, vector[, bias]; all are ranked.
        pairs: query_id, item_id, one row per labelled pair.
        k: cut-offs for the hit rate.
        similarity: how two vectors are compared.
        scratch: folder readable by all executors.

    Returns:
        A result whose users are queries. stderr is over the queries' means; n counts pairs.

    Raises:
        SchemaError: a column is missing.
        DataError: a query is paired with itself; NULL ids; unusable vectors.
    """
    with open_place(items, scratch) as place, ExitStack() as kept:
        opened = open_input(place.engine, pairs, (), "pairs")
        vectors = open_input(place.engine, items, (), "items")
        require_names(opened.schema.names, ["query_id", "item_id"], "pairs")
        require_names(vectors.schema.names, ["item_id", "vector"], "items")
        # Ids keep their type: where they are whole numbers, ties go to the smaller number.
        truth = opened.select({"user_id": "query_id", "item_id": "item_id"})
        _refuse_self_pairs(sum(check_input(truth, {}, "pairs").rows.each(IDS, _count_self_pairs)))
        given = {"truth": truth, **dict.fromkeys(("train", "candidates", "features"))}
        users = vectors.select({"user_id": "item_id", "vector": "vector"})
        request = EvaluationRequest(
            k=tuple(k), similarity=similarity, metrics=("recall",), bootstrap=Bootstrap(replicates=0)
        )
        plan = check_request(
            request, lists=None, scores=None, embeddings=(users, vectors), train=truth, candidates=None,
            features=None,
        )  # fmt: skip
        work = _keep_queries(start_evaluation(place, plan, given, kept))
        checks = work.check_all()
        users_found = work.user_overlaps["listed"]
        result = measure_pairs(open_outputs(place.engine, work.rank()), plan, sorted({*k}), checks)
        lost = users_found.n[1] - users_found.common
        check = Check("queries without a vector", lost, 0.0, "warning", "their pairs count as misses")
        return replace(result, checks=[*result.checks, check])


def _keep_queries(work: DealtEvaluation) -> DealtEvaluation:
    """Keep query vectors alone; each query is its training item."""
    truth = work.inputs.tables[TRUTH]
    own = replace(truth, kinds=dict.fromkeys(IDS, truth.kinds["user_id"]))
    inputs = replace(work.inputs, tables={**work.inputs.tables, TRAIN: own})
    change = partial(_make_queries, numeric=inputs.numeric)
    queries = work.dealt.then(partial(apply_both, work.dealt.change, change), ())
    return replace(work, inputs=inputs, dealt=work.place.hold(queries))


def _make_queries(task: TaskTables, numeric: bool | None) -> TaskTables:
    queries, vectors = task.truth_users, task.tables[LISTED]
    own = vectors.filter(pc.is_in(vectors.column("user_id").cast(pa.string()), value_set=queries))
    ids = queries.dictionary_encode()
    return TaskTables({**task.tables, LISTED: own, TRAIN: pa.table([ids, ids], list(IDS))}, numeric)


def _count_self_pairs(tables: Iterable[pa.Table]) -> int:
    both = [[table.column(name).cast(pa.string()) for name in IDS] for table in tables]
    return sum(pc.sum(pc.equal(*columns), min_count=0).as_py() for columns in both)


def _refuse_self_pairs(own: int) -> None:
    if own:
        raise DataError(f"pairs: {own} queries are paired with themselves", "leave these rows out")
