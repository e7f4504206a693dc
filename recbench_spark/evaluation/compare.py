"""Compare models on the same users, outside a night.

Compared are their lists, results, or runs in a warehouse.

    import recbench_spark
    recbench_spark.compare({"als": als, "popular": popular}, truth, metrics="ndcg@10")
    recbench_spark.compare(["als", "popular"], warehouse="warehouse/demo")

Differences, tests and intervals are those in a night's comparisons (`evaluation.comparison`). Other
definitions, other parts and other held-out items cannot be compared and are refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from numbers import Integral, Real
from os import PathLike
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.analyses.comparisons.comparison import Comparison
from recbench_spark.analyses.comparisons.comparisons import find_largest
from recbench_spark.analyses.comparisons.differences import ComparedRun, ComparisonGroup, ComparisonPlan
from recbench_spark.analyses.comparisons.local_comparisons import (
    COMMON,
    ComparedRows,
    compare_tables,
    find_scales,
    make_slices,
)
from recbench_spark.config import Bootstrap
from recbench_spark.core.checks import Check, warn_above_zero
from recbench_spark.core.metric_names import Figures, read_figures, translate_name
from recbench_spark.core.resampling import FEW_USERS, count_fewest_users
from recbench_spark.errors import ConfigError, DataError, nearest, show_value
from recbench_spark.evaluation.compared_runs import (
    ModelRun,
    check_revisions,
    list_figures,
    read_results,
    read_tables,
    read_warehouse,
    refuse_other_limits,
    refuse_other_truth,
)
from recbench_spark.evaluation.options import is_single, make_bootstrap
from recbench_spark.evaluation.request_checks import list_given
from recbench_spark.metrics.kernels.about import NEEDS, best_when, expand_families
from recbench_spark.metrics.result import ShownTable
from recbench_spark.metrics.result_views import name_figure
from recbench_spark.sources.arrow_rows import as_table, encode_ids
from recbench_spark.sources.column_names import ColumnNames


def compare(  # noqa: PLR0913
    models: Any,
    truth: Any = None,
    *,
    baseline: str | None = None,
    metrics: Sequence[Any] | str | None = None,
    k: Sequence[int | None] | int | None = None,
    part: str | None = None,
    minimum: float = 0.0,
    bootstrap: Bootstrap | Mapping[str, Any] | int | None = None,
    slices: Any = None,
    warehouse: str | PathLike[str] | None = None,
    suite: str | None = None,
    **options: Any,
) -> Comparison:
    """Compare models with a baseline, paired by user.

    Only users of both models count; a user with several queries has their mean.

    Args:
        models: names and lists of models (with `truth`); names and results of `evaluate`, or one result
            with several models; with `warehouse` two or more runs, each a run id, MODEL or MODEL@NIGHT, or
            a dict of names and these.
        truth: the held-out items, as in `evaluate`.
        baseline: name of the model to compare all others with; None: the last one.
        metrics: metrics with a value for each user, or bundles of them as in `evaluate`; None: all common
            ones.
        k: cut-offs, None for the whole ranking; None: all common ones.
        part: part of the split; None: all common ones.
        minimum: the smallest difference that matters, for the verdicts.
        bootstrap: replicates, level and seed for bootstrap and randomisation test.
        slices: a table with user_id and label columns; differences are also given for each label.
        warehouse: folder, object storage, or catalog.schema with the runs.
        suite: the runs' suite, where models with one name are in several.
        options: further options of `evaluate`, for lists: preset, definition, columns, train ...

    Raises:
        ConfigError: fewer than two models; other definitions, parts or held-out items; nothing in common;
            rows weigh alike in the definition.
    """
    boot = _require_replicates(make_bootstrap(bootstrap))
    tables = {name: options.get(name) for name in NEEDS - {"uncut"}}
    given = NEEDS if truth is None else list_given(options.get("uncut"), **tables)
    wanted = _read_request(metrics, k, given)
    if warehouse is not None:
        _refuse_options(truth, options, "runs of a warehouse")
        runs, largest = read_warehouse(models, str(warehouse), suite)
    elif truth is not None:
        runs, largest = read_tables(models, truth, wanted.make_options(), options), None
    else:
        _refuse_options(truth, options, "results")
        runs, largest = read_results(models), None
    chosen = _order_runs(runs, baseline)
    refuse_other_truth(chosen)
    figures, checks = list_figures(chosen, wanted.select_metrics(chosen), part)
    _refuse_rows(figures)
    refuse_other_limits(chosen, figures)
    checks += check_revisions(chosen)
    rows = pa.concat_tables([run.select(figures) for run in chosen], promote_options="permissive")
    scales = find_scales(largest or find_largest(rows))
    numbers = wanted.choose(rows)
    plan = _make_plan(chosen, figures, numbers.ks, boot=boot, minimum=_read_minimum(minimum), scales=scales)
    compared = compare_tables(rows, plan, make_slices(rows, _read_labels(slices)), numbers.has)
    return _finish(compared, plan, checks)


# ------------------------------------------------------------------------------------------- request


@dataclass(frozen=True)
class ComparisonRequest:
    """Metrics and cut-offs to compare.

    figures: metrics named with a cut-off; whole: metrics named without one; bundled: metrics from bundles,
    compared where all models have their values.
    """

    metrics: tuple[str, ...] | None
    ks: tuple[int | None, ...] | None
    figures: Figures = ()
    whole: frozenset[str] = frozenset()
    bundled: frozenset[object] = frozenset()

    def select_metrics(self, runs: Sequence[ModelRun]) -> tuple[str, ...] | None:
        """Return named metrics, and bundled ones that all runs have."""
        lacking = {name for name in self.bundled if not all(name in run.definitions for run in runs)}
        return self.metrics and tuple(name for name in self.metrics if name not in lacking)

    def make_options(self) -> dict[str, Any]:
        """Return options by which `evaluate` gives these numbers."""
        options: dict[str, Any] = {}
        if self.metrics is not None:
            options["metrics"] = self.metrics
        ks = [k for k in (*(self.ks or ()), *(k for _, k in self.figures)) if k is not None]
        return options | ({"k": tuple(dict.fromkeys(ks))} if ks else {})

    def choose(self, rows: pa.Table) -> ChosenNumbers:
        """Choose the numbers to compare: requested ones, or all.

        All are those in some rows of `user_metrics`. A metric without values at cut-offs is compared over
        the whole ranking.

        Raises:
            ConfigError: no metric has values at a requested cut-off.
        """
        known = {
            metric: _find_cutoffs(rows, metric) for metric in pc.unique(rows.column("metric")).to_pylist()
        }
        every = set().union(*known.values())
        wanted = [(k, k in every) for k in self.ks or ()]
        wanted += [(k, k in known.get(metric, ())) for metric, k in self.figures]
        for k, is_known in wanted:
            if not is_known:
                names = ["the whole ranking" if one is None else str(one) for one in every]
                hint = f"known: {', '.join(sorted(names))}"
                raise ConfigError(f"k: no values at {show_value(k)} for every model", hint)
        pairs = [(metric, k) for metric, ks in known.items() for k in ks]
        return ChosenNumbers(frozenset(one for one in pairs if self._takes(*one, known[one[0]])))

    def _takes(self, metric: str, k: int | None, known: set[int | None]) -> bool:
        """Tell whether a number is compared.

        Metrics named with a cut-off are compared only there.
        """
        if metric not in self.whole and any(metric == name for name, _ in self.figures):
            return (metric, k) in self.figures
        return self.ks is None or k in self.ks or known == {None}


@dataclass(frozen=True)
class ChosenNumbers:
    """Metrics to compare, each with a cut-off."""

    pairs: frozenset[tuple[str, int | None]]

    @property
    def ks(self) -> tuple[int | None, ...]:
        """All cut-offs, the whole ranking last."""
        return tuple(sorted({k for _, k in self.pairs}, key=_sort_cutoffs))

    def has(self, metric: str, k: int | None) -> bool:
        """Tell whether a number is compared."""
        return (metric, k) in self.pairs


def _find_cutoffs(rows: pa.Table, metric: str) -> set[int | None]:
    """Return a metric's cut-offs with values in every run."""
    own = _select_metric(rows, metric)
    runs = pc.unique(rows.column("run_id")).to_pylist()
    lists = (own.filter(pc.equal(own.column("run_id"), run)).column("ks") for run in runs)
    return set.intersection(*(set(pc.unique(pc.list_flatten(one)).to_pylist()) for one in lists))


