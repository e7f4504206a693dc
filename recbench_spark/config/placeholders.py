"""Fill `{logical_date}` into paths and days of a benchmark.

    models: [{name: ours, kind: lists, path: "s3://team/lists/{logical_date}"}]
    dataset: {path: "/logs/{logical_date:%Y/%m/%d}", until: "{logical_date}"}
    split: {holdout: period, start: "{logical_date}", length: 1d}

This happens before anything is read. `{logical_date}` becomes 2026-01-31. A format after a colon is one for
strftime, for whole days only. Hadoop's patterns, such as `{a,b}`, stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from typing import Any, TypeVar

from recbench_spark.config import Benchmark, Dataset, Split, Strict, gates_with_age, parse
from recbench_spark.core.calendar_spans import end_day
from recbench_spark.errors import ConfigError, nearest

S = TypeVar("S", bound=Strict)

PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)(?::([^{}]*))?\}")
KNOWN_NAMES = ("logical_date",)
DIRECTIVES = set("YymdjGVu")
"""Directives for strftime which give a day in digits, the same in every language."""

DATASET_FIELDS = ("path", "until", "options")
EVALUATION_FIELDS = ("candidates_path", "features")
PROPENSITY_FIELDS = ("path", "item_features", "user_features")


def fill_placeholders(benchmark: Benchmark, logical_date: date | None) -> Benchmark:
    """Return the benchmark with placeholders filled in.

    A growing log also gets its default age gate.

    Raises:
        ConfigError: a placeholder or format is unknown, or a placeholder has no night to name (None).
    """

    def fill(section: S, names: Sequence[str], where: str) -> S:
        values = {}
        for name in names:
            head, _, rest = name.partition(".")
            if rest:
                values[head] = fill(getattr(section, head), (rest,), f"{where}.{head}")
            elif hasattr(section, name):
                values[name] = _fill_value(getattr(section, name), logical_date, f"{where}.{name}")
        return section.model_copy(update=values)

    grouped = ("item_groups.path",) if benchmark.evaluation.item_groups else ()
    evaluation = fill(benchmark.evaluation, (*EVALUATION_FIELDS, *grouped), "evaluation")
    slices = tuple(fill(cut, ("path",), f"evaluation.slices.{cut.key}") for cut in evaluation.slices)
    exposure = evaluation.exposure
    if exposure:
        exposure = fill(exposure, ("rewards",), "evaluation.exposure")
        chances = fill(exposure.propensities, PROPENSITY_FIELDS, "evaluation.exposure.propensities")
        exposure = exposure.model_copy(update={"propensities": chances})
    shown = ("availability.path",) if benchmark.dataset.availability else ()
    dataset = fill(benchmark.dataset, (*DATASET_FIELDS, *shown), "dataset")
    log_end_micros(dataset)
    return benchmark.model_copy(
        update={
            "dataset": dataset,
            "gates": gates_with_age(benchmark),
            "split": _fill_start(benchmark.split, dataset, logical_date),
            "models": tuple(fill(model, model.paths, f"models.{model.name}") for model in benchmark.models),
            "evaluation": evaluation.model_copy(update={"slices": slices, "exposure": exposure}),
        }
    )


def _fill_start(split: Split, dataset: Dataset, day: date | None) -> Split:
    """Return the split with its `start` in UTC.

    A day begins at midnight in the dataset's zone.
    """
    if not isinstance(split.start, str):
        return split
    start = _fill_value(split.start, day, "split.start")
    hint = 'a day such as "{logical_date}", or a time such as "{logical_date}T06:00"'
    if "{" in start:
        raise ConfigError(f"split.start: '{start}' is not a time", hint)
    filled = parse(Split, split.model_dump() | {"start": start}, "split", ".")
    try:
        return filled.localise(dataset.zone)
    except ValueError as error:
        raise ConfigError(f"split.start: {error}", hint) from None


def _fill_value(value: Any, day: date | None, where: str) -> Any:
    if isinstance(value, dict):
        return {key: _fill_value(entry, day, f"{where}.{key}") for key, entry in value.items()}

    def fill(match: re.Match[str]) -> str:
        name, style = match.groups()
        if name not in KNOWN_NAMES:
            raise ConfigError(f"{where}: unknown placeholder '{match[0]}'", nearest(name, KNOWN_NAMES))
        if day is None:
            raise ConfigError(f"{where}: '{match[0]}' and no night to fill it in", "give --logical-date")
        return _format_day(day, style, f"{where}: '{match[0]}'")

    return PLACEHOLDER.sub(fill, value) if isinstance(value, str) else value


def _format_day(day: date, style: str | None, what: str) -> str:
    if style is None:
        return day.isoformat()
    unknown = {text[1:] for text in re.findall(r"%.?", style)} - DIRECTIVES
    if unknown or "%" not in style:
        raise ConfigError(
            f"{what}: not a format of a day", "e.g. {logical_date:%Y%m%d}; known: %Y %y %m %d %j %G %V %u"
        )
    return day.strftime(style)


def log_end_micros(dataset: Dataset) -> int | None:
    """Return the log's end in microseconds UTC, or None.

    The end is that of the day `dataset.until` in the dataset's zone. None: the log has no end.

    Raises:
        ConfigError: `until` is not a day.
    """
    if dataset.until is None:
        return None
    try:
        day = date.fromisoformat(dataset.until)
    except ValueError:
        hint = 'a day, or "{logical_date}"'
        raise ConfigError(f"dataset.until: '{dataset.until}' is not a day like 2026-01-31", hint) from None
    try:
        return end_day(day, dataset.zone)
    except OverflowError:
        hint = "leave dataset.until out where the log has no end"
        raise ConfigError(f"dataset.until: the calendar ends with {dataset.until}", hint) from None
