"""Definitions of metrics: all axes, and other libraries' presets.

Two libraries that print "NDCG@3" mean different things (`.44` to `.79` on one input). Each difference is a
named axis with one default. Every table shows beside a number the axes in which it differs from the
defaults, as the short string from `Definition.describe`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from recbench_spark.errors import ConfigError, nearest, show_value

VERSION = "v1"
"""Version of the defaults. Every description begins with it; a changed default raises it."""

ExposureEstimator = Literal[
    "ips", "clipped_ips", "snips_user", "snips_global", "ips_pooled", "dm", "dr", "switch_dr", "dros",
    "stratified",
]  # fmt: skip
"""Names of the corrections for exposure, in the reports' order: `analyses.exposure.kernels.exposure`."""

DrawEstimator = Literal[
    "rank_estimate", "least_squares", "monotone_least_squares", "bias_variance", "maximum_likelihood",
]  # fmt: skip
"""Names of the corrections for sampled candidates; see `analyses.sampling.kernels.sampled`."""


EXCHANGED = "_exchanged"
"""End of the name of a part whose users have each other's truth."""

SAMPLED = ("uniform", "popularity")
"""Values of the axis `candidates` for drawn items."""

DEFAULT_TIE_SEED = 42
"""Default seed for hashed ties."""


