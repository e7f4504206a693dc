"""Evaluation in this process, without Java, by the functions of Arrow tables that Spark's tasks call.

Ranking, metrics and checks are those of `evaluation` (functions of Arrow batches), so numbers and checks
have the same bits as on Spark. `ground_truth` prepares the inputs; tests compare it with Spark's joins.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recbench_spark.adhoc import ground_truth
from recbench_spark.adhoc.ground_truth import NO_PAIRS, ArrowTruth, count_pairs
from recbench_spark.adhoc.measured import measure_rankings
from recbench_spark.adhoc.options import EvaluationRequest
from recbench_spark.adhoc.request_checks import (
    EvaluationPlan,
    check_request,
    drawn_candidates_checks,
    gain_checks,
)
from recbench_spark.checks import Check
from recbench_spark.data import arrow_rows
from recbench_spark.data.arrow_rows import (
    as_table,
    combine_column,
    distinct_ids,
    find_indices,
    read_id_type,
)
from recbench_spark.data.input_rules import name_known_items, report_unknown_truth, value_columns
from recbench_spark.definitions import SAMPLED, Definition
from recbench_spark.engine.measures import reduce_pieces
from recbench_spark.evaluation import ranking_counts
from recbench_spark.evaluation.batch_schemas import RANKED_USERS, USER_VALUES
from recbench_spark.evaluation.batched.run_measures import map_user_values
from recbench_spark.evaluation.metrics import beyond_accuracy
from recbench_spark.evaluation.metrics.listed import ListedCatalogue
from recbench_spark.evaluation.ranking.candidates import CandidateRule, add_candidates
from recbench_spark.evaluation.ranking.drawn_batches import draw_batches
from recbench_spark.evaluation.ranking.given import add_lists, rank_batches
from recbench_spark.evaluation.ranking.request import RankingRequest
from recbench_spark.evaluation.ranking.scored import score_batches
from recbench_spark.evaluation.ranking.sources import DotSource
from recbench_spark.evaluation.result import Result, ShownTable
from recbench_spark.kernels.ranking.scorers import NUMPY_TILES
from recbench_spark.kernels.streams import Batches
from recbench_spark.storage import shared_arrays
from recbench_spark.storage.shared_arrays import SharedRows, bound_lists

ROWS_A_BATCH = 10_000
"""Rows per batch, as in Spark."""


def evaluate(
    truth: Any,
    *,
    lists: Any = None,
    scores: Any = None,
    embeddings: tuple[Any, Any] | None = None,
    train: Any = None,
    candidates: Any = None,
    features: Any = None,
    **options: Any,
) -> Result:
    """Evaluate tables of this process; arguments and errors as in `evaluate.evaluate`.

    Memory: a few times the tables; with embeddings also a block of 16 MB of scores.
    """
    plan = check_request(
        EvaluationRequest(**options), lists=lists, scores=scores, embeddings=embeddings,
        train=train, candidates=candidates, features=features,
    )  # fmt: skip
    system = _convert_system(plan.kind, plan.system)
    train_table = None if train is None else as_table(train, "train")
    tables = ground_truth.make_arrow_truth(
        as_table(truth, "truth"), train_table, system[-1], plan.definition, masked=plan.masks_truth
    )
    tables.checks.extend([*_overlap_checks(tables, system, plan.kind), *gain_checks(plan, tables.grades)])
    with nullcontext(Path()) if plan.candidates is None and features is None else _scratch() as folder:
        source = (
            None if features is None else _feature_source(tables, as_table(features, "features"), folder)
        )
        users = _add_candidates(tables, candidates, plan)
        ranked = _rank_rows(tables, users, system, plan, folder)
        result = _result(tables, ranked, plan, source)
    return replace(result, limits=plan.name_limits(train_table, candidates))


@contextmanager
def _scratch() -> Iterator[Path]:
    """Yield a temporary folder for memory-mapped rows, and remove it afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="recbench-"))
    try:
        yield folder
    finally:
        for file in folder.iterdir():
            shared_arrays.remove_arrays(file.stem)
        shutil.rmtree(folder, ignore_errors=True)


# ---------------------------------------------------------------------------------- the system's rows


def _convert_system(kind: str, system: Any) -> tuple[pa.Table, ...]:
    """Convert lists or scores, or vectors of users and of items; the last table holds the items."""
    if kind == "embeddings":
        names = ("user embeddings", "item embeddings")
        users, items = (as_table(table, name) for table, name in zip(system, names, strict=True))
        return arrow_rows.convert_embeddings(users, items, names)
    rows = as_table(system, kind)
    return (arrow_rows.convert_rows(rows, value_columns(rows.column_names, kind), kind),)


