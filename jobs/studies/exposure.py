"""Study estimators of exposure bias against a known truth.

    python jobs/studies/exposure.py --picture docs/measured/exposure_study.png
    python jobs/studies/exposure.py --loops 0.9 --tastes 8 --seeds 1 --users 50
    python jobs/studies/exposure.py --matrix

Measured are bias, spread and coverage. Worlds are generated with several strengths of the feedback loop,
numbers of tastes and seeds. Four scorers learn from four fifths of what the loop showed and are tested on
the rest. Every pair's like is known, so the truth is the same metric over all pairs outside training.
Estimates use chances by user and item, by item alone, and two fitted ones. They are made for user groups,
by hash, each a small test on its own. All data are arrays (users x items), without Spark. With `--matrix`
there is no loop: a known matrix is shown by popularity.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.figure import Figure

from recbench_spark import cli
from recbench_spark.analyses.exposure.kernels import exposure, power_law, propensities
from recbench_spark.analyses.exposure.kernels.exposure import (
    SUMS,
    EstimatorSettings,
    Parts,
    contributions,
    divide_sums,
)
from recbench_spark.analyses.sampling.kernels import strata
from recbench_spark.config import WorldSettings
from recbench_spark.core import resampling
from recbench_spark.core.definitions import Definition
from recbench_spark.errors import OK
from recbench_spark.ranking.kernels.rankings import Rankings
from recbench_spark.runtime.journal import Journal
from recbench_spark.splits import worlds

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

METRICS = ("precision", "dcg", "recall", "ndcg")
K = 10
REPLICATES = 200
TEST_SHARE = 0.2
"""Share of the shown pairs to hold out."""

PROPENSITIES = ("user_and_item", "item", "relative_frequency", "power_law")
"""Propensities: the world's, their means, and two fitted ones.

