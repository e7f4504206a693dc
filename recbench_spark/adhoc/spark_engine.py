"""Evaluation of a system's output on Spark: Spark frames come in, lazy frames come out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recbench_spark.adhoc.ground_truth import check_dropped_rows, empty_train_checks
from recbench_spark.adhoc.measured import measure_rankings
from recbench_spark.adhoc.options import EvaluationRequest, make_bootstrap
from recbench_spark.adhoc.partition_tasks import LISTED, TRAIN, TRUTH, TaskCatalogue
from recbench_spark.adhoc.partitioned_inputs import PartitionedInputs
from recbench_spark.adhoc.request_checks import (
    EvaluationPlan,
    check_request,
    drawn_candidates_checks,
    gain_checks,
)
from recbench_spark.checks import Check, warn_above_zero
from recbench_spark.config import Bootstrap, Views, digest
from recbench_spark.data.external_inputs import (
    CheckedRows,
    FrameSides,
    check_common_ids,
    check_input_rows,
    convert_embeddings,
    convert_rows,
    count_dimensions,
    group_candidates,
)
from recbench_spark.data.input_rules import (
    name_known_items,
    report_common_ids,
    report_unknown_truth,
    value_columns,
)
from recbench_spark.data.readers.ids import convert_ids
from recbench_spark.definitions import SAMPLED, Definition
from recbench_spark.engine.measures import PIECE_ROWS
from recbench_spark.engine.versions import make_frame
from recbench_spark.errors import DataError
from recbench_spark.evaluation.batched.rank import rank
from recbench_spark.evaluation.batched.run_measures import map_frame
from recbench_spark.evaluation.batched.shuffle import PassInputs
from recbench_spark.evaluation.metrics import predictions as values
from recbench_spark.evaluation.metrics.beyond_accuracy import Facts
from recbench_spark.evaluation.metrics.listed import ListedCatalogue
from recbench_spark.evaluation.metrics.predictions import MetricRow
from recbench_spark.evaluation.ranking.candidates import CandidateRule, Candidates
from recbench_spark.evaluation.ranking.inputs import ScoredModel
from recbench_spark.evaluation.ranking.known_items import KnownItems
from recbench_spark.evaluation.ranking.negatives import DRAWN, draw_candidates
from recbench_spark.evaluation.ranking.source_rows import vector_rows
from recbench_spark.evaluation.ranking.sources import DotSource
from recbench_spark.evaluation.ranking_counts import (
    finish_row_checks,
    gap_checks,
    mark_few_users,
    row_checks,
    truth_in_train_check,
)
from recbench_spark.evaluation.result import PART, Result
from recbench_spark.kernels.metrics.chunk import check_gains
from recbench_spark.protocol.catalogue import find_class_bounds, index_items
from recbench_spark.runtime.session import collect_cached
from recbench_spark.schemas import IDS, METRICS, USER_METRICS, Table
from recbench_spark.storage.frame_blocks import FrameRows, as_rows, open_frame, reduce_frame
from recbench_spark.storage.shared_rows import base_folder, share_rows
from recbench_spark.storage.spark_types import (
    cast_ids_to_text,
    conform,
    require,
    spark_columns,
    spark_schema,
)
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
    **options: Any,
) -> Result:
    """Evaluate lists, scores, or embeddings against a ground truth: see `evaluate.evaluate`."""
    plan = check_request(
        EvaluationRequest(**options), lists=lists, scores=scores, embeddings=embeddings,
        train=train, candidates=candidates, features=features,
    )  # fmt: skip
    folder = scratch or base_folder(truth.sparkSession)
    vectors = _convert_vectors(plan)
    rows = None if vectors else _convert_list_rows(plan)
    inputs = convert_log(truth, train, plan.definition)
    tables = make_truth_tables(inputs, rows or vectors[-1], plan.definition, folder)
    if train is not None:
        sums = tables.partitioned.sums
        known = sums["truth trained"], sums["truth pairs"]
        tables.checks.extend(empty_train_checks(inputs.train.n if inputs.train else 0))
        tables.checks.append(truth_in_train_check(*known, masked=plan.masks_truth))
    tables.checks.extend(
        [*_overlap_checks(tables, vectors, plan.kind), *gain_checks(plan, inputs.truth.ranges["rating"])]
    )
    source = None if features is None else share_features(folder, tables.items, features, "features")
    limits = plan.name_limits(train, candidates)
    if rows is not None:
        return replace(_result(tables, _rank_rows(tables, plan), plan, source), limits=limits)
    drawn = _make_candidates(tables, candidates, plan, folder)
    scored = _make_scored_model(tables, vectors, plan, folder)
    users = FrameRows(tables.users, PIECE_ROWS)
    pass_inputs = PassInputs(users, [scored], tables.users.count(), drawn)
    rankings = rank(truth.sparkSession, pass_inputs, plan.metric_plan.request())
    return replace(_result(tables, rankings, plan, source), limits=limits)


# ----------------------------------------------------------------------------- truth and train


@dataclass(frozen=True)
class TypedInputs:
    """Truth (with users whose truth is empty) and training rows, converted to the types of the package."""

    truth: CheckedRows
    train: CheckedRows | None


@dataclass(frozen=True)
class SparkTruth:
    """Ground truth by user, with its catalogue and the checks of the inputs.

    Attributes:
        partitioned: the partitioned inputs.
        task_catalogue: the catalogue as tasks see it.
        checks: checks of the inputs.
        inputs: truth and training rows.
        system: lists or scores, or vectors of items.
    """

    partitioned: PartitionedInputs
    task_catalogue: TaskCatalogue
    checks: list[Check]
    inputs: TypedInputs
    system: DataFrame

    @cached_property
    def items(self) -> DataFrame:
        """Return the catalogue: item_id, item_index, n_train."""
        return self._catalogue_frames[0]

    @cached_property
    def _catalogue_frames(self) -> tuple[DataFrame, list[DataFrame]]:
        """Return the catalogue, and the frames that were cached to make it."""
        assert self.task_catalogue.lookup.numeric is not None
        with collect_cached() as frames:
            items = index_items(item_rows(self.partitioned), self.task_catalogue.lookup.numeric)
        return items, frames

    @cached_property
    def users(self) -> DataFrame:
        """Return the rows of `USERS`, one per user of the truth."""
        return self.partitioned.users(self.task_catalogue).cache()

    def catalogue(self, features: DotSource | None) -> ListedCatalogue:
        """Return what metrics of lists need."""
        known = self.task_catalogue.lookup
        return ListedCatalogue(known, known.n_items, Facts(self.partitioned.sums["train users"], features))

    @property
    def frames_in_cache(self) -> tuple[DataFrame, ...]:
        """Return the frames that Spark caches so far."""
        users = vars(self).get("users")
        indexed = vars(self)["_catalogue_frames"][1] if "_catalogue_frames" in vars(self) else ()
        return (*self.partitioned.frames_in_cache, *indexed, *(() if users is None else (users,)))


def convert_log(truth: DataFrame, train: DataFrame | None, definition: Definition) -> TypedInputs:
    """Convert and check truth and training rows.

    Args:
        truth: user_id, item_id[, relevance].
        train: user_id, item_id, or None.
        definition: gain and relevance threshold.
    """
    rows = convert_truth(truth)
    if not rows.n:
        raise DataError("truth: no rows", "a user with an empty truth has one row, with item_id NULL")
    check_gains(np.array(rows.ranges["rating"], np.float64), definition)
    return TypedInputs(rows, None if train is None else convert_train(train))


def convert_truth(truth: DataFrame) -> CheckedRows:
    """Convert the truth to user_id, item_id, and rating: the relevance, where there is one."""
    require(truth, ["user_id", "item_id"], "truth")
    value = "relevance" if "relevance" in truth.columns else "rating"
    value_types = {value: "double"} if value in truth.columns else {}
    table = check_input_rows(truth, value_types, "truth", empty_items=True)
    renamed = table.rows.withColumnRenamed(value, "rating")
    return CheckedRows(renamed, table.n, {"rating": table.ranges.get(value, ())})


def convert_train(train: DataFrame) -> CheckedRows:
    """Convert the training rows to user_id, item_id."""
    require(train, ["user_id", "item_id"], "train")
    return check_input_rows(train, {}, "train")


def make_truth_tables(
    inputs: TypedInputs, system: CheckedRows | DataFrame, definition: Definition, folder: str
) -> SparkTruth:
    """Build the ground truth by user, beside training rows and rows of lists or scores, and the catalogue.

    Args:
        inputs: truth and training rows, from `convert_log`.
        system: rows of lists or scores, or vectors of items (item_id), which belong to the catalogue too.
        definition: treatment of duplicates.
        folder: a folder that workers can read.
    """
    tables = {TRUTH: inputs.truth, **({TRAIN: inputs.train} if inputs.train else {})}
    if isinstance(system, CheckedRows):
        partitioned, rows = PartitionedInputs.partition({LISTED: system, **tables}), system.rows
    else:
        partitioned, rows = PartitionedInputs.partition(tables, system.select("item_id").distinct()), system
    checks = [check_dropped_rows(PART, partitioned.sums["truth dropped"], definition)]
    if inputs.train is not None:
        checks.append(check_dropped_rows("train", partitioned.sums["train dropped"], definition))
        checks += _train_overlap_checks(partitioned, inputs)
    items = item_rows(partitioned)
    shared = KnownItems(
        share_rows(folder, items),
        partitioned.item_counts["items"],
        _ids_are_numeric(partitioned, inputs, rows),
    )
    catalogue = TaskCatalogue(shared, None if inputs.train is None else find_class_bounds(items))
    return SparkTruth(partitioned, catalogue, checks, inputs, rows)


def item_rows(partitioned: PartitionedInputs) -> DataFrame:
    """Return each item once: item_id, n_train."""
    return partitioned.items.select("item_id", F.col("train").alias("n_train"))


def _train_overlap_checks(partitioned: PartitionedInputs, inputs: TypedInputs) -> list[Check]:
    """Check that training rows share users and items with the truth."""
    assert inputs.train is not None
    checks, overlaps = [], (partitioned.user_overlap("train"), partitioned.item_overlap("train", "truth"))
    for name, overlap in zip(IDS, overlaps, strict=True):
        names = (name, ("train", "truth"))
        sides = FrameSides(inputs.train.rows, inputs.truth.rows, *names)
        checks += report_common_ids(overlap, sides, *names, must=False)
    return checks


def _ids_are_numeric(partitioned: PartitionedInputs, inputs: TypedInputs, listed: DataFrame) -> bool:
    """Return whether items are ordered as numbers, by tasks' counts."""
    frames = {"truth": inputs.truth.rows, "listed": listed}
    frames |= {"train": inputs.train.rows} if inputs.train else {}
    kinds = {side: convert_ids(frame, "item_id", side).kind for side, frame in frames.items()}
    counts = partitioned.item_counts
    return all(
        kind == "integer" or (kind == "text" and counts[side] == counts[f"{side} numbers"])
        for side, kind in kinds.items()
    )