class Definition(BaseModel):
    """A metric's definition: one value for each axis.

    The first value in each `Literal` is the default.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    users: Literal["truth", "both", "output"] = "truth"
    """Averaged users: all with truth (a missing list counts 0), with truth and list, with list."""
    ndcg_users: Literal["same", "truth", "both", "output"] = "same"
    """Users over whom NDCG is averaged, where a library takes others than for its other metrics."""
    ndcg_ties: Literal["same", "expected"] = "same"
    """Ties in NDCG: as `ties`, or the mean over all orders."""
    empty_users: Literal["leave_out", "zero"] = "leave_out"
    """A user without relevant items is left out (and counted), or counts 0."""
    gain: Literal["binary", "linear", "exponential", "exponential_above"] = "binary"
    """1 for a relevant item; relevance r; 2^r - 1; 2^(r - threshold + 1) - 1 for a relevant item only."""
    negative_grades: Literal["clip", "worst", "zero_floor", "signed"] = "clip"
    """Grades below 0: clipped at 0; DCG mapped to [0, 1] between worst and best; NDCG cut at 0; kept in
    DCG and not in the ideal, so that NDCG can be far below 0 (and is 0 where no gain is above 0).
    A user without a relevant item (`threshold`) follows `empty_users` under each of them, whatever its
    gains: with an origin of 3 and a threshold of 4, one whose best grade is 3.5 has no value, or 0."""
    grade_origin: float = 0.0
    """Subtracted from the relevance before a linear or exponential gain: with 3, three stars give 0."""
    threshold: float | None = None
    """Relevant means relevance >= threshold; None: relevance > 0."""
    discount: Literal["log2", "log2_max2", "ln"] = "log2"
    """1 / log2(rank + 1), 1 / log2(max(rank, 2)), 1 / ln(rank + 1)."""
    ideal: Literal["min_k_relevant", "k", "relevant", "min_relevant_list"] = "min_k_relevant"
    """Length of the ideal list: min(k, relevant), k ones whatever is relevant, all relevant, or
    min(k, relevant, length of the list)."""
    precision_by: Literal["k", "list", "min_k_relevant"] = "k"
    """Denominator of precision: k, min(k, length of the list), min(k, relevant)."""
    recall_by: Literal["relevant", "min_k_relevant"] = "relevant"
    """Denominator of recall."""
    ap: Literal["precision_at_hits", "mean_precision"] = "precision_at_hits"
    """Average precision over the hits, or the mean of precision@1..k."""
    ap_by: Literal["min_k_relevant", "relevant", "k", "min_relevant_list", "hits"] = "min_k_relevant"
    """Denominator of average precision; hits: those among the first k (without any, the value is 0)."""
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
    auc_ties: Literal["half", "strict", "id_descending"] = "half"
    """A tie of a positive with a negative counts one half, nothing, or 1 if the larger id is positive."""
    auc_by: Literal["pairs", "listed_pairs", "pairs_and_one"] = "pairs"
    """AUC over all pairs; those of ranked positives (none: 0; no negatives: 1); with one more negative,
    ranked below the listed positives and above the others."""
    ties: Literal["id", "id_descending", "expected", "optimistic", "pessimistic", "hashed"] = "id"
    """Equal scores: smaller id first, larger id first, mean over all orders, positives first or last,
    larger hash of (seed, user, item) first (see `ranking.kernels.hashed_ties`)."""
    tie_seed: int = Field(default=DEFAULT_TIE_SEED, ge=0, lt=2**63)
    """Seed of hashed ties."""
    duplicates: Literal["drop", "error"] = "drop"
    """A (user, item) twice in a list or in the truth: kept once and counted, or refused."""
    gaps: Literal["keep", "close"] = "keep"
    """A rank that is given is the place that the user saw, and a missing rank is a place without a known
    item; or ranks only order the list, and items move up."""
    candidates: Literal["unseen", "all", "rated", "given", "uniform", "popularity"] = "unseen"
    """Ranked items: all not in the user's training part (at the test: nor in validation), all, the user's
    held-out ones, listed ones; the truth and items drawn uniformly, or by training popularity, among those
    the user has not seen."""
    weigh: Literal["users", "rows"] = "users"
    """Weights of a user's several queries: each user's mean counts once, or each query does. Intervals are
    by user under both."""
    candidates_as_of: Literal["none", "first_seen", "availability"] = "none"
    """Candidates whatever the time, or those that existed when a row was tested: items seen in the log
    by then (first_seen), or available by `dataset.availability`. A user's rows at one time are one query,
    and rows at other times another one. Given candidates that did not exist are left out; drawn ones are
    drawn among those that did, by user and moment."""
    first_seen_in: Literal["log", "train"] = "log"
    """Rows that make an item seen: all of the log up to the moment asked, with the asked row itself, which
    no model knew then (a check counts the truth that nothing else showed); those of training."""
    unavailable: Literal["left_out", "miss"] = "left_out"
    """Truth that did not exist at its moment is left out (and counted), or counts as not ranked."""
    draw: str = ""
    """Drawn candidates in words: how many, for each user or each held-out item, and the seed. The settings
    of the draw fill it in; it is not set."""

    def to_settings(self) -> dict[str, Any]:
        """Return the axes to store and hash.

        An axis in `ADDED_LATER` counts only where it is set.
        """
        unset = {
            name for name in ADDED_LATER if getattr(self, name) == type(self).model_fields[name].default
        }
        return self.model_dump(exclude=unset)

    def without_ranks(self) -> Definition:
        """Return the definition for inputs without ranks.

        Such inputs have no gaps to name.
        """
        return self.model_copy(update={"gaps": "keep"})

    def describe(self, axes: Iterable[str] | None = None) -> str:
        """Return `v1`, and all axes without their default.

        Args:
            axes: names of the axes to look at; None: all.
        """
        selected = set(type(self).model_fields if axes is None else axes)
        changed = [
            f"{name}={getattr(self, name)}"
            for name, field in type(self).model_fields.items()
            if name in selected and getattr(self, name) != field.default
        ]
        return ";".join([VERSION, *changed])


MOMENT_AXES = ("candidates_as_of", "first_seen_in", "unavailable")
"""Axes of candidates as of the moment."""

ADDED_LATER = ("grade_origin", "ndcg_ties", "tie_seed", "draw", "gaps", "weigh", *MOMENT_AXES)
"""Later axes: with their default they enter no key, so old keys stay."""

GRADED_GAINS = ("linear", "exponential")
"""Gains computed from relevance - `grade_origin`."""

LENSKIT: dict[str, Any] = {
    "users": "output",
    "empty_users": "zero",
    "discount": "log2_max2",
    "precision_by": "list",
    "recall_by": "min_k_relevant",
    "ap_by": "min_relevant_list",
    "persistence": 0.85,
}
"""Axes of LensKit 2025; since 2026 a user without truth is left out, except of precision."""

_AXES: dict[str, dict[str, Any]] = {
    "recbench": {},
    "recbole": {},
    "replay": {"auc_ties": "id_descending", "auc_by": "listed_pairs", "ties": "id_descending"},
    "mllib": {"users": "output", "empty_users": "zero"},
    "recommenders": {"users": "both", "ndcg_users": "truth"},
    "rectools": {"ideal": "k", "ap_by": "relevant"},
    "lenskit": {**LENSKIT, "users": "both"},
    "lenskit==2025.8.1": LENSKIT,
    "ranx": {"empty_users": "zero", "gain": "linear", "ap_by": "relevant"},
    "cornac": {
        "users": "both",
        "threshold": 1.0,
        "map_cut": "uncut",
        "mrr_cut": "uncut",
        "ap_ties": "last_rank",
        "auc_ties": "strict",
    },
    "elliot": {
        "users": "both",
        "gain": "exponential_above",
        "threshold": 0.0,
        "ap": "mean_precision",
        "auc_by": "pairs_and_one",
    },
    "recpack": {"hit": "count", "recall_by": "min_k_relevant"},
    "warprec": {"gain": "exponential_above", "auc_by": "pairs_and_one", "ties": "hashed"},
    "sklearn": {"users": "output", "empty_users": "zero", "gain": "linear", "ties": "expected"},
    "torchmetrics": {
        "users": "output",
        "empty_users": "zero",
        "gain": "linear",
        "ap_by": "hits",
        "ndcg_ties": "expected",
    },
    "implicit": {"precision_by": "min_k_relevant"},
    "mlflow": {
        "users": "output",
        "empty_users": "zero",
        "ideal": "min_relevant_list",
        "precision_by": "list",
    },
}

PLACES = ("recbench", "rectools")
"""Presets for which a given rank is a place. The other libraries take scores, or lists in their order."""

PRESETS: dict[str, dict[str, Any]] = {
    name: axes if name in PLACES else {**axes, "gaps": "close"} for name, axes in _AXES.items()
}
"""Axes in which another library differs from the defaults; `docs/presets.md` shows each in numbers.

