"""What a number means: every axis of a metric's definition, the presets of other libraries.

Two libraries that print "NDCG@3" mean different things (`.44` to `.79` on one input). Here each
difference is a named axis with one default; the axes in which a number differs from the defaults
stand beside it in every table, as the short string of `Definition.describe`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from recbench_spark.errors import ConfigError, nearest

VERSION = "v1"
"""Version of the defaults; part of every description, raised when a default changes."""


class Definition(BaseModel):
    """One value for each axis; the first value of each `Literal` is the default."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    users: Literal["truth", "both", "output"] = "truth"
    """Averaged users: all with truth (a missing list counts 0), with truth and list, with list."""
    ndcg_users: Literal["same", "truth", "both", "output"] = "same"
    """Users over whom NDCG is averaged, where a library takes others than for its other metrics."""
    empty_users: Literal["leave_out", "zero"] = "leave_out"
    """A user without relevant items is left out (and counted), or counts 0."""
    gain: Literal["binary", "linear", "exponential"] = "binary"
    """1 for a relevant item, its relevance r, or 2^r - 1."""
    negative_grades: Literal["clip", "worst", "zero_floor"] = "clip"
    """Grades below 0: clipped at 0; DCG mapped to [0, 1] between worst and best; NDCG cut at 0."""
    threshold: float | None = None
    """Relevant means relevance >= threshold; None: relevance > 0."""
    discount: Literal["log2", "log2_max2", "ln"] = "log2"
    """1 / log2(rank + 1), 1 / log2(max(rank, 2)), 1 / ln(rank + 1)."""
    ideal: Literal["min_k_relevant", "k", "relevant"] = "min_k_relevant"
    """Length of the ideal list: min(k, relevant), k ones whatever is relevant, all relevant."""
    precision_by: Literal["k", "list", "min_k_relevant"] = "k"
    """Denominator of precision: k, min(k, length of the list), min(k, relevant)."""
    recall_by: Literal["relevant", "min_k_relevant"] = "relevant"
    """Denominator of recall."""
    ap: Literal["precision_at_hits", "mean_precision"] = "precision_at_hits"
    """Average precision over the hits, or the mean of precision@1..k."""
    ap_by: Literal["min_k_relevant", "relevant", "k", "min_relevant_list"] = "min_k_relevant"
    """Denominator of average precision."""
    ap_ties: Literal["same", "last_rank"] = "same"
    """Ties in average precision: as `ties`, or all tied items at the last rank of their tie."""
    map_cut: Literal["at_k", "uncut"] = "at_k"
    """Average precision of the first k, or of the whole list whatever k."""
    mrr_cut: Literal["at_k", "uncut"] = "at_k"
    """Reciprocal rank of the first hit among the first k, or anywhere."""
    hit: Literal["any", "count"] = "any"
    """1 if any hit is among the first k, or the number of hits."""
    persistence: float = Field(default=0.8, gt=0, lt=1)
    """Chance that a reader goes on to the next rank, in rank-biased precision."""
    auc_ties: Literal["half", "strict"] = "half"
    """A tie of a positive with a negative counts one half, or nothing."""
    ties: Literal["id", "expected", "optimistic", "pessimistic"] = "id"
    """Equal scores: smaller item id first, mean over all orders, positives first, positives last."""
    duplicates: Literal["drop", "error"] = "drop"
    """A (user, item) twice in a list or in the truth: kept once and counted, or refused."""
    candidates: Literal["unseen", "all", "rated", "given"] = "unseen"
    """Ranked items: all not in the user's training part, all, the user's held-out ones, listed."""

    def describe(self, axes: Iterable[str] | None = None) -> str:
        """`v1`, followed by the axes (of those asked for) that differ from the defaults."""
        asked = set(type(self).model_fields if axes is None else axes)
        changed = [
            f"{name}={getattr(self, name)}"
            for name, field in type(self).model_fields.items()
            if name in asked and getattr(self, name) != field.default
        ]
        return ";".join([VERSION, *changed])


PRESETS: dict[str, dict[str, Any]] = {
    "recbench": {},
    "recbole": {},
    "replay": {},
    "mllib": {"users": "output", "empty_users": "zero"},
    "recommenders": {"users": "both", "ndcg_users": "truth"},
    "rectools": {"ideal": "k", "ap_by": "relevant"},
    "lenskit": {
        "users": "output",
        "discount": "log2_max2",
        "precision_by": "list",
        "recall_by": "min_k_relevant",
        "ap_by": "min_relevant_list",
        "persistence": 0.85,
    },
    "ranx": {"gain": "linear", "ap_by": "relevant"},
    "cornac": {
        "users": "both",
        "map_cut": "uncut",
        "mrr_cut": "uncut",
        "ap_ties": "last_rank",
        "auc_ties": "strict",
    },
    "elliot": {"users": "both", "ap": "mean_precision"},
    "recpack": {"hit": "count", "recall_by": "min_k_relevant"},
}
"""Axes in which another library differs from the defaults, read from the libraries' sources.

recommenders: its `map_at_k`; its `map` at k needs `ap_by=relevant`. rectools: with
`divide_by_achievable` it needs `ideal=min_k_relevant`, with `divide_by_k` `ap_by=k`. ranx:
`ndcg_burges` needs `gain=exponential`; these are also the rules of trec_eval. recpack: its plain
`RecallK` needs `recall_by=relevant`.
"""


def axis_values(axis: str) -> tuple[str, ...]:
    """The values an axis can take, () for a number.

    >>> axis_values("recall_by")
    ('relevant', 'min_k_relevant')
    """
    annotation = Definition.model_fields[axis].annotation
    return tuple(value for value in get_args(annotation) if isinstance(value, str))


def make_definition(preset: str | None = None, overrides: Mapping[str, Any] | None = None) -> Definition:
    """A preset with single axes replaced; errors name the axis and the nearest known value."""
    if preset is not None and preset not in PRESETS:
        raise ConfigError(f"unknown preset '{preset}'", nearest(preset, PRESETS))
    wanted = {**PRESETS.get(preset or "recbench", {}), **(overrides or {})}
    for axis, value in wanted.items():
        _check_axis(axis, value)
    try:
        return Definition(**wanted)
    except ValidationError as error:
        raise ConfigError(f"definition: {error.errors()[0]['msg']}") from None


def _check_axis(axis: str, value: Any) -> None:
    if axis not in Definition.model_fields:
        raise ConfigError(f"unknown axis 'definition.{axis}'", nearest(axis, Definition.model_fields))
    known = axis_values(axis)
    if known and value not in known:
        raise ConfigError(f"definition.{axis}: unknown value '{value}'", nearest(str(value), known))
