"""How good is each estimator of exposure bias? Bias, spread and coverage against a known truth.

    python jobs/bench_exposure.py --warehouse warehouse/study
    python jobs/bench_exposure.py --warehouse warehouse/study --loops 0.3,0.8 --users 100

On generated worlds (conf/benchmarks/exposure_study.yaml) of several strengths of the loop, models are
trained and tested on what the loop showed, and estimates are made with true, estimated and wrong
propensities. The users are dealt into groups, by hash: each group is one small test. Its estimates are
held against the same metric over the uniformly exposed part of all users, which is the truth.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark import cli
from recbench_spark.benchmark import open_night, run_night
from recbench_spark.config import Benchmark, load_benchmark
from recbench_spark.errors import FAILED, OK, ConfigError
from recbench_spark.evaluation import debiased, metrics
from recbench_spark.journal import Journal
from recbench_spark.session import get_session
from recbench_spark.steps.exposure import make_plan
from recbench_spark.steps.night import Night
from recbench_spark.steps.paradoxes import tonight
from recbench_spark.steps.sharing import drop_scratch
from recbench_spark.store import Store

CONFIG = "exposure_study"
DAY = date(2026, 1, 1)
PROPENSITIES = ("true", "relative_frequency", "power_law")
"""Those of the world; the share of users who were shown the item; a power of it that is too steep."""

ORDER = ("holdout", "ips", "clipped_ips", "snips_user", "snips_global", "stratified")


@dataclass(frozen=True)
class Setting:
    """One night: how strong the loop is, and which propensities are believed."""

    loop: float
    propensities: str

    def benchmark(self, given: list[str]) -> Benchmark:
        """The study's benchmark under this setting."""
        changes = [
            f"name={CONFIG}-{self.loop:g}-{self.propensities}",
            f"dataset.world.loop={self.loop}",
            f'evaluation.exposure.propensities.method="{self.propensities}"',
        ]
        return load_benchmark(CONFIG, [*given, *changes])


def parser() -> cli.Parser:
    """The flags of this job."""
    found = cli.Parser(__doc__ or "")
    found.add_argument("--warehouse", required=True, help="directory of the tables; what was run stays")
    found.add_argument(
        "--loops", type=cli.numbers, default=(0.3, 0.9), help="strengths of the loop (default 0.3,0.9)"
    )
    found.add_argument("--propensities", default=",".join(PROPENSITIES), help="methods, comma-separated")
    found.add_argument(
        "--users", type=cli.counts, default=(50, 400), help="users of a group, comma-separated"
    )
    found.add_argument("--metric", default="recall@10", help="which number (default recall@10)")
    found.add_argument("--picture", type=Path, help="where to draw it: a .svg or .png file")
    found.add_argument("--set", action="append", default=[], metavar="A.B=C", help="replace one setting")
    found.add_argument("--dry-run", action="store_true", help="say what would be run")
    return found


def main(args: argparse.Namespace) -> int:
    """Run the nights, deal the users into groups, compare with the truth."""
    settings = [Setting(loop, name) for loop in args.loops for name in args.propensities.split(",")]
    benchmarks = [setting.benchmark(args.set) for setting in settings]
    if args.dry_run:
        print("\n".join(benchmark.name for benchmark in benchmarks))
        return OK
    store, journal = Store(get_session("recbench-spark study"), args.warehouse), Journal()
    sizes = list(args.users)
    parts = []
    for setting, benchmark in zip(settings, benchmarks, strict=True):
        journal.say(benchmark.name)
        outcome = run_night(store, benchmark, DAY, journal)
        if outcome.failed:
            return FAILED
        night = open_night(store, benchmark, DAY)
        found = pd.concat(estimates_of(night, sizes), ignore_index=True)
        parts.append(found.assign(loop=setting.loop, propensities=setting.propensities))
    drop_scratch(store)
    rows = pd.concat(parts, ignore_index=True)
    rows = rows[[f"{row.metric}@{row.k:g}" == args.metric for row in rows.itertuples()]]
    if rows.empty:
        raise ConfigError(f"nothing was estimated of {args.metric}", "a metric of the file, as ndcg@10")
    table = summary(rows)
    print(table.to_string(index=False, float_format=lambda value: f"{value:.3f}"))
    if args.picture:
        draw(table, args.metric).savefig(args.picture)
    return OK


# ------------------------------------------------------------------------------- estimates


