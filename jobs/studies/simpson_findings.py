"""Compute the findings on Simpson's paradox.

They are the agreement with the open loop, its limits, and model pairs. `simpson.py` prints them. Each
function returns one seed's rows.

Axes: u users, m models, c columns, s strata, r replicates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jobs.studies.loop_estimates import HOLDOUT, Column
from jobs.studies.simpson_runs import SeedResults, SeedWork, name_family
from recbench_spark.analyses.comparisons.kernels import agreement, significance
from recbench_spark.analyses.comparisons.kernels.agreement import Spread
from recbench_spark.analyses.exposure.kernels.exposure import combine_strata
from recbench_spark.core.arrays import Floats
from recbench_spark.core.resampling import poisson_weights

Row = dict[str, Any]

HALVES = 200
"""Draws of two user halves."""

BOOTSTRAP_SEED = 42


def compare_estimators(results: SeedResults, columns: Sequence[Column], replicates: int) -> list[Row]:
    """Return each estimator's lead over the holdout.

    The lead is tested by Steiger's test and over model families. The p-values of all stratified estimates
    and columns are adjusted together (Benjamini and Hochberg).
    """
    families = [name_family(model) for model in results.models]
    drawn_rm = agreement.draw_families(families, replicates, BOOTSTRAP_SEED)
    truth_mc, holdout_mc = results.truth_mc, results.estimates[HOLDOUT]
    rows = []
    for c, column in enumerate(columns):
        truth_m, other_m = truth_mc[:, c], holdout_mc[:, c]
        other_r = agreement.compute_weighted_tau(truth_m, other_m, drawn_rm)
        for name, value_mc in results.estimates.items():
            lead = agreement.compare_with_truth(value_mc[:, c], other_m, truth_m)
            own_r = agreement.compute_weighted_tau(truth_m, value_mc[:, c], drawn_rm)
            visible = agreement.find_visible_lead(lead.other, lead.between, lead.models)
            rows.append(
                {"estimator": name, "column": str(column), **lead._asdict(), "visible": visible}
                | _name_spread("family", agreement.summarise_spread(own_r - other_r))
            )
    stratified = [row for row in rows if row["estimator"].startswith("stratified ") and row["between"] < 1]
    adjusted = significance.benjamini_hochberg(np.array([row["p"] for row in stratified]))
    for row, p in zip(stratified, adjusted, strict=True):
        row["adjusted_p"] = float(p)
    return rows


def _name_spread(name: str, spread: Spread) -> Row:
    return {f"{name}_{field}": value for field, value in spread._asdict().items()}


def resample_users(
    results: SeedResults, columns: Sequence[Column], chosen: Sequence[str], kept: str, replicates: int
) -> list[Row]:
    """Bootstrap users for the strata's lead over the holdout.

    The two strata lead together, and each alone. A user in both loops has one weight in both, so truth
    and estimates are drawn together.

    Args:
        results: a seed's values.
        columns: names of all columns.
        chosen: columns to resample.
        kept: name of the stratified estimate with values kept by user.
        replicates: number of draws.
    """
    assert results.truth_umc is not None
    closed_ru, open_ru = (
        poisson_weights(keys_u, replicates, BOOTSTRAP_SEED).T
        for keys_u in (results.keys_u, results.truth_keys_u)
    )
    sizes_rs = closed_ru.astype(np.int64) @ results.sizes_us
    rows = []
    for c, column in enumerate(columns):
        if str(column) in chosen:
            truth_rm = agreement.average_draws(results.truth_umc[:, :, c], open_ru)
            other_rm = agreement.average_draws(results.holdout_umc[:, :, c], closed_ru)
            other_r = agreement.compare_draws(other_rm, truth_rm)
            for name, own_rm in _draw_strata(results, c, closed_ru, sizes_rs, kept):
                spread = agreement.summarise_spread(agreement.compare_draws(own_rm, truth_rm) - other_r)
                rows.append({"estimator": name, "column": str(column), **_name_spread("user", spread)})
    return rows


def _draw_strata(
    results: SeedResults, c: int, weight_ru: Any, sizes_rs: Any, kept: str
) -> Iterator[tuple[str, Floats]]:
    """Yield drawn values by stratum and together, (r, m) each."""
    strata = range(results.stratum_usmc.shape[1])
    mean_rsm = np.stack(
        [agreement.average_draws(results.stratum_usmc[:, s, :, c], weight_ru) for s in strata], axis=1
    )
    for s in strata:
        yield f"Q{s + 1} of {kept}", mean_rsm[:, s]
    yield kept, combine_strata(mean_rsm, sizes_rs)[0]


def compare_halves(results: SeedResults, columns: Sequence[Column]) -> list[Row]:
    """Return tau-b between two halves of the open loop's users.

    Halves are drawn many times.
    """
    assert results.truth_umc is not None
    rows = []
    for c, column in enumerate(columns):
        taus = agreement.halve_users(results.truth_umc[:, :, c], HALVES, BOOTSTRAP_SEED)
        rows.append(
            {"column": str(column), "halves": float(np.mean(taus)), "sd": float(np.std(taus, ddof=1))}
        )
    return rows


# ------------------------------------------------------------------------------- pairs of models


def compare_pairs(
    results: SeedResults, columns: Sequence[Column], pair: tuple[str, str], chosen: Sequence[str]
) -> list[Row]:
    """Compare two families at each size they share.

    The families are compared as a whole, in each stratum, and in the open loop. Tests are paired t-tests
    over users; p is adjusted over all sizes and parts of a column (Holm 1979).
    """
    places = {name: n for n, name in enumerate(results.models)}
    sizes = [
        name.removeprefix(pair[0])
        for name in results.models
        if name_family(name) == pair[0] and pair[1] + name.removeprefix(pair[0]) in places
    ]
    rows = []
    for c, column in enumerate(columns):
        if str(column) in chosen:
            tested = [
                _test_pair(part, pair, size, value_um[:, [places[name + size] for name in pair]])
                for part, value_um in _list_parts(results, c)
                for size in sizes
            ]
            adjusted = significance.holm(np.array([row["p"] for row in tested]))
            rows += [
                {"column": str(column), **row, "adjusted_p": float(p)}
                for row, p in zip(tested, adjusted, strict=True)
            ]
    return rows


def _list_parts(results: SeedResults, c: int) -> Iterator[tuple[str, Floats]]:
    """Yield users' values, (u, m), overall and by part.

    The parts are the strata and the open loop.
    """
    yield "whole", results.holdout_umc[:, :, c]
    for s in range(results.stratum_usmc.shape[1]):
        yield f"Q{s + 1}", results.stratum_usmc[:, s, :, c]
    if results.truth_umc is not None:
        yield "open loop", results.truth_umc[:, :, c]


def _test_pair(part: str, pair: tuple[str, str], size: str, value_um: Floats) -> Row:
    tests = significance.paired_t(significance.pair_sums(value_um))
    first, second = np.nanmean(value_um, axis=0)
    names = {"part": part, "pair": ":".join(pair), "size": size.removeprefix("_")}
    return names | {
        "first": float(first), "second": float(second), "difference": float(tests.mean[0, 1]),
        "p": float(tests.p[0, 1]), "users": int(tests.users[0, 1]),
    }  # fmt: skip


def list_strata(work: SeedWork) -> list[Row]:
    """Count items and tested pairs of strata kept by user."""
    cut = work.plan.strata[work.plan.user_strata]
    tested_i = work.closed.count_items("test")
    return [
        {"stratum": f"Q{s + 1}", "items": n, "tested": int(tested_i[cut.stratum_i == s].sum())}
        for s, n in enumerate(cut.items)
    ]
