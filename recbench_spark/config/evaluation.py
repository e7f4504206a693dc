"""Settings in the section `evaluation`: metrics, candidates and corrections."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Real
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ModelWrapValidatorHandler, PrivateAttr, field_validator, model_validator

from recbench_spark.analyses.curves.settings import LearningCurve
from recbench_spark.core.definitions import (
    EXCHANGED,
    SAMPLED,
    Definition,
    DrawEstimator,
    ExposureEstimator,
    make_definition,
)
from recbench_spark.core.metric_names import read_family, read_figures
from recbench_spark.core.strict_settings import INT, MAX_CURVE, Count, Location, Name, Seed, Strict
from recbench_spark.errors import ConfigError, show_value


class Slice(Strict):
    """A label for truth items. Metrics are computed by label.

    `popularity` (head, torso, tail, cold) and `cold_user` always exist; `column` names an attribute in the
    log, or in the users' or items' table at `path`.
    """

    key: Name
    """The slice's name in tables and reports."""
    of: Literal["popularity", "cold_user", "log", "users", "items"]
    """Source of the labels: an item's popularity, users new to training, the log, or a table of users or
    items.
    """
    column: str | None = None
    """Column with the labels, for `log`, `users` and `items`."""
    path: Location | None = None
    """Table of the users or items that has the column."""


class ItemGroupTable(Strict):
    """A table (item_id, labels) that puts items into at most 100 groups.

    A row has a label, or a list of labels; further rows of an item are further labels. An item's labels
    weigh 1 together. The groups' numbers are rows of `metrics` with the column as slice_key.
    """

    path: Location
    """Table of the items."""
    column: str
    """Column with the labels."""
    weight: str | None = None
    """Column with the labels' weights above 0; without it an item's labels weigh alike."""


class Bootstrap(Strict):
    """Resampling of users for confidence intervals."""

    replicates: Annotated[int, Field(ge=0, le=100_000)] = 1000
    """Number of resamplings; 0 gives no interval."""
    level: Annotated[float, Field(gt=0, lt=1)] = 0.95
    """Coverage of the intervals."""
    seed: Seed = 42
    """Seed for resampling."""


class CandidateDraw(Strict):
    """Number and seed of sampled candidates.

    These settings apply where definition.candidates is uniform or popularity.

    `per`: `n` items for each user, or for each held-out item. `estimators`: the corrections beside the raw
    values under uniform draws (see `analyses.sampling.kernels.sampled`).
    """

    n: Count = 100
    """Number of items to draw."""
    per: Literal["user", "positive"] = "user"
    seed: Seed = 42
    """Seed for the draws, by hash."""
    estimators: tuple[DrawEstimator, ...] = (
        "rank_estimate",
        "monotone_least_squares",
        "bias_variance",
        "maximum_likelihood",
    )

    def add_to(self, definition: Definition) -> Definition:
        """Return the definition; sampled candidates get this draw in words.

        >>> CandidateDraw(n=10).add_to(Definition(candidates="uniform")).describe()
        'v1;candidates=uniform;draw=10 a user without replacement, seed 42'
        """
        if definition.candidates not in SAMPLED:
            return definition
        weights = " by training rows" if definition.candidates == "popularity" else ""
        words = f"{self.n} a {self.per}{weights} without replacement, seed {self.seed}"
        return definition.model_copy(update={"draw": words})


DEFAULT_METRICS = ("hit", "precision", "recall", "f1", "map", "mrr", "ndcg", "auc", "coverage")


