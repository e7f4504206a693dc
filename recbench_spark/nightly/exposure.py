"""Estimates under exposure bias of a night: propensities, what the truth weighs, rows and findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark.checks import Check, warn_above_zero
from recbench_spark.config import Evaluation, Exposure
from recbench_spark.data.readers import read_table
from recbench_spark.definitions import Definition
from recbench_spark.errors import DataError
from recbench_spark.evaluation.estimators import debiased
from recbench_spark.evaluation.estimators.debiased import Proposal
from recbench_spark.evaluation.estimators.estimation_plan import STRATIFIED, EstimationPlan
from recbench_spark.evaluation.estimators.exposure import (
    Chances,
    ExposedItems,
    Weights,
    add_exposure,
    count_truth_weights,
    cut_strata,
    item_chances,
    popularity_threshold,
)
from recbench_spark.evaluation.metrics import accuracy
from recbench_spark.evaluation.ranking import rank
from recbench_spark.evaluation.ranking.user_blocks import HISTORY
from recbench_spark.kernels.estimators.exposure import MODELLED, WEIGHTED, EstimatorSettings
from recbench_spark.kernels.estimators.propensities import CHANCES
from recbench_spark.kernels.estimators.strata import StratumEdges
from recbench_spark.nightly.propensity import ExposureLog, method_name, write_propensities
from recbench_spark.nightly.split import read_split
from recbench_spark.schemas import ITEMS, PROPENSITIES, SPLITS, USER_BLOCKS
from recbench_spark.storage.shared_rows import share_rows
from recbench_spark.storage.store import Store

FEWEST_ROWS, SMALLEST_SHARE = 100, 0.1
"""An estimate rests on few where its effective rows are fewer, or a smaller share of all rows."""


@dataclass(frozen=True)
class ExposureContext:
    """What all models of a night share: items, strata, the weights of each part, and findings."""

    settings: Exposure
    shown: ExposedItems
    strata: tuple[StratumEdges, ...]
    weights: dict[str, Weights]
    unknown_items: int

    @property
    def wants_lists(self) -> bool:
        """Whether an estimator needs the first items of each list."""
        return bool(self.settings.rewards) and any(name in MODELLED for name in self.settings.estimators)


def build_exposure_context(
    store: Store, split_id: str, evaluation: Evaluation, definition: Definition
) -> ExposureContext:
    """Propensities of the split, written once for each name, and what the truth weighs.

    Raises:
        DataError: propensities that cannot be used, or no true ones.
    """
    wanted = evaluation.exposure
    assert wanted is not None
    items = read_split(store, ITEMS, split_id)
    chances = item_chances(items, read_propensities(store, split_id, wanted))
    shared = share_rows(store.scratch, chances.rows)
    strata = _choose_strata(chances, wanted)
    popular = popularity_threshold(chances.rows, wanted.without_most_popular)
    shown = ExposedItems(shared, chances.items, strata[0] if strata else None, popular)
    blocks = read_split(store, USER_BLOCKS, split_id)
    users = rank.select_part_users(blocks, evaluation.parts, definition.threshold, keep_empty=False)
    weights = count_truth_weights(add_exposure(users, shown), definition.threshold)
    return ExposureContext(wanted, shown, strata, weights, chances.unknown)


def _choose_strata(chances: Chances, wanted: Exposure) -> tuple[StratumEdges, ...]:
    """None where all items are shown alike."""
    if chances.low == chances.high:
        return ()
    return cut_strata(chances, wanted.strata)


def read_propensities(store: Store, split_id: str, wanted: Exposure) -> DataFrame:
    """item_id, propensity: given ones as they lie, all others from the table, fitted first if need be."""
    settings = wanted.propensities
    if settings.method == "given":
        return read_table(store.spark, str(settings.path), ["item_id", "propensity"], "propensities")
    if settings.method != "true":
        training = read_split(store, SPLITS, split_id).where(F.col("part").isin(*HISTORY))
        exposed = ExposureLog(store, split_id, training, read_split(store, ITEMS, split_id))
        if _read_stored(store, split_id, method_name(store, settings)).isEmpty():
            write_propensities(exposed, settings)
    found = _read_stored(store, split_id, method_name(store, settings))
    if found.isEmpty():
        raise DataError(f"no propensities '{settings.name}' of split {split_id}", "jobs/propensity.py")
    return found


def _read_stored(store: Store, split_id: str, name: str) -> DataFrame:
    return read_split(store, PROPENSITIES, split_id).where(F.col("method") == name)


# ------------------------------------------------------------------------------- of a model


def make_plan(context: ExposureContext, measured: accuracy.MetricPlan, headline: str) -> EstimationPlan:
    """What is estimated; by the headline a number of strata is proposed, where several are asked for."""
    wanted = context.settings
    known = {
        f"{name}@{k}" if k else name: (name, k)
        for name in measured.rank_metrics
        for k in measured.columns(name)
    }
    compared = known.get(headline, next(iter(known.values()), None))
    several = (
        len(context.strata) > 1 and STRATIFIED in wanted.estimators and measured.bootstrap.replicates > 1
    )
    return EstimationPlan(
        measured,
        wanted.estimators,
        _kernel_settings(wanted),
        wanted.propensities.name.replace(";", " "),
        context.strata if STRATIFIED in wanted.estimators else (),
        context.weights,
        context.shown.n_items,
        Path(wanted.rewards).stem if wanted.rewards else None,
        compared if several else None,
    )


def _kernel_settings(wanted: Exposure) -> EstimatorSettings:
    """The propensities are chances by their method, unless scaled, or where scaled to add up as they do."""
    asked = wanted.propensities
    by_method = asked.method in (*CHANCES, "true") and asked.scale == "as_is"
    return EstimatorSettings(
        wanted.clip, wanted.switch, wanted.shrink, by_method or asked.scale == "interactions"
    )


def estimate_exposure(
    store: Store, context: ExposureContext, plan: EstimationPlan, rankings: DataFrame
) -> tuple[DataFrame, list[Check]]:
    """Rows of `metrics` beside the holdout's, and findings.

    Args:
        store: the warehouse.
        context: what all models share.
        plan: what is estimated.
        rankings: rows of the table `rankings` of one run.
    """
    found = list_findings(context, plan)
    if context.wants_lists:
        rankings, unknown = _join_rewards(store, rankings, context.settings)
        found.append(unknown)
    rows = debiased.compute_estimates(rankings, plan)
    if plan.compared:
        rows = rows.cache()
        found += strata_checks(plan, rows.where("replicates IS NOT NULL").collect())
    rows = rows.drop("replicates")
    nothing = empty_rows(plan)
    if not nothing:
        return rows, found
    frame = store.spark.createDataFrame([tuple(row.values()) for row in nothing], EMPTY_ROW_SCHEMA)
    return rows.unionByName(frame, allowMissingColumns=True), found


def list_findings(context: ExposureContext, plan: EstimationPlan) -> list[Check]:
    """What is known of the estimates before there are any."""
    return [
        *check_unknown_items(context),
        *(check for part in plan.parts for check in weight_checks(part, plan, context)),
        *reason_checks(plan),
        *ideal_checks(plan),
    ]


def strata_checks(plan: EstimationPlan, kept: Sequence[Any]) -> list[Check]:
    """The numbers of strata proposed, of rows `debiased.ESTIMATES` with replicates; none where none are."""
    if not plan.compared:
        return []
    proposals = ((part, debiased.propose_strata(list(kept), plan, part)) for part in plan.parts)
    return [strata_check(part, plan, proposal) for part, proposal in proposals]


def _join_rewards(store: Store, rankings: DataFrame, wanted: Exposure) -> tuple[DataFrame, Check]:
    table = read_table(store.spark, str(wanted.rewards), ["item_id", "reward"], "rewards")
    ids = [F.col(name).cast("string") for name in ("user_id", "item_id") if name in table.columns]
    rewards = table.select(*ids, F.col("reward").try_cast("double").alias("reward"))
    debiased.check_rewards(rewards)
    joined = debiased.add_rewards(rankings, rewards)
    lost = joined.agg(F.sum("unknown_rewards")).collect()[0][0]
    return joined, warn_above_zero("exposure: items without a reward", lost, "they count 0")


EMPTY_ROW_SCHEMA = "part STRING, metric STRING, definition STRING, k INT, estimator STRING, n LONG"


def empty_rows(plan: EstimationPlan) -> list[dict[str, Any]]:
    """A row without a value for each estimate that has none, for `metrics`."""
    return [
        {
            "part": part,
            "metric": column.metric,
            "definition": column.definition,
            "k": column.k,
            "estimator": column.estimator,
            "n": 0,
        }
        for part in plan.parts
        for column, _ in debiased.missing_estimates(plan)
    ]


# ------------------------------------------------------------------------------- findings


@dataclass(frozen=True)
class LowerBoundCheck(Check):
    """A number that should not be too small: passes from the threshold on."""

    @property
    def passed(self) -> bool:
        """Whether it is large enough."""
        return self.threshold is None or self.observed >= self.threshold


def check_unknown_items(context: ExposureContext) -> list[Check]:
    """How many items had no propensity."""
    detail = "they count as the least shown of the others"
    return [warn_above_zero("exposure: items without a propensity", context.unknown_items, detail)]


def weight_checks(part: str, plan: EstimationPlan, context: ExposureContext) -> list[Check]:
    """What the estimates of a part rest on: effective rows, largest weight, share of the largest 1 %.

    The effective rows, (sum w)^2 / sum w^2, are too few below 100 or a tenth of all rows.
    """
    weights, found = context.weights[part], []
    clips = [("weights", float("inf"))]
    if "clipped_ips" in plan.estimators and weights.largest > plan.settings.clip:
        clips.append(("clipped weights", plan.settings.clip))
    for name, clip in clips:
        what = weights.diagnostics(clip)
        least = max(float(FEWEST_ROWS), SMALLEST_SHARE * what.rows)
        few = f"of {what.rows} relevant truth items; below this an estimate rests on few"
        found += [
            LowerBoundCheck(
                f"{part}: {name}: effective rows", round(what.effective, 1), least, "warning", few
            ),
            Check(f"{part}: {name}: largest", what.largest, None, "info", "1 / propensity"),
            Check(f"{part}: {name}: share of the top 1 %", what.top_share, None, "info", "of all weight"),
        ]
    return found


def reason_checks(plan: EstimationPlan) -> list[Check]:
    """One for each estimator and metric without a value: why."""
    columns: dict[tuple[str, str, str], int] = {}
    for column, reason in debiased.missing_estimates(plan):
        key = column.estimator, column.metric, reason
        columns[key] = columns.get(key, 0) + 1
    return [
        Check(f"no {estimator} of {metric}", float(n), None, "info", reason)
        for (estimator, metric, reason), n in columns.items()
    ]


def ideal_checks(plan: EstimationPlan) -> list[Check]:
    """What is known of a weighted NDCG, where one is asked for."""
    weighted = [
        name for name in plan.estimators if name in WEIGHTED and "ndcg" in plan.estimable_metrics(name)
    ]
    if not weighted:
        return []
    detail = "their ideal list holds only what was shown: see ips_pooled, and dcg by ips"
    return [Check("estimators of weighted ndcg", float(len(weighted)), None, "info", detail)]


def strata_check(part: str, plan: EstimationPlan, proposal: Proposal) -> Check:
    """The number of strata proposed: a warning where neighbouring numbers never agree."""
    assert plan.compared is not None
    metric, k = plan.compared
    values = ", ".join(
        f"{n}: {value:.4f}" for n, value in zip(proposal.strata, proposal.values, strict=True)
    )
    detail = f"{metric}{f'@{k}' if k else ''} by number of strata {values}; "
    detail += "from the proposed on, neighbours agree" if proposal.proposed else "neighbours do not agree"
    return LowerBoundCheck(
        f"{part}: strata proposed", float(proposal.proposed or 0), 1.0, "warning", detail
    )