def _convert_vectors(plan: EvaluationPlan) -> tuple[DataFrame, ...]:
    """Convert the vectors of users and of items; no frames for lists or scores."""
    if plan.kind != "embeddings":
        return ()
    users, items = plan.system
    return convert_embeddings(users, items, ("user embeddings", "item embeddings"))


def _convert_list_rows(plan: EvaluationPlan) -> CheckedRows:
    return check_input_rows(plan.system, value_columns(plan.system.columns, plan.kind), plan.kind)


def _overlap_checks(tables: SparkTruth, vectors: tuple[DataFrame, ...], kind: str) -> list[Check]:
    """Check that the system's ids occur in the truth or, for items, in training or truth.

    Without training rows, items need not occur in the truth: a system may miss all of it and score 0.
    """
    truth, train = tables.inputs.truth.rows, tables.inputs.train
    names = ("user_id", (kind, "truth"))
    if vectors:
        checks = check_common_ids(vectors[0], tables.users, *names)
    else:
        sides = FrameSides(tables.system, truth, *names)
        checks = report_common_ids(tables.partitioned.user_overlap("listed"), sides, *names, must=True)
    names = ("item_id", (kind, "truth" if train is None else "train and truth"))
    logged = cast_ids_to_text(truth.select(*IDS))
    if train is not None:
        logged = logged.unionByName(cast_ids_to_text(train.rows.select(*IDS)))
    overlap = tables.partitioned.item_overlap("listed", "known")
    sides = FrameSides(tables.system, logged, *names)
    checks += report_common_ids(overlap, sides, *names, must=train is not None)
    return checks + _truth_checks(tables, kind)


