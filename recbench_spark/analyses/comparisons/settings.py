"""Sections `gates`, `comparisons`, `regressions` and `paradoxes`."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from recbench_spark.config.evaluation import Evaluation
from recbench_spark.core.strict_settings import Count, Name, Strict, require_day_text

USER_SLICES = ("cold_user", "users")
"""Slices where all truth items of a user carry one label."""


MOST_FIGURES = 4
"""Most figures of a front: volumes take the models to this power."""


class Gate(Strict):
    """Bound on a fact in the split's manifest.

    A fact outside the bound gives a warning, or fails the job. `part`: the fact's part (`log` for the
    whole); None: every part with this fact. `moved` and `still` compare with the suite's night before, and
    pass on a first night.
    """

    added_later: ClassVar[frozenset[str]] = frozenset({"moved", "still"})

    fact: Name
    """The fact's name, as in the table `manifests`."""
    part: Name | None = None
    above: float | None = None
    """The gate acts on facts above this number."""
    below: float | None = None
    """The gate acts on facts below this number."""
    moved: Annotated[float, Field(ge=0)] | None = None
    """The gate acts on facts that moved by more than this share since the night before; 0: at all."""
    still: bool = False
    """The gate acts on facts that are what they were on the night before."""
    action: Literal["fail", "warn"] = "fail"
    """`fail` ends the job with exit code 3; `warn` writes a warning."""

    @model_validator(mode="after")
    def _require_one_bound(self) -> Gate:
        if self.still + sum(one is not None for one in (self.above, self.below, self.moved)) != 1:
            raise ValueError(
                "give one of 'above' (fails above it), 'below' (fails below it), 'moved' (fails where it "
                "moved by more than this share) and 'still' (fails where it is that of the night before)"
            )
        return self