Where a library has two metrics of one name the preset follows the one it uses by default; the other
is one axis away. recommenders: `map` divides by relevant (`ap_by=relevant`). rectools:
`divide_by_achievable` is `ideal=min_k_relevant`, `divide_by_k` is `ap_by=k`. ranx: `ndcg_burges` is
`gain=exponential`; trec_eval without `-c` is `users=both`, and its `recip_rank` is the uncut MRR.
recpack: recall is its `CalibratedRecallK`; `RecallK` is `recall_by=relevant`.
elliot: its AUC here is its GAUC.
"""

PRESET_VERSIONS: dict[str, str] = {
    "recbench": VERSION,
    "recbole": "1.2.1",
    "replay": "0.22.0",
    "mllib": "4.2.0",
    "recommenders": "1.2.1",
    "rectools": "0.19.0",
    "lenskit": "2026.4.0",
    "lenskit==2025.8.1": "2025.8.1",
    "ranx": "0.3.21",
    "cornac": "3.0.1",
    "elliot": "0.3.1",
    "recpack": "0.3.6",
    "warprec": "2.2.8",
    "sklearn": "1.9.1",
    "torchmetrics": "1.8.2",
    "implicit": "0.7.3",
    "mlflow": "3.18.0",
}
"""The version of each library that its preset reproduces (replay: replay-rec; mllib: pyspark)."""


def axis_values(axis: str) -> tuple[str, ...]:
    """Return an axis's possible values; empty for a number.

    >>> axis_values("recall_by")
    ('relevant', 'min_k_relevant')
    """
    annotation = Definition.model_fields[axis].annotation
    return tuple(value for value in get_args(annotation) if isinstance(value, str))


def make_definition(preset: str | None = None, overrides: Mapping[str, Any] | None = None) -> Definition:
    """Return a preset with single axes replaced.

    Raises:
        ConfigError: an unknown preset, axis or value; the hint names the nearest known one.
    """
    if preset is not None and not (isinstance(preset, str) and preset in PRESETS):
        raise ConfigError(f"unknown preset {show_value(preset)}", nearest(str(preset), PRESETS))
    values = {**PRESETS.get(preset or "recbench", {}), **(overrides or {})}
    for axis, value in values.items():
        _check_axis(axis, value)
    try:
        definition = Definition(**values)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"definition.{first['loc'][0]}: {first['msg']}") from None
    _check_axes_together(definition)
    return definition


def _check_axes_together(definition: Definition) -> None:
    if definition.grade_origin and definition.gain not in GRADED_GAINS:
        raise ConfigError(
            f"definition.grade_origin: a gain of '{definition.gain}' has no grades",
            f"definition.gain={' or '.join(GRADED_GAINS)}",
        )
    _check_moments(definition)
    if definition.tie_seed != DEFAULT_TIE_SEED and definition.ties != "hashed":
        raise ConfigError(
            f"definition.tie_seed: ties are '{definition.ties}' and need no seed", "definition.ties=hashed"
        )
    if definition.ties == "hashed" and definition.auc_ties == "id_descending":
        raise ConfigError(
            "definition.auc_ties=id_descending needs the order of ids, and ties are hashed",
            "definition.auc_ties=half or strict",
        )


def _check_moments(definition: Definition) -> None:
    moments, fields = definition.candidates_as_of, Definition.model_fields
    needs = {"first_seen_in": ("first_seen",), "unavailable": axis_values("candidates_as_of")[1:]}
    for axis, wanted in needs.items():
        value = getattr(definition, axis)
        if value != fields[axis].default and moments not in wanted:
            message = f"definition.{axis} is '{value}', and definition.candidates_as_of is '{moments}'"
            raise ConfigError(message, f"definition.candidates_as_of={' or '.join(wanted)}")
    if moments != "none" and definition.candidates == "rated":
        raise ConfigError(
            f"definition.candidates_as_of is '{moments}', and definition.candidates is "
            f"'{definition.candidates}'",
            "definition.candidates=unseen, all, given, uniform or popularity: rated items are those asked",
        )


def _check_axis(axis: str, value: Any) -> None:
    if axis == "draw" and value:
        raise ConfigError(
            "definition.draw follows from the settings of the draw", "evaluation.draw, or draw="
        )
    if axis not in Definition.model_fields:
        raise ConfigError(f"unknown axis 'definition.{axis}'", nearest(axis, Definition.model_fields))
    if isinstance(value, bool):  # pydantic takes these for 1 and 0
        raise ConfigError(
            f"definition.{axis}: {str(value).lower()} is not one of its values", "a number, or null"
        )
    known = axis_values(axis)
    # An array has no one answer to `in`, and pydantic takes a one-number series for a number.
    if not isinstance(value, str | Real | None):
        hint = nearest("", known) if known else "a number, or null"
        raise ConfigError(f"definition.{axis}: {show_value(value)} is not one of its values", hint)
    if known and value not in known:
        raise ConfigError(f"definition.{axis}: unknown value '{value}'", nearest(str(value), known))