def _truth_checks(tables: SparkTruth, kind: str) -> list[Check]:
    """Check that the truth's items are in the catalogue of the vectors, or of training and rows."""
    train, system = tables.inputs.train, tables.system.select("item_id")
    if train is None and kind != "embeddings":
        return []
    by_vectors = kind == "embeddings"
    known = name_known_items(kind)
    if not by_vectors and train is not None:
        system = system.unionByName(cast_ids_to_text(train.rows.select(*IDS)).select("item_id"))
    overlap = tables.partitioned.item_overlap("truth", "listed" if by_vectors else "learned")
    sides = FrameSides(tables.inputs.truth.rows, system, "item_id", ("truth", known))
    return report_unknown_truth(overlap, sides, known)


# ------------------------------------------------------------------------------------- ranking


def _make_scored_model(
    tables: SparkTruth, vectors: tuple[DataFrame, ...], plan: EvaluationPlan, scratch: str
) -> ScoredModel:
    """Share the vectors of the items with workers, and return them with those of the users."""
    users, items = vectors
    shared = share_rows(scratch, vector_rows(tables.items, items))
    dims = count_dimensions(items, "item embeddings")
    return ScoredModel(
        DotSource(shared, tables.task_catalogue.lookup.n_items, dims, plan.similarity), as_rows(users)
    )