def _overlap_checks(tables: ArrowTruth, system: tuple[pa.Table, ...], kind: str) -> list[Check]:
    """Check that the system's ids occur in the truth or, for items, in training or truth."""
    first, last = system[0], system[-1]
    sides = (kind, "truth", read_id_type(first, "user_id"), tables.stored["user_id"])
    checks = arrow_rows.check_common_ids(
        first.column("user_id"), pa.chunked_array([tables.user_ids]), "user_id", sides
    )
    name = "truth" if tables.train_pairs is None else "train and truth"
    sides = (kind, name, read_id_type(last, "item_id"), tables.stored["item_id"])
    logged = pa.chunked_array([tables.log_items])
    must = tables.train_pairs is not None
    checks += arrow_rows.check_common_ids(last.column("item_id"), logged, "item_id", sides, must=must)
    return checks + _truth_checks(tables, last, kind)


def _truth_checks(tables: ArrowTruth, last: pa.Table, kind: str) -> list[Check]:
    """Check that the truth's items are in the catalogue of the vectors, or of training and rows."""
    if tables.train_pairs is None and kind != "embeddings":
        return []
    known, ids = name_known_items(kind), [last.column("item_id")]
    if kind != "embeddings" and tables.train_pairs is not None:
        ids.append(tables.catalogue.ids.filter(pa.array(tables.catalogue.n_train_i > 0)))
    kinds = tables.stored["item_id"], read_id_type(last, "item_id")
    truth = distinct_ids([combine_column(tables.users.column("item_ids")).flatten()])
    sides = arrow_rows.ArrowSides(truth, distinct_ids(ids), "item_id", ("truth", known, *kinds))
    return report_unknown_truth(sides.count_common(), sides, known)


# ------------------------------------------------------------------------------------------- ranking


def _rank_rows(
    tables: ArrowTruth, users: pa.Table, system: tuple[pa.Table, ...], plan: EvaluationPlan, folder: Path
) -> pa.Table:
    """Rank the users: rows of `RANKED_USERS`. Checks count ignored rows of lists and scores."""
    request = plan.metric_plan.request()
    if plan.kind == "embeddings":
        vectors, items = system
        source = replace(_dot_source(tables, items, folder, "item embeddings"), kind=plan.similarity)
        users = users.append_column("vector", _join_vectors(users.column("user_id"), vectors))
        return to_table(score_batches(source, request, to_batches(users), device=NUMPY_TILES), RANKED_USERS)
    tables.checks.extend(_row_checks(tables, system[0], request.definition, lists=plan.lists))
    mask = plan.kind == "scores" and request.definition.candidates == "unseen"
    listed = _add_lists(tables, users if mask else users.drop_columns("masked"), system[0], request)
    return to_table(rank_batches(request, to_batches(listed)), RANKED_USERS)


def to_batches(table: pa.Table) -> Batches:
    """Split a table into batches, as tasks receive it."""
    return iter(table.combine_chunks().to_batches(ROWS_A_BATCH))


def to_table(batches: Batches, schema: pa.Schema) -> pa.Table:
    """Combine batches into a table of a schema."""
    return pa.Table.from_batches([batch.cast(schema) for batch in batches], schema)


def _dot_source(tables: ArrowTruth, vectors: pa.Table, folder: Path, what: str) -> DotSource:
    """Write the vectors of the catalogue's items to a file that workers map."""
    ids, at = (
        tables.catalogue.ids,
        find_indices(tables.catalogue.ids, combine_column(vectors.column("item_id"))),
    )
    place = pa.array(at, mask=at < 0)
    rows = {
        "item_id": ids,
        "item_index": pa.array(np.arange(len(ids)), pa.int32()),
        "vector": combine_column(vectors.column("vector")).take(place),
        "bias": combine_column(vectors.column("bias")).take(place),
    }
    file = folder / f"{uuid.uuid4().hex}.parquet"
    pq.write_table(pa.table(rows), file)
    shared = SharedRows(file.stem, (str(file),))
    return DotSource(shared, len(ids), arrow_rows.count_dimensions(vectors, what))


def _join_vectors(users: pa.ChunkedArray, vectors: pa.Table) -> pa.Array:
    at = find_indices(users, combine_column(vectors.column("user_id")))
    return combine_column(vectors.column("vector")).take(pa.array(at, mask=at < 0))


def _feature_source(tables: ArrowTruth, rows: pa.Table, folder: Path) -> DotSource:
    """Write features of items like `training.item_features.share_features`."""
    typed = arrow_rows.convert_vectors(rows, "item_id", "features", biased=False)
    sides = ("features", "catalogue", read_id_type(typed, "item_id"), tables.stored["item_id"])
    arrow_rows.check_common_ids(
        typed.column("item_id"), pa.chunked_array([tables.catalogue.ids]), "item_id", sides
    )
    return _dot_source(tables, typed, folder, "features")


