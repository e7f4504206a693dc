"""An evaluation of what a system handed over, on Spark: frames in, lazy frames out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark.adhoc import request_checks
from recbench_spark.adhoc.ground_truth import dropped_rows_check
from recbench_spark.adhoc.partition_tasks import LISTED, TRAIN, TRUTH, TaskCatalogue
from recbench_spark.adhoc.partitioned_inputs import PartitionedInputs
from recbench_spark.adhoc.request_checks import (
    EvaluationPlan,
    EvaluationRequest,
    drawn_candidates_check,
    gain_checks,
    make_bootstrap,
)
from recbench_spark.checks import Check
from recbench_spark.config import Bootstrap, digest
from recbench_spark.data.external_inputs import (
    CheckedRows,
    check_common_ids,
    check_input_rows,
    convert_embeddings,
    convert_rows,
    count_dimensions,
    describe_sides,
    group_candidates,
    report_common_ids,
    value_columns,
)
from recbench_spark.data.readers.ids import convert_ids
from recbench_spark.definitions import Definition
from recbench_spark.errors import DataError
from recbench_spark.evaluation import checks as check_rows
from recbench_spark.evaluation.metrics import measuring
from recbench_spark.evaluation.metrics import predictions as values
from recbench_spark.evaluation.metrics.accuracy import MetricPlan
from recbench_spark.evaluation.metrics.predictions import Views
from recbench_spark.evaluation.metrics.top_lists import SplitCatalogue
from recbench_spark.evaluation.ranking.candidates import Candidates
from recbench_spark.evaluation.ranking.known_items import KnownItems
from recbench_spark.evaluation.ranking.negatives import draw_candidates, weight_rows
from recbench_spark.evaluation.ranking.rank import ScoredModel, rank
from recbench_spark.evaluation.ranking.request import SAMPLED
from recbench_spark.evaluation.ranking.source_rows import vector_rows
from recbench_spark.evaluation.ranking.sources import DotSource
from recbench_spark.evaluation.ranking_counts import refuse_duplicates, row_checks, training_item_check
from recbench_spark.evaluation.result import PART, Result
from recbench_spark.kernels.metrics.chunk import check_gains
from recbench_spark.protocol.catalogue import find_class_bounds, index_items
from recbench_spark.schemas import IDS, METRICS, USER_METRICS, Table, cast_ids_to_text, conform, require
from recbench_spark.storage.shared_rows import base_folder, share_rows
from recbench_spark.training.item_features import share_features


def evaluate(
    truth: DataFrame,
    *,
    lists: DataFrame | None = None,
    scores: DataFrame | None = None,
    embeddings: tuple[DataFrame, DataFrame] | None = None,
    train: DataFrame | None = None,
    candidates: DataFrame | None = None,
    features: DataFrame | None = None,
    scratch: str | None = None,
    **asked: Any,
) -> Result:
    """Metrics of lists, of scores, or of embeddings, against a truth: see `evaluate.evaluate`."""
    what = request_checks.check_request(
        EvaluationRequest(**asked), lists=lists, scores=scores, embeddings=embeddings,
        train=train, candidates=candidates, features=features,
    )  # fmt: skip
    place = scratch or base_folder(truth.sparkSession)
    vectors = _typed_vectors(what)
    rows = None if vectors else _typed_list_rows(what)
    known = typed_log(truth, train, what.definition)
    world = make_truth_tables(known, rows or vectors[-1], what.definition, place)
    world.checks.extend(
        [*_meeting_checks(world, vectors, what.kind), *gain_checks(what, known.truth.ranges["rating"])]
    )
    source = None if features is None else share_features(place, world.items, features, "features")
    if rows is not None:
        return _result(world, _rank_rows(world, what), what, source)
    found = _make_candidates(world, candidates, what, place)
    scored = _scored_model(world, vectors, what, place)
    return _result(world, rank(world.users, scored, what.plan.request(), found), what, source)


# ----------------------------------------------------------------------------- truth and train


@dataclass(frozen=True)
class TypedInputs:
    """Truth, also users whose truth is empty, and training rows, as they can be used."""

    truth: CheckedRows
    train: CheckedRows | None


@dataclass(frozen=True)
class SparkTruth:
    """The truth by user, with its catalogue and what was left out of it.

    seen: the catalogue in tasks. known: what was handed over. asked: lists or scores, or vectors of items.
    """

    dealt: PartitionedInputs
    task_catalogue: TaskCatalogue
    checks: list[Check]
    known: TypedInputs
    asked: DataFrame

    @cached_property
    def items(self) -> DataFrame:
        """The catalogue: item_id, item_index, n_train."""
        assert self.task_catalogue.known.numeric is not None
        return index_items(item_rows(self.dealt), self.task_catalogue.known.numeric)

    @cached_property
    def users(self) -> DataFrame:
        """Rows of `USERS`, one a user of the truth."""
        return self.dealt.users(self.task_catalogue).cache()

    def catalogue(self, plan: MetricPlan, features: DotSource | None) -> SplitCatalogue:
        """What metrics of lists are measured against; items are numbered where there are such metrics."""
        items = self.items if plan.list_metrics or plan.overall else item_rows(self.dealt)
        rows = self.known.truth.rows.limit(0) if self.known.train is None else self.known.train.rows
        return SplitCatalogue(items, rows.select("user_id").distinct(), features)

    @property
    def kept(self) -> tuple[DataFrame, ...]:
        """What Spark holds of it so far."""
        made = (vars(self).get(name) for name in ("items", "users"))
        return (*self.dealt.kept, *(frame for frame in made if frame is not None))


def typed_log(truth: DataFrame, train: DataFrame | None, definition: Definition) -> TypedInputs:
    """The rows that were handed over, checked.

    Args:
        truth: user_id, item_id[, relevance].
        train: user_id, item_id, or None.
        definition: what is relevant.
    """
    rows = typed_truth(truth)
    if not rows.n:
        raise DataError("truth: no rows", "a user with an empty truth has one row, with item_id NULL")
    check_gains(np.array(rows.ranges["rating"], np.float64), definition)
    return TypedInputs(rows, None if train is None else typed_train(train))


def typed_truth(truth: DataFrame) -> CheckedRows:
    """user_id, item_id, and rating: relevance, where there is one."""
    require(truth, ["user_id", "item_id"], "truth")
    value = "relevance" if "relevance" in truth.columns else "rating"
    given = {value: "double"} if value in truth.columns else {}
    found = check_input_rows(truth, given, "truth", empty_items=True)
    renamed = found.rows.withColumnRenamed(value, "rating")
    return CheckedRows(renamed, found.n, {"rating": found.ranges.get(value, ())})


def typed_train(train: DataFrame) -> CheckedRows:
    """user_id, item_id."""
    require(train, ["user_id", "item_id"], "train")
    return check_input_rows(train, {}, "train")


def make_truth_tables(
    known: TypedInputs, asked: CheckedRows | DataFrame, definition: Definition, place: str
) -> SparkTruth:
    """The truth by user, beside the training rows, and the rows of lists and scores; and the catalogue.

    Args:
        known: as `typed_log` makes it.
        asked: rows of lists or scores, or vectors of items (item_id), which belong to the catalogue too.
        definition: how duplicates are treated.
        place: a folder that workers can read.
    """
    tables = {TRUTH: known.truth, **({TRAIN: known.train} if known.train else {})}
    if isinstance(asked, CheckedRows):
        dealt, rows = PartitionedInputs.of({LISTED: asked, **tables}), asked.rows
    else:
        dealt, rows = PartitionedInputs.of(tables, asked.select("item_id").distinct()), asked
    found = [dropped_rows_check(PART, dealt.sums["truth dropped"], definition)]
    if known.train is not None:
        found.append(dropped_rows_check("train", dealt.sums["train dropped"], definition))
        found += _train_meeting_checks(dealt, known)
    items = item_rows(dealt)
    shared = KnownItems(
        share_rows(place, items), dealt.item_counts["items"], _ids_are_numeric(dealt, known, rows)
    )
    seen = TaskCatalogue(shared, None if known.train is None else find_class_bounds(items))
    return SparkTruth(dealt, seen, found, known, rows)


def item_rows(dealt: PartitionedInputs) -> DataFrame:
    """Each item once: item_id, n_train."""
    return dealt.items.select("item_id", F.col("train").alias("n_train"))


def _train_meeting_checks(dealt: PartitionedInputs, known: TypedInputs) -> list[Check]:
    """Whether training rows are of users and items of the truth."""
    assert known.train is not None
    found, meetings = [], (dealt.user_meeting("train"), dealt.item_meeting("train", "truth"))
    for name, meeting in zip(IDS, meetings, strict=True):
        told = (name, ("train", "truth"))
        sides = partial(describe_sides, known.train.rows, known.truth.rows, *told)
        found += report_common_ids(meeting, sides, *told, must=False)
    return found


def _ids_are_numeric(dealt: PartitionedInputs, known: TypedInputs, asked: DataFrame) -> bool:
    """Whether items are ordered as numbers: `data.readers.id_order`, by what tasks have counted."""
    frames = {"truth": known.truth.rows, "listed": asked}
    frames |= {"train": known.train.rows} if known.train else {}
    kinds = {side: convert_ids(frame, "item_id", side).kind for side, frame in frames.items()}
    of = dealt.item_counts
    return all(
        kind == "integer" or (kind == "text" and of[side] == of[f"{side} numbers"])
        for side, kind in kinds.items()
    )


def _typed_vectors(what: EvaluationPlan) -> tuple[DataFrame, ...]:
    """Vectors of users, and of items; nothing where lists or scores were handed over."""
    if what.kind != "embeddings":
        return ()
    users, items = what.system
    return convert_embeddings(users, items, ("user embeddings", "item embeddings"))


def _typed_list_rows(what: EvaluationPlan) -> CheckedRows:
    """Lists or scores."""
    return check_input_rows(what.system, value_columns(what.system.columns, what.kind), what.kind)


def _meeting_checks(world: SparkTruth, vectors: tuple[DataFrame, ...], kind: str) -> list[Check]:
    """Whether the ids handed over are those of the truth and, where there is one, of the training part.

    Items without training rows need not meet the truth: a system may miss all of it, and is worth 0.
    """
    truth, train = world.known.truth.rows, world.known.train
    told = ("user_id", (kind, "truth"))
    if vectors:
        found = check_common_ids(vectors[0], world.users, *told)
    else:
        sides = partial(describe_sides, world.asked, truth, *told)
        found = report_common_ids(world.dealt.user_meeting("listed"), sides, *told, must=True)
    told = ("item_id", (kind, "truth" if train is None else "train and truth"))
    known = cast_ids_to_text(truth.select(*IDS))
    if train is not None:
        known = known.unionByName(cast_ids_to_text(train.rows.select(*IDS)))
    meeting = world.dealt.item_meeting("listed", "known")
    return found + report_common_ids(
        meeting, partial(describe_sides, world.asked, known, *told), *told, must=train is not None
    )


# ------------------------------------------------------------------------------------- ranking


def _scored_model(
    world: SparkTruth, vectors: tuple[DataFrame, ...], what: EvaluationPlan, scratch: str
) -> ScoredModel:
    """The vectors of the items, as workers map them, and those of the users."""
    users, items = vectors
    shared = share_rows(scratch, vector_rows(world.items, items))
    dims = count_dimensions(items, "item embeddings")
    return ScoredModel(DotSource(shared, world.task_catalogue.known.n_items, dims, what.similarity), users)


def _rank_rows(world: SparkTruth, what: EvaluationPlan) -> DataFrame:
    """Rankings by given rows; what of these cannot count goes to the checks."""
    world.checks.extend(_row_checks(world, what))
    mask = what.kind == "scores" and what.definition.candidates == "unseen"
    return world.dealt.ranked(world.task_catalogue, what.plan.request(), mask=mask)


def _row_checks(world: SparkTruth, what: EvaluationPlan) -> list[Check]:
    """As `training.handed_over.row_checks`, of rows that tasks have counted."""
    of, users = world.dealt.sums, world.dealt.user_meeting("listed")
    trained = world.known.train is not None
    # Without training items nobody can say which items are known.
    unknown = world.dealt.item_counts["lost"] if trained else 0
    found = row_checks(of["listed"], of["twice"], unknown, users.n[0] - users.common)
    if what.definition.duplicates == "error":
        refuse_duplicates(found)
    return [*found, training_item_check(of["trained"])] if what.lists and trained else found


def _make_candidates(
    world: SparkTruth, given: DataFrame | None, what: EvaluationPlan, scratch: str
) -> Candidates | None:
    """The table of candidates, or those drawn, of which the checks tell; None: there are none."""
    if given is not None:
        return Candidates(group_candidates(given, world.items, world.users))
    mode = what.candidates
    if mode not in SAMPLED:
        return None
    n_items = world.task_catalogue.known.n_items
    weights = share_rows(scratch, weight_rows(world.items, mode))
    rows = draw_candidates(world.users, weights, n_items, what.draw)
    world.checks.append(drawn_candidates_check(mode, what.draw, n_items))
    return Candidates(rows, drawn=mode, n_items=n_items)


def _result(
    world: SparkTruth, rankings: DataFrame, what: EvaluationPlan, features: DotSource | None
) -> Result:
    rankings, plan = rankings.cache(), what.plan
    threshold = plan.definition.threshold
    found = [*world.checks, *check_rows.ranking_checks(rankings, (PART,), threshold, lists=what.lists)]
    catalogue = world.catalogue(plan, features)
    rows = measuring.compute_all_metrics(rankings, plan, catalogue)
    per_user = measuring.compute_all_user_metrics(rankings, plan, catalogue)
    return Result(
        conform_result(rows, METRICS),
        conform_result(per_user, USER_METRICS),
        rankings,
        found,
        (rankings, *world.kept),
    )


def conform_result(frame: DataFrame, table: Table) -> DataFrame:
    """The columns of a result table without the run, which only a warehouse knows."""
    return conform(frame.withColumn("run_id", F.lit("")), table).drop("run_id")


# ------------------------------------------------------------------------------------ predictions


def evaluate_predictions(
    predictions: DataFrame,
    bootstrap: Bootstrap | Mapping[str, Any] | int | None = None,
    views: Views | None = None,
) -> Result:
    """RMSE, MSE, NMSE, MAE, PE, AUC, log-loss, RIG, GAUC, calibration error of predictions.

    Also partial AUC, the rates at thresholds, and log-loss, RIG and PE by quantile of the prediction,
    as slices `fpr`, `threshold` and `prediction_quantile`. Log-loss clips probabilities to 2^-52 .. 1 -
    2^-52, the same on both sides; GAUC weights each user's AUC by the user's positives. Values and
    errors keep 12 digits at any scale and do not depend on partitions.

    Args:
        predictions: user_id, item_id, prediction, outcome (a rating, or 0 and 1).
        bootstrap: replicates, level and seed of the intervals.
        views: bins, thresholds and false-positive rates.

    Raises:
        SchemaError: a column is missing. DataError: NULL or NaN values, with their number.
    """
    require(predictions, ["user_id", "item_id", "prediction", "outcome"], "predictions")
    rows = convert_rows(predictions, {"prediction": "double", "outcome": "double"}, "predictions").cache()
    if rows.isEmpty():
        raise DataError("predictions: no rows", "check the path")
    users = values.group_by_user(rows).cache()
    numbers, found = values.value_metrics(users, rows, make_bootstrap(bootstrap), views or Views())
    found.append(Check(f"{PART}: users", users.count(), None, "info", "users with predictions"))
    schema = METRICS.schema
    full = [{"run_id": "", "part": PART, **row} for row in numbers]
    metrics = rows.sparkSession.createDataFrame(
        [tuple(row[name] for name in schema.names) for row in full], schema
    )
    per_user = conform_result(values.user_values(users).withColumn("part", F.lit(PART)), USER_METRICS)
    return Result(metrics.drop("run_id"), per_user, None, found, (rows, users), outcomes_hash(rows))


def outcomes_hash(predictions: DataFrame) -> str:
    """What is predicted, whoever predicts it: a hash of the rows user_id, item_id, outcome."""
    row = F.xxhash64("user_id", "item_id", "outcome").cast("decimal(38,0)")
    found = predictions.agg(F.sum(row).alias("hashes"), F.count("*").alias("rows")).collect()[0]
    return digest(str(found.hashes), found.rows)
