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
from recbench_spark.adhoc.ground_truth import dropped_told
from recbench_spark.adhoc.partition_tasks import LISTED, TRAIN, TRUTH, World
from recbench_spark.adhoc.partitioned_inputs import Dealt
from recbench_spark.adhoc.request_checks import Asked, Checked, bootstrap_of, drawn_told, gain_told
from recbench_spark.checks import Check
from recbench_spark.config import Bootstrap, digest
from recbench_spark.data.external_inputs import (
    Handed,
    candidate_lists,
    dimensions,
    handed,
    meet,
    sides_of,
    told_meeting,
    typed_embeddings,
    typed_rows,
    value_columns,
)
from recbench_spark.data.readers.ids import ids_of
from recbench_spark.definitions import Definition
from recbench_spark.errors import DataError
from recbench_spark.evaluation import checks as check_rows
from recbench_spark.evaluation.metrics import measuring
from recbench_spark.evaluation.metrics import predictions as values
from recbench_spark.evaluation.metrics.accuracy import MetricPlan
from recbench_spark.evaluation.metrics.predictions import Views
from recbench_spark.evaluation.metrics.top_lists import Catalogue
from recbench_spark.evaluation.ranking.candidates import Candidates
from recbench_spark.evaluation.ranking.known_items import KnownItems
from recbench_spark.evaluation.ranking.negatives import draw_candidates, weight_rows
from recbench_spark.evaluation.ranking.rank import Scored, rank
from recbench_spark.evaluation.ranking.request import SAMPLED
from recbench_spark.evaluation.ranking.source_rows import vector_rows
from recbench_spark.evaluation.ranking.sources import DotSource
from recbench_spark.evaluation.ranking_counts import refuse_duplicates, rows_told, training_told
from recbench_spark.evaluation.result import PART, Result
from recbench_spark.kernels.metrics.accuracy import check_gains
from recbench_spark.protocol.catalogue import class_bounds_of, indexed
from recbench_spark.schemas import IDS, METRICS, USER_METRICS, Table, conform, require, with_text_ids
from recbench_spark.storage.shared_rows import base_folder, share
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
    what = request_checks.check(
        Asked(**asked), lists=lists, scores=scores, embeddings=embeddings,
        train=train, candidates=candidates, features=features,
    )  # fmt: skip
    place = scratch or base_folder(truth.sparkSession)
    vectors = _typed_vectors(what)
    rows = None if vectors else _typed_list_rows(what)
    known = typed_log(truth, train, what.definition)
    world = make_truth_tables(known, rows or vectors[-1], what.definition, place)
    world.checks.extend(
        [*_meeting(world, vectors, what.kind), *gain_told(what, known.truth.ranges["rating"])]
    )
    source = None if features is None else share_features(place, world.items, features, "features")
    if rows is not None:
        return _result(world, _rank_rows(world, what), what, source)
    found = _candidates(world, candidates, what, place)
    scored = _scored(world, vectors, what, place)
    return _result(world, rank(world.users, scored, what.plan.request(), found), what, source)


# ----------------------------------------------------------------------------- truth and train


@dataclass(frozen=True)
class Typed:
    """Truth, also users whose truth is empty, and training rows, as they can be used."""

    truth: Handed
    train: Handed | None


@dataclass(frozen=True)
class TruthTables:
    """The truth by user, with its catalogue and what was left out of it.

    seen: the catalogue in tasks. known: what was handed over. asked: lists or scores, or vectors of items.
    """

    dealt: Dealt
    seen: World
    checks: list[Check]
    known: Typed
    asked: DataFrame

    @cached_property
    def items(self) -> DataFrame:
        """The catalogue: item_id, item_index, n_train."""
        assert self.seen.known.numeric is not None
        return indexed(item_rows(self.dealt), self.seen.known.numeric)

    @cached_property
    def users(self) -> DataFrame:
        """Rows of `USERS`, one a user of the truth."""
        return self.dealt.users(self.seen).cache()

    def catalogue(self, plan: MetricPlan, features: DotSource | None) -> Catalogue:
        """What metrics of lists are measured against; items are numbered where there are such metrics."""
        items = self.items if plan.of_lists or plan.overall else item_rows(self.dealt)
        rows = self.known.truth.rows.limit(0) if self.known.train is None else self.known.train.rows
        return Catalogue(items, rows.select("user_id").distinct(), features)

    @property
    def kept(self) -> tuple[DataFrame, ...]:
        """What Spark holds of it so far."""
        made = (vars(self).get(name) for name in ("items", "users"))
        return (*self.dealt.kept, *(frame for frame in made if frame is not None))