def estimates_of(night: Night, sizes: list[int]) -> Iterator[pd.DataFrame]:
    """Every estimate of every group, with the truth beside it, model by model."""
    asked = night.plan()
    assert night.exposure is not None
    plan = make_plan(night.exposure, asked, night.benchmark.headline)
    for run in tonight(night):
        rankings = night.store.of_run("rankings", run.run_id).drop("slices")
        rankings = rankings.withColumn("slices", F.create_map().cast("map<string,array<string>>"))
        open_loop = metrics.metrics(rankings.where("part = 'open_loop'"), asked).toPandas()
        truth = open_loop.set_index(["metric", "k"]).value.rename("truth")
        for size in sizes:
            groups = grouped(rankings.where("part = 'test'"), size)
            found = _rows(groups, plan, metrics.metrics(groups, asked))
            yield found.join(truth, on=["metric", "k"]).assign(model=run.model, users=size)


def grouped(rankings: DataFrame, size: int) -> DataFrame:
    """The users dealt into groups of about this size, each a part of its own."""
    count = max(2, rankings.count() // size)
    group = F.pmod(F.shiftright("user_key", 7), F.lit(count))
    return rankings.withColumn("part", F.concat(F.lit("group "), group.cast("string")))


def _rows(groups: DataFrame, plan: debiased.Plan, holdout: DataFrame) -> pd.DataFrame:
    """The estimates of all groups; the weights of the whole part bound those of each."""
    names = [row.part for row in groups.select("part").distinct().collect()]
    of_groups = replace(plan, weights=dict.fromkeys(names, plan.weights["test"]))
    corrected = debiased.estimates(groups, of_groups).drop("replicates")
    rows = holdout.unionByName(corrected).where("metric <> 'dcg'")
    kept = rows.select("part", "metric", "k", "estimator", "value", "ci_low", "ci_high")
    found: pd.DataFrame = kept.toPandas()
    return found


# ------------------------------------------------------------------------------- against the truth


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Bias and spread (means over models), root mean square error, coverage, and pairs put in order."""
    rows = rows.dropna(subset=["value"]).assign(
        error=lambda r: r.value - r.truth,
        covered=lambda r: (r.ci_low <= r.truth) & (r.truth <= r.ci_high),
    )
    key = ["loop", "propensities", "users", "estimator"]
    of_models = rows.groupby([*key, "model"]).agg(
        bias=("error", "mean"),
        spread=("error", "std"),
        rmse=("error", lambda e: float((e**2).mean() ** 0.5)),
        coverage=("covered", "mean"),
    )
    table = of_models.groupby(key).mean().join(_pairs_in_order(rows, key)).reset_index()
    table["estimator"] = pd.Categorical(table.estimator, ORDER)
    # The holdout knows no propensities.
    known = (table.estimator != "holdout") | (table.propensities == table.propensities.iloc[0])
    ordered: pd.DataFrame = table[known].sort_values(key, ignore_index=True)
    return ordered


def _pairs_in_order(rows: pd.DataFrame, key: list[str]) -> pd.Series:
    """Share of pairs of models that a group's estimates put in the order of the truth."""
    pairs = rows.merge(rows, on=[*key, "part"], suffixes=("", "_2"))
    pairs = pairs[pairs.model < pairs.model_2]
    agree = (pairs.value - pairs.value_2) * (pairs.truth - pairs.truth_2) > 0
    share: pd.Series = pairs.assign(in_order=agree).groupby(key).in_order.mean()
    return share


def draw(table: pd.DataFrame, metric: str) -> Figure:
    """Bias, with one spread to either side, by estimator: a panel for each loop and size of group."""
    loops, sizes = sorted(table.loop.unique()), sorted(table.users.unique())
    figure = Figure(figsize=(3.6 * len(loops), 2.8 * len(sizes)), layout="constrained")
    panels = figure.subplots(len(sizes), len(loops), sharex=True, sharey=True, squeeze=False)
    for row, size in enumerate(sizes):
        for column, loop in enumerate(loops):
            panel = panels[row, column]
            panel.axvline(0, color="0.6", linewidth=1)
            panel.set_title(f"loop {loop:g}, {size} users", fontsize=10)
            _draw_panel(panel, table[(table.loop == loop) & (table.users == size)])
    handles, names = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper right", ncols=len(names), fontsize=8, frameon=False)
    figure.supxlabel(f"bias of {metric}, and one standard deviation", fontsize=10)
    return figure


def _draw_panel(panel, rows: pd.DataFrame) -> None:  # type: ignore[no-untyped-def]
    names = [name for name in ORDER if name in set(rows.estimator)]
    for n, (propensities, some) in enumerate(rows.groupby("propensities", sort=False)):
        places = [names.index(name) + 0.2 * (n - 1) for name in some.estimator]
        panel.errorbar(some.bias, places, xerr=some.spread, fmt="o", markersize=3, label=propensities)
    panel.set_yticks(range(len(names)), names, fontsize=8)
    panel.set_ylim(len(names) - 0.5, -0.5)


if __name__ == "__main__":
    cli.run(main, parser())