def _rank_rows(tables: SparkTruth, plan: EvaluationPlan) -> DataFrame:
    """Rank by lists or scores; checks count the rows that are ignored."""
    tables.checks.extend(_row_checks(tables, plan))
    mask = plan.kind == "scores" and plan.definition.candidates == "unseen"
    return tables.partitioned.rank(tables.task_catalogue, plan.metric_plan.request(), mask=mask)


def _row_checks(tables: SparkTruth, plan: EvaluationPlan) -> list[Check]:
    """Check the counted rows, like `training.external_models.row_checks`."""
    sums, users = tables.partitioned.sums, tables.partitioned.user_overlap("listed")
    trained = tables.inputs.train is not None
    # Without training items the catalogue is unknown, so no item can be called unknown.
    unknown = tables.partitioned.item_counts["lost"] if trained else 0
    checks = row_checks(sums["listed"], sums["twice"], unknown, users.n[0] - users.common)
    checks += gap_checks(sums.get("gaps"), plan.definition)
    return finish_row_checks(checks, plan.definition, sums["trained"] if plan.lists and trained else None)


def _make_candidates(
    tables: SparkTruth, table: DataFrame | None, plan: EvaluationPlan, scratch: str
) -> Candidates | None:
    """Return the candidates: a table, or drawn items, which a check records; None without either."""
    if table is not None:
        return Candidates(FrameRows(group_candidates(table, tables.items, tables.users)), CandidateRule())
    mode = plan.candidates
    if mode not in SAMPLED:
        return None
    n_items = tables.task_catalogue.lookup.n_items
    catalogue = share_rows(scratch, tables.items.select("item_index", "n_train"))
    drawn_rows = draw_candidates(FrameRows(tables.users, PIECE_ROWS), catalogue, n_items, mode, plan.draw)
    rows = open_frame(tables.users.sparkSession, drawn_rows, spark_columns(DRAWN))
    size = F.size("items")
    (counts,) = rows.agg(F.min(size), F.avg(size), F.max(size)).collect()
    drawn = (counts[0] or 0, counts[1] or 0.0, counts[2] or 0)
    tables.checks.extend(drawn_candidates_checks(mode, plan.draw, n_items, drawn))
    return Candidates(FrameRows(rows, PIECE_ROWS), CandidateRule(drawn=mode, n_items=n_items))


def _result(
    tables: SparkTruth, rankings: DataFrame, evaluation: EvaluationPlan, features: DotSource | None
) -> Result:
    rankings, plan = rankings.cache(), evaluation.metric_plan
    catalogue = tables.catalogue(features) if plan.wants_lists else None
    reduce = partial(reduce_frame, rows=rankings)
    metrics, checks = measure_rankings(evaluation, catalogue, reduce)
    per_user = map_frame(rankings, plan, catalogue)
    return Result(
        conform_result(make_frame(rankings.sparkSession, metrics), METRICS),
        conform_result(per_user, USER_METRICS),
        rankings,
        [*tables.checks, *checks],
        (rankings, *tables.frames_in_cache),
    )


def conform_result(frame: DataFrame, table: Table) -> DataFrame:
    """Conform a frame to a result table without the column of the run, which only a warehouse has."""
    return conform(frame.withColumn("run_id", F.lit("")), table).drop("run_id")


