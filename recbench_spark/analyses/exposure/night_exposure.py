"""A night's estimates under exposure bias.

Propensities, truth weights, rows and checks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from recbench_spark.analyses.exposure import debiased
from recbench_spark.analyses.exposure import exposure as exposed
from recbench_spark.analyses.exposure import night_propensity as propensity
from recbench_spark.analyses.exposure.debiased import Proposal
from recbench_spark.analyses.exposure.estimation_plan import STRATIFIED, EstimationPlan
from recbench_spark.analyses.exposure.exposure import ExposedItems, Weights
from recbench_spark.analyses.exposure.kernels.exposure import MODELLED, WEIGHTED, EstimatorSettings
from recbench_spark.analyses.exposure.kernels.propensities import CHANCES
from recbench_spark.analyses.exposure.rewards import reduce_rewarded
from recbench_spark.analyses.sampling.kernels.strata import StratumEdges
from recbench_spark.config import Evaluation, Exposure
from recbench_spark.core.checks import Check, warn_above_zero
from recbench_spark.core.definitions import Definition
from recbench_spark.engine.measures import Measures
from recbench_spark.errors import DataError
from recbench_spark.metrics import accuracy
from recbench_spark.ranking.part_users import map_user_blocks, select_part_users
from recbench_spark.schemas import ITEMS, PROPENSITIES, RANKINGS
from recbench_spark.splits.labelled_rows import open_labelled
from recbench_spark.splits.labels import HISTORY
from recbench_spark.storage.blocks import reduce_rows
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.storage.scratch import share_table

FEWEST_ROWS, SMALLEST_SHARE = 100, 0.1
"""An estimate gets a warning if its effective rows are fewer, or a smaller share of all rows."""


@dataclass(frozen=True)
class ExposureContext:
    """Exposure data shared by a night's models.

    The data are items, strata and each part's weights.
    """

    settings: Exposure
    shown: ExposedItems
    strata: tuple[StratumEdges, ...]
    weights: dict[str, Weights]
    unknown_items: int

    @property
    def wants_lists(self) -> bool:
        """True if an estimator needs each list's first items."""
        return bool(self.settings.rewards) and any(name in MODELLED for name in self.settings.estimators)


def build_exposure_context(
    store: FileTables, split_id: str, evaluation: Evaluation, definition: Definition
) -> ExposureContext:
    """Write a split's propensities once, and weigh the truth.

    Raises:
        DataError: propensities cannot be used, or there are no true ones.
    """
    exposure = evaluation.exposure
    assert exposure is not None
    items = store.read_rows(ITEMS, [("split_id", "=", split_id)], ["item_id", "item_index", "n_train"])
    chances = exposed.item_chances(items, read_propensities(store, split_id, exposure))
    shared = share_table(store.scratch, chances.rows)
    strata = _choose_strata(chances, exposure)
    n_train = items.column("n_train").to_numpy()
    popular = exposed.popularity_threshold(n_train, exposure.without_most_popular)
    shown = ExposedItems(shared, len(items), strata[0] if strata else None, popular)
    threshold = definition.threshold
    select = partial(select_part_users, parts=evaluation.parts, threshold=threshold, keep_empty=False)
    add = partial(exposed.select_exposed_users, select=select, exposed=shown)
    users = map_user_blocks(store, split_id, add, exposed.EXPOSED_USERS.names)
    results = reduce_rows({"weights": exposed.weight_measure(threshold)}, users)
    weights = exposed.list_weights(results["weights"]) if results else {}
    return ExposureContext(exposure, shown, strata, weights, chances.unknown)


def _choose_strata(chances: exposed.Chances, exposure: Exposure) -> tuple[StratumEdges, ...]:
    """Cut the strata; none where all items are shown alike."""
    return () if chances.low == chances.high else exposed.cut_strata(chances, exposure.strata)


def read_propensities(store: FileTables, split_id: str, exposure: Exposure) -> pa.Table:
    """Return item_id and propensity, from a file or table.

    Given ones come from their file. Propensities missing in the table are fitted first.
    """
    settings, name = exposure.propensities, propensity.method_name(store, exposure.propensities)
    if settings.method == "given":
        return propensity.read_given(store.engine, str(settings.path))
    propensities = _read_stored(store, split_id, name)
    if not len(propensities) and settings.method != "true":
        rows, items = open_labelled(store, split_id), store.open_rows(ITEMS, "split_id", [split_id])
        propensity.write_propensities(
            propensity.ExposureLog(store, split_id, rows, HISTORY, items), settings
        )
        propensities = _read_stored(store, split_id, name)
    if not len(propensities):
        raise DataError(f"no propensities '{settings.name}' of split {split_id}", "recbench propensity")
    return propensities


def _read_stored(store: FileTables, split_id: str, name: str) -> pa.Table:
    filters = [("split_id", "=", split_id), ("method", "=", name)]
    return store.read_rows(PROPENSITIES, filters, ["item_id", "propensity"])


# ------------------------------------------------------------------------------- estimates of a model


def make_plan(context: ExposureContext, measured: accuracy.MetricPlan, headline: str) -> EstimationPlan:
    """Plan the estimates.

    The headline decides which of several numbers of strata is proposed.
    """
    exposure = context.settings
    measures = {
        f"{name}@{k}" if k else name: (name, k)
        for name in measured.rank_metrics
        for k in measured.columns(name)
    }
    compared = measures.get(headline, next(iter(measures.values()), None))
    strata = context.strata if STRATIFIED in exposure.estimators else ()
    proposes = len(strata) > 1 and measured.bootstrap.replicates > 1
    return EstimationPlan(
        measured,
        exposure.estimators,
        _kernel_settings(exposure),
        exposure.propensities.name.replace(";", " "),
        strata,
        context.weights,
        context.shown.n_items,
        Path(exposure.rewards).stem if exposure.rewards else None,
        compared if proposes else None,
    )