def _select_metric(rows: pa.Table, metric: str) -> pa.Table:
    return rows.filter(pc.equal(rows.column("metric"), metric))


def _sort_cutoffs(k: int | None) -> tuple[bool, int]:
    return k is None, k or 0


def _read_request(metrics: Any, k: Any, given: Set[str]) -> ComparisonRequest:
    """Read the call's metrics and cut-offs; `given`: inputs for bundles.

    Raises:
        ConfigError: metrics are no names; cut-offs are neither whole numbers from 1 on nor None.
    """
    ks = None if k is None else tuple(map(_read_cutoff, [k] if is_single(k) else k))
    if metrics is None:
        return ComparisonRequest(None, ks)
    single = (metrics,) if isinstance(metrics, str | Mapping) else ()
    entries = single if single or is_single(metrics) else tuple(metrics)
    listed, _ = expand_families(entries, given)
    if not listed or not all(isinstance(name, str) for name in listed):
        raise ConfigError(f"metrics is {show_value(metrics)}", "give names, such as metrics='ndcg@10'")
    names, figures = read_figures(listed)
    whole = frozenset(translate_name(str(name)) for name in listed if "@" not in str(name))
    bundled = frozenset(name for name in listed if name not in entries)
    return ComparisonRequest(tuple(map(str, names)), ks, figures, whole, bundled)