class Propensities(Strict):
    """Estimates of the chance to be shown, for each item.

    The estimates come from the training part (`analyses.exposure.kernels.propensities`).

    `law`: how to find the exponent. `scale`: powers are known up to a factor; make the largest 1, or make
    their sum a mean user's interactions. `floor`: smaller values are raised to it, and values above 1
    lowered to 1. `given`: a table (item_id, propensity) at `path`. `true`: those in the generated world.
    `logistic_regression`: on feature tables, (item_id, numbers ...) and (user_id, numbers ...), one or
    both; `rate`: its fit samples this share of cells outside the log.
    """

    method: Literal[
        "power_law",
        "power_above_xmin",
        "steck",
        "relative_frequency",
        "naive_bayes",
        "logistic_regression",
        "given",
        "true",
    ] = "power_law"
    """Estimator of the propensities; see the list above."""
    law: Literal["approximate", "exact"] = "approximate"
    scale: Literal["as_is", "largest", "interactions"] = "as_is"
    floor: Annotated[float, Field(gt=0, le=1)] | None = None
    path: Location | None = None
    """Table (item_id, propensity) for the method `given`."""
    item_features: Location | None = None
    """Table (item_id, numbers ...) for `logistic_regression`."""
    user_features: Location | None = None
    """Table (user_id, numbers ...) for `logistic_regression`."""
    rate: Annotated[float, Field(gt=0, le=1)] = 0.1

    @model_validator(mode="after")
    def _check_method(self) -> Propensities:
        if (self.method == "given") != bool(self.path):
            raise ValueError("'path' goes with method 'given', which needs it")
        if (self.method == "logistic_regression") != bool(self.item_features or self.user_features):
            raise ValueError("'item_features' or 'user_features' go with method 'logistic_regression'")
        if self.method == "logistic_regression" and self.scale != "as_is":
            raise ValueError("'scale' is not for method 'logistic_regression', whose values are chances")
        if self.method in ("given", "true") and (self.scale, self.floor) != ("as_is", None):
            raise ValueError(f"'scale' and 'floor' are not for method '{self.method}'")
        return self

    @property
    def name(self) -> str:
        """The method and all changed settings, for the column `method`."""
        changed = self.model_dump(exclude_defaults=True, exclude={"method"})
        return ";".join([self.method, *(f"{key}={value}" for key, value in changed.items())])


class Strata(Strict):
    """Groups of items by propensity; Q1 is shown least.

    See `analyses.sampling.kernels.strata`. The slice `stratum` has the first number of strata.
    """

    kind: Literal["equal_mass", "equal_count", "equal_width"] = "equal_mass"
    """Strata with equal propensity mass, with equally many items, or with equal width. Items with one
    propensity share a stratum. Equal mass and count cut where the running total, from the least shown items
    on, is nearest to its share of the whole; between two equally near places, the lower one wins.
    """
    n: tuple[Annotated[int, Field(ge=2, le=10)], ...] = (2,)
    """Numbers of strata; each gives an estimate of its own."""

    @field_validator("n")
    @classmethod
    def _check_strata_numbers(cls, n: tuple[int, ...]) -> tuple[int, ...]:
        if not n or len(set(n)) < len(n):
            raise ValueError("give at least one number of strata, each once")
        return n


class Exposure(Strict):
    """Corrections of metrics for what a recommender exposed.

    See `analyses.exposure.kernels.exposure`. Under chances, `ips` is unbiased for sums (hits, precision,
    DCG). Weighted NDCG is not, and can be farther from the truth than the holdout: its ideal list holds
    only what was shown. `ips_pooled` divides the weighted DCG over all users by a user's ideal at the mean
    number of relevant items, estimated in the same way.

    `clip`, `switch`, `shrink`: settings for clipped_ips, switch_dr and dros. `without_most_popular`: the
    share of items, most popular first, which the slice `most_popular` leaves out or keeps alone; 0: no such
    slice. `rewards`: a table (item_id[, user_id], reward) with a model's chances that an item is liked, for
    dm, dr, switch_dr and dros.
    """

    propensities: Propensities = Propensities()
    """Chances with which each item was shown."""
    estimators: tuple[ExposureEstimator, ...] = (
        "ips",
        "clipped_ips",
        "snips_user",
        "snips_global",
        "stratified",
    )
    """Corrections beside every number, in the column `estimator`."""
    clip: Annotated[float, Field(gt=0)] = 100.0
    switch: Annotated[float, Field(gt=0)] = 100.0
    shrink: Annotated[float, Field(gt=0)] = 100.0
    strata: Strata = Strata()
    """Strata of items for the estimator `stratified`."""
    without_most_popular: Annotated[float, Field(ge=0, lt=1)] = 0.01
    rewards: Location | None = None

    @model_validator(mode="after")
    def _check_estimators(self) -> Exposure:
        if self.propensities.method == "naive_bayes":
            raise ValueError("naive_bayes gives chances of ratings, and estimates need those of items")
        if not self.estimators or len(set(self.estimators)) < len(self.estimators):
            raise ValueError("name at least one estimator, each once")
        return self


