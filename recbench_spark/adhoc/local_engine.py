"""An evaluation in this process, without Java: Arrow tables, and the functions that Spark's tasks call.

Ranking, measuring and checks are those of `evaluation` (functions of Arrow batches), so numbers and checks
have the bits of Spark's; what comes before is `truth_tables`, which is held against Spark's joins by tests.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recbench_spark.adhoc import ground_truth, request_checks
from recbench_spark.adhoc.ground_truth import NO_PAIRS, ArrowTruth, count_pairs, user_offsets
from recbench_spark.adhoc.request_checks import (
    EvaluationPlan,
    EvaluationRequest,
    drawn_candidates_check,
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
from recbench_spark.data.external_inputs import value_columns
from recbench_spark.definitions import Definition
from recbench_spark.evaluation import ranking_counts
from recbench_spark.evaluation.batch_schemas import METRIC_ROWS, RANKED_USERS, USER_VALUES
from recbench_spark.evaluation.metrics import accuracy, beyond_accuracy, listed
from recbench_spark.evaluation.metrics.accuracy import MetricPlan
from recbench_spark.evaluation.ranking.given import add_lists, rank_batches
from recbench_spark.evaluation.ranking.negatives import draw_batches
from recbench_spark.evaluation.ranking.request import SAMPLED, RankingRequest
from recbench_spark.evaluation.ranking.scored import score_batches
from recbench_spark.evaluation.ranking.sources import DotSource
from recbench_spark.evaluation.result import PART, LocalResult, ShownTable
from recbench_spark.kernels.arrays import Ints
from recbench_spark.kernels.ranking.scorers import WHOLE_ROWS
from recbench_spark.kernels.streams import Batches
from recbench_spark.storage import shared_arrays
from recbench_spark.storage.shared_arrays import SharedRows

ROWS_A_BATCH = 10_000
"""As Spark cuts batches."""


def evaluate(
    truth: Any,
    *,
    lists: Any = None,
    scores: Any = None,
    embeddings: tuple[Any, Any] | None = None,
    train: Any = None,
    candidates: Any = None,
    features: Any = None,
    **asked: Any,
) -> LocalResult:
    """`evaluate.evaluate` of tables of this process; arguments and errors as there.

    Memory: a few times the tables; with embeddings also a block of 16 MB of scores.
    """
    what = request_checks.check_request(
        EvaluationRequest(**asked), lists=lists, scores=scores, embeddings=embeddings,
        train=train, candidates=candidates, features=features,
    )  # fmt: skip
    handed = _typed_system(what.kind, what.system)
    known = None if train is None else as_table(train, "train")
    world = ground_truth.make_arrow_truth(as_table(truth, "truth"), known, handed[-1], what.definition)
    world.checks.extend([*_meeting_checks(world, handed, what.kind), *gain_checks(what, world.grades)])
    with _scratch() as folder:
        source = (
            None if features is None else _feature_source(world, as_table(features, "features"), folder)
        )
        users = _add_candidates(world, candidates, what)
        ranked = _rank_rows(world, users, handed, what, folder)
        return _result(world, ranked, what.plan, source, lists=what.lists)


@contextmanager
def _scratch() -> Iterator[Path]:
    """A folder for rows that are mapped, gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="recbench-"))
    try:
        yield folder
    finally:
        for file in folder.iterdir():
            shared_arrays.remove_arrays(file.stem)
        shutil.rmtree(folder, ignore_errors=True)


# ------------------------------------------------------------------------------- what is handed over


def _typed_system(kind: str, system: Any) -> tuple[pa.Table, ...]:
    """Lists or scores; or vectors of users, and of items. The last one holds the items."""
    if kind == "embeddings":
        what = ("user embeddings", "item embeddings")
        users, items = (as_table(table, name) for table, name in zip(system, what, strict=True))
        return arrow_rows.convert_embeddings(users, items, what)
    rows = as_table(system, kind)
    return (arrow_rows.convert_rows(rows, value_columns(rows.column_names, kind), kind),)


def _meeting_checks(world: ArrowTruth, handed: tuple[pa.Table, ...], kind: str) -> list[Check]:
    """Whether the ids handed over are those of the truth and, where there is one, of the training part."""
    first, last = handed[0], handed[-1]
    told = (kind, "truth", read_id_type(first, "user_id"), world.stored["user_id"])
    found = arrow_rows.check_common_ids(
        first.column("user_id"), pa.chunked_array([world.user_ids]), "user_id", told
    )
    name = "truth" if world.train_pairs is None else "train and truth"
    told = (kind, name, read_id_type(last, "item_id"), world.stored["item_id"])
    known = pa.chunked_array([world.log_items])
    must = world.train_pairs is not None
    return found + arrow_rows.check_common_ids(last.column("item_id"), known, "item_id", told, must=must)


