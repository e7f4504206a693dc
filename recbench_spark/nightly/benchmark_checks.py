"""Checks of a benchmark file before Spark starts: measures, parts, slices, models, gates."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from recbench_spark.config import CURVE_METRIC, MANDCG, TABLE_READERS, Benchmark, Evaluation
from recbench_spark.config.models import ListsModel, ScoresModel
from recbench_spark.definitions import Definition
from recbench_spark.errors import ConfigError, nearest
from recbench_spark.evaluation.metrics.accuracy import MetricPlan, check_names
from recbench_spark.evaluation.metrics.beyond_accuracy import DIVERSITY, LIST_METRICS
from recbench_spark.evaluation.ranking.request import refuse_hashed_ties
from recbench_spark.kernels.metrics.about import figure_range
from recbench_spark.kernels.metrics.accuracy import METRICS
from recbench_spark.kernels.metrics.predictions import VALUE_METRICS
from recbench_spark.models.rating.kinds import RatingModelConfig
from recbench_spark.nightly.curve_context import make_curve_plan
from recbench_spark.nightly.split import (
    HELD_OUT_PARTS,
    check_open_loop,
    check_repeats,
    list_held_out_parts,
    list_made_parts,
)
from recbench_spark.training.model_adapter import make_adapter
from recbench_spark.training.retrieved import check_retrieval


def list_model_facts(benchmark: Benchmark) -> set[str]:
    """Return the facts that models of the benchmark report of themselves."""
    return {fact for model in benchmark.models for fact in model.facts}


def check_benchmark(benchmark: Benchmark) -> None:
    """Check all settings that can be checked before Spark starts.

    Raises:
        ConfigError: an unknown metric, axis or preset; a setting that needs another one.
    """
    evaluation, reader = benchmark.evaluation, benchmark.dataset.reader
    definition = evaluation.resolve()
    check_measures(benchmark)
    listed = evaluation.candidates_path or benchmark.dataset.lists_negatives
    if definition.candidates == "given" and not listed:
        raise ConfigError(
            "evaluation.candidates_path is missing, and definition.candidates is 'given'",
            "give a table of user_id, item_id",
        )
    if DIVERSITY in evaluation.metrics and not evaluation.features:
        raise ConfigError("metric diversity needs evaluation.features", "give a table of item_id, vector")
    if evaluation.exposure and evaluation.exposure.propensities.method == "true" and reader != "world":
        raise ConfigError("only the generated world knows its true propensities", "use another method")
    _check_parts(benchmark)
    check_open_loop(benchmark, definition)
    check_repeats(benchmark, definition)
    _check_gates(benchmark)
    for cut in evaluation.slices:
        if cut.of in ("users", "items") and not cut.path:
            raise ConfigError(f"slice {cut.key}: of '{cut.of}' needs 'path'", "give a table with the ids")
        known = benchmark.dataset.attributes
        if cut.of == "log" and reader in TABLE_READERS and (name := cut.column or cut.key) not in known:
            hint = f"{nearest(name, known)}; dataset.attributes lists what is kept of a log"
            raise ConfigError(f"evaluation.slices.{cut.key}: '{name}' is not in dataset.attributes", hint)
    for model in benchmark.models:
        model.check(reader)
    check_retrieval(benchmark.models, definition)
    _check_ties(benchmark, definition)
    if evaluation.learning_curve is not None:
        make_curve_plan(evaluation, definition)
        for model in benchmark.curve_models:
            make_adapter(model).check_prefixes()


def _check_ties(benchmark: Benchmark, definition: Definition) -> None:
    for model in benchmark.models:
        if not isinstance(model, ListsModel | ScoresModel):
            refuse_hashed_ties(definition, f"model {model.name}")


def check_night(benchmark: Benchmark) -> None:
    """Check a night before Spark starts; errors as `check_benchmark` and `check_ranking`."""
    check_benchmark(benchmark)
    check_ranking(benchmark)


def check_ranking(benchmark: Benchmark) -> None:
    """Check that all models of a night rank items, unless it predicts ratings.

    Raises:
        ConfigError: a model ranks nothing.
    """
    if benchmark.evaluation.task == "ranking":
        for model in benchmark.models:
            if isinstance(model, RatingModelConfig):
                make_adapter(model).check_ranking()


def _check_parts(benchmark: Benchmark) -> None:
    """Refuse a part that neither the split nor the log can have. Raises ConfigError."""
    dataset, split = benchmark.dataset, benchmark.split
    for part in benchmark.evaluation.parts:
        if part not in (known := list_held_out_parts(split)):
            raise ConfigError(
                f"evaluation.parts: the split does not hold out '{part}'", nearest(part, known)
            )
    if dataset.reader not in TABLE_READERS:  # the log of a table may name the parts of its rows
        require_parts(benchmark, READER_PARTS.get(dataset.reader, ()))


READER_PARTS = {
    "world": ("open_loop",),
    **dict.fromkeys(("netflix", "coat", "yahoo_r3", "lightgcn", "ncf"), HELD_OUT_PARTS),
}
"""Readers whose logs name the parts of some rows, and the held-out parts that these can be."""


def require_parts(benchmark: Benchmark, of_log: Sequence[str]) -> None:
    """Check that the split or the log has rows of each part that is evaluated.

    Args:
        benchmark: the file.
        of_log: held-out parts that the log itself may name.

    Raises:
        ConfigError: a part has no rows, whatever the log holds; or a model is to be shown the part valid of
            the users that are tested, and there is none.
    """
    split = benchmark.split
    made = (*list_made_parts(split), *(list_held_out_parts(split) if split.holdout == "given" else ()))
    for part in benchmark.evaluation.parts:
        if part not in made and part not in of_log:
            hint = "split.ratio: [0.7, 0.1, 0.2], or split.valid: true" if part == "valid" else ""
            message = f"evaluation.parts: neither the split nor the log has rows of '{part}'"
            raise ConfigError(message, hint or nearest(part, (*made, *of_log)))
    of_tested_users = split.parts if split.held_out else made
    for model in benchmark.models:
        if model.shows_validation and "valid" not in (*of_tested_users, *of_log):
            message = f"models.{model.name}: history 'with_valid', and users have no rows of the part valid"
            raise ConfigError(message, "history: train, or split.valid: true")


def parse_headline(benchmark: Benchmark) -> tuple[str, int | None]:
    """Return the headline's metric and cut-off.

    A cut-off of None means the whole ranking, or a metric without a cut-off.
    """
    metric, _, k = benchmark.headline.partition("@")
    return metric, int(k) if k else None


def make_metric_plan(evaluation: Evaluation, definition: Definition) -> MetricPlan:
    """Return the plan of the metrics of rankings in a benchmark file; ConfigError for an impossible one."""
    features = Path(evaluation.features).stem if evaluation.features else None
    return MetricPlan.checked(
        evaluation.metrics,
        evaluation.cutoffs,
        definition,
        evaluation.bootstrap,
        features,
        uncut=evaluation.uncut,
    )


def check_measures(benchmark: Benchmark) -> None:
    """Check metrics, definition and headline, for any job that uses the file.

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
    """Refuse `metric@k` if the metric is unknown, or has no value with (or without) a cut-off."""
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
    """Check that the headline is a figure that this file can measure, or a figure of a publication.

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
    """Refuse a smallest difference, and a fall, that no metric of the file can have."""
    comparisons, evaluation = benchmark.comparisons, benchmark.evaluation
    if comparisons is not None:
        compared = comparisons.metrics or evaluation.all_metrics
        widest = max(compared, key=partial(_range_width, evaluation))
        _check_difference(
            "comparisons.minimum_difference", comparisons.minimum_difference, evaluation, widest
        )
    for number, rule in enumerate(benchmark.regressions):
        _check_difference(f"regressions.{number}.drop", rule.drop, evaluation, rule.metric)


def _check_difference(where: str, value: float, evaluation: Evaluation, metric: str) -> None:
    width = _range_width(evaluation, metric)
    if value > width:
        message = f"{where} is {value:g}, and two values of {metric} are at most {width:g} apart"
        raise ConfigError(message, "give a smaller one, such as 0.01")


def _range_width(evaluation: Evaluation, metric: str) -> float:
    """Return the largest difference between two values of a metric at the cut-offs of the file."""
    low, high = figure_range(f"{metric}@{max(evaluation.cutoffs)}")
    return high - low


def _check_gates(benchmark: Benchmark) -> None:
    """Refuse a gate on drift without a model that reports drift: a split has no drift."""
    known = list_model_facts(benchmark)
    for gate in benchmark.gates:
        if gate.fact.startswith("drift") and gate.fact not in known:
            hint = nearest(gate.fact, known) if known else "a model of kind graph reports its drift"
            raise ConfigError(f"gates: no model reports the fact '{gate.fact}'", hint)
