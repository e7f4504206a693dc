"""Options checked before any row is read, for both engines."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import partial
from os import PathLike
from typing import Any, Literal, cast

from recbench_spark.config import CandidateDraw
from recbench_spark.core.checks import Check, warn_above_zero
from recbench_spark.core.definitions import SAMPLED, Definition, make_definition
from recbench_spark.core.metric_names import Figures
from recbench_spark.errors import ConfigError, SchemaError
from recbench_spark.evaluation.options import EvaluationRequest, make_bootstrap, make_draw, normalize_types
from recbench_spark.metrics.accuracy import MetricPlan
from recbench_spark.metrics.beyond_accuracy import BY_LABELS, BY_POPULARITY, DIVERSITY, LIST_METRICS
from recbench_spark.metrics.kernels.about import expand_families
from recbench_spark.ranking.request import refuse_hashed_ties


@dataclass(frozen=True)
class EvaluationPlan:
    """A checked evaluation: system output, and how to evaluate it.

    kind: lists, scores or embeddings; system: this kind's tables; metric_plan: metrics and definition;
    has_explicit_gain: the caller chose what a relevance gains; figures: metrics named with a cut-off, about
    which nothing else is reported; left_out: metrics in bundles that lack an input; item_groups: table of
    the items' labels, if there is one.
    """

    kind: str
    system: Any
    metric_plan: MetricPlan
    similarity: Literal["dot", "cosine"]
    draw: CandidateDraw
    has_explicit_gain: bool = True
    figures: Figures = ()
    left_out: tuple[str, ...] = ()
    item_groups: Any = None

    @property
    def definition(self) -> Definition:
        """Return the metrics' definition."""
        return self.metric_plan.definition

    @property
    def lists(self) -> bool:
        """Tell whether the output is lists, which may omit items."""
        return self.kind == "lists"

    @property
    def drops_training_items(self) -> bool:
        """Tell whether training items are no candidates."""
        return not self.lists and self.definition.candidates in ("unseen", *SAMPLED)

    @property
    def masks_truth(self) -> bool:
        """Tell whether truth items known from training are no candidates.

        Beside drawn candidates they are none.
        """
        return not self.lists and self.definition.candidates == "unseen"

    @property
    def candidates(self) -> str | None:
        """Return the candidate mode for embeddings.

        None for lists and scores, which are the candidates.
        """
        return self.definition.candidates if self.kind == "embeddings" else None

    def name_limits(self, train: Any, candidates: Any) -> dict[str, Any]:
        """Return the tables deciding candidates or popularity.

        The keys say what a table decides.
        """
        limits = {"training items": train} if self.drops_training_items else {}
        limits |= {"popularity": train} if {*self.metric_plan.metrics} & {*BY_POPULARITY} else {}
        return limits | ({"candidates": candidates} if candidates is not None else {})


def check_request(
    request: EvaluationRequest,
    *,
    lists: Any,
    scores: Any,
    embeddings: Any,
    train: Any,
    candidates: Any,
    features: Any,
    item_groups: Any = None,
) -> EvaluationPlan:
    """Check the options against the call's tables.

    Raises:
        ConfigError: not exactly one of lists, scores, embeddings; an option refused by a function below.
    """
    kind, system = select_system(lists=lists, scores=scores, embeddings=embeddings)
    given = list_given(request.uncut, train=train, features=features, item_groups=item_groups)
    request = normalize_types(request, partial(expand_families, given=given))
    definition, name = make_definition(request.preset, request.definition), request.features_name
    draw = make_draw(request.draw) or CandidateDraw()
    if kind == "embeddings":
        definition = draw.add_to(definition)
    if kind != "lists" or not _has_ranks(system):
        definition = definition.without_ranks()
    plan = MetricPlan.checked(
        cast(tuple[str, ...], request.metrics),
        cast(tuple[int, ...], request.k),
        definition,
        make_bootstrap(request.bootstrap),
        None if features is None else name,
        uncut=request.uncut,
        item_groups=item_groups and ".".join(filter(None, choose_label_columns(item_groups))),
    )
    check_candidates(definition, kind == "embeddings", candidates is not None, train is not None)
    check_needs(plan.metrics, given)
    check_figures(plan, request.figures)
    gain_is_explicit = request.preset is not None or "gain" in (request.definition or {})
    notes = gain_is_explicit, request.figures, request.left_out
    return EvaluationPlan(kind, system, plan, request.similarity, draw, *notes, item_groups)