The world's are by user and item, their means over users. Fitted are the share of users with the item in
training, and a power of this number, which is too steep and known up to a factor.
"""

ORDER = ("holdout", "ips", "snips_user", "snips_global", "ips_pooled", "stratified")
WEIGHTED_ESTIMATORS = ORDER[:-1]
KEY = ["metric", "loop", "tastes", "propensities", "estimator", "users"]
DEFINITION = Definition(threshold=worlds.RELEVANT)


def parser() -> cli.Parser:
    """Make the flag parser."""
    flags = cli.Parser(__doc__ or "")
    numbers, counts, seeds = cli.parse_numbers, cli.parse_cutoffs, "1,2,3,4,5,6,7,8,9,10"
    flags.add_argument("--loops", default="0.3,0.9", type=numbers, help="strengths (default 0.3,0.9)")
    flags.add_argument("--tastes", default="8,16", type=counts, help="numbers of tastes (default 8,16)")
    flags.add_argument("--seeds", default=seeds, type=counts, help="default 1 to 10")
    flags.add_argument("--users", default="50,200", type=counts, help="users of a group (default 50,200)")
    flags.add_argument("--picture", type=Path, help="file of the figure, .svg or .png")
    flags.add_argument("--table", type=Path, help="file of all numbers, .csv")
    flags.add_argument("--matrix", action="store_true", help="a known matrix, shown by popularity")
    return flags


def main(args: argparse.Namespace) -> int:
    """Estimate in every world and compare with the truth."""
    if args.matrix:
        format_results(study_known_matrix(args.seeds))
        return OK
    journal, parts = Journal(), []
    for seed in args.seeds:
        for loop in args.loops:
            for tastes in args.tastes:
                journal.say(f"seed {seed}, loop {loop:g}, {tastes} tastes")
                parts += list(estimate_scorers(make_world(loop, tastes, seed), args.users))
    table = summary(pd.concat(parts, ignore_index=True))
    format_results(table)
    if args.table:
        table.to_csv(args.table, index=False)
    if args.picture:
        draw_bias(table, max(args.users)).savefig(args.picture)
    return OK


def make_world(loop: float, tastes: int, seed: int) -> WorldSettings:
    """Make 4,000 users, shown about 60 of 300 items each."""
    return WorldSettings(
        users=4000, items=300, interactions=240_000, open_loop=0, loop=loop, tastes=tastes, seed=seed
    )


# ------------------------------------------------------------------------------- a world, tested


@dataclass(frozen=True)
class SplitWorld:
    """A world with training and test pairs, and all likes.

    Arrays are (u, i) each.
    """

    world: WorldSettings
    exposed_gli: Floats
    train_ui: Bools
    test_ui: Bools
    liked_ui: Bools

    @cached_property
    def keys(self) -> Ints:
        """A key for each user, for groups and the bootstrap."""
        draw = np.random.default_rng(self.world.seed + 1)
        return draw.integers(0, 2**62, self.world.users)

    def chances(self, name: str) -> Floats:
        """Return each pair's chance to be tested, (u, i).

        The chance holds given that the pair is not in training. If the loop shows a pair with chance p, it
        is in the test part (share s) with chance s p, and outside training with chance 1 - (1 - s) p.
        """
        world, trained_i = self.world, self.train_ui.sum(axis=0)
        if name == "power_law":
            seen_i = np.maximum(trained_i, 1)
            fitted = propensities.power_law(seen_i, power_law.fit(*np.unique(seen_i, return_counts=True)))
            return np.broadcast_to(fitted, self.train_ui.shape)
        users = np.arange(world.users)
        shown: Floats = self.exposed_gli[
            worlds.user_tastes(users, world), worlds.activity_levels(users, world.seed)
        ]
        if name == "item":
            shown = np.broadcast_to(shown.mean(axis=0), shown.shape)
        if name == "relative_frequency":
            # Training row counts, scaled to the pairs shown.
            seen_i = np.maximum(trained_i, 1) / (1 - TEST_SHARE)
            shown = np.broadcast_to(np.minimum(seen_i / world.users, 1.0), shown.shape)
        return TEST_SHARE * shown / (1 - (1 - TEST_SHARE) * shown)

    def scores(self) -> Iterator[tuple[str, Floats]]:
        """Yield four scorers' scores (u, i) by name."""
        good_ui = (self.train_ui & self.liked_ui).astype(np.float64)
        seen_i = self.train_ui.sum(axis=0).astype(np.float64)
        yield "popular", np.broadcast_to(seen_i, good_ui.shape)
        norm_i = np.maximum(np.sqrt(good_ui.sum(axis=0)), 1)
        cosine_ii = good_ui.T @ good_ui / norm_i[:, None] / norm_i
        np.fill_diagonal(cosine_ii, 0)
        yield "item_knn", good_ui @ cosine_ii
        left, size, right = np.linalg.svd(good_ui, full_matrices=False)
        yield "svd_8", (left[:, :8] * size[:8]) @ right[:8]
        world, (users, items) = self.world, (np.arange(n) for n in good_ui.shape)
        affinity = worlds.user_factors(users, world) @ worlds.item_factors(items, world).T
        yield "truth", np.asarray(affinity + worlds.item_qualities(items, world.seed), np.float64)


def split_world(world: WorldSettings) -> SplitWorld:
    """Run the loop, and hold out some shown pairs.

    Likes are known for every pair.
    """
    users, shape = np.arange(world.users), (world.users, world.items)
    user_r, item_r, _ = worlds.draw_closed_loop(users, world, worlds.simulate_loop(world))
    shown_ui = np.zeros(shape, bool)
    shown_ui[user_r, item_r] = True
    held_ui = np.random.default_rng(world.seed).random(shape) < TEST_SHARE
    exposed = worlds.exposure_chances(world)
    return SplitWorld(world, exposed, shown_ui & ~held_ui, shown_ui & held_ui, draw_likes(world))


def draw_likes(world: WorldSettings) -> Bools:
    """Draw who rates which item 4 or 5, (u, i)."""
    users, items = np.divmod(np.arange(world.users * world.items), world.items)
    ratings = worlds.draw_ratings(np.arange(world.users), users, items, world)
    return (ratings >= worlds.RELEVANT).reshape(world.users, world.items)


def estimate_scorers(world: WorldSettings, sizes: Sequence[int]) -> Iterator[pd.DataFrame]:
    """Yield each scorer's estimates for every group, beside the truth."""
    of_world = split_world(world)
    chances = {name: of_world.chances(name) for name in PROPENSITIES}
    groups = {size: UserGroups(of_world.keys, size) for size in sizes}
    for model, score_ui in of_world.scores():
        place_ui = count_above(np.where(of_world.train_ui, -np.inf, score_ui))
        truth = compute_metrics(make_rankings(of_world.liked_ui & ~of_world.train_ui, place_ui)[0])
        rankings, item_p = make_rankings(of_world.liked_ui & of_world.test_ui, place_ui)
        user_p = np.repeat(np.arange(world.users), np.diff(rankings.offsets))
        for name, chance_ui in chances.items():
            settings = EstimatorSettings(clip=np.inf, chances=name != "power_law")
            rows = pd.DataFrame(estimate_groups(rankings, chance_ui[user_p, item_p], settings, groups))
            at = world.model_dump(include={"loop", "tastes", "seed"})
            yield rows.assign(propensities=name, truth=rows.metric.map(truth), **at, model=model)