def _kernel_settings(exposure: Exposure) -> EstimatorSettings:
    """Return bounds on weights, and whether propensities are chances.

    They are chances by their method unless they are scaled, and after scaling to the number of
    interactions.
    """
    propensities = exposure.propensities
    by_method = propensities.method in (*CHANCES, "true") and propensities.scale == "as_is"
    are_chances = by_method or propensities.scale == "interactions"
    return EstimatorSettings(exposure.clip, exposure.switch, exposure.shrink, are_chances)


def list_findings(context: ExposureContext, plan: EstimationPlan) -> list[Check]:
    """Return checks independent from estimated values."""
    detail = "they count as the least shown of the others"
    return [
        warn_above_zero("exposure: items without a propensity", context.unknown_items, detail),
        *(check for part in plan.parts for check in weight_checks(part, plan, context)),
        *reason_checks(plan),
        *ideal_checks(plan),
    ]


def strata_checks(plan: EstimationPlan, rows: Sequence[Any]) -> list[Check]:
    """Propose numbers of strata from estimates with replicates.

    Empty if not planned.
    """
    if not plan.compared:
        return []
    proposals = ((part, debiased.propose_strata(list(rows), plan, part)) for part in plan.parts)
    return [strata_check(part, plan, proposal) for part, proposal in proposals]


def estimate_with_rewards(
    store: FileTables, run_id: str, measures: Measures, exposure: Exposure
) -> tuple[dict[str, pa.Table], Check]:
    """Return results of measures with rewards, and a check.

    The check counts items without a reward.
    """
    rewards = propensity.open_numbers(store.engine, str(exposure.rewards), "reward", "rewards")
    rankings = store.open_rows(RANKINGS, "run_id", [run_id])
    results = reduce_rewarded(store.engine, measures, rankings, rewards)
    unknown = results.pop("unknown", None)  # None: no user was ranked
    missing = 0 if unknown is None else unknown.column("n")[0].as_py()
    return results, warn_above_zero("exposure: items without a reward", missing, "they count 0")


def empty_rows(plan: EstimationPlan) -> list[dict[str, Any]]:
    """Return a `metrics` row for each estimate without a value."""
    missing = debiased.missing_estimates(plan)
    return [{"part": part, **column._asdict(), "n": 0} for part in plan.parts for column, _ in missing]


# ------------------------------------------------------------------------------- checks


@dataclass(frozen=True)
class LowerBoundCheck(Check):
    """A check passed if the number reaches the threshold."""

    @property
    def passed(self) -> bool:
        """True if the number is large enough."""
        return self.threshold is None or self.observed >= self.threshold


def weight_checks(part: str, plan: EstimationPlan, context: ExposureContext) -> list[Check]:
    """Describe a part's weights.

    Effective rows, largest weight, and the share held by the top 1 %. The effective rows, (sum w)^2 / sum
    w^2, are too few below 100 or below a tenth of all rows.
    """
    weights, checks = context.weights[part], []
    clips = [("weights", float("inf"))]
    if "clipped_ips" in plan.estimators and weights.largest > plan.settings.clip:
        clips.append(("clipped weights", plan.settings.clip))
    for name, clip in clips:
        diagnostics = weights.diagnostics(clip)
        least = max(float(FEWEST_ROWS), SMALLEST_SHARE * diagnostics.rows)
        detail = f"of {diagnostics.rows} relevant truth items; below this an estimate rests on few"
        effective, what = round(diagnostics.effective, 1), f"{part}: {name}"
        checks += [
            LowerBoundCheck(f"{what}: effective rows", effective, least, "warning", detail),
            Check(f"{what}: largest", diagnostics.largest, None, "info", "1 / propensity"),
            Check(f"{what}: share of the top 1 %", diagnostics.top_share, None, "info", "of all weight"),
        ]
    return checks


def reason_checks(plan: EstimationPlan) -> list[Check]:
    """Give each missing value's reason, by estimator and metric."""
    missing = debiased.missing_estimates(plan)
    columns = Counter((column.estimator, column.metric, reason) for column, reason in missing)
    return [
        Check(f"no {estimator} of {metric}", float(n), None, "info", reason)
        for (estimator, metric, reason), n in columns.items()
    ]


def ideal_checks(plan: EstimationPlan) -> list[Check]:
    """Note the limits of a weighted NDCG, if requested."""
    weighted = [
        name for name in plan.estimators if name in WEIGHTED and "ndcg" in plan.estimable_metrics(name)
    ]
    if not weighted:
        return []
    detail = "their ideal list holds only what was shown: see ips_pooled, and dcg by ips"
    return [Check("estimators of weighted ndcg", float(len(weighted)), None, "info", detail)]


def strata_check(part: str, plan: EstimationPlan, proposal: Proposal) -> Check:
    """Report the proposed number of strata.

    A warning where neighbouring numbers never agree.
    """
    assert plan.compared is not None
    metric, k = plan.compared
    by_number = zip(proposal.strata, proposal.values, strict=True)
    values = ", ".join(f"{n}: {value:.4f}" for n, value in by_number)
    detail = f"{metric}{f'@{k}' if k else ''} by number of strata {values}; "
    detail += "from the proposed on, neighbours agree" if proposal.proposed else "neighbours do not agree"
    proposed = float(proposal.proposed or 0)
    return LowerBoundCheck(f"{part}: strata proposed", proposed, 1.0, "warning", detail)
