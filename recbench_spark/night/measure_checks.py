"""Check a benchmark file's metrics, headline and differences.

This needs neither a model nor Spark.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from recbench_spark.analyses.curves.curve_batches import CurvePlan
from recbench_spark.analyses.curves.learning_curves import CurveRequest
from recbench_spark.config import CURVE_METRIC, MANDCG, Benchmark, Evaluation, LearningCurve
from recbench_spark.core.definitions import Definition
from recbench_spark.errors import ConfigError, nearest
from recbench_spark.metrics.accuracy import MetricPlan, check_names
from recbench_spark.metrics.beyond_accuracy import LIST_METRICS
from recbench_spark.metrics.kernels.about import figure_range
from recbench_spark.metrics.kernels.accuracy import METRICS
from recbench_spark.metrics.kernels.predictions import VALUE_METRICS
from recbench_spark.splits.kernels.prefixes import PrefixRule


def parse_headline(benchmark: Benchmark) -> tuple[str, int | None]:
    """Return the headline's metric and cut-off.

    A cut-off of None means the whole ranking, or a metric without a cut-off.
    """
    metric, _, k = benchmark.headline.partition("@")
    return metric, int(k) if k else None


def make_metric_plan(evaluation: Evaluation, definition: Definition) -> MetricPlan:
    """Plan the ranking metrics in a benchmark file.

    Raises:
        ConfigError: the plan is impossible.
    """
    features = Path(evaluation.features).stem if evaluation.features else None
    table = evaluation.item_groups
    names = (Path(table.path).stem, table.column, table.weight) if table else ()
    return MetricPlan.checked(
        evaluation.metrics,
        evaluation.cutoffs,
        definition,
        evaluation.bootstrap,
        features,
        uncut=evaluation.uncut,
        item_groups=".".join(filter(None, names)) or None,
    )


def make_curve_plan(evaluation: Evaluation, definition: Definition) -> CurvePlan:
    """Plan a benchmark file's learning curves.

    Raises:
        ConfigError: curves cannot have this definition.
    """
    curve = evaluation.learning_curve
    assert curve is not None
    rule = PrefixRule(curve.points, curve.test, curve.minimum, curve.users)
    metrics = tuple(name for name in evaluation.metrics if name in METRICS)
    request = CurveRequest(rule, metrics, evaluation.cutoffs, definition, evaluation.uncut)
    definitions = {name: describe_curve(curve, definition, name) for name in metrics}
    draws = curve.draws if curve.order == "hash" else 0
    return CurvePlan(request, definitions, draws, curve.seed, curve.describe())


def describe_curve(curve: LearningCurve, definition: Definition, metric: str) -> str:
    """Return a metric's definition string along a curve."""
    return f"{definition.describe(METRICS[metric].axes)};{curve.describe()}"


def check_measures(benchmark: Benchmark) -> None:
    """Check metrics, definition and headline, for any job.

    Raises:
        ConfigError: an unknown metric, axis or preset; a metric without a value at its cut-off.
    """
    evaluation = benchmark.evaluation
    if evaluation.task == "rating":
        check_names(evaluation.metrics, evaluation.task)
    else:
        make_metric_plan(evaluation, evaluation.resolve())
    for model in benchmark.models:
        for figure in getattr(model, "figures", {}):
            _check_figure(figure, f"models.{model.name}.figures")
    _check_headline(benchmark)
    _check_differences(benchmark)


def _check_figure(figure: str, where: str) -> None:
    """Refuse an unknown metric or a wrong cut-off in `metric@k`.

    A metric may have no value with (or without) a cut-off.
    """
    name, _, k = figure.partition("@")
    known = (*METRICS, *LIST_METRICS, *VALUE_METRICS, MANDCG)
    if name not in known:
        raise ConfigError(f"{where}: {figure}: no such metric", nearest(name, known))
    measured = CURVE_METRIC if name == MANDCG else name
    cuts = METRICS[measured].cuts if measured in METRICS else "k" if name in LIST_METRICS else "uncut"
    if k and cuts == "uncut":
        raise ConfigError(f"{where}: {figure}: {name} has no cut-off", f"write {name}")
    if not k and cuts == "k":
        raise ConfigError(f"{where}: {figure}: {name} needs a cut-off", f"write {name}@10")


def _check_headline(benchmark: Benchmark) -> None:
    """Check that the headline is measurable or published.

    A night need not measure the headline's metric. Its cut-off, if the file names one, must be measured.
    """
    headline, evaluation = benchmark.headline, benchmark.evaluation
    _check_figure(headline, "headline")
    published = {figure for model in benchmark.models for figure in getattr(model, "figures", {})}
    k = parse_headline(benchmark)[1]
    if "headline" not in benchmark.model_fields_set or headline in published or k is None:
        return
    if k not in evaluation.cutoffs:
        near = min(evaluation.cutoffs, key=lambda cut: abs(cut - k))
        message = f"headline {headline}: nothing is measured at {k}, evaluation.k is {list(evaluation.k)}"
        raise ConfigError(
            message, f"headline: {headline.partition('@')[0]}@{near}, or add {k} to evaluation.k"
        )


def _check_differences(benchmark: Benchmark) -> None:
    """Refuse a smallest difference, and a fall, larger than possible.

    The metrics are those in the file.
    """
    comparisons, evaluation = benchmark.comparisons, benchmark.evaluation
    if comparisons is not None:
        compared = comparisons.metrics or evaluation.all_metrics
        widest = max(compared, key=partial(_range_width, evaluation))
        _check_difference(
            "comparisons.minimum_difference", comparisons.minimum_difference, evaluation, widest
        )
    for number, rule in enumerate(benchmark.regressions):
        for name in ("drop", "rise"):
            value = getattr(rule, name)
            if value is not None:
                _check_difference(f"regressions.{number}.{name}", value, evaluation, rule.metric)
        if rule.sequential and max(map(abs, _find_range(evaluation, rule.metric))) > 1:
            message = f"regressions.{number}.sequential: values of {rule.metric} can be beyond 1"
            raise ConfigError(message, "give certain: true, or a metric between -1 and 1")


def _check_difference(where: str, value: float, evaluation: Evaluation, metric: str) -> None:
    width = _range_width(evaluation, metric)
    if value > width:
        message = f"{where} is {value:g}, and two values of {metric} are at most {width:g} apart"
        raise ConfigError(message, "give a smaller one, such as 0.01")


def _range_width(evaluation: Evaluation, metric: str) -> float:
    """Return the largest difference between two values of a metric.

    The cut-offs are the file's.
    """
    low, high = _find_range(evaluation, metric)
    return high - low


def _find_range(evaluation: Evaluation, metric: str) -> tuple[float, float]:
    return figure_range(f"{metric}@{max(evaluation.cutoffs)}")