def _read_cutoff(k: Any) -> int | None:
    if k is None:
        return None
    if not isinstance(k, Integral) or isinstance(k, bool) or k < 1:
        raise ConfigError(f"k: {show_value(k)} is no cut-off", "give whole numbers from 1 on, or None")
    return int(k)


def _read_minimum(minimum: Any) -> float:
    is_number = isinstance(minimum, Real) and not isinstance(minimum, bool)
    if not is_number or not 0 <= float(minimum) < math.inf:
        raise ConfigError(f"minimum is {show_value(minimum)}", "give the smallest difference that matters")
    return float(minimum)


def _require_replicates(boot: Bootstrap) -> Bootstrap:
    if not boot.replicates:
        hint = "give a number from 1 on; a night takes 1000"
        raise ConfigError("bootstrap is 0, and a comparison is tested by resampling", hint)
    return boot


def _refuse_rows(figures: Mapping[str, str]) -> None:
    if any("weigh=rows" in definition.split(";") for definition in figures.values()):
        hint = "evaluate under definition.weigh=users: differences are of users, who are independent"
        raise ConfigError("definition.weigh is rows, and models are compared by users", hint)


def _refuse_options(truth: Any, options: Mapping[str, Any], what: str) -> None:
    stray = [*options, *([] if truth is None else ["truth"])]
    if stray:
        hint = "it is for lists with a truth; definitions and cut-offs stand in the numbers already"
        raise ConfigError(f"{stray[0]} is not used with {what}", hint)


def _order_runs(runs: Sequence[ModelRun], baseline: str | None) -> list[ModelRun]:
    """Return the runs with the baseline last.

    Raises:
        ConfigError: fewer than two runs, one run twice, or none with the baseline's name.
    """
    if len(runs) < 2:
        raise ConfigError(f"{len(runs)} models to compare", "give two or more, each with a name")
    names, run_ids = ([getattr(run, name) for run in runs] for name in ("name", "run_id"))
    twice = [run.name for run in runs if run_ids.count(run.run_id) > 1]
    if twice:
        raise ConfigError(f"{' and '.join(twice)} are one run", "name different runs")
    if baseline is not None and baseline not in names:
        raise ConfigError(f"baseline is {show_value(baseline)}", nearest(str(baseline), names))
    place = len(runs) - 1 if baseline is None else names.index(baseline)
    return [*runs[:place], *runs[place + 1 :], runs[place]]


def _read_labels(slices: Any) -> pa.Table | None:
    """Return the label table with ids as text.

    Raises:
        DataError: a user occurs twice.
    """
    if slices is None:
        return None
    table = ColumnNames().rename(as_table(slices, "slices"), "slices")
    ids = encode_ids(table, "user_id", "slices")[1].dictionary_decode()
    if pc.count_distinct(ids).as_py() < len(ids):
        raise DataError("slices: a user stands twice", "give one row for each user")
    return table.set_column(table.column_names.index("user_id"), "user_id", ids)


# ---------------------------------------------------------------------------------------------- plan


