"""What is asked of an evaluation, checked before any row is read: the same for every engine."""

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
    """The options of `evaluate.evaluate`, which says what each is."""

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
    """What is evaluated and how, once it is known to make sense.

    kind, system: what was handed over; plan: metrics and the definition; gain_named: whether the caller
    says what a relevance is worth.
    """

    kind: str
    system: Any
    plan: MetricPlan
    similarity: Literal["dot", "cosine"]
    draw: CandidateDraw
    has_explicit_gain: bool = True

    @property
    def definition(self) -> Definition:
        """What the numbers mean."""
        return self.plan.definition

    @property
    def lists(self) -> bool:
        """Whether lists were handed over, which end somewhere."""
        return self.kind == "lists"

    @property
    def candidates(self) -> str | None:
        """Among which items a user's are ranked; None: lists and scores bring their own."""
        return self.definition.candidates if self.kind == "embeddings" else None


def check_request(
    asked: EvaluationRequest,
    *,
    lists: Any,
    scores: Any,
    embeddings: Any,
    train: Any,
    candidates: Any,
    features: Any,
) -> EvaluationPlan:
    """What is asked of the tables handed over.

    Raises:
        ConfigError: not exactly one of lists, scores, embeddings; what the functions below refuse.
    """
    kind, system = select_system(lists=lists, scores=scores, embeddings=embeddings)
    asked = normalize_types(asked)
    wanted, name = make_definition(asked.preset, asked.definition), asked.features_name
    plan = MetricPlan.checked(
        asked.metrics,
        asked.k,
        wanted,
        make_bootstrap(asked.bootstrap),
        None if features is None else name,
        uncut=asked.uncut,
    )
    check_candidates(wanted, kind == "embeddings", candidates is not None, train is not None)
    check_needs(plan.metrics, train is not None, features is not None)
    named = asked.preset is not None or "gain" in (asked.definition or {})
    return EvaluationPlan(
        kind, system, plan, asked.similarity, make_draw(asked.draw) or CandidateDraw(), named
    )


def normalize_types(asked: EvaluationRequest) -> EvaluationRequest:
    """Return the options, cut-offs and metrics as tuples: what can be read once alone is read here.

    Raises:
        ConfigError: an option is of a type that it cannot have.
    """
    check_plural(asked)
    for name, known in (("uncut", (False, True)), ("similarity", ("dot", "cosine"))):
        require_choice(name, getattr(asked, name), known)
    if not isinstance(asked.features_name, str):
        raise ConfigError(f"features_name is {show_value(asked.features_name)}", "give a text")
    # The order of a set is chance.
    metrics = sorted(asked.metrics, key=str) if isinstance(asked.metrics, Set) else asked.metrics
    return replace(asked, k=tuple(asked.k), metrics=tuple(metrics))


def check_plural(asked: EvaluationRequest) -> None:
    """ConfigError where one value stands for several cut-offs, metrics or axes."""
    if is_single(asked.k):
        raise ConfigError(f"k is {show_value(asked.k)}", "give several cut-offs, such as k=(5, 10)")
    if is_single(asked.metrics):
        named = isinstance(asked.metrics, str) and asked.metrics
        name, _, k = (named or "ndcg").partition("@")
        at = f" and k=({k},)" if k else ""
        hint = f"give several names, such as metrics=[{name!r}]{at}"
        raise ConfigError(f"metrics is {show_value(asked.metrics)}", hint)
    if asked.definition is not None and not isinstance(asked.definition, Mapping):
        raise ConfigError(
            f"definition is {show_value(asked.definition)}",
            "give its axes, such as definition={'gain': 'linear'}",
        )


def is_single(value: object) -> bool:
    """Return whether a value is one thing where several are meant; a text is one, and so is a type."""
    return isinstance(value, str | bytes | type) or not isinstance(value, Iterable)


def require_choice(name: str, value: object, known: Sequence[str | bool]) -> None:
    """ConfigError for an option that is none of its values."""
    # By type first: an array has no one answer to `==`, and 1 equals True.
    if not any(isinstance(value, type(one)) and value == one for one in known):
        raise ConfigError(f"{name} is {show_value(value)}", nearest(str(value), map(str, known)))


