"""How good is each estimator of exposure bias? Bias, spread and coverage against a known truth.

    python jobs/bench_exposure.py --warehouse warehouse/study
    python jobs/bench_exposure.py --warehouse warehouse/study --loops 0.9 --tastes 8 --seeds 1 --users 50
    python jobs/bench_exposure.py --matrix

On generated worlds (conf/benchmarks/exposure_study.yaml) of several strengths of the loop, numbers of tastes
and seeds, models are trained and tested on what the loop showed. The open loop shows every pair, so the
truth is the same metric over all pairs outside training. Estimates are made with the chances of each user
and item, of the items alone, and with two that are fitted; of groups of users dealt by hash, each a small
test of its own. `--matrix`: no loop and no Spark; what follows popularity is shown of a known matrix.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.figure import Figure

from recbench_spark import cli
from recbench_spark.benchmark import open_night, run_night
from recbench_spark.config import Benchmark, Propensities, World, load_benchmark
from recbench_spark.data import worlds
from recbench_spark.definitions import Definition
from recbench_spark.errors import FAILED, OK, ConfigError
from recbench_spark.evaluation.batches import to_rankings
from recbench_spark.journal import Journal
from recbench_spark.kernels import estimators, resampling, strata
from recbench_spark.kernels.estimators import SUMS, Parts, Settings, contributions
from recbench_spark.kernels.ranking import Rankings
from recbench_spark.session import get_session
from recbench_spark.steps.exposure import propensities_of
from recbench_spark.steps.night import Night
from recbench_spark.steps.paradoxes import tonight
from recbench_spark.steps.sharing import drop_scratch
from recbench_spark.store import Store

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

CONFIG = "exposure_study"
DAY = date(2026, 1, 1)
METRICS = ("precision", "dcg", "recall", "ndcg")
K = 10
REPLICATES = 200

PROPENSITIES = ("user_and_item", "item", "relative_frequency", "power_law")
"""The world's own of each user and item; their means over users; the share of users who trained on the
item; a power of that number which is too steep, known up to a factor."""

ORDER = ("holdout", "ips", "snips_user", "snips_global", "ips_pooled", "stratified")
KEY = ["metric", "loop", "tastes", "propensities", "estimator", "users"]


def parser() -> cli.Parser:
    """The flags of this job."""
    found = cli.Parser(__doc__ or "")
    found.add_argument("--warehouse", help="directory of the tables; what was run stays")
    found.add_argument("--loops", default="0.3,0.9", type=cli.numbers, help="strengths (default 0.3,0.9)")
    found.add_argument("--tastes", default="8,16", type=cli.cutoffs, help="numbers of tastes (default 8,16)")
    found.add_argument("--seeds", default="1,2,3,4,5", type=cli.cutoffs, help="of the worlds (default 1 to 5)")
    found.add_argument("--users", default="50,200", type=cli.cutoffs, help="users of a group (default 50,200)")
    found.add_argument("--picture", type=Path, help="where to draw it: a .svg or .png file")
    found.add_argument("--table", type=Path, help="where to write all numbers: a .csv file")
    found.add_argument("--set", action="append", default=[], metavar="A.B=C", help="replace one setting")
    found.add_argument("--matrix", action="store_true", help="a known matrix, shown by popularity")
    found.add_argument("--dry-run", action="store_true", help="say what would be run")
    return found


def main(args: argparse.Namespace) -> int:
    """Run a night for each world, estimate, compare with the truth."""
    if args.matrix:
        show(known_matrix(args.seeds))
        return OK
    benchmarks = [
        benchmark_of(loop, tastes, seed, args.set)
        for seed in args.seeds
        for loop in args.loops
        for tastes in args.tastes
    ]
    if args.dry_run:
        print("\n".join(benchmark.name for benchmark in benchmarks))
        return OK
    if not args.warehouse:
        raise ConfigError("no warehouse", "--warehouse DIRECTORY, or --matrix")
    store, journal = Store(get_session("recbench-spark study"), args.warehouse), Journal()
    parts = []
    for benchmark in benchmarks:
        journal.say(benchmark.name)
        if run_night(store, benchmark, DAY, journal).failed:
            return FAILED
        parts += list(estimates_of(open_night(store, benchmark, DAY), args.users))
        drop_scratch(store)
    table = summary(pd.concat(parts, ignore_index=True))
    show(table)
    if args.table:
        table.to_csv(args.table, index=False)
    if args.picture:
        draw(table, max(args.users)).savefig(args.picture)
    return OK


def benchmark_of(loop: float, tastes: int, seed: int, given: Sequence[str]) -> Benchmark:
    """The study's benchmark on one world."""
    changes = [
        f"name={CONFIG}-{loop:g}-{tastes}-{seed}",
        f"dataset.world.loop={loop}",
        f"dataset.world.tastes={tastes}",
        f"dataset.world.seed={seed}",
    ]
    return load_benchmark(CONFIG, [*given, *changes])


