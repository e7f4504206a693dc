"""One call that evaluates what any system handed over: no config file, no split, no training.

    import recbench_spark
    result = recbench_spark.evaluate(truth, lists=lists, k=(1, 3, 10))
    result.metrics.show()

`jobs/evaluate.py` is this function with files and a warehouse around it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark.checks import Check, warn_above_zero
from recbench_spark.config import DEFAULT_METRICS, Bootstrap, Draw, digest
from recbench_spark.data.handed_over import (
    VALUES,
    candidate_lists,
    dimensions,
    meet,
    typed_embeddings,
    typed_rows,
)
from recbench_spark.data.readers import id_order
from recbench_spark.definitions import Definition, make_definition
from recbench_spark.errors import ConfigError, DataError
from recbench_spark.evaluation import checks as check_rows
from recbench_spark.evaluation.metrics import measuring
from recbench_spark.evaluation.metrics import predictions as values
from recbench_spark.evaluation.metrics.accuracy import MetricPlan
from recbench_spark.evaluation.metrics.beyond_accuracy import DIVERSITY
from recbench_spark.evaluation.metrics.predictions import Views
from recbench_spark.evaluation.metrics.top_lists import Catalogue
from recbench_spark.evaluation.ranking.candidates import SAMPLED, Candidates
from recbench_spark.evaluation.ranking.negatives import draw_candidates, weight_rows
from recbench_spark.evaluation.ranking.rank import Given, Ranked, Scored, rank, users_of_parts
from recbench_spark.evaluation.ranking.source_rows import vector_rows
from recbench_spark.evaluation.ranking.sources import DotSource
from recbench_spark.evaluation.ranking.user_blocks import Labels, user_blocks
from recbench_spark.evaluation.result import PART, Result
from recbench_spark.kernels.metrics.accuracy import check_gains
from recbench_spark.kernels.metrics.beyond_accuracy import POPULARITY
from recbench_spark.protocol.catalogue import catalogue
from recbench_spark.schemas import IDS, METRICS, USER_METRICS, Table, conform, require
from recbench_spark.sharing import base_folder, share
from recbench_spark.steps.features import share_features
from recbench_spark.training.handed_over import Known, meeting_checks, row_checks


def evaluate(  # noqa: PLR0913
    truth: DataFrame,
    *,
    lists: DataFrame | None = None,
    scores: DataFrame | None = None,
    embeddings: tuple[DataFrame, DataFrame] | None = None,
    train: DataFrame | None = None,
    candidates: DataFrame | None = None,
    features: DataFrame | None = None,
    features_name: str = "given",
    k: Sequence[int] = (1, 3, 5, 10, 20),
    metrics: Sequence[str] = DEFAULT_METRICS,
    preset: str | None = None,
    definition: Mapping[str, Any] | None = None,
    similarity: Literal["dot", "cosine"] = "dot",
    bootstrap: Bootstrap | None = None,
    uncut: bool = True,
    draw: Draw | None = None,
    scratch: str | None = None,
) -> Result:
    """Metrics of lists, of scores, or of embeddings, against a truth.

    Args:
        truth: user_id, item_id[, relevance]; a user with an empty truth has one row, item NULL.
        lists: user_id, item_id, and rank (from 1) or score.
        scores: user_id, item_id, score: ranked after the training items are taken out.
        embeddings: (user_id, vector) and (item_id, vector[, bias]); every item is a candidate.
        train: user_id, item_id. Taken out of the candidates where we score; counted in lists.
        candidates: user_id, item_id, for definition candidates=given.
        features: item_id, vector: what items are like, for the metric diversity.
        features_name: stands in the definition of diversity, which other vectors would change.
        k: cut-offs.
        metrics: names of `kernels.metrics.accuracy.METRICS` and
            `evaluation.metrics.beyond_accuracy.LIST_METRICS`.
        preset: another library's definition.
        definition: single axes (`definitions.Definition`) that replace the preset's.
        similarity: of embeddings.
        bootstrap: replicates, level and seed of the intervals.
        uncut: also values over the whole ranking; False: ranks are counted up to the largest k alone,
            which is several times faster with embeddings of many items.
        draw: how many candidates are drawn, for whom and by which seed, where definition.candidates is
            uniform or popularity (with embeddings): among the items that are neither training nor truth.
        scratch: folder that all executors can read, for embeddings; a local one by default.

    Raises:
        ConfigError: not exactly one of lists, scores, embeddings; unknown metric or axis; k below 1.
        SchemaError: a column is missing, or of a type that holds no ids (`kernels.ids`). DataError: NULL,
        NaN or unusable values, with their number; ids of two tables that do not meet.
    """
    kind, system = _the_one(lists=lists, scores=scores, embeddings=embeddings)
    wanted, name = make_definition(preset, definition), None if features is None else features_name
    plan = MetricPlan.checked(metrics, k, wanted, bootstrap, name, uncut=uncut)
    check_candidates(wanted, kind == "embeddings", candidates is not None, train is not None)
    check_needs(plan.metrics, train is not None, features is not None)
    handed = _typed_given(kind, system)
    world = make_truth_tables(truth, train, [handed[-1]], wanted)
    world.checks.extend(_meeting(world, handed, kind))
    place = scratch or base_folder(truth.sparkSession)
    if features is not None:
        world = replace(world, features=share_features(place, world.items, features, "features"))
    mode = wanted.candidates if kind == "embeddings" else None
    found = _candidates(world, candidates, mode, draw or Draw(), place)
    ranked = _ranked(world, kind, handed, wanted, similarity, place)
    return _result(world, rank(world.users, ranked, plan.request(), found), plan, lists=kind == "lists")


def _the_one(**given: Any) -> tuple[str, Any]:
    """The name and the tables of what the system handed over."""
    found = [(name, value) for name, value in given.items() if value is not None]
    if len(found) != 1:
        raise ConfigError("give exactly one of lists, scores, embeddings", "what the system handed over")
    return found[0]


def check_candidates(definition: Definition, embeddings: bool, candidates: bool, train: bool) -> None:
    """A table of candidates and `candidates=given` go together; lists and scores are their own.

    Raises:
        ConfigError: they do not, or candidates are to be drawn and there are no training rows.
    """
    if candidates and not embeddings:
        raise ConfigError("candidates are for embeddings", "lists and scores bring their own candidates")
    if embeddings and candidates != (definition.candidates == "given"):
        raise ConfigError(
            f"definition.candidates is {definition.candidates} {'with' if candidates else 'without'} a "
            "table of candidates",
            "a table of user_id, item_id and definition.candidates=given go together",
        )
    if embeddings and definition.candidates in SAMPLED and not train:
        raise ConfigError(
            f"definition.candidates is {definition.candidates} without training rows",
            "give train: items are drawn that a user has neither there nor in the truth",
        )


def check_needs(metrics: Sequence[str], train: bool, features: bool) -> None:
    """ConfigError for a metric of lists that lacks what it is measured against."""
    popular = [name for name in metrics if name in POPULARITY]
    if popular and not train:
        raise ConfigError(f"{popular[0]} needs the training rows", "give train (--train PATH)")
    if DIVERSITY in metrics and not features:
        raise ConfigError("diversity needs vectors of the items", "give features (--features PATH)")


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


def make_truth_tables(
    truth: DataFrame, train: DataFrame | None, further: list[DataFrame], definition: Definition
) -> TruthTables:
    """Truth and training rows as one labelled log, and from it the same blocks as on a night.

    Args:
        truth: user_id, item_id[, relevance].
        train: user_id, item_id, or None.
        further: frames whose items belong to the catalogue too, ids as text.
        definition: how duplicates are treated, and what is relevant.
    """
    truth_rows = typed_truth(truth)
    if truth_rows.isEmpty():
        raise DataError("truth: no rows", "a user with an empty truth has one row, with item_id NULL")
    listed = truth_rows.where(F.col("item_id").isNotNull())
    check_gains(_range_of(listed), definition)
    trained = None if train is None else typed_train(train)
    parts = [(listed, PART), *([(trained, "train")] if trained is not None else [])]
    found, log = _one_log(parts, definition)
    if trained is not None:
        for name in IDS:
            found += meet(trained, truth_rows, name, ("train", "truth"), must=False)
    ids = [log.select("item_id"), *(frame.select("item_id").distinct() for frame in further)]
    numeric = id_order([listed, *([] if trained is None else [trained]), *further]) == "numeric"
    items = _catalogue(log, ids, numeric)
    labels: Labels = {} if train is None else {"popularity": F.col("popularity")}
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


def _typed_given(kind: str, system: Any) -> tuple[DataFrame, ...]:
    """Lists or scores; or vectors of users, and of items. The last one holds the items."""
    if kind == "embeddings":
        users, items = system
        return typed_embeddings(users, items, ("user embeddings", "item embeddings"))
    return (typed_rows(system, _value_columns(system, kind), kind),)


def _value_columns(frame: DataFrame, kind: str) -> dict[str, str]:
    found = {name: kind_ for name, kind_ in VALUES.items() if name in frame.columns}
    if kind == "scores" or not found:
        require(frame, ["user_id", "item_id", "score"], kind)
    return found if kind == "lists" else {"score": "double"}


def _meeting(world: TruthTables, handed: tuple[DataFrame, ...], kind: str) -> list[Check]:
    """Whether the ids handed over are those of the truth and, where there is one, of the training part.

    Items without training rows need not meet the truth: a system may miss all of it, and is worth 0.
    """
    name = "truth" if world.train is None else "train and truth"
    known = Known(world.users, world.log, name, must=world.train is not None)
    return meeting_checks(handed[0], handed[-1], known, kind)


# ------------------------------------------------------------------------------------- ranking


def _ranked(
    world: TruthTables,
    kind: str,
    handed: tuple[DataFrame, ...],
    definition: Definition,
    similarity: Literal["dot", "cosine"],
    scratch: str,
) -> Ranked:
    """What is ranked; what of lists and scores cannot count goes to the checks."""
    if kind == "embeddings":
        vectors, items = handed
        shared = share(scratch, vector_rows(world.items, items))
        dims = dimensions(items, "item embeddings")
        return Scored(DotSource(shared, world.catalogue.n_items, dims, similarity), vectors)
    # Without training items nobody can say which items are known.
    known = (world.items if world.train is None else world.log).select("item_id").distinct()
    train = world.train if kind == "lists" else None
    world.checks.extend(row_checks(handed[0], world.users, known, definition, train=train))
    return Given(handed[0], world.items, kind == "scores" and definition.candidates == "unseen")


def _candidates(
    world: TruthTables, given: DataFrame | None, mode: str | None, draw: Draw, scratch: str
) -> Candidates | None:
    """The table of candidates, or those drawn, of which the checks tell; None: there are none."""
    if given is not None:
        return Candidates(candidate_lists(given, world.items, world.users))
    if mode is None or mode not in SAMPLED:
        return None
    n_items = world.items.count()
    weights = share(scratch, weight_rows(world.items, mode))
    rows = draw_candidates(world.users, weights, n_items, draw)
    detail = f"{mode}, {draw.n} a {draw.per}, seed {draw.seed}, of {n_items} items"
    world.checks.append(Check("candidates drawn", draw.n, None, "info", detail))
    return Candidates(rows, drawn=mode, n_items=n_items)


def _result(world: TruthTables, rankings: DataFrame, plan: MetricPlan, *, lists: bool) -> Result:
    rankings = rankings.cache()
    threshold = plan.definition.threshold
    found = [*world.checks, *check_rows.ranking_checks(rankings, (PART,), threshold, lists=lists)]
    rows = measuring.all_metrics(rankings, plan, world.catalogue)
    per_user = measuring.all_user_metrics(rankings, plan, world.catalogue)
    return Result(
        _conform(rows, METRICS),
        _conform(per_user, USER_METRICS),
        rankings,
        found,
        (rankings, world.users, world.items, world.log),
    )


def _conform(frame: DataFrame, table: Table) -> DataFrame:
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
    per_user = _conform(values.user_values(users).withColumn("part", F.lit(PART)), USER_METRICS)
    return Result(metrics.drop("run_id"), per_user, None, found, (rows, users), outcomes_hash(rows))


def outcomes_hash(predictions: DataFrame) -> str:
    """What is predicted, whoever predicts it: a hash of the rows user_id, item_id, outcome."""
    row = F.xxhash64("user_id", "item_id", "outcome").cast("decimal(38,0)")
    found = predictions.agg(F.sum(row).alias("hashes"), F.count("*").alias("rows")).collect()[0]
    return digest(str(found.hashes), found.rows)