EXPOSURE_SLICES = ("stratum", "most_popular")
"""Keys of the slices which `evaluation.exposure` adds."""


CURVE_METRIC, MANDCG = "ndcg", "mandcg"
"""The metric along a learning curve which decides between two models, and its mean over the points."""

MAX_CURVE_SUMS = 1 << 24
"""Limit on columns times replicates in one model's learning curves: 256 MiB of sums in a task."""

RATING_METRICS = ("rmse", "mse", "mae")
"""Metrics for predicted ratings where `metrics` is not set."""

RANKING_ONLY = (
    "curve", "preset", "candidates_path", "features", "multiverse", "exposure", "uncut", "learning_curve",
    "item_groups",
)  # fmt: skip
"""Settings which mean something only for the task `ranking`."""


class Evaluation(Strict):
    """Metrics to compute: their names, cut-offs, definition and slices.

    `metrics`: names, also with a cut-off such as `ndcg@10`, which then joins `k`, and bundles:
    `{family: popularity}` is all metrics in a family whose inputs the file gives. `features`: a table
    (item_id, vector) with item features, for the metric `diversity`. `multiverse`: also measure under every
    defensible definition (`evaluation.multiverse`). `exposure`: estimates corrected for what was shown, by
    item propensities. `task`: rank items, or predict the ratings in held-out rows (`metrics` are then rmse,
    mse, mae ...). `uncut`: count all ranks; false: only up to the largest k, several times faster on large
    catalogues, with the same values at every k and none over the whole ranking. `learning_curve`: also
    measure held-out users after 1, 2, ... given ratings.
    """

    metrics: tuple[str, ...] = DEFAULT_METRICS
    k: tuple[int, ...] = (1, 3, 5, 10, 20)
    """Cut-offs: metrics look at lists up to rank k."""
    curve: bool = False
    """Measure at every cut-off from 1 to the largest k."""
    parts: tuple[Name, ...] = ("test",)
    """Held-out parts to measure: test, valid, open_loop, or parts of the split; `test_exchanged` beside
    test: about 1,000 of its users with each other's truth."""
    preset: str | None = None
    """Library whose numbers are reproduced, such as `recbole`; see the presets."""
    definition: dict[str, Any] = {}
    """Axes which replace the preset's own in the definition, such as `{gain: exponential}`."""
    candidates_path: Location | None = None
    """Table (user_id, item_id) with the items to rank, for `definition.candidates: given`."""
    features: Location | None = None
    item_groups: ItemGroupTable | None = None
    """Groups of items, such as genres, for metrics of families groups, calibration and diversity."""
    draw: CandidateDraw = CandidateDraw()
    """Settings for drawn candidates, for `definition.candidates` uniform or popularity."""
    slices: tuple[Slice, ...] = (Slice(key="popularity", of="popularity"),)
    """Groups of users or items; every metric is computed for each again."""
    bootstrap: Bootstrap = Bootstrap()
    """Resampling for the confidence intervals."""
    user_metrics: bool = True
    """Store every user's value too; comparisons need it."""
    multiverse: bool = False
    exposure: Exposure | None = None
    uncut: bool = True
    task: Literal["ranking", "rating"] = "ranking"
    learning_curve: LearningCurve | None = None

    added_later: ClassVar[frozenset[str]] = frozenset({"task", "learning_curve", "item_groups"})

    _left_out: tuple[str, ...] = PrivateAttr(())

    @model_validator(mode="wrap")
    @classmethod
    def _expand_families(cls, document: Any, check: ModelWrapValidatorHandler[Evaluation]) -> Evaluation:
        """Replace bundles by the names of their metrics."""
        names = document.get("metrics") if isinstance(document, dict) else None
        if not isinstance(names, list | tuple) or all(read_family(name) is None for name in names):
            return check(document)
        # Imported here: metrics load numba and scipy, which other settings do not need.
        from recbench_spark.metrics.kernels.about import expand_families  # noqa: PLC0415

        given = {"train", *(name for name in ("features", "item_groups") if document.get(name))}
        given |= {"uncut"} if document.get("uncut", True) else set()
        metrics, left_out = expand_families(names, given)
        made = check({**document, "metrics": metrics})
        made._left_out = left_out
        return made

    @model_validator(mode="before")
    @classmethod
    def _fill_rating_metrics(cls, document: Any) -> Any:
        """Fill in default metrics for predicted ratings."""
        if not isinstance(document, dict) or document.get("task") != "rating":
            return document
        return {"metrics": RATING_METRICS, "slices": (), **document}

    @model_validator(mode="before")
    @classmethod
    def _read_metric_names(cls, document: Any) -> Any:
        """Give metrics our names, and move cut-offs into `k`.

        For example, `ndcg@10` becomes `ndcg`, and `k` gets a 10.
        """
        names = document.get("metrics") if isinstance(document, dict) else None
        if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
            return document
        metrics, figures = read_figures(names)
        cuts, named = [k for _, k in figures], document.get("k", ())
        if not cuts or not isinstance(named, list | tuple):
            return {**document, "metrics": metrics}
        return {**document, "metrics": metrics, "k": (*named, *cuts)}

    @property
    def parts_exchanged(self) -> tuple[str, ...]:
        """Parts with the truth of other users of another part."""
        return tuple(one for one in self.parts if one.removesuffix(EXCHANGED) in {*self.parts} - {one})

    @property
    def plain_parts(self) -> tuple[str, ...]:
        """The other parts."""
        return tuple(one for one in self.parts if one not in self.parts_exchanged)

    @field_validator("k")
    @classmethod
    def _check_cutoffs(cls, k: tuple[int, ...]) -> tuple[int, ...]:
        if not k or min(k) < 1 or max(k) > INT:
            raise ValueError(f"cut-offs must be whole numbers from 1 to {INT}")
        return tuple(sorted(set(k)))

    @field_validator("metrics", "parts")
    @classmethod
    def _require_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if not names:
            raise ValueError("name at least one")
        return names

    @field_validator("slices")
    @classmethod
    def _check_slice_keys(cls, slices: tuple[Slice, ...]) -> tuple[Slice, ...]:
        if len({cut.key for cut in slices}) < len(slices):
            raise ValueError("give each slice a key of its own")
        return slices

    @model_validator(mode="after")
    def _check_together(self) -> Evaluation:
        for mistake in self._find_mistakes():
            raise ValueError(mistake)
        return self

    def _find_mistakes(self) -> Iterator[str]:
        """Yield settings that do not go together."""
        defaults = type(self).model_fields
        strays = [name for name in RANKING_ONLY if getattr(self, name) != defaults[name].default]
        if self.task == "rating" and (strays or self.slices):
            yield f"{[*strays, 'slices'][0]}: not for task 'rating'"
        for key in (cut.key for cut in self.slices if self.exposure and cut.key in EXPOSURE_SLICES):
            yield f"slice '{key}' is made by evaluation.exposure: choose another key"
        if self.curve and max(self.k) > MAX_CURVE:
            yield f"curve keeps every cut-off up to the largest k: at most {MAX_CURVE}"
        for name in ("multiverse", "exposure"):
            if getattr(self, name) and not self.uncut:
                yield f"{name} needs all ranks: leave uncut true"
        if self.learning_curve is None:
            return
        if CURVE_METRIC not in self.metrics:
            yield f"learning_curve needs the metric {CURVE_METRIC}: its mean is {MANDCG}"
        if not self.user_metrics:
            yield "learning_curve needs user_metrics: true"
        columns = len(self.learning_curve.points) * len(self.metrics) * (len(self.cutoffs) + self.uncut)
        sums = columns * self.bootstrap.replicates
        if sums > MAX_CURVE_SUMS:
            yield (
                f"learning_curve: points x metrics x cut-offs x bootstrap.replicates are {sums:,}, and a "
                f"task holds 16 bytes for each: at most {MAX_CURVE_SUMS:,}"
            )

    @property
    def left_out(self) -> tuple[str, ...]:
        """Metrics in bundles whose inputs the file does not give."""
        return self._left_out

    @property
    def all_metrics(self) -> tuple[str, ...]:
        """The published metrics; a learning curve adds MANDCG."""
        return (*self.metrics, MANDCG) if self.learning_curve else self.metrics

    @property
    def cutoffs(self) -> tuple[int, ...]:
        """The cut-offs; with `curve`, all from 1 to max(k)."""
        return tuple(range(1, max(self.k) + 1)) if self.curve else self.k

    def resolve(self) -> Definition:
        """Return the definition: preset, replaced axes and draw."""
        return self.draw.add_to(make_definition(self.preset, self.definition))