# ------------------------------------------------------------------------------------------- ranking


def _rank_rows(
    world: ArrowTruth, users: pa.Table, handed: tuple[pa.Table, ...], what: EvaluationPlan, folder: Path
) -> pa.Table:
    """Rows of `RANKED`; what of lists and scores cannot count goes to the checks."""
    request = what.plan.request()
    if what.kind == "embeddings":
        vectors, items = handed
        source = replace(_dot_source(world, items, folder, "item embeddings"), kind=what.similarity)
        users = users.append_column("vector", _join_vectors(users.column("user_id"), vectors))
        return to_table(score_batches(source, request, to_batches(users), device=WHOLE_ROWS), RANKED_USERS)
    world.checks.extend(_row_checks(world, handed[0], request.definition, lists=what.lists))
    mask = what.kind == "scores" and request.definition.candidates == "unseen"
    listed = _add_lists(world, users if mask else users.drop_columns("masked"), handed[0], request)
    return to_table(rank_batches(request, to_batches(listed)), RANKED_USERS)


def to_batches(table: pa.Table) -> Batches:
    """A table in pieces, as tasks get it."""
    return iter(table.combine_chunks().to_batches(ROWS_A_BATCH))


def to_table(batches: Batches, schema: pa.Schema) -> pa.Table:
    """Pieces as a table of a named schema."""
    return pa.Table.from_batches([batch.cast(schema) for batch in batches], schema)