# ------------------------------------------------------------------------------------ predictions


def evaluate_predictions(
    predictions: DataFrame,
    bootstrap: Bootstrap | Mapping[str, Any] | int | None = None,
    views: Views | None = None,
    slice_by: str | None = None,
) -> Result:
    """Compute RMSE, MSE, NMSE, MAE, PE, AUC, log-loss, RIG, GAUC and calibration error of predictions.

    Slices `fpr`, `threshold` and `prediction_quantile` add partial AUC, the rates at thresholds, and
    log-loss, RIG and PE by quantile of the prediction. Log-loss clips probabilities to 2^-52 .. 1 - 2^-52,
    the same on both sides; GAUC weights each user's AUC by the user's positives. Values and errors keep 12
    digits at any scale and do not depend on partitions.

    Args:
        predictions: user_id, item_id, prediction, outcome (a rating, or 0 and 1).
        bootstrap: replicates, level and seed of the intervals.
        views: bins, thresholds and false-positive rates.
        slice_by: a column of few values; all numbers are computed again for the rows of each value.

    Raises:
        SchemaError: a column is missing. DataError: NULL or NaN values, with their number.
    """
    require(predictions, ["user_id", "item_id", "prediction", "outcome"], "predictions")
    rows = convert_rows(predictions, {"prediction": "double", "outcome": "double"}, "predictions").cache()
    if rows.isEmpty():
        raise DataError("predictions: no rows", "check the path")
    users = values.group_by_user(rows).cache()
    numbers, checks = values.value_metrics(users, rows, make_bootstrap(bootstrap), views or Views())
    n_users = users.count()
    checks.append(Check(f"{PART}: users", n_users, None, "info", "users with predictions"))
    checks += mark_few_users(PART, n_users)
    if slice_by is not None:
        labels, unlabelled = _read_labels(predictions, slice_by)
        checks.append(warn_above_zero(f"rows without {slice_by}", unlabelled, "in no slice"))
        for label in labels:
            part = predictions.where(F.col(f"`{slice_by}`").cast("string") == label)
            numbers += values.label_slice(_measure_rows(part, bootstrap, views), slice_by, label)
    schema = spark_schema(METRICS)
    records = [{"run_id": "", "part": PART, **row} for row in numbers]
    metrics = rows.sparkSession.createDataFrame(
        [tuple(row[name] for name in schema.names) for row in records], schema
    )
    per_user = conform_result(values.user_values(users).withColumn("part", F.lit(PART)), USER_METRICS)
    truth = outcomes_hash(rows)
    return Result(metrics.drop("run_id"), per_user, None, checks, (rows, users), truth)


def _measure_rows(
    predictions: DataFrame, bootstrap: Bootstrap | Mapping[str, Any] | int | None, views: Views | None
) -> list[MetricRow]:
    """Compute rows of `metrics` of some predictions that have been checked."""
    rows = convert_rows(predictions, {"prediction": "double", "outcome": "double"}, "predictions").cache()
    users = values.group_by_user(rows).cache()
    numbers, _ = values.value_metrics(users, rows, make_bootstrap(bootstrap), views or Views())
    users.unpersist()
    rows.unpersist()
    return numbers


def _read_labels(predictions: DataFrame, name: str) -> tuple[list[str], int]:
    """Return the values of a column as text, in order, and the number of rows without one.

    Raises:
        SchemaError: no such column, or one of another type. DataError: too many labels.
    """
    require(predictions, [name], "predictions")
    if not isinstance(predictions.schema[name].dataType, T.StringType | T.IntegralType | T.BooleanType):
        raise values.slice_type_error(name)
    text = F.col(f"`{name}`").cast("string").alias("label")
    rows = predictions.select(text).distinct().limit(values.MAX_SLICES + 2).collect()
    labels = sorted((row.label for row in rows if row.label is not None), key=str.encode)
    values.refuse_many_slices(name, len(labels))
    return labels, predictions.where(F.col(f"`{name}`").isNull()).count()


def outcomes_hash(predictions: DataFrame) -> str:
    """Hash the rows user_id, item_id, outcome: the same for all predictions of these outcomes."""
    row = F.xxhash64("user_id", "item_id", "outcome").cast("decimal(38,0)")
    sums = predictions.agg(F.sum(row).alias("hashes"), F.count("*").alias("rows")).collect()[0]
    return digest(str(sums.hashes), sums.rows)