def _make_plan(
    runs: Sequence[ModelRun],
    figures: Mapping[str, str],
    ks: tuple[int | None, ...],
    *,
    boot: Bootstrap,
    minimum: float,
    scales: Mapping[str, float],
) -> ComparisonPlan:
    last = len(runs) - 1
    return ComparisonPlan(
        runs=tuple(ComparedRun(run.run_id, run.name, run.night) for run in runs),
        groups=tuple(ComparisonGroup(COMMON, (place, last)) for place in range(last)),
        metrics=tuple(figures),
        ks=ks,
        baselines={},
        bootstrap=boot,
        min_users=minimum,
        lower=best_when("small"),
        scales=scales,
    )


def _finish(compared: ComparedRows, plan: ComparisonPlan, checks: list[Check]) -> Comparison:
    rows, baseline = compared.differences, plan.runs[-1].model
    if not rows.num_rows:
        raise DataError("no user has a value in two of the models", "are these runs of one truth?")
    for run in plan.runs[:-1]:
        if run.model not in pc.unique(rows.column("model")).to_pylist():
            raise DataError(
                f"{run.model} and {baseline} have no users in common", "evaluate both on one truth"
            )
    settings = {
        **plan.bootstrap.model_dump(),
        "minimum_difference": plan.min_users,
        "metrics": list(plan.metrics),
    }
    return Comparison(
        ShownTable(_sort_rows(rows, plan)),
        ShownTable(compared.slices),
        _name_family(rows, baseline),
        [*checks, *_count_sides(rows), *_mark_few_users(rows, plan.bootstrap.level)],
        baseline,
        plan.lower,
        settings,
    )


def _sort_rows(rows: pa.Table, plan: ComparisonPlan) -> pa.Table:
    """Sort by part, metric and model as called, then cut-off."""
    models = [run.model for run in plan.runs]
    listed = rows.select(["part", "metric", "k", "model"]).to_pylist()
    keys = [
        (
            row["part"],
            plan.metrics.index(row["metric"]),
            row["k"] is None,
            row["k"] or 0,
            models.index(row["model"]),
        )
        for row in listed
    ]
    return rows.take(pa.array(sorted(range(len(keys)), key=keys.__getitem__), pa.int64()))


def _name_family(rows: pa.Table, baseline: str) -> str:
    """Describe the family of tests with jointly adjusted p-values.

    Each part has its own family.
    """
    listed = rows.to_pylist()
    texts = []
    for part in dict.fromkeys(row["part"] for row in listed):
        own = [row for row in listed if row["part"] == part]
        figures = dict.fromkeys(name_figure(row["metric"], row["k"]) for row in own)
        models = dict.fromkeys(row["model"] for row in own)
        number = own[0]["family"]
        texts.append(
            f"{number} t-tests of {', '.join(models)} with {baseline} on {', '.join(figures)} of {part}"
        )
    return "; ".join(texts)


def _count_sides(rows: pa.Table) -> list[Check]:
    """Return checks on users with values on one side alone.

    Each pair with such users has a check.
    """
    most: dict[tuple[str, str, str], tuple[int, int]] = {}
    for row in rows.to_pylist():
        key = (row["model"], row["other"], row["part"])
        before = most.get(key, (0, 0))
        most[key] = max(before[0], row["only_model"]), max(before[1], row["only_other"])
    return [
        Check(
            f"{part}: users of {model} or {other} alone", sum(sides), 0.0, "warning",
            f"{sides[0]} have a value of {model} alone, {sides[1]} of {other} alone: not compared",
        )
        for (model, other, part), sides in most.items()
        if any(sides)
    ]  # fmt: skip


def _mark_few_users(rows: pa.Table, level: float) -> list[Check]:
    """Return a warning where too few users are compared.

    "Too few" means: for an interval or a verdict.
    """
    users = rows.column("users").to_pylist()
    few = [n for n in users if n < FEW_USERS]
    if not few:
        return []
    needed = count_fewest_users(level)
    detail = (
        f"{min(few)} in the smallest: their intervals hold the true difference less often than they say"
    )
    if min(few) < needed:
        detail += f"; fewer than {needed} can show no difference at {level:g} and have no verdict"
    return [warn_above_zero(f"comparisons over fewer than {FEW_USERS} users", len(few), detail)]