def list_given(uncut: object, **tables: Any) -> set[str]:
    """Return the inputs a call gives, of those in `NEEDS`."""
    given = {name for name, table in tables.items() if table is not None}
    return given if uncut is False else {*given, "uncut"}


LEFT_OUT = "metrics of families without their inputs"
"""Name of the check on what bundles leave out."""


def bundle_checks(plan: EvaluationPlan) -> list[Check]:
    """Return a note on metrics that bundles leave out."""
    left_out = plan.left_out
    return [Check(LEFT_OUT, len(left_out), None, "info", ", ".join(left_out))] if left_out else []


def _has_ranks(table: Any) -> bool:
    """Tell whether lists have ranks, in any kind of frame.

    A path may have them.
    """
    return isinstance(table, str | PathLike) or "rank" in _list_columns(table)


def _list_columns(table: Any) -> list[str]:
    """Return the names of a table's columns, in any kind of frame."""
    # A Spark 4.2 frame by Connect has a column of any name: ask first for what it surely has.
    names = getattr(table, "columns", table)
    if not all(isinstance(name, str) for name in names):
        names = getattr(table, "column_names", names)
    return [str(name) for name in names]


def choose_label_columns(table: Any) -> tuple[str, str | None]:
    """Return a table's column of labels, and that of their weights if it has one.

    Raises:
        SchemaError: beside item_id and weight there is not exactly one column.
    """
    if isinstance(table, str | PathLike):  # before it is read
        return "given", None
    names = _list_columns(table)
    labels = [name for name in names if name not in ("item_id", "weight")]
    if len(labels) != 1:
        message = f"item_groups has {', '.join(names)}"
        raise SchemaError(message, "give item_id, one column of labels such as genre, and perhaps weight")
    return labels[0], "weight" if "weight" in names else None


def check_figures(plan: MetricPlan, figures: Figures) -> None:
    """Check that metrics named with a cut-off have values there.

    Raises:
        ConfigError: one only has a value over the whole ranking.
    """
    for metric, k in figures:
        if k not in plan.columns(metric):
            hint = f"name it without a cut-off: '{metric}'"
            raise ConfigError(f"{metric}@{k}: {metric} is over the whole ranking", hint)


GRADES_WITHOUT_GAIN = "relevance without a gain"
"""Name of the check on graded relevance without an explicit gain: each grade counts 1."""


def gain_checks(plan: EvaluationPlan, grades: Sequence[float]) -> list[Check]:
    """Return a warning for grades without an explicit gain.

    Each grade then counts 1.

    Args:
        plan: the evaluation; only DCG has a gain.
        grades: the truth's lowest and highest relevance; empty where it has none.
    """
    graded = len(grades) and (grades[0] != grades[-1] or grades[-1] != 1) and grades[-1] > 0
    by_rank = {*plan.metric_plan.metrics} - {*LIST_METRICS}
    if plan.has_explicit_gain or not graded or not by_rank:
        return []
    if "ndcg" not in by_rank:
        return _binary_checks(plan.definition, grades)
    detail = (
        f"the truth has grades up to {grades[-1]:g}, and each relevant item counts 1: write "
        "definition.gain=linear (or exponential) for grades, definition.gain=binary where 1 is meant"
    )
    return [warn_above_zero(GRADES_WITHOUT_GAIN, grades[-1], detail)]