def typed_log(truth: DataFrame, train: DataFrame | None, definition: Definition) -> Typed:
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
    return Typed(rows, None if train is None else typed_train(train))


def typed_truth(truth: DataFrame) -> Handed:
    """user_id, item_id, and rating: relevance, where there is one."""
    require(truth, ["user_id", "item_id"], "truth")
    value = "relevance" if "relevance" in truth.columns else "rating"
    given = {value: "double"} if value in truth.columns else {}
    found = handed(truth, given, "truth", empty_items=True)
    renamed = found.rows.withColumnRenamed(value, "rating")
    return Handed(renamed, found.n, {"rating": found.ranges.get(value, ())})


def typed_train(train: DataFrame) -> Handed:
    """user_id, item_id."""
    require(train, ["user_id", "item_id"], "train")
    return handed(train, {}, "train")


def make_truth_tables(
    known: Typed, asked: Handed | DataFrame, definition: Definition, place: str
) -> TruthTables:
    """The truth by user, beside the training rows, and the rows of lists and scores; and the catalogue.

    Args:
        known: as `typed_log` makes it.
        asked: rows of lists or scores, or vectors of items (item_id), which belong to the catalogue too.
        definition: how duplicates are treated.
        place: a folder that workers can read.
    """
    tables = {TRUTH: known.truth, **({TRAIN: known.train} if known.train else {})}
    if isinstance(asked, Handed):
        dealt, rows = Dealt.of({LISTED: asked, **tables}), asked.rows
    else:
        dealt, rows = Dealt.of(tables, asked.select("item_id").distinct()), asked
    found = [dropped_told(PART, dealt.sums["truth dropped"], definition)]
    if known.train is not None:
        found.append(dropped_told("train", dealt.sums["train dropped"], definition))
        found += _train_meets(dealt, known)
    items = item_rows(dealt)
    shared = KnownItems(share(place, items), dealt.item_counts["items"], _numeric(dealt, known, rows))
    seen = World(shared, None if known.train is None else class_bounds_of(items))
    return TruthTables(dealt, seen, found, known, rows)


def item_rows(dealt: Dealt) -> DataFrame:
    """Each item once: item_id, n_train."""
    return dealt.items.select("item_id", F.col("train").alias("n_train"))


def _train_meets(dealt: Dealt, known: Typed) -> list[Check]:
    """Whether training rows are of users and items of the truth."""
    assert known.train is not None
    found, meetings = [], (dealt.users_meet("train"), dealt.items_meet("train", "truth"))
    for name, meeting in zip(IDS, meetings, strict=True):
        told = (name, ("train", "truth"))
        sides = partial(sides_of, known.train.rows, known.truth.rows, *told)
        found += told_meeting(meeting, sides, *told, must=False)
    return found


def _numeric(dealt: Dealt, known: Typed, asked: DataFrame) -> bool:
    """Whether items are ordered as numbers: `data.readers.id_order`, by what tasks have counted."""
    frames = {"truth": known.truth.rows, "listed": asked}
    frames |= {"train": known.train.rows} if known.train else {}
    kinds = {side: ids_of(frame, "item_id", side).kind for side, frame in frames.items()}
    of = dealt.item_counts
    return all(
        kind == "integer" or (kind == "text" and of[side] == of[f"{side} numbers"])
        for side, kind in kinds.items()
    )


def _typed_vectors(what: Checked) -> tuple[DataFrame, ...]:
    """Vectors of users, and of items; nothing where lists or scores were handed over."""
    if what.kind != "embeddings":
        return ()
    users, items = what.system
    return typed_embeddings(users, items, ("user embeddings", "item embeddings"))


def _typed_list_rows(what: Checked) -> Handed:
    """Lists or scores."""
    return handed(what.system, value_columns(what.system.columns, what.kind), what.kind)