# ------------------------------------------------------------------------------- of one world


@dataclass(frozen=True)
class Tested:
    """A model's rankings of one part: numbers and keys of the users, and of the items of their truth."""

    rankings: Rankings
    users: Ints
    keys: Ints
    item_p: Ints

    @property
    def user_p(self) -> Ints:
        """The user of each truth item."""
        return np.repeat(self.users, np.diff(self.rankings.offsets))


def estimates_of(night: Night, sizes: Sequence[int]) -> Iterator[pd.DataFrame]:
    """Every estimate of every group, with the truth beside it, model by model."""
    world, definition = night.benchmark.dataset.world, night.definition
    chances = dict(chances_of(night))
    for run in tonight(night):
        test, opened = (tested(night, run.run_id, part) for part in ("test", "open_loop"))
        truth = values_of(opened.rankings, definition)
        for name, chance in chances.items():
            known = Settings(clip=np.inf, chances=name != "power_law")
            found = of_groups(test, chance(test), known, definition, sizes)
            at = {"loop": world.loop, "tastes": world.tastes, "seed": world.seed, "model": run.model}
            yield found.assign(propensities=name, truth=found.metric.map(truth), **at)


def tested(night: Night, run_id: str, part: str) -> Tested:
    """The rankings of a run and part, brought to the driver: the worlds of this study are small."""
    rows = night.store.of_run("rankings", run_id).where(f"part = '{part}'").orderBy("user_id").toArrow()
    batch = rows.combine_chunks().to_batches()[0]
    items = batch.column("item_ids").flatten().to_numpy(zero_copy_only=False)
    users = batch.column("user_id").to_numpy(zero_copy_only=False)
    return Tested(
        to_rankings(batch), _numbers(users), batch.column("user_key").to_numpy(), _numbers(items)
    )


def _numbers(ids: npt.NDArray[np.object_]) -> Ints:
    """u000017 and i00017 are 17."""
    return np.array([int(name[1:]) for name in ids], dtype=np.int64)


def chances_of(night: Night):  # type: ignore[no-untyped-def]
    """(name, function of `Tested`): the chance of each truth item to stand in the test part.

    A pair that the loop shows with chance p stands in a test part of share s with s p, and outside
    training with 1 - (1 - s) p; given that it is no training pair the chance is the quotient.
    """
    world, share = night.benchmark.dataset.world, night.benchmark.split.ratio[2]
    exposed_gli = worlds.exposure_chances(night.store.spark, world)

    def held_out(shown: Floats) -> Floats:
        return share * shown / (1 - (1 - share) * shown)

    def of_user(test: Tested) -> Floats:
        taste, level = worlds.taste_of(test.user_p, world), worlds.level_of(test.user_p, world.seed)
        return held_out(exposed_gli[taste, level, test.item_p])

    def of_item(method: str, scale: float):  # type: ignore[no-untyped-def]
        rows = propensities_of(night.store, night.split_id, Propensities.model_validate({"method": method}))
        table = rows.toPandas()
        chance_i = np.full(world.items, np.nan)
        chance_i[_numbers(table.item_id.to_numpy())] = table.propensity
        chance_i = np.maximum(np.nan_to_num(chance_i), np.nanmin(chance_i[chance_i > 0]))
        made = chance_i if method == "power_law" else held_out(np.minimum(chance_i * scale, 1.0))
        return lambda test: made[test.item_p]

    yield "user_and_item", of_user
    yield "item", of_item("true", 1.0)
    # Counted over training: so many of the pairs shown.
    yield "relative_frequency", of_item("relative_frequency", 1 / (1 - share))
    yield "power_law", of_item("power_law", 1.0)


# ------------------------------------------------------------------------------- estimates


def values_of(rankings: Rankings, definition: Definition) -> dict[str, float]:
    """The metrics of all users, of sums with 0 for users without relevant items."""
    one = np.ones(len(rankings.relevance))
    return {
        metric: float(_parts(rankings, one, ("holdout",), Settings(), definition, metric)["holdout"].estimate()[0])
        for metric in METRICS
    }