def drawn_candidates_checks(
    mode: str, draw: CandidateDraw, n_items: int, drawn: tuple[int, float, int]
) -> list[Check]:
    """Return checks comparing drawn candidates with the request.

    Args:
        mode: uniform or popularity.
        draw: the request.
        n_items: catalogue size.
        drawn: fewest candidates per user, their mean, and most.
    """
    low, mean, high = drawn
    request = f"{mode}, {draw.n} a {draw.per} asked, seed {draw.seed}, of {n_items} items"
    detail = f"{low} to {high} a user drawn; {request}"
    few = "a user has fewer items outside of training and truth than were asked"
    return [
        Check("candidates drawn", mean, None, "info", detail),
        warn_above_zero("drawn candidates that a user lacks", max(draw.n - low, 0), f"{few}: {detail}"),
    ]


def _binary_checks(definition: Definition, grades: Sequence[float]) -> list[Check]:
    """Return a warning where all grades above 0 count alike.

    All grades count alike without a chosen threshold.
    """
    if definition.threshold is not None or grades[0] <= 0 or grades[0] == grades[-1]:
        return []
    detail = (
        f"the truth has grades from {grades[0]:g} to {grades[-1]:g}, and all are relevant alike: write "
        "definition.threshold=4 (or the grade that you mean), definition.gain=binary where all are meant"
    )
    return [warn_above_zero(GRADES_WITHOUT_GAIN, grades[-1], detail)]


def select_system(**systems: Any) -> tuple[str, Any]:
    """Return kind and tables of the system's output.

    Raises:
        ConfigError: the call has none, or several.
    """
    present = [(name, value) for name, value in systems.items() if value is not None]
    if len(present) != 1:
        raise ConfigError(
            "give exactly one of lists, scores, embeddings", "these are the outputs of a system"
        )
    return present[0]


def check_candidates(definition: Definition, embeddings: bool, candidates: bool, train: bool) -> None:
    """Check that a candidate table comes with `candidates=given`.

    Table and setting come together, and only with embeddings.

    Raises:
        ConfigError: one comes without the other, candidates are drawn and there are no training rows, or
            ties of embeddings are hashed.
    """
    if candidates and not embeddings:
        raise ConfigError("candidates are for embeddings", "lists and scores bring their own candidates")
    if embeddings:
        refuse_hashed_ties(definition, "embeddings")
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


def check_queries(plan: EvaluationPlan, queries: bool) -> None:
    """Check that the definition fits a truth with or without queries.

    Raises:
        ConfigError: rows weigh alike, and users have one row each; candidates are drawn for each user.
    """
    if (moments := plan.definition.candidates_as_of) != "none":
        hint = "a benchmark file, whose log has times, or each query's candidates=given"
        raise ConfigError(f"definition.candidates_as_of is {moments}, and tables have no times", hint)
    if plan.definition.weigh == "rows" and not queries:
        hint = "give query_id beside user_id, or leave definition.weigh at users"
        raise ConfigError("definition.weigh is rows, and the truth has no query_id", hint)
    if queries and plan.candidates in SAMPLED:
        hint = "give each query's candidates, with definition.candidates=given"
        raise ConfigError(f"definition.candidates is {plan.candidates}, and the truth has query_id", hint)


def check_needs(metrics: Sequence[str], given: Set[str]) -> None:
    """Check that each list metric has its tables.

    Raises:
        ConfigError: training rows, features or groups of items are missing.
    """
    tables = {"train": BY_POPULARITY, "features": (DIVERSITY,), "item_groups": BY_LABELS}
    texts = {
        "train": "the training rows",
        "features": "vectors of the items",
        "item_groups": "groups of items",
    }
    for name, known in tables.items():
        needing = [metric for metric in metrics if metric in known]
        if needing and name not in given:
            hint = f"give {name} (--{name.replace('_', '-')} PATH)"
            raise ConfigError(f"{needing[0]} needs {texts[name]}", hint)