@dataclass(frozen=True)
class Views:
    """Settings for metrics of predictions: bins, thresholds, rates, recalibration.

    Attributes:
        quantiles: number of bins of equal mass.
        thresholds: predictions from which on a row counts as positive.
        fpr: false-positive rates of the partial AUC.
        negatives_kept: share of the negatives that the model's training kept; a probability p becomes
            p / (p + (1 - p) / negatives_kept) first. The rows' own sampling belongs in their weights.
            Source: He et al. 2014, Practical lessons from predicting clicks on ads at Facebook, section
            6.3; TorchRec's RecalibratedNEMetric.
    """

    quantiles: int = 10
    thresholds: tuple[float, ...] = (0.5,)
    fpr: tuple[float, float] = (0.0, 0.1)
    negatives_kept: float = 1.0

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ConfigError: a value is no number, or out of range.
        """
        if not _are_numbers([self.quantiles]) or self.quantiles != int(self.quantiles):
            raise ConfigError(f"quantiles is {show_value(self.quantiles)}", "give a whole number from 1 on")
        if not _are_numbers(self.thresholds):
            raise ConfigError(
                f"thresholds is {show_value(self.thresholds)}", "give numbers, such as (0.5,)"
            )
        if not _are_numbers(self.fpr) or len(self.fpr) != 2:
            raise ConfigError(f"fpr is {show_value(self.fpr)}", "give two numbers, such as (0.0, 0.1)")
        low, high = self.fpr
        if not 0 <= low < high <= 1:
            raise ConfigError(f"fpr is {low:g} to {high:g}", "give two ascending numbers in 0..1")
        if self.quantiles < 1:
            raise ConfigError(f"quantiles is {self.quantiles}", "give 1 or more")
        if not _are_numbers([self.negatives_kept]) or not 0 < self.negatives_kept <= 1:
            what = f"negatives_kept is {show_value(self.negatives_kept)}"
            raise ConfigError(what, "give the share of negatives kept: above 0, at most 1")


def _are_numbers(values: object) -> bool:
    """Return whether a value is a list of finite numbers."""
    numbers = values if isinstance(values, tuple | list) else [None]
    plain = (isinstance(number, Real) and not isinstance(number, bool) for number in numbers)
    return all(plain) and all(map(math.isfinite, numbers))