def _meeting(world: TruthTables, vectors: tuple[DataFrame, ...], kind: str) -> list[Check]:
    """Whether the ids handed over are those of the truth and, where there is one, of the training part.

    Items without training rows need not meet the truth: a system may miss all of it, and is worth 0.
    """
    truth, train = world.known.truth.rows, world.known.train
    told = ("user_id", (kind, "truth"))
    if vectors:
        found = meet(vectors[0], world.users, *told)
    else:
        sides = partial(sides_of, world.asked, truth, *told)
        found = told_meeting(world.dealt.users_meet("listed"), sides, *told, must=True)
    told = ("item_id", (kind, "truth" if train is None else "train and truth"))
    known = with_text_ids(truth.select(*IDS))
    if train is not None:
        known = known.unionByName(with_text_ids(train.rows.select(*IDS)))
    meeting = world.dealt.items_meet("listed", "known")
    return found + told_meeting(
        meeting, partial(sides_of, world.asked, known, *told), *told, must=train is not None
    )


# ------------------------------------------------------------------------------------- ranking


def _scored(world: TruthTables, vectors: tuple[DataFrame, ...], what: Checked, scratch: str) -> Scored:
    """The vectors of the items, as workers map them, and those of the users."""
    users, items = vectors
    shared = share(scratch, vector_rows(world.items, items))
    dims = dimensions(items, "item embeddings")
    return Scored(DotSource(shared, world.seen.known.n_items, dims, what.similarity), users)


def _rank_rows(world: TruthTables, what: Checked) -> DataFrame:
    """Rankings by given rows; what of these cannot count goes to the checks."""
    world.checks.extend(_row_checks(world, what))
    mask = what.kind == "scores" and what.definition.candidates == "unseen"
    return world.dealt.ranked(world.seen, what.plan.request(), mask=mask)


def _row_checks(world: TruthTables, what: Checked) -> list[Check]:
    """As `training.handed_over.row_checks`, of rows that tasks have counted."""
    of, users = world.dealt.sums, world.dealt.users_meet("listed")
    trained = world.known.train is not None
    # Without training items nobody can say which items are known.
    unknown = world.dealt.item_counts["lost"] if trained else 0
    found = rows_told(of["listed"], of["twice"], unknown, users.n[0] - users.common)
    if what.definition.duplicates == "error":
        refuse_duplicates(found)
    return [*found, training_told(of["trained"])] if what.lists and trained else found


def _candidates(
    world: TruthTables, given: DataFrame | None, what: Checked, scratch: str
) -> Candidates | None:
    """The table of candidates, or those drawn, of which the checks tell; None: there are none."""
    if given is not None:
        return Candidates(candidate_lists(given, world.items, world.users))
    mode = what.candidates
    if mode not in SAMPLED:
        return None
    n_items = world.seen.known.n_items
    weights = share(scratch, weight_rows(world.items, mode))
    rows = draw_candidates(world.users, weights, n_items, what.draw)
    world.checks.append(drawn_told(mode, what.draw, n_items))
    return Candidates(rows, drawn=mode, n_items=n_items)


def _result(world: TruthTables, rankings: DataFrame, what: Checked, features: DotSource | None) -> Result:
    rankings, plan = rankings.cache(), what.plan
    threshold = plan.definition.threshold
    found = [*world.checks, *check_rows.ranking_checks(rankings, (PART,), threshold, lists=what.lists)]
    catalogue = world.catalogue(plan, features)
    rows = measuring.all_metrics(rankings, plan, catalogue)
    per_user = measuring.all_user_metrics(rankings, plan, catalogue)
    return Result(
        conformed(rows, METRICS),
        conformed(per_user, USER_METRICS),
        rankings,
        found,
        (rankings, *world.kept),
    )


def conformed(frame: DataFrame, table: Table) -> DataFrame:
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
    rows = typed_rows(predictions, {"prediction": "double", "outcome": "double"}, "predictions").cache()
    if rows.isEmpty():
        raise DataError("predictions: no rows", "check the path")
    users = values.by_user(rows).cache()
    numbers, found = values.value_metrics(users, rows, bootstrap_of(bootstrap), views or Views())
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
