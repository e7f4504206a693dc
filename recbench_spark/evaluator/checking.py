"""What is asked of an evaluation, checked before any row is read: the same for every engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from recbench_spark.checks import Check
from recbench_spark.config import DEFAULT_METRICS, Bootstrap, Draw
from recbench_spark.definitions import Definition, make_definition
from recbench_spark.errors import ConfigError
from recbench_spark.evaluation.metrics.accuracy import MetricPlan
from recbench_spark.evaluation.metrics.beyond_accuracy import DIVERSITY
from recbench_spark.evaluation.ranking.request import SAMPLED
from recbench_spark.kernels.metrics.beyond_accuracy import POPULARITY


@dataclass(frozen=True)
class Asked:
    """The options of `evaluate.evaluate`, which says what each is."""

    features_name: str = "given"
    k: Sequence[int] = (1, 3, 5, 10, 20)
    metrics: Sequence[str] = DEFAULT_METRICS
    preset: str | None = None
    definition: Mapping[str, Any] | None = None
    similarity: Literal["dot", "cosine"] = "dot"
    bootstrap: Bootstrap | None = None
    uncut: bool = True
    draw: Draw | None = None


@dataclass(frozen=True)
class Checked:
    """What is evaluated and how, once it is known to make sense.

    kind, system: what was handed over; plan: metrics and the definition.
    """

    kind: str
    system: Any
    plan: MetricPlan
    similarity: Literal["dot", "cosine"]
    draw: Draw

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


def check(
    asked: Asked, *, lists: Any, scores: Any, embeddings: Any, train: Any, candidates: Any, features: Any
) -> Checked:
    """What is asked of the tables handed over.

    Raises:
        ConfigError: not exactly one of lists, scores, embeddings; what the functions below refuse.
    """
    kind, system = the_one(lists=lists, scores=scores, embeddings=embeddings)
    wanted, name = make_definition(asked.preset, asked.definition), asked.features_name
    plan = MetricPlan.checked(
        asked.metrics,
        asked.k,
        wanted,
        asked.bootstrap,
        None if features is None else name,
        uncut=asked.uncut,
    )
    check_candidates(wanted, kind == "embeddings", candidates is not None, train is not None)
    check_needs(plan.metrics, train is not None, features is not None)
    return Checked(kind, system, plan, asked.similarity, asked.draw or Draw())


def drawn_told(mode: str, draw: Draw, n_items: int) -> Check:
    """The check that says how candidates were drawn."""
    detail = f"{mode}, {draw.n} a {draw.per}, seed {draw.seed}, of {n_items} items"
    return Check("candidates drawn", draw.n, None, "info", detail)


def the_one(**given: Any) -> tuple[str, Any]:
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