def count_above(score_ui: Floats) -> Ints:
    """Count the items above each item.

    Ties are broken by item, so row order has no effect.
    """
    place: Ints = np.argsort(np.argsort(-score_ui, axis=1, kind="stable"), axis=1)
    return place


def make_rankings(relevant_ui: Bools, place_ui: Ints) -> tuple[Rankings, Ints]:
    """Return relevant items' ranks and grades.

    Users without one have an item with grade 0.
    """
    shown_ui = relevant_ui.copy()
    shown_ui[~shown_ui.any(axis=1), 0] = True
    users, item_p = np.nonzero(shown_ui)
    above, zero = place_ui[users, item_p], np.zeros(len(users), np.int64)
    offsets = np.concatenate([[0], np.cumsum(shown_ui.sum(axis=1))])
    grade = np.where(relevant_ui[users, item_p], float(worlds.RELEVANT), 0.0)
    return Rankings(
        offsets, grade, above, zero, zero, np.full(len(relevant_ui), relevant_ui.shape[1])
    ), item_p


# ------------------------------------------------------------------------------- estimates


def compute_metrics(rankings: Rankings) -> dict[str, float]:
    """Compute all users' metrics; quotients need a relevant item."""
    one = np.ones(len(rankings.relevance))
    estimate = partial(estimator_parts, rankings, one, ("holdout",), EstimatorSettings())
    return {metric: float(estimate(metric)["holdout"].estimate()[0]) for metric in METRICS}


def estimator_parts(
    rankings: Rankings, chance_p: Floats, names: Sequence[str], settings: EstimatorSettings, metric: str
) -> dict[str, Parts]:
    """Compute the parts of estimators.

    Quotients are over users with a relevant item.
    """
    definition = DEFINITION.model_copy(update={"empty_users": "zero" if metric in SUMS else "leave_out"})
    parts_by_metric = contributions(
        rankings, chance_p, [metric], (K,), definition, estimators=names, settings=settings
    )
    return {name: parts for (name, _), parts in parts_by_metric.items()}


