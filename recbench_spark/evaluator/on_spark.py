"""An evaluation of what a system handed over, on Spark: frames in, lazy frames out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark.checks import Check, warn_above_zero
from recbench_spark.config import Bootstrap, digest
from recbench_spark.data.handed_over import (
    candidate_lists,
    dimensions,
    meet,
    typed_embeddings,
    typed_rows,
    value_columns,
)
from recbench_spark.data.readers import id_order
from recbench_spark.definitions import Definition
from recbench_spark.errors import DataError
from recbench_spark.evaluation import checks as check_rows
from recbench_spark.evaluation.metrics import measuring
from recbench_spark.evaluation.metrics import predictions as values
from recbench_spark.evaluation.metrics.predictions import Views
from recbench_spark.evaluation.metrics.top_lists import Catalogue
from recbench_spark.evaluation.ranking.candidates import Candidates
from recbench_spark.evaluation.ranking.known_items import KnownItems
from recbench_spark.evaluation.ranking.list_rows import ListRows
from recbench_spark.evaluation.ranking.negatives import draw_candidates, weight_rows
from recbench_spark.evaluation.ranking.rank import Scored, rank, users_of_parts
from recbench_spark.evaluation.ranking.request import SAMPLED
from recbench_spark.evaluation.ranking.source_rows import vector_rows
from recbench_spark.evaluation.ranking.sources import DotSource
from recbench_spark.evaluation.ranking.user_blocks import Labels, user_blocks
from recbench_spark.evaluation.ranking_counts import refuse_duplicates, rows_told, training_told
from recbench_spark.evaluation.result import PART, Result
from recbench_spark.evaluator import checking
from recbench_spark.evaluator.checking import Asked, Checked, drawn_told
from recbench_spark.kernels.metrics.accuracy import check_gains
from recbench_spark.protocol.catalogue import catalogue
from recbench_spark.schemas import IDS, METRICS, USER_METRICS, Table, conform, require
from recbench_spark.sharing import base_folder, share
from recbench_spark.steps.features import share_features
from recbench_spark.training.handed_over import Known, meeting_checks


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
    what = checking.check(
        Asked(**asked), lists=lists, scores=scores, embeddings=embeddings,
        train=train, candidates=candidates, features=features,
    )  # fmt: skip
    place = scratch or base_folder(truth.sparkSession)
    vectors = _typed_vectors(what)
    rows = None if vectors else _typed_list_rows(what)
    known = typed_log(truth, train, what.definition)
    listed = None if rows is None else ListRows.of(rows, known.train if what.lists else None)
    handed = vectors if listed is None else (listed.distinct("user_id"), listed.distinct("item_id"))
    world = make_truth_tables(known, [handed[-1]], what.definition)
    world.checks.extend(_meeting(world, handed, what.kind))
    if features is not None:
        world = replace(world, features=share_features(place, world.items, features, "features"))
    if listed is not None:
        return _result(world, _rank_rows(world, listed, what, place), what, listed.kept)
    found = _candidates(world, candidates, what, place)
    scored = _scored(world, vectors, what, place)
    return _result(world, rank(world.users, scored, what.plan.request(), found), what)


# ----------------------------------------------------------------------------- truth and train


@dataclass(frozen=True)
class TruthTables:
    """The truth as user blocks, with its catalogue and what was left out of it."""

    items: DataFrame
    users: DataFrame
    checks: list[Check]
    train: DataFrame | None
    log: DataFrame
    features: DotSource | None = None

    @cached_property
    def catalogue(self) -> Catalogue:
        """What metrics of lists are measured against."""
        train = self.log.where(F.col("part") == "train")
        return Catalogue(self.items, train.select("user_id").distinct(), self.features)


@dataclass(frozen=True)
class Typed:
    """Truth and training rows, ids as text. truth: also users whose truth is empty; listed: its items."""

    truth: DataFrame
    listed: DataFrame
    train: DataFrame | None


def typed_log(truth: DataFrame, train: DataFrame | None, definition: Definition) -> Typed:
    """The rows that were handed over, checked.

    Args:
        truth: user_id, item_id[, relevance].
        train: user_id, item_id, or None.
        definition: what is relevant.
    """
    rows = typed_truth(truth)
    if rows.isEmpty():
        raise DataError("truth: no rows", "a user with an empty truth has one row, with item_id NULL")
    listed = rows.where(F.col("item_id").isNotNull())
    check_gains(_range_of(listed), definition)
    return Typed(rows, listed, None if train is None else typed_train(train))


def make_truth_tables(known: Typed, further: list[DataFrame], definition: Definition) -> TruthTables:
    """Truth and training rows as one labelled log, and from it the same blocks as on a night.

    Args:
        known: as `typed_log` makes it.
        further: frames whose items belong to the catalogue too, ids as text.
        definition: how duplicates are treated.
    """
    truth_rows, listed, trained = known.truth, known.listed, known.train
    parts = [(listed, PART), *([(trained, "train")] if trained is not None else [])]
    found, log = _one_log(parts, definition)
    if trained is not None:
        for name in IDS:
            found += meet(trained, truth_rows, name, ("train", "truth"), must=False)
    ids = [log.select("item_id"), *(frame.select("item_id").distinct() for frame in further)]
    numeric = id_order([listed, *([] if trained is None else [trained]), *further]) == "numeric"
    items = _catalogue(log, ids, numeric)
    labels: Labels = {} if trained is None else {"popularity": F.col("popularity")}
    blocks = user_blocks(log, items, (PART,), labels)
    users = truth_rows.select("user_id").distinct()
    return TruthTables(items, _users(blocks, users, definition).cache(), found, trained, log)


def _one_log(parts: list[tuple[DataFrame, str]], definition: Definition) -> tuple[list[Check], DataFrame]:
    """Each part without duplicates, under each other; duplicates are counted, or refused."""
    found, frames = [], []
    for frame, part in parts:
        unique = frame.groupBy("user_id", "item_id").agg(F.max("rating").alias("rating"))
        dropped = frame.count() - unique.count()
        if dropped and definition.duplicates == "error":
            raise DataError(
                f"{part}: {dropped} duplicate (user_id, item_id) rows", "or set duplicates=drop"
            )
        found.append(warn_above_zero(f"{part}: duplicate rows", dropped, "the highest relevance is kept"))
        frames.append(unique.withColumn("part", F.lit(part)))
    log = frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])
    return found, log.cache()


def _catalogue(log: DataFrame, ids: list[DataFrame], numeric: bool) -> DataFrame:
    every = log.select("item_id", "part")
    for frame in ids[1:]:
        every = every.unionByName(frame.withColumn("part", F.lit("catalogue")))
    return catalogue(every, numeric).cache()


def _users(blocks: DataFrame, users: DataFrame, definition: Definition) -> DataFrame:
    """Every user of the truth, also those whose truth is empty."""
    kept = users.join(blocks.drop("user_key"), "user_id", "left").select(
        "user_id",
        F.xxhash64("user_id").alias("user_key"),
        *(
            F.coalesce(name, F.array().cast(kind)).alias(name)
            for name, kind in (("train_items", "array<int>"), ("train_ratings", "array<double>"))
        ),
        "held_out",
    )
    return users_of_parts(kept, (PART,), definition.threshold, keep_empty=True)


def typed_truth(truth: DataFrame) -> DataFrame:
    """user_id, item_id as text, rating: relevance, or 1 where there is none."""
    require(truth, ["user_id", "item_id"], "truth")
    value = "relevance" if "relevance" in truth.columns else "rating"
    rows = typed_rows(truth, {value: "double"} if value in truth.columns else {}, "truth", empty_items=True)
    if value not in truth.columns:
        return rows.withColumn("rating", F.lit(1.0))
    return rows.withColumnRenamed(value, "rating")


def typed_train(train: DataFrame) -> DataFrame:
    """user_id, item_id as text, rating 1."""
    require(train, ["user_id", "item_id"], "train")
    return typed_rows(train, {}, "train").withColumn("rating", F.lit(1.0))


def _range_of(truth: DataFrame) -> npt.NDArray[np.float64]:
    """The smallest and the largest relevance."""
    (found,) = truth.agg(F.min("rating"), F.max("rating")).collect()
    return np.array([value for value in found if value is not None], np.float64)


def _typed_vectors(what: Checked) -> tuple[DataFrame, ...]:
    """Vectors of users, and of items; nothing where lists or scores were handed over."""
    if what.kind != "embeddings":
        return ()
    users, items = what.system
    return typed_embeddings(users, items, ("user embeddings", "item embeddings"))


def _typed_list_rows(what: Checked) -> DataFrame:
    """Lists or scores; ids that are stored as whole numbers stay numbers."""
    values = value_columns(what.system.columns, what.kind)
    return typed_rows(what.system, values, what.kind, whole=True)


def _meeting(world: TruthTables, handed: tuple[DataFrame, ...], kind: str) -> list[Check]:
    """Whether the ids handed over are those of the truth and, where there is one, of the training part.

    Items without training rows need not meet the truth: a system may miss all of it, and is worth 0.
    """
    name = "truth" if world.train is None else "train and truth"
    known = Known(world.users, world.log, name, must=world.train is not None)
    return meeting_checks(handed[0], handed[-1], known, kind)


# ------------------------------------------------------------------------------------- ranking


def _scored(world: TruthTables, vectors: tuple[DataFrame, ...], what: Checked, scratch: str) -> Scored:
    """The vectors of the items, as workers map them, and those of the users."""
    users, items = vectors
    shared = share(scratch, vector_rows(world.items, items))
    dims = dimensions(items, "item embeddings")
    return Scored(DotSource(shared, world.catalogue.n_items, dims, what.similarity), users)


def _rank_rows(world: TruthTables, rows: ListRows, what: Checked, scratch: str) -> DataFrame:
    """Rankings by given rows; what of these cannot count goes to the checks."""
    world.checks.extend(_row_checks(world, rows, what))
    items = world.items.select("item_id", "item_index", "n_train")
    known = KnownItems(share(scratch, items), world.catalogue.n_items)
    mask = what.kind == "scores" and what.definition.candidates == "unseen"
    return rows.ranked(world.users, known, what.plan.request(), mask=mask)


def _row_checks(world: TruthTables, rows: ListRows, what: Checked) -> list[Check]:
    """As `training.handed_over.row_checks`, of rows that tasks have counted."""
    n, twice, trained = rows.sums()
    # Without training items nobody can say which items are known.
    known = (world.items if world.train is None else world.log).select("item_id").distinct()
    unknown = rows.distinct("item_id").join(known, "item_id", "left_anti").agg(F.sum("n")).collect()[0][0]
    lost = rows.distinct("user_id").join(world.users, "user_id", "left_anti").count()
    found = rows_told(n, twice, unknown or 0, lost)
    if what.definition.duplicates == "error":
        refuse_duplicates(found)
    looked_at = what.lists and world.train is not None
    return [*found, training_told(trained)] if looked_at else found


def _candidates(
    world: TruthTables, given: DataFrame | None, what: Checked, scratch: str
) -> Candidates | None:
    """The table of candidates, or those drawn, of which the checks tell; None: there are none."""
    if given is not None:
        return Candidates(candidate_lists(given, world.items, world.users))
    mode = what.candidates
    if mode not in SAMPLED:
        return None
    n_items = world.items.count()
    weights = share(scratch, weight_rows(world.items, mode))
    rows = draw_candidates(world.users, weights, n_items, what.draw)
    world.checks.append(drawn_told(mode, what.draw, n_items))
    return Candidates(rows, drawn=mode, n_items=n_items)


def _result(
    world: TruthTables, rankings: DataFrame, what: Checked, kept: tuple[DataFrame, ...] = ()
) -> Result:
    rankings, plan = rankings.cache(), what.plan
    threshold = plan.definition.threshold
    found = [*world.checks, *check_rows.ranking_checks(rankings, (PART,), threshold, lists=what.lists)]
    rows = measuring.all_metrics(rankings, plan, world.catalogue)
    per_user = measuring.all_user_metrics(rankings, plan, world.catalogue)
    return Result(
        conformed(rows, METRICS),
        conformed(per_user, USER_METRICS),
        rankings,
        found,
        (rankings, world.users, world.items, world.log, *kept),
    )


def conformed(frame: DataFrame, table: Table) -> DataFrame:
    """The columns of a result table without the run, which only a warehouse knows."""
    return conform(frame.withColumn("run_id", F.lit("")), table).drop("run_id")


# ------------------------------------------------------------------------------------ predictions


def evaluate_predictions(
    predictions: DataFrame, bootstrap: Bootstrap | None = None, views: Views | None = None
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
    rows = typed_rows(predictions, {"prediction": "double", "outcome": "double"}, "predictions").cache()
    if rows.isEmpty():
        raise DataError("predictions: no rows", "check the path")
    users = values.by_user(rows).cache()
    numbers, found = values.value_metrics(users, rows, bootstrap or Bootstrap(), views or Views())
    found.append(Check(f"{PART}: users", users.count(), None, "info", "users with predictions"))
    schema = METRICS.schema
    full = [{"run_id": "", "part": PART, **row} for row in numbers]
    metrics = rows.sparkSession.createDataFrame(
        [tuple(row[name] for name in schema.names) for row in full], schema
    )
    per_user = conformed(values.user_values(users).withColumn("part", F.lit(PART)), USER_METRICS)
    return Result(metrics.drop("run_id"), per_user, None, found, (rows, users), outcomes_hash(rows))


def outcomes_hash(predictions: DataFrame) -> str:
    """What is predicted, whoever predicts it: a hash of the rows user_id, item_id, outcome."""
    row = F.xxhash64("user_id", "item_id", "outcome").cast("decimal(38,0)")
    found = predictions.agg(F.sum(row).alias("hashes"), F.count("*").alias("rows")).collect()[0]
    return digest(str(found.hashes), found.rows)