def _parts(
    rankings: Rankings, chance: Floats, names: Sequence[str], given: Settings, asked: Definition, metric: str
) -> dict[str, Parts]:
    """The parts of each estimator at K. Sums are of all users, quotients of those with a relevant item."""
    empty = "zero" if metric in SUMS else "leave_out"
    definition = asked.model_copy(update={"empty_users": empty})
    found = contributions(rankings, chance, [metric], (K,), definition, names, given)
    return {name: parts for (name, _), parts in found.items()}


def of_groups(
    test: Tested, chance: Floats, given: Settings, definition: Definition, sizes: Sequence[int]
) -> pd.DataFrame:
    """Each estimate of each group, with its interval."""
    names = [name for name in ORDER if name != "stratified"]
    cut = strata.cut("equal_mass", 2, *_histogram(chance))
    rows = []
    for metric in METRICS:
        parts = _parts(test.rankings, chance, names, given, definition, metric)
        values, counts = _strata_of(test.rankings, cut.assign(chance), metric, definition)
        for size in sizes:
            for group in dealt(test.keys, size):
                key = {"metric": metric, "users": size}
                rows += [
                    {**key, "estimator": name, **_estimate(part, test.keys, group)}
                    for name, part in parts.items()
                ]
                if metric != "dcg":
                    found = _stratified(values[group], counts[group], test.keys[group])
                    rows.append({**key, "estimator": "stratified", **found})
    return pd.DataFrame(rows)


def _histogram(chance: Floats) -> tuple[Floats, Ints, Ints]:
    value_x, rows_x = np.unique(strata.rounded(chance), return_counts=True)
    return value_x, np.ones_like(rows_x), rows_x