class UserGroups:
    """Users in hashed, about equal groups, with sums to bootstrap."""

    def __init__(self, keys: Ints, size: int) -> None:
        count = max(2, len(keys) // size)
        self.groups = [np.flatnonzero(keys % count == n) for n in range(count)]
        drawn = resampling.poisson_weights(keys, REPLICATES, 42).T.astype(np.float64)
        # Replicate 0 is the estimate itself.
        weight_ru = np.vstack([np.ones(len(keys)), drawn])
        self.weights = [np.ascontiguousarray(weight_ru[:, group]) for group in self.groups]

    def sums(self, *values_u: Floats) -> list[Floats]:
        """Return (r + 1, g) group sums, NaN as nothing."""
        value_uc = np.nan_to_num(np.column_stack(values_u))
        by_group = zip(self.weights, self.groups, strict=True)
        sums = np.stack([weight_ru @ value_uc[group] for weight_ru, group in by_group], axis=1)
        return [sums[:, :, c] for c in range(len(values_u))]


def estimate_groups(
    rankings: Rankings, chance_p: Floats, settings: EstimatorSettings, groups: dict[int, UserGroups]
) -> dict[str, list[Any]]:
    """Return each group's estimates with intervals, as columns."""
    value_x, rows_x = np.unique(strata.round_propensities(chance_p), return_counts=True)
    cut = strata.cut("equal_mass", 2, value_x, np.ones_like(rows_x), rows_x)
    names = ("metric", "users", "estimator", "value", "low", "high")
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for metric in METRICS:
        parts = estimator_parts(rankings, chance_p, WEIGHTED_ESTIMATORS, settings, metric)
        estimators = {name: partial(combine_parts, part) for name, part in parts.items()}
        if metric != "dcg":
            measured = compute_strata(rankings, cut.assign(chance_p), metric)
            estimators["stratified"] = partial(combine_groups, *measured)
        for size, user_groups in groups.items():
            n = len(user_groups.groups)
            for name, estimate in estimators.items():
                estimate_rg = estimate(user_groups)
                low, high = resampling.percentile_interval(estimate_rg[1:])
                rows = ([metric] * n, [size] * n, [name] * n, estimate_rg[0], low, high)
                for column, values in zip(names, rows, strict=True):
                    columns[column] += list(values)
    return columns


def combine_parts(parts: Parts, user_groups: UserGroups) -> Floats:
    """Return each replicate's estimate by group."""
    number_u = parts.denominator[:, 0]
    known_u = (~np.isnan(number_u)).astype(np.float64)
    size_u = known_u if parts.size is None else parts.size[:, 0]
    value, number, counted, size = user_groups.sums(parts.numerator[:, 0], number_u, known_u, size_u)
    ratio = divide_sums(value, number)
    if parts.pooled is not None:
        columns = parts.denominator.shape[1]
        mean = np.repeat(divide_sums(number, counted)[..., None], columns, axis=-1)
        return ratio * parts.pooled(mean)[..., 0]
    return ratio * divide_sums(size, counted)


def compute_strata(rankings: Rankings, stratum_p: Ints, metric: str) -> tuple[Floats, Floats]:
    """Measure each user in two strata, (u, s).

    The relevant items there, (u, s), come along.
    """
    values, _ = exposure.measure_by_stratum(rankings, stratum_p, 2, [metric], (K,), definition=DEFINITION)
    user_p = np.repeat(np.arange(len(rankings.length)), np.diff(rankings.offsets))
    size_us = np.zeros((len(rankings.length), 2))
    np.add.at(size_us, (user_p, stratum_p), rankings.relevance > 0)
    return values[metric][:, :, 0], size_us


def combine_groups(value_us: Floats, size_us: Floats, user_groups: UserGroups) -> Floats:
    """Return each replicate's stratified estimate by group."""
    known_us = (~np.isnan(value_us)).astype(np.float64)
    value, known, size = (
        np.stack(user_groups.sums(*part.T), axis=-1) for part in (value_us, known_us, size_us)
    )
    combined: Floats = exposure.combine_strata(divide_sums(value, known)[..., None], size)[0][..., 0]
    return combined


# ------------------------------------------------------------------------------- against the truth


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Summarise bias, spread, coverage, and pairs in order.

    Bias and spread are means over models and worlds; pairs in order are a share.
    """
    rows = rows.dropna(subset=["value"]).assign(
        error=lambda r: r.value - r.truth, covered=lambda r: (r.low <= r.truth) & (r.truth <= r.high)
    )
    # The holdout estimator uses no propensities, so one copy is enough.
    first = rows.propensities == rows.propensities.iloc[0]
    rows = rows[first | (rows.estimator != "holdout")]
    of_models = rows.groupby([*KEY, "seed", "model"]).agg(
        truth=("truth", "first"),
        bias=("error", "mean"),
        spread=("error", "std"),
        coverage=("covered", "mean"),
        groups=("error", "size"),
    )
    of_worlds = of_models.groupby([*KEY, "seed"]).agg(
        {"truth": "mean", "bias": "mean", "spread": "mean", "coverage": "mean", "groups": "mean"}
    )
    table = of_worlds.groupby(KEY).agg(
        truth=("truth", "mean"),
        bias=("bias", "mean"),
        bias_low=("bias", "min"),
        bias_high=("bias", "max"),
        spread=("spread", "mean"),
        coverage=("coverage", "mean"),
        groups=("groups", "sum"),
    )
    table = table.join(_pairs_in_order(of_models)).reset_index()
    table["estimator"] = pd.Categorical(table.estimator, ORDER)
    table["propensities"] = pd.Categorical(table.propensities, PROPENSITIES)
    table["metric"] = pd.Categorical(table.metric, METRICS)
    ordered: pd.DataFrame = table.sort_values(KEY, ignore_index=True)
    return ordered


def _pairs_in_order(of_models: pd.DataFrame) -> pd.Series:
    """Return the share of model pairs in true order.

    The share is by world; the order is by mean estimates.
    """
    rows = of_models.reset_index().assign(value=lambda r: r.truth + r.bias)
    pairs = rows.merge(rows, on=[*KEY, "seed"], suffixes=("", "_2"))
    pairs = pairs[pairs.model < pairs.model_2]
    agree = (pairs.value - pairs.value_2) * (pairs.truth - pairs.truth_2) > 0
    share: pd.Series = pairs.assign(in_order=agree).groupby(KEY).in_order.mean()
    return share


def format_results(table: pd.DataFrame) -> None:
    """Print the whole table with three decimals."""
    print(table.to_string(index=False, float_format=lambda value: f"{value:.3f}"))


def draw_bias(table: pd.DataFrame, size: int) -> Figure:
    """Draw bias by estimator, with one spread to each side.

    Each metric and world has a panel.
    """
    rows = table[table.users == size]
    kinds = sorted({(r.loop, r.tastes) for r in rows.itertuples()})
    figure = Figure(figsize=(3.1 * len(kinds), 2.1 * len(METRICS)), layout="constrained")
    panels = figure.subplots(len(METRICS), len(kinds), sharex="row", sharey=True, squeeze=False)
    for row, metric in enumerate(METRICS):
        for column, (loop, tastes) in enumerate(kinds):
            panel = panels[row, column]
            panel.axvline(0, color="0.6", linewidth=1)
            panel.set_title(f"{metric}@{K}, loop {loop:g}, {tastes} tastes", fontsize=9)
            there = (rows.metric == metric) & (rows.loop == loop) & (rows.tastes == tastes)
            _draw_panel(panel, rows[there])
    handles, names = panels[-1, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper right", ncols=len(names), fontsize=8, frameon=False)
    figure.supxlabel(f"bias, and one standard deviation of groups of {size} users", fontsize=10)
    return figure


def _draw_panel(panel, rows: pd.DataFrame) -> None:  # type: ignore[no-untyped-def]
    for n, (name, some) in enumerate(rows.groupby("propensities", observed=False)):
        places = [ORDER.index(name) + 0.18 * (n - 1.5) for name in some.estimator]
        panel.errorbar(some.bias, places, xerr=some.spread, fmt="o", markersize=3, label=name)
    panel.set_yticks(range(len(ORDER)), ORDER, fontsize=8)
    panel.set_ylim(len(ORDER) - 0.5, -0.5)


# ------------------------------------------------------------------------------- a known matrix

USERS, ITEMS, DRAWS = 3000, 300, 5


def study_known_matrix(seeds: Sequence[int]) -> pd.DataFrame:
    """Return estimators' mean errors where relevance is known.

    Exposure follows popularity. A world has 3,000 users. An item is shown with a chance proportional to
    the number of users who like it, at most 1, and .1 on average. There are three scorers; means are over
    five draws of exposure, and over worlds.
    """
    rows = [
        row for seed in seeds for row in _matrix_errors(WorldSettings(users=USERS, items=ITEMS, seed=seed))
    ]
    errors = pd.DataFrame(rows).groupby(["metric", "estimator"], as_index=False)[["truth", "error"]].mean()
    errors["estimator"] = pd.Categorical(errors.estimator, ORDER)
    errors["metric"] = pd.Categorical(errors.metric, METRICS)
    table: pd.DataFrame = errors.sort_values(["metric", "estimator"], ignore_index=True)
    return table


def _matrix_errors(world: WorldSettings) -> Iterator[dict[str, Any]]:
    liked_ui, draw = draw_likes(world), np.random.default_rng(world.seed)
    popularity = liked_ui.sum(axis=0)
    chance_i = np.minimum(0.1 * popularity / popularity.mean(), 1.0)
    noise = draw.normal(size=liked_ui.shape)
    scores = {
        "popular": np.broadcast_to(popularity, liked_ui.shape),
        "noisy": liked_ui + noise,
        "both": liked_ui + noise + popularity / popularity.std(),
    }
    for model, score_ui in scores.items():
        place_ui = count_above(score_ui)
        truth = compute_metrics(make_rankings(liked_ui, place_ui)[0])
        for _ in range(DRAWS):
            shown_ui = liked_ui & (draw.random(liked_ui.shape) < chance_i)
            rankings, item_p = make_rankings(shown_ui, place_ui)
            for metric in METRICS:
                by_estimator = estimator_parts(
                    rankings, chance_i[item_p], WEIGHTED_ESTIMATORS, EstimatorSettings(), metric
                )
                at = {"metric": metric, "model": model, "truth": truth[metric]}
                for name, parts in by_estimator.items():
                    yield {**at, "estimator": name, "error": float(parts.estimate()[0]) - truth[metric]}


if __name__ == "__main__":
    cli.run(main, parser())