def _dot_source(world: ArrowTruth, vectors: pa.Table, folder: Path, what: str) -> DotSource:
    """The vectors of the catalogue's items, as workers map them."""
    ids, at = (
        world.catalogue.ids,
        find_indices(world.catalogue.ids, combine_column(vectors.column("item_id"))),
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


def _feature_source(world: ArrowTruth, rows: pa.Table, folder: Path) -> DotSource:
    """As `training.item_features.share_features`."""
    typed = arrow_rows.convert_vectors(rows, "item_id", "features", biased=False)
    told = ("features", "catalogue", read_id_type(typed, "item_id"), world.stored["item_id"])
    arrow_rows.check_common_ids(
        typed.column("item_id"), pa.chunked_array([world.catalogue.ids]), "item_id", told
    )
    return _dot_source(world, typed, folder, "features")


def _add_lists(world: ArrowTruth, users: pa.Table, rows: pa.Table, request: RankingRequest) -> pa.Table:
    """Users with the lists given of them, as tasks bring them together."""
    user_r = find_indices(rows.column("user_id"), world.user_ids)
    item_r = world.catalogue.find_indices(rows.column("item_id"))
    return add_lists(users, user_r, item_r, rows, request)


def _row_checks(world: ArrowTruth, rows: pa.Table, definition: Definition, *, lists: bool) -> list[Check]:
    """As `training.handed_over.row_checks`; without training items nobody can say which items are known."""
    # Those of training first: they keep the numbers that `world.trained` gives them.
    users = distinct_ids([world.all_users, rows.column("user_id")])
    user_r = find_indices(rows.column("user_id"), users)
    item_r = world.catalogue.find_indices(rows.column("item_id"))
    n = max(len(world.catalogue.ids), 1)
    known = NO_PAIRS if world.train_pairs is None else world.train_pairs
    counted = count_pairs(user_r * n + item_r, known.user_r * n + known.item_r)
    items = world.catalogue.ids if world.train_pairs is None else world.log_items
    unknown = int((find_indices(rows.column("item_id"), items) < 0).sum())
    lost = int((find_indices(distinct_ids([rows.column("user_id")]), world.user_ids) < 0).sum())
    found = ranking_counts.row_checks(counted["listed"], counted["twice"], unknown, lost)
    if definition.duplicates == "error":
        ranking_counts.refuse_duplicates(found)
    if lists and world.train_pairs is not None:
        found.append(ranking_counts.training_item_check(counted["trained"]))
    return found


# ---------------------------------------------------------------------------------------- candidates


def _add_candidates(world: ArrowTruth, given: Any, what: EvaluationPlan) -> pa.Table:
    """The users with the candidates of a table, or with those drawn, of which the checks tell."""
    if given is not None:
        return _add_given(world, as_table(given, "candidates"))
    if what.candidates not in SAMPLED:
        return world.users
    mode, n_items, draw = what.candidates, len(world.catalogue.ids), what.draw
    weights = np.ones(n_items, np.int64) if mode == "uniform" else world.catalogue.n_train_i
    running = np.concatenate([[0], np.cumsum(weights)])
    drawn = pa.Table.from_batches(draw_batches(running, draw, to_batches(world.users)))
    world.checks.append(drawn_candidates_check(mode, draw, n_items))
    return _add_drawn(world, combine_column(drawn.column("items")), uniform=mode == "uniform")


def _add_given(world: ArrowTruth, table: pa.Table) -> pa.Table:
    """As `handed_over.candidate_lists`, joined to the users."""
    rows = arrow_rows.convert_rows(table, {}, "candidates")
    for name, known, what in (
        ("user_id", world.user_ids, "truth"),
        ("item_id", world.catalogue.ids, "catalogue"),
    ):
        told = ("candidates", what, read_id_type(rows, name), world.stored[name])
        arrow_rows.check_common_ids(rows.column(name), pa.chunked_array([known]), name, told)
    user_r = find_indices(rows.column("user_id"), world.user_ids)
    item_r = world.catalogue.find_indices(rows.column("item_id"))
    kept = (user_r >= 0) & (item_r >= 0)
    pairs = np.unique(np.stack([user_r[kept], item_r[kept]], axis=1), axis=0)
    bounds = user_offsets(pairs[:, 0], len(world.user_ids))
    items = pa.array(pairs[:, 1], pa.int32())
    return world.users.append_column("candidates", pa.ListArray.from_arrays(bounds, items))


def _add_drawn(world: ArrowTruth, drawn: pa.ListArray, *, uniform: bool) -> pa.Table:
    """Truth and drawn items as candidates; of uniform draws how many, and of how many."""
    (own_o, own), (new_o, new) = (
        shared_arrays.flatten_lists(column)
        for column in (combine_column(world.users.column("items")), drawn)
    )
    users = np.arange(len(world.user_ids))
    user_c = np.concatenate([np.repeat(users, np.diff(own_o)), np.repeat(users, np.diff(new_o))])
    items = np.concatenate([own, new])[np.argsort(user_c, kind="stable")]
    bounds = pa.array(own_o + new_o, pa.int32())
    table = world.users.append_column(
        "candidates", pa.ListArray.from_arrays(bounds, pa.array(items, pa.int32()))
    )
    if not uniform:
        return table
    table = table.append_column("drawn", pa.array(np.diff(new_o), pa.int32()))
    return table.append_column(
        "pool", pa.array(len(world.catalogue.ids) - _known_counts(world), pa.int64())
    )


def _known_counts(world: ArrowTruth) -> Ints:
    """(u,) distinct items of each user's truth and training part."""
    lists = [
        shared_arrays.flatten_lists(combine_column(world.users.column(name)))
        for name in ("items", "masked")
    ]
    users = np.arange(len(world.user_ids))
    user_c = np.concatenate([np.repeat(users, np.diff(offsets)) for offsets, _ in lists])
    pairs = np.unique(np.stack([user_c, np.concatenate([items for _, items in lists])], axis=1), axis=0)
    return np.bincount(pairs[:, 0], minlength=len(users))


# --------------------------------------------------------------------------------------- measuring


def _result(
    world: ArrowTruth, rankings: pa.Table, plan: MetricPlan, features: DotSource | None, *, lists: bool
) -> LocalResult:
    counted = ranking_counts.count_batches(plan.definition.threshold, to_batches(rankings))
    found = [*world.checks, *ranking_counts.checks_from_counts(counted, (PART,), lists=lists)]
    facts = beyond_accuracy.Facts(world.catalogue.n_users, features)
    values = [accuracy.user_value_batches(plan, to_batches(rankings))]
    metrics = [_metrics(accuracy.total_batches(plan, to_batches(rankings)), plan, plan.rank_metrics)]
    if plan.list_metrics:
        threshold = plan.definition.threshold
        lists_of = list(listed.listed_batches(world.catalogue, threshold, to_batches(rankings)))
        values.append(accuracy.listed_value_batches(plan, facts, iter(lists_of)))
        totals = accuracy.listed_total_batches(plan, facts, iter(lists_of))
        metrics.append(_metrics(totals, plan, plan.list_metrics))
    if plan.overall:
        shown = listed.listing_batches(world.catalogue, plan.ks, to_batches(rankings))
        found_in = listed.listing_histograms(len(plan.ks), shown)
        metrics.append(listed.overall_rows(plan, len(world.catalogue.ids), found_in))
    per_user = pa.concat_tables([to_table(batches, USER_VALUES) for batches in values])
    return LocalResult(ShownTable(pa.concat_tables(metrics)), ShownTable(per_user), rankings, found)


def _metrics(totals: Batches, plan: MetricPlan, names: Sequence[str]) -> pa.Table:
    found = accuracy.metric_batches(plan.table(names), plan.bootstrap, totals) if names else iter(())
    return to_table(found, METRIC_ROWS)