def dealt(keys: Ints, size: int) -> list[Ints]:
    """The users dealt by hash into groups of about this size."""
    count = max(2, len(keys) // size)
    group = (keys >> 7) % count
    return [np.flatnonzero(group == n) for n in range(count)]


def _estimate(parts: Parts, keys: Ints, group: Ints) -> dict[str, float]:
    some = Parts(
        *(None if x is None else x[group] for x in (parts.numerator, parts.denominator, parts.size)),  # type: ignore[arg-type]
        parts.pooled,
    )
    sums = estimators.replicate_sums(some, keys[group], REPLICATES, 42)
    low, high = resampling.percentile_interval(estimators.replicate_estimates(sums, pooled=some.pooled))
    return {"value": some.estimate()[0], "low": low[0], "high": high[0]}


def _strata_of(rankings: Rankings, stratum_p: Ints, metric: str, asked: Definition) -> tuple[Floats, Floats]:
    """The metric of each user in each of two strata at K, (u, s), and truth items there, (u, s)."""
    definition = asked.model_copy(update={"empty_users": "leave_out"})
    name = "ndcg" if metric == "dcg" else metric
    values, sizes = estimators.stratified(rankings, stratum_p, 2, [name], (K,), definition)
    return values[name][:, :, 0], sizes.astype(np.float64)


def _stratified(value_us: Floats, size_us: Floats, keys: Ints) -> dict[str, float]:
    sums, weights = resampling.bootstrap_sums(keys, np.hstack([value_us, size_us]), REPLICATES, 42)
    means = resampling.replicate_means(sums, weights)[:, :2, None]
    replicates, _ = estimators.combine_strata(means, sums[:, 2:].astype(np.float64))
    low, high = resampling.percentile_interval(replicates)
    known = (~np.isnan(value_us)).sum(axis=0)
    mean = np.nansum(value_us, axis=0) / np.where(known, known, np.nan)
    value, _ = estimators.combine_strata(mean[:, None], size_us.sum(axis=0))
    return {"value": value[0], "low": low[0], "high": high[0]}


# ------------------------------------------------------------------------------- against the truth


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Bias and spread, means over models and worlds; coverage; pairs in order; groups of a model."""
    rows = rows.dropna(subset=["value"]).assign(
        error=lambda r: r.value - r.truth, covered=lambda r: (r.low <= r.truth) & (r.truth <= r.high)
    )
    # The holdout knows no propensities.
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
    """Share of pairs of models that the mean estimates of a world put in the order of the truth."""
    rows = of_models.reset_index().assign(value=lambda r: r.truth + r.bias)
    pairs = rows.merge(rows, on=[*KEY, "seed"], suffixes=("", "_2"))
    pairs = pairs[pairs.model < pairs.model_2]
    agree = (pairs.value - pairs.value_2) * (pairs.truth - pairs.truth_2) > 0
    share: pd.Series = pairs.assign(in_order=agree).groupby(KEY).in_order.mean()
    return share


def show(table: pd.DataFrame) -> None:
    """All of it, three decimals."""
    print(table.to_string(index=False, float_format=lambda value: f"{value:.3f}"))


def draw(table: pd.DataFrame, size: int) -> Figure:
    """Bias, with one spread to either side, by estimator: a panel for each metric and world."""
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
    for n, (propensities, some) in enumerate(rows.groupby("propensities", observed=False)):
        places = [ORDER.index(name) + 0.18 * (n - 1.5) for name in some.estimator]
        panel.errorbar(some.bias, places, xerr=some.spread, fmt="o", markersize=3, label=propensities)
    panel.set_yticks(range(len(ORDER)), ORDER, fontsize=8)
    panel.set_ylim(len(ORDER) - 0.5, -0.5)


# ------------------------------------------------------------------------------- a known matrix

USERS, ITEMS, NIGHTS = 3000, 300, 5


def known_matrix(seeds: Sequence[int]) -> pd.DataFrame:
    """Mean error of each estimator where every relevance is known and exposure follows popularity alone.

    3,000 users of a world; an item is shown with a chance in proportion to the number of users who like
    it, at most 1 and .1 in the mean; three scorers; means over five draws of the exposure, and worlds.
    """
    rows = [row for seed in seeds for row in _of_matrix(World(users=USERS, items=ITEMS, seed=seed))]
    errors = pd.DataFrame(rows).groupby(["metric", "estimator"], as_index=False)[["truth", "error"]].mean()
    errors["estimator"] = pd.Categorical(errors.estimator, ORDER)
    errors["metric"] = pd.Categorical(errors.metric, METRICS)
    table: pd.DataFrame = errors.sort_values(["metric", "estimator"], ignore_index=True)
    return table


def _of_matrix(world: World) -> Iterator[dict[str, object]]:
    users, items = np.divmod(np.arange(world.users * world.items), world.items)
    ratings = worlds.ratings_of(np.arange(world.users), users, items, world)
    liked_ui = (ratings >= worlds.RELEVANT).reshape(world.users, world.items)
    popularity = liked_ui.sum(axis=0)
    chance_i = np.minimum(0.1 * popularity / popularity.mean(), 1.0)
    draw = np.random.default_rng(world.seed)
    noise = draw.normal(size=liked_ui.shape)
    scores = {
        "popular": np.broadcast_to(popularity, liked_ui.shape) + 1e-6 * noise,
        "noisy": liked_ui + noise,
        "both": liked_ui + noise + popularity / popularity.std(),
    }
    definition = Definition(threshold=1.0)
    for model, score_ui in scores.items():
        place_ui = (-score_ui).argsort(axis=1).argsort(axis=1)
        truth = values_of(_rankings_of(liked_ui, place_ui)[0], definition)
        for _ in range(NIGHTS):
            shown_ui = liked_ui & (draw.random(liked_ui.shape) < chance_i)
            rankings, item_p = _rankings_of(shown_ui, place_ui)
            for metric in METRICS:
                names = [name for name in ORDER if name != "stratified"]
                found = _parts(rankings, chance_i[item_p], names, Settings(), definition, metric)
                for name, parts in found.items():
                    error = float(parts.estimate()[0]) - truth[metric]
                    yield {"metric": metric, "estimator": name, "model": model, "truth": truth[metric], "error": error}  # noqa: E501


def _rankings_of(relevant_ui: npt.NDArray[np.bool_], place_ui: Ints) -> tuple[Rankings, Ints]:
    """Where the relevant items stand among all; users without one have an item that is not relevant."""
    shown_ui = relevant_ui.copy()
    nobody = ~shown_ui.any(axis=1)
    shown_ui[nobody, 0] = True
    users, item_p = np.nonzero(shown_ui)
    above, zero = place_ui[users, item_p], np.zeros(len(users), np.int64)
    offsets = np.concatenate([[0], np.cumsum(shown_ui.sum(axis=1))])
    relevance = relevant_ui[users, item_p].astype(np.float64)
    length = np.full(len(relevant_ui), relevant_ui.shape[1])
    return Rankings(offsets, relevance, above, zero, zero, length), item_p


if __name__ == "__main__":
    cli.run(main, parser())