def make_bootstrap(asked: Bootstrap | Mapping[str, Any] | int | None) -> Bootstrap:
    """Return what is resampled: None the usual replicates, 0 and False none, a number as many.

    Raises:
        ConfigError: anything else, or a setting that `Bootstrap` does not allow.
    """
    if asked is None or asked is True:
        return Bootstrap()
    if isinstance(asked, Bootstrap):
        return asked
    if isinstance(asked, Mapping):
        return parse(Bootstrap, _plain_settings(asked, "bootstrap"), "bootstrap")
    if not isinstance(asked, int | np.integer):
        hint = "give Bootstrap(replicates=1000), a number, or 0"
        raise ConfigError(f"bootstrap is {show_value(asked)}", hint)
    return parse(Bootstrap, {"replicates": int(asked)}, f"bootstrap={asked}")


def make_draw(asked: CandidateDraw | Mapping[str, Any] | None) -> CandidateDraw | None:
    """Return how candidates are drawn; keys and values are checked as those of a benchmark file.

    Raises:
        ConfigError: anything else, or a setting that `Draw` does not allow.
    """
    if asked is None or isinstance(asked, CandidateDraw):
        return asked
    if isinstance(asked, Mapping):
        return parse(CandidateDraw, _plain_settings(asked, "draw"), "draw")
    raise ConfigError(f"draw is {show_value(asked)}", "give Draw(n=100), or leave it out")


def _plain_settings(given: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return keys and values as a file could have them; pydantic takes one number of a series for a number.

    Raises:
        ConfigError: a value that no file could hold.
    """
    for name, value in given.items():
        if not isinstance(value, str | Real | tuple | list | None):
            raise ConfigError(f"{what}: {name} is {show_value(value)}", "give a number or a text")
    return dict(given)


GRADES_WITHOUT_GAIN = "relevance without a gain"
"""The check of grades that count 1 each though nobody said so."""


def gain_checks(what: EvaluationPlan, ends: Sequence[float]) -> list[Check]:
    """Return the check that says that grades count 1 each, where the caller did not say what they count.

    Args:
        what: the evaluation; DCG alone knows a gain.
        ends: the lowest and the highest relevance of the truth; empty where it has none.
    """
    graded = len(ends) and (ends[0] != ends[-1] or ends[-1] != 1) and ends[-1] > 0
    if what.has_explicit_gain or not graded or not {"ndcg"} & {*what.plan.metrics}:
        return []
    detail = (
        f"the truth has grades up to {ends[-1]:g}, and each relevant item counts 1: write "
        "definition.gain=linear (or exponential) for grades, definition.gain=binary where 1 is meant"
    )
    return [warn_above_zero(GRADES_WITHOUT_GAIN, ends[-1], detail)]


def drawn_candidates_check(mode: str, draw: CandidateDraw, n_items: int) -> Check:
    """The check that says how candidates were drawn."""
    detail = f"{mode}, {draw.n} a {draw.per}, seed {draw.seed}, of {n_items} items"
    return Check("candidates drawn", draw.n, None, "info", detail)


def select_system(**given: Any) -> tuple[str, Any]:
    """The name and the tables of what the system handed over.

    Raises:
        ConfigError: nothing, or more than one thing.
    """
    found = [(name, value) for name, value in given.items() if value is not None]
    if len(found) != 1:
        raise ConfigError("give exactly one of lists, scores, embeddings", "what the system handed over")
    return found[0]


def check_candidates(definition: Definition, embeddings: bool, candidates: bool, train: bool) -> None:
    """A table of candidates and `candidates=given` go together; lists and scores are their own.

    Raises:
        ConfigError: they do not, or candidates are to be drawn and there are no training rows.
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
    """ConfigError for a metric of lists that lacks what it is measured against."""
    popular = [name for name in metrics if name in POPULARITY]
    if popular and not train:
        raise ConfigError(f"{popular[0]} needs the training rows", "give train (--train PATH)")
    if DIVERSITY in metrics and not features:
        raise ConfigError("diversity needs vectors of the items", "give features (--features PATH)")
