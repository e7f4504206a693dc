"""Properties of every benchmark file that is taken, whatever its settings are.

They share no rule with `recbench_spark.config`: a value may not be lost, made up or changed on its way, and
what was loaded loads again as the same settings. Bounds of single settings have tests in `tests/config`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from datetime import date, datetime
from typing import Any

from pydantic import BaseModel

from recbench_spark.config import Benchmark
from recbench_spark.config.loading import make_benchmark

TRUTH = {"true": 1, "yes": 1, "on": 1, "y": 1, "t": 1, "false": 0, "no": 0, "off": 0, "n": 0, "f": 0}
METRIC_NAMES = {"p": "precision", "prec": "precision", "hr": "hit", "rr": "mrr", "ap": "map"}
RESOLVED = ("evaluation.definition", "split.protocol", "dataset.world")
"""Sections whose names stand for other values: a preset, a protocol, a world."""

SECRETS = re.compile(r"://[^/@\s:]+:[^/@\s]+@|A[KS]IA[0-9A-Z]{16}|AIza[\w-]{35}")


def find_broken_property(document: Any, loaded: Benchmark) -> str | None:
    """Name the first property that a file and its settings do not have."""
    values = list_values(loaded)
    checks: tuple[Callable[[], Iterator[str]], ...] = (
        lambda: list_lost_keys(document, values),
        lambda: list_changed_values(document, values),
        lambda: list_unsafe_values(values),
        lambda: list_unstable_settings(loaded),
    )
    return next((problem for check in checks for problem in check()), None)


def list_values(settings: Any) -> Any:
    """Return the values of settings as mappings and lists."""
    if isinstance(settings, BaseModel):
        settings = vars(settings)
    if isinstance(settings, dict):
        return {key: list_values(value) for key, value in settings.items()}
    return list(map(list_values, settings)) if isinstance(settings, list | tuple) else settings


def list_lost_keys(document: Any, values: Any, place: str = "") -> Iterator[str]:
    """Yield keys of the document that no setting has; free mappings keep all of theirs."""
    if isinstance(document, dict) and isinstance(values, dict):
        for key, value in document.items():
            if str(key) in values or key in values:
                yield from list_lost_keys(value, values.get(key, values.get(str(key))), f"{place}{key}.")
            else:
                yield f"{place}{key}: was taken, and is no setting"
    elif isinstance(document, list) and isinstance(values, list):
        for number, (one, other) in enumerate(zip(document, values, strict=False)):
            yield from list_lost_keys(one, other, f"{place}{number}.")


def list_changed_values(document: Any, values: Any, place: str = "") -> Iterator[str]:
    """Yield values that were loaded as something else than what the document says."""
    if place.rstrip(".") in RESOLVED and not isinstance(document, dict):
        return
    if isinstance(document, dict) and isinstance(values, dict):
        for key in document:
            yield from list_changed_values(
                document[key], values.get(key, values.get(str(key))), f"{place}{key}."
            )
    elif isinstance(values, dict) and isinstance(document, int | float | str):  # one number for all
        yield from (
            one for key in values for one in list_changed_values(document, values[key], f"{place}{key}.")
        )
    elif isinstance(document, list | tuple | set) and isinstance(values, list | tuple):
        yield from _compare_lists(list(document), list(values), place)
    elif not same_value(document, values):
        yield f"{place.rstrip('.')}: {document!r} was loaded as {values!r}"


def _compare_lists(document: list[Any], values: list[Any], place: str) -> Iterator[str]:
    if place == "evaluation.k.":  # cut-offs are put in order
        document = sorted({float(k) for k in document})
    if place == "evaluation.metrics.":
        document = [METRIC_NAMES.get(name, name) for name in document]
    grown = place == "models." and len(values) > len(document)  # `retrieval` adds a model for each index
    if len(document) != len(values) and not grown:
        yield f"{place.rstrip('.')}: {document!r} was loaded as {values!r}"
    for number, (one, other) in enumerate(zip(document, values, strict=False)):
        yield from list_changed_values(one, other, f"{place}{number}.")


def same_value(written: Any, value: Any) -> bool:
    """Tell whether a scalar of YAML stands for a loaded value."""
    if isinstance(written, bytes):
        written = written.decode("utf-8", "replace")
    if isinstance(value, bool):
        return written is value or TRUTH.get(str(written).strip().lower(), written) == value
    if isinstance(value, int | float):
        return not isinstance(written, bool) and _read_number(written) == value
    if isinstance(written, datetime) and isinstance(value, datetime) and written.tzinfo and value.tzinfo:
        return written == value
    if isinstance(value, date | datetime):
        return str(written)[:10] == str(value)[:10]
    return written == value or str(written) == value


def _read_number(written: Any) -> float:
    try:
        return float(str(written).strip().replace("_", ""))
    except ValueError:  # no number: equal to none
        return math.nan


def list_unsafe_values(values: Any, place: str = "") -> Iterator[str]:
    """Yield numbers that are not finite, and texts with a secret or without a meaning in Unicode."""
    if isinstance(values, dict):
        for key, value in values.items():
            yield from list_unsafe_values(value, f"{place}{key}.")
    elif isinstance(values, list | tuple):
        for number, value in enumerate(values):
            yield from list_unsafe_values(value, f"{place}{number}.")
    elif isinstance(values, float) and not math.isfinite(values):
        yield f"{place}: {values} was taken"
    elif isinstance(values, str) and (SECRETS.search(values) or re.search("[\ud800-\udfff\0]", values)):
        yield f"{place}: {values!r} was taken"


def list_unstable_settings(loaded: Benchmark) -> Iterator[str]:
    """Yield a difference between settings and those that their own values load."""
    again = make_benchmark(loaded.model_dump(mode="json", exclude_unset=True), (), "again")
    if again != loaded:
        yield "its own values load other settings"
