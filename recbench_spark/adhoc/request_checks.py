"""Checks of the options of an evaluation, made before any row is read, the same for both engines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Literal

import numpy as np

from recbench_spark.checks import Check, warn_above_zero
from recbench_spark.config import DEFAULT_METRICS, Bootstrap, CandidateDraw, parse
from recbench_spark.definitions import Definition, make_definition
from recbench_spark.errors import ConfigError, nearest, show_value
from recbench_spark.evaluation.metrics.accuracy import MetricPlan
from recbench_spark.evaluation.metrics.beyond_accuracy import DIVERSITY
from recbench_spark.evaluation.ranking.request import SAMPLED
from recbench_spark.kernels.metrics.beyond_accuracy import POPULARITY


@dataclass(frozen=True)
class EvaluationRequest:
    """The options of `evaluate.evaluate`, which documents each of them."""

    features_name: str = "given"
    k: Sequence[int] = (1, 3, 5, 10, 20)
    metrics: Sequence[str] = DEFAULT_METRICS
    preset: str | None = None
    definition: Mapping[str, Any] | None = None
    similarity: Literal["dot", "cosine"] = "dot"
    bootstrap: Bootstrap | Mapping[str, Any] | int | None = None
    uncut: bool = True
    draw: CandidateDraw | Mapping[str, Any] | None = None


@dataclass(frozen=True)
class EvaluationPlan:
    """A checked evaluation: the output of a system, and how it is evaluated.

    kind: lists, scores or embeddings; system: the tables of that kind; metric_plan: metrics and definition;
    has_explicit_gain: the caller chose the gain of a relevance.
    """

    kind: str
    system: Any
    metric_plan: MetricPlan
    similarity: Literal["dot", "cosine"]
    draw: CandidateDraw
    has_explicit_gain: bool = True

    @property
    def definition(self) -> Definition:
        """Return the definition of the metrics."""
        return self.metric_plan.definition

    @property
    def lists(self) -> bool:
        """Return whether the system's output is lists, which may leave out items."""
        return self.kind == "lists"

    @property
    def candidates(self) -> str | None:
        """Return the candidate mode of embeddings; None for lists and scores, which are the candidates."""
        return self.definition.candidates if self.kind == "embeddings" else None


def check_request(
    request: EvaluationRequest,
    *,
    lists: Any,
    scores: Any,
    embeddings: Any,
    train: Any,
    candidates: Any,
    features: Any,
) -> EvaluationPlan:
    """Check the options against the tables of the call.

    Raises:
        ConfigError: not exactly one of lists, scores, embeddings; an option that a function below refuses.
    """
    kind, system = select_system(lists=lists, scores=scores, embeddings=embeddings)
    request = normalize_types(request)
    definition, name = make_definition(request.preset, request.definition), request.features_name
    plan = MetricPlan.checked(
        request.metrics,
        request.k,
        definition,
        make_bootstrap(request.bootstrap),
        None if features is None else name,
        uncut=request.uncut,
    )
    check_candidates(definition, kind == "embeddings", candidates is not None, train is not None)
    check_needs(plan.metrics, train is not None, features is not None)
    gain_is_explicit = request.preset is not None or "gain" in (request.definition or {})
    return EvaluationPlan(
        kind, system, plan, request.similarity, make_draw(request.draw) or CandidateDraw(), gain_is_explicit
    )


def normalize_types(request: EvaluationRequest) -> EvaluationRequest:
    """Return the options with cut-offs and metrics as tuples, so that iterators are read only once.

    Raises:
        ConfigError: an option is of a type that it cannot have.
    """
    check_plural(request)
    for name, choices in (("uncut", (False, True)), ("similarity", ("dot", "cosine"))):
        require_choice(name, getattr(request, name), choices)
    if not isinstance(request.features_name, str):
        raise ConfigError(f"features_name is {show_value(request.features_name)}", "give a text")
    # The order of a set is chance.
    metrics = sorted(request.metrics, key=str) if isinstance(request.metrics, Set) else request.metrics
    return replace(request, k=tuple(request.k), metrics=tuple(metrics))


def check_plural(request: EvaluationRequest) -> None:
    """Refuse a single value where cut-offs, metrics or axes are a collection.

    Raises:
        ConfigError: k or metrics is a single value, or definition is no mapping.
    """
    if is_single(request.k):
        raise ConfigError(f"k is {show_value(request.k)}", "give several cut-offs, such as k=(5, 10)")
    if is_single(request.metrics):
        text = isinstance(request.metrics, str) and request.metrics
        name, _, k = (text or "ndcg").partition("@")
        at = f" and k=({k},)" if k else ""
        hint = f"give several names, such as metrics=[{name!r}]{at}"
        raise ConfigError(f"metrics is {show_value(request.metrics)}", hint)
    if request.definition is not None and not isinstance(request.definition, Mapping):
        raise ConfigError(
            f"definition is {show_value(request.definition)}",
            "give its axes, such as definition={'gain': 'linear'}",
        )


def is_single(value: object) -> bool:
    """Return whether a value is no collection; a text counts as one value, and so does a type."""
    return isinstance(value, str | bytes | type) or not isinstance(value, Iterable)