class Comparisons(Strict):
    """Settings for tests between models, and between nights.

    `baseline`: all other models are compared with this one; None: the best other one, by metric.
    `baseline_night`: every later night is compared with it, beside the night before. `minimum_difference`:
    the smallest difference that matters. `planned_users`: the number of differences after which the
    interval over all nights is narrowest; choose it before looking at results. `metrics`, `k`: None takes
    all with a value per user. `users`: also compare how values spread over users, means of groups of users,
    and rankings without a cut-off (tables `user_spreads`, `group_gaps`, `preferences`). `fronts`: figures
    that models trade for one another, such as `[[ndcg@10, entropy@10]]` (table `fronts`).
    """

    added_later: ClassVar[frozenset[str]] = frozenset({"planned_nights", "users", "fronts"})

    baseline: Name | None = None
    baseline_night: date | None = None
    metrics: tuple[str, ...] | None = None
    k: tuple[Count | None, ...] | None = None
    minimum_difference: Annotated[float, Field(ge=0)] = 0.0
    replicates: Annotated[int, Field(ge=1, le=100_000)] = 1000
    """Resamplings for the bootstrap and the randomisation test."""
    planned_users: Annotated[int, Field(ge=2, le=10**12)] = 10_000
    planned_nights: Annotated[int, Field(ge=1, le=10_000)] = 30
    """Nights over which a sequential rule against a night bounds false alarms."""
    users: bool = False
    """Compare spreads over users, gaps between groups, and preferences, too."""
    fronts: tuple[tuple[str, ...], ...] = ()
    """Sets of two to four figures; each has a front of models that no other one dominates."""

    @field_validator("baseline_night", mode="before")
    @classmethod
    def _require_day_text(cls, night: Any) -> Any:
        return require_day_text(night)

    @field_validator("fronts")
    @classmethod
    def _check_fronts(cls, fronts: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
        for figures in fronts:
            if not 2 <= len(set(figures)) == len(figures) <= MOST_FIGURES:
                raise ValueError(f"a front has two to {MOST_FIGURES} figures, each once: {list(figures)}")
        return fronts


class Regression(Strict):
    """A falling metric ends the job with exit code 4.

    The metric falls against an earlier night, or another model. `k`: None is the whole ranking. `against`:
    the model's previous night, `comparisons.baseline_night`, or tonight's model `comparisons.baseline`.
    `certain`: count only falls whose interval excludes 0. `sequential`: count only falls whose evidence
    bounds the chance of any false alarm: over all sequential rules and every night for `model`, over
    `comparisons.planned_nights` for the others. `slice`: watch all values of a slice instead of all users.
    A value falls where its p, by Holm over the models and values of the rule, is below 1 - the level of the
    intervals: so a night without a fall alarms with at most this chance. Values with fewer than
    `least_users` users on both sides are judged together, if they have as many. Groups of items share their
    users: they are tested by both standard errors together, and small ones are left out.
    """

    added_later: ClassVar[frozenset[str]] = frozenset({"rise", "sequential", "slice", "least_users"})

    metric: str
    """Metric that may not fall."""
    k: Count | None = None
    drop: Annotated[float, Field(ge=0)] | None = None
    """Largest allowed fall; None: any."""
    rise: Annotated[float, Field(ge=0)] | None = None
    """Largest rise that is believed; a larger one is called too good. None: any."""
    part: Name = "test"
    """Held-out part in which the metric is watched."""
    model: Name | None = None
    """The watched model; None: every model."""
    against: Literal["previous", "baseline", "model"] = "previous"
    certain: bool = False
    sequential: bool = False
    slice: Name | None = None
    """Key of `evaluation.slices`, or the column of `evaluation.item_groups`; None: all users. Groups of
    items are tested by their standard errors."""
    least_users: Annotated[int, Field(ge=2)] = 30
    """Fewest users of a slice's value that is judged alone."""

    @model_validator(mode="after")
    def _check_rule(self) -> Regression:
        if self.drop is None and self.rise is None:
            raise ValueError("give 'drop' (largest allowed fall), 'rise' (largest believed rise), or both")
        if self.sequential and self.drop is None:
            raise ValueError("'sequential' is about falls: give 'drop' too")
        if self.slice is not None and (self.rise is not None or self.sequential or self.drop is None):
            raise ValueError("'slice' is about falls of one night: give 'drop', no 'rise' or 'sequential'")
        if self.certain and self.sequential:
            raise ValueError("give one of 'certain' (one interval) and 'sequential' (all nights together)")
        return self


class Restated(Strict):
    """Largest move of a number when its night is made again.

    A larger one, whatever its cause, ends the job with exit code 3.
    """

    above: Annotated[float, Field(ge=0)]
    """Largest move allowed."""


class Paradoxes(Strict):
    """Settings for the search for Simpson's paradoxes.

    In such a paradox, parts and whole disagree on the better of two models. `by`: slice keys whose labels
    are the strata; None: `stratum` if `evaluation.exposure` is set, else `popularity`. `metrics` (rank
    metrics only), `k` (null: the whole ranking), `parts`: None takes all measured ones. `against`: all
    pairs of models, or each model with the best one, or with `comparisons.baseline`. `flips`: also find the
    smallest set of items, or of users, whose removal reverses a verdict, for metrics that are sums over
    items; `flips_against` names the other models.
    """

    by: tuple[Name, ...] | None = None
    metrics: tuple[str, ...] | None = None
    """Compared rank metrics; None: all measured ones."""
    k: tuple[Count | None, ...] | None = None
    """Compared cut-offs, null for the whole ranking; None: all."""
    parts: tuple[Name, ...] | None = None
    """Compared held-out parts; None: all measured ones."""
    replicates: Annotated[int, Field(ge=1, le=100_000)] = 1000
    """User resamplings for the intervals."""
    against: Literal["all", "best", "baseline"] = "all"
    flips: tuple[Literal["items", "users"], ...] = ("items",)
    flips_against: Literal["all", "best", "baseline"] = "best"

    def keys(self, evaluation: Evaluation) -> tuple[str, ...]:
        """Return the slice keys whose labels are the strata."""
        return self.by or ("stratum" if evaluation.exposure else "popularity",)
