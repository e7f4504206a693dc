"""Options of `evaluate`, with their checks.

One model serves the function's keywords and the job's flags. It imports no engine: flags are answered
before any part of an evaluation is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, Literal, cast

from recbench_spark.config import DEFAULT_METRICS, Bootstrap, CandidateDraw, parse
from recbench_spark.core.metric_names import Figures, read_figures, translate_name
from recbench_spark.errors import ConfigError, nearest, show_value

ENGINES = ("auto", "local", "spark")

SIMILARITIES = ("dot", "cosine")

KINDS = ("lists", "scores", "embeddings", "predictions")
"""System outputs to evaluate."""

PAIR_COLUMNS = ("user_id", "item_id")

TABLE_COLUMNS = {
    "features": ("item_id", "vector"),
    "item_groups": ("item_id",),
    "items": ("item_id", "vector"),
    "user embeddings": ("user_id", "vector"),
    "item embeddings": ("item_id", "vector"),
    "pairs": ("query_id", "item_id"),
    "user_groups": ("user_id",),
}
"""Required columns for tables with others than PAIR_COLUMNS."""


def table_columns(name: str) -> tuple[str, ...]:
    """Return the columns a table must have.

    name: `lists` or `lists of als`, for instance.
    """
    return TABLE_COLUMNS.get(name.partition(" of ")[0], PAIR_COLUMNS)


@dataclass(frozen=True)
class EvaluationRequest:
    """The options; `evaluate.evaluate` documents each."""

    features_name: str = "given"
    k: Sequence[int] | int = (1, 3, 5, 10, 20)
    metrics: Sequence[Any] | str = DEFAULT_METRICS
    preset: str | None = None
    definition: Mapping[str, Any] | None = None
    similarity: Literal["dot", "cosine"] = "dot"
    bootstrap: Bootstrap | Mapping[str, Any] | int | None = None
    uncut: bool = True
    draw: CandidateDraw | Mapping[str, Any] | None = None
    figures: Figures = ()
    """Metrics named with a cut-off; nothing else is reported about them."""
    left_out: tuple[str, ...] = ()
    """Metrics in bundles whose inputs are not given."""


Expand = Callable[[Iterable[object]], tuple[tuple[object, ...], tuple[str, ...]]]
"""Replaces bundles of metrics by names: `metrics.kernels.about.expand_families`."""


def normalize_types(request: EvaluationRequest, expand: Expand) -> EvaluationRequest:
    """Return the options with cut-offs and metrics as tuples.

    So iterators are read only once. A single cut-off or metric is a collection of one. Metrics get our
    names, and cut-offs as in `ndcg@10` are in `figures` and among the cut-offs; they are all cut-offs where
    the caller names none.

    Raises:
        ConfigError: an option has a wrong type, or a bundle is unknown.
    """
    request = _widen_single_values(request)
    check_plural(request)
    for name, choices in (("uncut", (False, True)), ("similarity", SIMILARITIES)):
        require_choice(name, getattr(request, name), choices)
    if not isinstance(request.features_name, str):
        raise ConfigError(f"features_name is {show_value(request.features_name)}", "give a string")
    # A set has no fixed order.
    ordered = sorted(request.metrics, key=str) if isinstance(request.metrics, Set) else request.metrics
    listed, left_out = expand(ordered)
    metrics, figures = read_figures(listed)
    # The default is compared by identity: a caller may name the same cut-offs.
    named = () if figures and request.k is EvaluationRequest.k else tuple(cast(Sequence[int], request.k))
    ks = (*named, *(k for _, k in figures if k not in named))
    whole = {translate_name(name) for name in listed if isinstance(name, str) and "@" not in name}
    alone = tuple(figure for figure in figures if figure[0] not in whole)
    return replace(request, k=ks, metrics=cast(tuple[str, ...], metrics), figures=alone, left_out=left_out)


def _widen_single_values(request: EvaluationRequest) -> EvaluationRequest:
    """Return options with single values as collections of one.

    Cut-offs and metrics may be single values.
    """
    is_count = isinstance(request.k, Integral) and not isinstance(request.k, bool)
    k = (int(cast(int, request.k)),) if is_count else request.k
    metrics = (request.metrics,) if isinstance(request.metrics, str | Mapping) else request.metrics
    return replace(request, k=cast(Sequence[int], k), metrics=metrics)


def check_plural(request: EvaluationRequest) -> None:
    """Refuse single values for cut-offs, metrics or axes.

    Raises:
        ConfigError: k or metrics is a single value, or definition is no mapping.
    """
    if is_single(request.k):
        raise ConfigError(f"k is {show_value(request.k)}", "give cut-offs, such as k=10 or k=(5, 10)")
    if is_single(request.metrics):
        hint = "give names, such as metrics='ndcg@10' or metrics=['ndcg', 'recall']"
        raise ConfigError(f"metrics is {show_value(request.metrics)}", hint)
    if request.definition is not None and not isinstance(request.definition, Mapping):
        raise ConfigError(
            f"definition is {show_value(request.definition)}",
            "give its axes, such as definition={'gain': 'linear'}",
        )


def is_single(value: object) -> bool:
    """Tell whether a value is no collection.

    A text counts as one value, and so does a type.
    """
    return isinstance(value, str | bytes | type) or not isinstance(value, Iterable)


def require_choice(name: str, value: object, choices: Sequence[str | bool]) -> None:
    """Refuse a value outside the choices.

    Raises:
        ConfigError: with the nearest choice.
    """
    # Types are compared first: `==` on an array has no single answer, and 1 equals True.
    if not any(isinstance(value, type(choice)) and value == choice for choice in choices):
        raise ConfigError(f"{name} is {show_value(value)}", nearest(str(value), map(str, choices)))


def make_bootstrap(value: Bootstrap | Mapping[str, Any] | int | None, where: str = "") -> Bootstrap:
    """Return bootstrap settings.

    The default for None, no replicates for 0 and False, else as many as given.

    Args:
        value: settings, or a number of replicates.
        where: the number's name in errors.

    Raises:
        ConfigError: anything else, or a setting forbidden by `Bootstrap`.
    """
    if value is None or value is True:
        return Bootstrap()
    if isinstance(value, Bootstrap):
        return value
    if isinstance(value, Mapping):
        return parse(Bootstrap, _plain_settings(value, "bootstrap"), "bootstrap")
    if not isinstance(value, Integral):
        hint = "give Bootstrap(replicates=1000), a number, or 0"
        raise ConfigError(f"bootstrap is {show_value(value)}", hint)
    return parse(Bootstrap, {"replicates": int(value)}, where or f"bootstrap={value}")


def make_draw(value: CandidateDraw | Mapping[str, Any] | None) -> CandidateDraw | None:
    """Return settings for drawn candidates.

    Keys and values are checked like those in a benchmark file.

    Raises:
        ConfigError: anything else, or a setting forbidden by `CandidateDraw`.
    """
    if value is None or isinstance(value, CandidateDraw):
        return value
    if isinstance(value, Mapping):
        return parse(CandidateDraw, _plain_settings(value, "draw"), "draw")
    raise ConfigError(f"draw is {show_value(value)}", "give Draw(n=100), or leave it out")


def _plain_settings(settings: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return a copy of settings with plain values.

    Pydantic alone would accept a pandas series with one number as a number.

    Raises:
        ConfigError: no config file could hold a value.
    """
    for name, value in settings.items():
        if not isinstance(value, str | Real | tuple | list | None):
            raise ConfigError(f"{what}: {name} is {show_value(value)}", "give a number or a string")
    return dict(settings)