def require_choice(name: str, value: object, choices: Sequence[str | bool]) -> None:
    """Refuse a value that is none of the choices.

    Raises:
        ConfigError: with the nearest choice.
    """
    # Types are compared first: `==` of an array has no single answer, and 1 equals True.
    if not any(isinstance(value, type(choice)) and value == choice for choice in choices):
        raise ConfigError(f"{name} is {show_value(value)}", nearest(str(value), map(str, choices)))


def make_bootstrap(value: Bootstrap | Mapping[str, Any] | int | None) -> Bootstrap:
    """Return bootstrap settings: the default for None, no replicates for 0 and False, else that many.

    Raises:
        ConfigError: anything else, or a setting that `Bootstrap` does not allow.
    """
    if value is None or value is True:
        return Bootstrap()
    if isinstance(value, Bootstrap):
        return value
    if isinstance(value, Mapping):
        return parse(Bootstrap, _plain_settings(value, "bootstrap"), "bootstrap")
    if not isinstance(value, int | np.integer):
        hint = "give Bootstrap(replicates=1000), a number, or 0"
        raise ConfigError(f"bootstrap is {show_value(value)}", hint)
    return parse(Bootstrap, {"replicates": int(value)}, f"bootstrap={value}")


def make_draw(value: CandidateDraw | Mapping[str, Any] | None) -> CandidateDraw | None:
    """Return the settings of the draw; keys and values are checked like those of a benchmark file.

    Raises:
        ConfigError: anything else, or a setting that `Draw` does not allow.
    """
    if value is None or isinstance(value, CandidateDraw):
        return value
    if isinstance(value, Mapping):
        return parse(CandidateDraw, _plain_settings(value, "draw"), "draw")
    raise ConfigError(f"draw is {show_value(value)}", "give Draw(n=100), or leave it out")


def _plain_settings(settings: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return a copy of settings whose values a config file could hold.

    Pydantic alone would accept a pandas series of one number as a number.

    Raises:
        ConfigError: a value that no config file could hold.
    """
    for name, value in settings.items():
        if not isinstance(value, str | Real | tuple | list | None):
            raise ConfigError(f"{what}: {name} is {show_value(value)}", "give a number or a text")
    return dict(settings)


GRADES_WITHOUT_GAIN = "relevance without a gain"
"""Name of the check of graded relevance without an explicit gain: each grade counts 1."""


def gain_checks(plan: EvaluationPlan, grades: Sequence[float]) -> list[Check]:
    """Return a warning where the truth has grades without an explicit gain, so that each counts 1.

    Args:
        plan: the evaluation; only DCG has a gain.
        grades: the lowest and the highest relevance of the truth; empty where it has none.
    """
    graded = len(grades) and (grades[0] != grades[-1] or grades[-1] != 1) and grades[-1] > 0
    if plan.has_explicit_gain or not graded or not {"ndcg"} & {*plan.metric_plan.metrics}:
        return []
    detail = (
        f"the truth has grades up to {grades[-1]:g}, and each relevant item counts 1: write "
        "definition.gain=linear (or exponential) for grades, definition.gain=binary where 1 is meant"
    )
    return [warn_above_zero(GRADES_WITHOUT_GAIN, grades[-1], detail)]


def drawn_candidates_check(mode: str, draw: CandidateDraw, n_items: int) -> Check:
    """Return a check that records how candidates were drawn."""
    detail = f"{mode}, {draw.n} a {draw.per}, seed {draw.seed}, of {n_items} items"
    return Check("candidates drawn", draw.n, None, "info", detail)


def select_system(**systems: Any) -> tuple[str, Any]:
    """Return kind and tables of the output of the system.

    Raises:
        ConfigError: the call has none of them, or several.
    """
    present = [(name, value) for name, value in systems.items() if value is not None]
    if len(present) != 1:
        raise ConfigError("give exactly one of lists, scores, embeddings", "what the system handed over")
    return present[0]


def check_candidates(definition: Definition, embeddings: bool, candidates: bool, train: bool) -> None:
    """Check that a table of candidates and `candidates=given` come together, and only with embeddings.

    Raises:
        ConfigError: they do not, or candidates are drawn and there are no training rows.
    """
    if candidates and not embeddings:
        raise ConfigError("candidates are for embeddings", "lists and scores bring their own candidates")
    if embeddings and candidates != (definition.candidates == "given"):
        raise ConfigError(
            f"definition.candidates is {definition.candidates} {'with' if candidates else 'without'} a "
            "table of candidates",
            "a table of user_id, item_id and definition.candidates=given go together",
        )
    if embeddings and definition.candidates in SAMPLED and not train:
        raise ConfigError(
            f"definition.candidates is {definition.candidates} without training rows",
            "give train: items are drawn that a user has neither there nor in the truth",
        )


def check_needs(metrics: Sequence[str], train: bool, features: bool) -> None:
    """Check that each metric of lists has the tables that it is measured with.

    Raises:
        ConfigError: training rows or features are missing.
    """
    popular = [name for name in metrics if name in POPULARITY]
    if popular and not train:
        raise ConfigError(f"{popular[0]} needs the training rows", "give train (--train PATH)")
    if DIVERSITY in metrics and not features:
        raise ConfigError("diversity needs vectors of the items", "give features (--features PATH)")