def _add_lists(tables: ArrowTruth, users: pa.Table, rows: pa.Table, request: RankingRequest) -> pa.Table:
    """Add to each user the list of the user's rows, as tasks do."""
    user_r = find_indices(rows.column("user_id"), tables.user_ids)
    item_r = tables.catalogue.find_indices(rows.column("item_id"))
    return add_lists(users, user_r, item_r, rows, request)


def _row_checks(tables: ArrowTruth, rows: pa.Table, definition: Definition, *, lists: bool) -> list[Check]:
    """Check the rows like `training.external_models.row_checks`."""
    # Users of training come first: they keep their indices in `train_pairs`.
    users = distinct_ids([tables.all_users, rows.column("user_id")])
    user_r = find_indices(rows.column("user_id"), users)
    item_r = tables.catalogue.find_indices(rows.column("item_id"))
    n = max(len(tables.catalogue.ids), 1)
    train_pairs = NO_PAIRS if tables.train_pairs is None else tables.train_pairs
    counts = count_pairs(user_r * n + item_r, train_pairs.user_r * n + train_pairs.item_r)
    items = tables.catalogue.ids if tables.train_pairs is None else tables.log_items
    unknown = int((find_indices(rows.column("item_id"), items) < 0).sum())
    lost = int((find_indices(distinct_ids([rows.column("user_id")]), tables.user_ids) < 0).sum())
    checks = ranking_counts.row_checks(counts["listed"], counts["twice"], unknown, lost)
    if "rank" in rows.column_names:
        gaps = ranking_counts.count_gaps(user_r, rows.column("rank").to_numpy())
        checks += ranking_counts.gap_checks(gaps, definition)
    trained = counts["trained"] if lists and tables.train_pairs is not None else None
    return ranking_counts.finish_row_checks(checks, definition, trained)


# ---------------------------------------------------------------------------------------- candidates


def _add_candidates(tables: ArrowTruth, table: Any, plan: EvaluationPlan) -> pa.Table:
    """Add the candidates of a table, or drawn ones, which a check records."""
    if table is not None:
        return _add_given(tables, as_table(table, "candidates"))
    if plan.candidates not in SAMPLED:
        return tables.users
    mode, n_items, draw = plan.candidates, len(tables.catalogue.ids), plan.draw
    weights = np.ones(n_items, np.int64) if mode == "uniform" else tables.catalogue.n_train_i
    running = np.concatenate([[0], np.cumsum(weights)])
    drawn = pa.Table.from_batches(draw_batches(running, draw, to_batches(tables.users)))
    items = combine_column(drawn.column("items"))
    n_u = items.value_lengths().to_numpy()
    counts = (int(n_u.min()), float(n_u.mean()), int(n_u.max())) if len(n_u) else (0, 0.0, 0)
    tables.checks.extend(drawn_candidates_checks(mode, draw, n_items, counts))
    return add_candidates(tables.users, drawn, CandidateRule(drawn=mode, n_items=n_items))


def _add_given(tables: ArrowTruth, table: pa.Table) -> pa.Table:
    """Add candidates like `external_inputs.group_candidates`, joined to the users."""
    rows = arrow_rows.convert_rows(table, {}, "candidates")
    for name, ids, name_of_side in (
        ("user_id", tables.user_ids, "truth"),
        ("item_id", tables.catalogue.ids, "catalogue"),
    ):
        sides = ("candidates", name_of_side, read_id_type(rows, name), tables.stored[name])
        arrow_rows.check_common_ids(rows.column(name), pa.chunked_array([ids]), name, sides)
    user_r = find_indices(rows.column("user_id"), tables.user_ids)
    item_r = tables.catalogue.find_indices(rows.column("item_id"))
    in_catalogue = (user_r >= 0) & (item_r >= 0)
    pairs = np.unique(np.stack([user_r[in_catalogue], item_r[in_catalogue]], axis=1), axis=0)
    bounds = bound_lists(pairs[:, 0], len(tables.user_ids))
    items = pa.array(pairs[:, 1], pa.int32())
    return tables.users.append_column("candidates", pa.ListArray.from_arrays(bounds, items))


# --------------------------------------------------------------------------------------- measuring


def _result(
    tables: ArrowTruth, rankings: pa.Table, evaluation: EvaluationPlan, features: DotSource | None
) -> Result:
    plan, known, batches = evaluation.metric_plan, tables.catalogue, list(to_batches(rankings))
    facts = beyond_accuracy.Facts(known.n_users, features)
    catalogue = ListedCatalogue(known, len(known.ids), facts) if plan.wants_lists else None
    reduce = partial(reduce_pieces, pieces=[batches])
    metrics, checks = measure_rankings(evaluation, catalogue, reduce)
    per_user = to_table(map_user_values(plan, catalogue, iter(batches)), USER_VALUES)
    return Result(ShownTable(metrics), ShownTable(per_user), rankings, [*tables.checks, *checks])
