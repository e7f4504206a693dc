"""The benchmark file: strict, frozen, checked before Spark starts.

An unknown key, a value of the wrong type or out of range is a ConfigError that names the file, the
path of the key and the nearest known key. The application's settings live here; Spark's stay with
spark-submit; secrets live in neither.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args, get_origin
from zoneinfo import ZoneInfo

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    Event,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
)

from recbench_spark.definitions import Definition, make_definition, range_of
from recbench_spark.errors import ConfigError, nearest

M = TypeVar("M", bound=BaseModel)

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""What a name may look like before it becomes part of SQL, a path or a partition value."""

OFFSET = re.compile(r"[+-](0[0-9]|1[0-8]):[0-5][0-9]")
"""A time zone without a name: +02:00."""

BENCHMARKS = Path(__file__).resolve().parent.parent / "conf" / "benchmarks"


SECRET = (
    r"pass(?:word|wd|phrase)|pwd|secret|token|credential|signature|\bsas\b|\bsig\b|\bauth"
    r"|(?:access|account|api|private|storage).?key|\bkeys?\b|key(?:tab|store|file)"
)
"""Words of an option or of a parameter that holds a secret."""

SECRETS = re.compile(
    r"://[^/@\s:]*:(?!\d+(?:[/,]|$))\S*@"  # user:password@; a port has a slash or nothing after it
    r"|https?://[^/\s@]+@"
    rf"|[?&;][^=&;\s]*(?:{SECRET})[^=&;\s]*=",
    re.IGNORECASE,
)
"""Text that bears a password, a key or a signature."""

ELSEWHERE = (
    "settings are printed and stored beside results: secrets belong to Spark (spark.hadoop.* in a "
    "properties file of your own), to the cluster's roles, or to the environment"
)


def refuse_secrets(text: str, where: str) -> None:
    """ConfigError, which does not repeat it, for text that bears a secret; what is printed must not."""
    if SECRETS.search(text):
        raise ConfigError(f"{where} holds a password, key or token", ELSEWHERE)


class Strict(BaseModel):
    """Frozen, no key that is not known, no number that is not finite, no secret, nothing named twice."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _sound(cls, document: Any) -> Any:
        for key, value in document.items() if isinstance(document, dict) else ():
            if isinstance(value, str) and SECRETS.search(value):
                raise ValueError(f"{key} holds a password, key or token; {ELSEWHERE}")
            if isinstance(value, bool) and not _takes_truth(cls, key):
                raise ValueError(f"{key}: a number or text is expected, and not {str(value).lower()}")
        return document

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        for name, found in self:
            if name != "ratio" and isinstance(found, tuple):
                twice = _repeated(found)
                if twice is not None:
                    raise ValueError(f"{name}: {twice!r} stands there twice")
        return self


def _takes_truth(model: type[BaseModel], key: Any) -> bool:
    """Whether a field is true or false: pydantic takes these for 1 and 0 elsewhere."""
    field = model.model_fields.get(key) if isinstance(key, str) else None
    return field is None or field.annotation is bool


def _repeated(values: Sequence[Any]) -> Any:
    """The first text or number that was there before; sections have rules of their own."""
    seen: set[Any] = set()
    for value in values:
        if isinstance(value, str | int | float):
            if value in seen:
                return value
            seen.add(value)
    return None


INT = 2**31 - 1
"""The largest whole number of the tables' columns k, n, rank."""

LONGEST_CURVE = 10_000
"""Cut-offs of `curve`: each is a row of `metrics`."""

Name = Annotated[str, Field(pattern=f"^{NAME.pattern}$")]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, le=INT)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Location = Annotated[str, Field(min_length=1, pattern=r"^[^\x00]*[^\x00\s][^\x00]*$")]
"""A path or URI, or the name of a column."""


class World(Strict):
    """The generated world: who is there, how strong the loop is.

    `open_items`: what the open loop shows, uniformly: any item, of which a split then leaves out the
    pairs in training, or (`unseen`) only items that the loop did not show to the user.
    """

    users: Annotated[int, Field(ge=1, le=10**9)] = 1000
    items: Annotated[int, Field(ge=2, le=10**8)] = 300
    interactions: Annotated[int, Field(ge=1000, le=10**8)] = 60_000
    open_loop: Annotated[int, Field(ge=0, le=10**9)] = 20_000
    loop: Share = 0.8
    periods: Annotated[int, Field(ge=1, le=50)] = 4
    seed: Seed = 42
    tastes: Annotated[int, Field(ge=1, le=32)] = 8
    open_items: Literal["all", "unseen"] = "all"


class Dataset(Strict):
    """Where the log lies and how it is read.

    `columns` maps our names (user_id, item_id, rating, event_time, part) to the log's; `attributes`
    lists further columns kept to slice by. `time_zone` is that of times without an offset.
    `bad_rows`: an error, or left out, counted and kept in the table `rejects`. `until`: the last day of
    the log, in `time_zone`; what comes later is left out and counted. Paths, options and `until` may
    hold `{logical_date}` (see `placeholders`).
    """

    name: Name
    reader: Literal[
        "world",
        "movielens_100k",
        "movielens_1m",
        "movielens_10m",
        "movielens_20m",
        "movielens_25m",
        "movielens_32m",
        "movielens_latest",
        "netflix",
        "coat",
        "yahoo_r3",
        "lightgcn",
        "ncf",
        "csv",
        "parquet",
        "delta",
    ]
    path: Location | None = None
    columns: dict[str, Location] = {}
    attributes: tuple[Location, ...] = ()
    options: dict[str, str] = {}
    time_unit: Literal["s", "ms", "us", "timestamp"] = "s"
    time_zone: str = "UTC"
    bad_rows: Literal["error", "reject"] = "error"
    duplicates: Literal["keep_last", "keep_first", "error"] = "keep_last"
    until: str | None = None
    world: World = World()

    @field_validator("time_zone")
    @classmethod
    def _known_zone(cls, zone: str) -> str:
        try:
            known = OFFSET.fullmatch(zone) or ZoneInfo(zone)
        except (KeyError, ValueError, OSError):
            known = None
        if not known:
            raise ValueError(f"no time zone '{zone}': give one such as UTC, Europe/Rome or +02:00")
        return zone

    @field_validator("options")
    @classmethod
    def _none_secret(cls, options: dict[str, str]) -> dict[str, str]:
        for key, value in options.items():
            if re.search(SECRET, key, re.IGNORECASE) or SECRETS.search(value):
                raise ValueError(f"option {key} holds a secret; {ELSEWHERE}")
        return options

    @field_validator("until", mode="before")
    @classmethod
    def _as_text(cls, until: Any) -> Any:
        return until.isoformat() if isinstance(until, date) else until  # YAML reads 2026-01-31 as a date

    @property
    def lists_negatives(self) -> bool:
        """Whether the files list candidates: `definition.candidates: given` then needs no path."""
        return self.reader == "ncf"

    @model_validator(mode="after")
    def _path_given(self) -> Dataset:
        if self.reader != "world" and not self.path:
            raise ValueError(f"reader '{self.reader}' needs 'path'")
        return self


Duration = Annotated[str, Field(pattern="^[1-9][0-9]{0,11}[smhdw]$")]
"""Seconds, minutes, hours, days or weeks: `30m`, `7d`."""

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
LONGEST = 10_000 * 366 * UNITS["d"]
"""Seconds of all the years that a date can have."""


def seconds(duration: str) -> int:
    """`7d` in seconds.

    >>> seconds("2h")
    7200
    """
    return int(duration[:-1]) * UNITS[duration[-1]]


def _written(day: Any) -> Any:
    """Days and instants are written out: pydantic takes 2026 for seconds since 1970."""
    if isinstance(day, int | float) or (isinstance(day, str) and re.fullmatch(r"\s*[-+]?[\d_.]+\s*", day)):
        raise ValueError("write a day like 2026-01-31, or a time like 2026-01-31T12:00:00+00:00")
    return day


PROTOCOLS: dict[str, dict[str, Any]] = {
    "RO_RS": {"order": "random", "holdout": "ratio", "group": "user"},
    "TO_RS": {"order": "temporal", "holdout": "ratio", "group": "user"},
    "RO_LS": {"order": "random", "holdout": "leave_one_out", "group": "user"},
    "TO_LS": {"order": "temporal", "holdout": "leave_one_out", "group": "user"},
    "netflix": {"order": "temporal", "holdout": "last_n", "group": "user"},
    "given": {"holdout": "given"},
}
"""Short names of combinations: the papers' codes (random or temporal order; ratio or leave one out)."""

NETFLIX = {"n": 9, "parts": ("probe", "quiz", "test")}
"""What the Netflix prize withheld of each user, and where it went; both can be replaced."""

KEYS_OF_HOLDOUTS: dict[str, tuple[str, ...]] = {
    "n": ("last_n", "n_given"),
    "folds": ("folds",),
    "fold": ("folds",),
    **dict.fromkeys(("start", "length", "step", "window"), ("period",)),
}
"""Keys of a split that mean something only with these holdouts."""


class HeldOut(Strict):
    """Strong generalisation: a hashed share of the users (or items) does not train the model.

    A part of each one's rows is `given`, the rest is held out, as the split's order and holdout say.
    """

    of: Literal["users", "items"] = "users"
    test: Annotated[float, Field(gt=0, lt=1)] = 0.1
    valid: Share = 0.0

    @model_validator(mode="after")
    def _some_train(self) -> HeldOut:
        if self.test + self.valid >= 1:
            raise ValueError("test and valid must leave some to train on")
        return self


class Split(Strict):
    """Order x holdout x group, or a `protocol` that names such a combination.

    Rows are put in order (random: by hash), inside each user's rows or all together, and held out:

    ratio: the last rows, shares of train, valid, test in `ratio`.
    leave_one_out: the last row; the last but one for validation where `valid` is true.
    last_n: the last `n` rows; the `n` before them for validation where `valid` is true.
    n_given: all but the first `n` rows.
    folds: fold number `fold` of `folds`, by hash; the next one for validation where `valid` is true.
    period: the rows from `start` on (for `length`), `window` times `step` later; without `start` the
      last `length` of the log, `window` times `step` earlier. What comes after it is labelled later.
    given: nothing, the log says where each row belongs.

    `parts`: the names of the held-out parts among which test rows are dealt by hash.
    """

    protocol: Literal["RO_RS", "TO_RS", "RO_LS", "TO_LS", "netflix", "given"] | None = None
    order: Literal["random", "temporal"] = "random"
    holdout: Literal["ratio", "leave_one_out", "last_n", "n_given", "folds", "period", "given"] = "ratio"
    group: Literal["user", "global"] = "user"
    ratio: tuple[Share, Share, Share] = (0.8, 0.0, 0.2)
    valid: bool = False
    n: Annotated[int, Field(ge=0, le=INT)] | None = None
    parts: tuple[Name, ...] = ("test",)
    folds: Annotated[int, Field(ge=2, le=INT)] = 10
    fold: Annotated[int, Field(ge=0)] = 0
    start: datetime | None = None
    length: Duration | None = None
    step: Duration | None = None
    window: Annotated[int, Field(ge=0, le=INT)] = 0
    held_out: HeldOut | None = None
    seed: Seed = 42

    @model_validator(mode="before")
    @classmethod
    def _named(cls, document: Any) -> Any:
        return _with_protocol(document) if isinstance(document, dict) else document

    @field_validator("ratio")
    @classmethod
    def _sums_to_one(cls, ratio: tuple[float, float, float]) -> tuple[float, float, float]:
        if abs(sum(ratio) - 1) > 1e-9 or ratio[0] == 0 or ratio[2] == 0:
            raise ValueError("train, valid, test must sum to 1, with train and test above 0")
        return ratio

    @field_validator("start", mode="before")
    @classmethod
    def _written_out(cls, start: Any) -> Any:
        return _written(start)

    @field_validator("start")
    @classmethod
    def _in_utc(cls, start: datetime | None) -> datetime | None:
        try:
            return start.replace(tzinfo=start.tzinfo or UTC).astimezone(UTC) if start else None
        except OverflowError:
            raise ValueError("no such time in UTC") from None

    @field_validator("parts")
    @classmethod
    def _parts_differ(cls, parts: tuple[str, ...]) -> tuple[str, ...]:
        if not parts or len(set(parts)) < len(parts) or {"train", "given", "later", "log"} & set(parts):
            raise ValueError("give held-out parts names of their own; train, given, later, log are taken")
        if len(parts) > 100:
            raise ValueError("at most 100 parts")
        return parts

    @model_validator(mode="after")
    def _makes_sense(self) -> Split:
        for wrong, message in _mistakes(self):
            if wrong:
                raise ValueError(message)
        return self

    @property
    def temporal(self) -> bool:
        """Whether rows are put in order of time."""
        return self.order == "temporal"

    def describe(self) -> str:
        """The protocol in one short string, as it stands in `runs.split`."""
        name = self.protocol or f"{self.order} {self.holdout} {self.group}"
        words = [name, self._amount(), f"to {'/'.join(self.parts)}" if self.parts != ("test",) else ""]
        if self.held_out:
            valid = f"/{self.held_out.valid:g}" if self.held_out.valid else ""
            words.append(f"of held-out {self.held_out.of} {self.held_out.test:g}{valid}")
        return " ".join(word for word in [*words, f"seed {self.seed}"] if word)

    def _amount(self) -> str:
        valid = "with valid" if self.valid else ""
        amounts = {
            "ratio": "/".join(f"{share:g}" for share in self.ratio),
            "leave_one_out": valid or "test only",
            "folds": f"{self.fold} of {self.folds} {valid}".strip(),
            "period": f"{self.start or 'last'} {self.length or ''} window {self.window} {valid}".strip(),
            "given": "",
        }
        return amounts.get(self.holdout, f"{self.n} {valid}".strip())


def _with_protocol(document: dict[str, Any]) -> dict[str, Any]:
    """The document with what a protocol's name stands for, and with the name of what it spells out."""
    name = document.get("protocol")
    if name is not None and not (isinstance(name, str) and name in PROTOCOLS):
        return document  # refused by the field's own check
    meant = PROTOCOLS.get(name or "", {})
    for key, value in meant.items():
        if document.get(key, value) != value:
            raise ValueError(f"protocol {name} means {key} {value}, and {document[key]} is given")
    filled = {**(NETFLIX if name == "netflix" else {}), **_usual(document), **document, **meant}
    if name is None:
        named = (
            code
            for code, meant in PROTOCOLS.items()
            if code != "netflix" and meant.items() <= filled.items()
        )
        filled["protocol"] = next(named, None)
    return filled


def _usual(document: dict[str, Any]) -> dict[str, Any]:
    """Order and group where they are not given."""
    holdout = document.get("holdout", "ratio")
    return {
        "holdout": holdout,
        "order": "temporal" if holdout == "period" else "random",
        "group": "global" if holdout in ("folds", "period") else "user",
    }


def _mistakes(split: Split) -> list[tuple[bool, str]]:
    """What contradicts itself in a split, each with its message."""
    holdout, per_user = split.holdout, split.group == "user"
    length, step = (seconds(lasts) if lasts else 0 for lasts in (split.length, split.step))
    span = length + split.window * (step or length)
    counted = holdout in ("leave_one_out", "last_n", "n_given")
    fields = type(split).model_fields
    strays = [
        key
        for key, holdouts in KEYS_OF_HOLDOUTS.items()
        if holdout not in holdouts and getattr(split, key) != fields[key].default
    ]
    return [
        (bool(strays), f"{', '.join(strays)}: not for holdout '{holdout}'"),
        (counted and not per_user, f"holdout '{holdout}' is per user: group must be 'user'"),
        (holdout in ("last_n", "n_given") and split.n is None, f"holdout '{holdout}' needs 'n'"),
        (holdout == "last_n" and split.n == 0, "n must be at least 1"),
        (holdout == "n_given" and split.valid, "n_given: instead of 'valid' name parts: [valid, test]"),
        (holdout == "folds" and split.temporal, "folds are random: order must be 'random'"),
        (split.fold >= split.folds, f"fold must be below folds, which is {split.folds}"),
        (holdout == "folds" and split.valid and split.folds == 2, "2 folds leave none to validate on"),
        (max(length, step, span) > LONGEST, "length, step and window lead out of the calendar"),
        (holdout == "period" and (per_user or not split.temporal), "a period is temporal and global"),
        (holdout == "period" and not (split.start or split.length), "a period needs 'start' or 'length'"),
        (
            holdout == "period" and (split.valid or split.window > 0) and not split.length,
            "valid and window need the 'length' of the period",
        ),
        (
            bool(split.held_out)
            and (holdout not in ("ratio", "leave_one_out", "last_n", "n_given") or not per_user),
            "held_out goes with group 'user' and holdout ratio, leave_one_out, last_n or n_given",
        ),
        (
            bool(split.held_out) and (split.valid or split.ratio[1] > 0),
            "with held_out, validation is held_out.valid, a share of its own",
        ),
    ]


class Provenance(Strict):
    """Who ran it, where a figure is from, what was searched."""

    source: Literal["own", "baseline", "rerun", "published"] = "baseline"
    ran_by: str | None = None
    year: Annotated[int, Field(ge=1990, le=2100)] | None = None
    search_space: dict[str, tuple[float, ...]] = {}
    budget: str | None = None


class _Model(Strict):
    name: Name
    version: str = "1"
    provenance: Provenance = Provenance()


class RandomModel(_Model):
    """Every (user, item) a uniform score by hash."""

    kind: Literal["random"]
    seed: Seed = 42


class PopularModel(_Model):
    """Training interactions of the item."""

    kind: Literal["popular"]


class ItemKnnModel(_Model):
    """Cosine item-kNN: each item i keeps its most similar items j, whose presence in a history counts.

    `scores: sum` is sum_j s_ij r_uj with the cosines s_ij as they are. `centred_mean` scales an item's
    similarities to sum to 1 and is mean_i + sum_j s_ij (r_uj - mean_j): r_uj is 1 for a relevant
    training row and 0 else, mean_i the mean of that column over all users, so popularity counts.
    """

    kind: Literal["item_knn"]
    scores: Literal["sum", "centred_mean"] = "sum"
    neighbours: Count = 100
    max_history: Annotated[int, Field(ge=2, le=INT)] = 1000


class AlsModel(_Model):
    """Spark MLlib's alternating least squares."""

    kind: Literal["als"]
    rank: Annotated[int, Field(ge=1, le=2048)] = 32
    iterations: Annotated[int, Field(ge=1, le=10_000)] = 10
    regularization: Annotated[float, Field(ge=0)] = 0.05
    alpha: Annotated[float, Field(ge=0)] = 1.0
    implicit: bool = True
    seed: Seed = 42


class TruthModel(_Model):
    """The generated world's true factors, which know no noise of ratings."""

    kind: Literal["truth"]


class EmbeddingsModel(_Model):
    """Vectors another system made: (user_id, vector[, bias]) and (item_id, vector[, bias])."""

    kind: Literal["embeddings"]
    users: Location
    items: Location
    similarity: Literal["dot", "cosine"] = "dot"


class ScoresModel(_Model):
    """A table (user_id, item_id, score) another system made."""

    kind: Literal["scores"]
    path: Location


class ListsModel(_Model):
    """Ranked lists (user_id, item_id, rank or score) another system made."""

    kind: Literal["lists"]
    path: Location


class PublishedModel(_Model):
    """Figures from a publication, kept beside our own: `ndcg@10: 0.31` or `rmse: 0.77`.

    A figure is a number that its metric can take (`definitions.RANGES`): 17.0 per cent is 0.17.
    """

    kind: Literal["published"]
    figures: dict[str, float]

    @field_validator("figures")
    @classmethod
    def _possible(cls, figures: dict[str, float]) -> dict[str, float]:
        for figure, value in figures.items():
            low, high = range_of(figure)
            if not (math.isfinite(value) and low <= value <= high):
                raise ValueError(f"{figure}: {value:g} is no value of it: it lies in {low:g} to {high:g}")
        return figures


Model = Annotated[
    RandomModel
    | PopularModel
    | ItemKnnModel
    | AlsModel
    | TruthModel
    | EmbeddingsModel
    | ScoresModel
    | ListsModel
    | PublishedModel,
    Field(discriminator="kind"),
]


class Slice(Strict):
    """A label for each truth item: metrics are given for each value of it.

    `popularity` (head, torso, tail, cold) and `cold_user` are always known; `column` names an
    attribute of the log, or of the users' or items' table at `path`.
    """

    key: Name
    of: Literal["popularity", "cold_user", "log", "users", "items"]
    column: str | None = None
    path: Location | None = None


class Bootstrap(Strict):
    """Resampling of users behind the intervals."""

    replicates: Annotated[int, Field(ge=0, le=100_000)] = 1000
    level: Annotated[float, Field(gt=0, lt=1)] = 0.95
    seed: Seed = 42


class Draw(Strict):
    """Sampled candidates (definition.candidates uniform or popularity): how many, for whom, which seed.

    `per`: `n` items for each user, or for each of the user's held-out items. `estimators`: corrections
    that stand beside the raw values of uniform draws (see `kernels.sampled`), by name.
    """

    n: Count = 100
    per: Literal["user", "positive"] = "user"
    seed: Seed = 42
    estimators: tuple[
        Literal[
            "rank_estimate",
            "least_squares",
            "monotone_least_squares",
            "bias_variance",
            "maximum_likelihood",
        ],
        ...,
    ] = ("rank_estimate", "monotone_least_squares", "bias_variance", "maximum_likelihood")


DEFAULT_METRICS = ("hit", "precision", "recall", "f1", "map", "mrr", "ndcg", "auc", "coverage")


class Propensities(Strict):
    """Chances that an item was shown, from the training part (see `kernels.propensities`).

    `law`: how the exponent is found. `scale`: powers are known up to a factor; make the largest 1, or
    their sum the interactions of a mean user. `floor`: smaller ones are raised to it, larger than 1
    lowered. `given`: a table (item_id, propensity) at `path`. `true`: those of the generated world.
    `logistic_regression`: on tables of features, (item_id, numbers ...) and (user_id, numbers ...), one
    or both; `rate`: the share of the cells outside the log that it is fitted to.
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
    law: Literal["approximate", "exact"] = "approximate"
    scale: Literal["as_is", "largest", "interactions"] = "as_is"
    floor: Annotated[float, Field(gt=0, le=1)] | None = None
    path: Location | None = None
    item_features: Location | None = None
    user_features: Location | None = None
    rate: Annotated[float, Field(gt=0, le=1)] = 0.1

    @model_validator(mode="after")
    def _given_by_a_path(self) -> Propensities:
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
        """The method and the settings that differ from the defaults, as in the column `method`."""
        changed = self.model_dump(exclude_defaults=True, exclude={"method"})
        return ";".join([self.method, *(f"{key}={value}" for key, value in changed.items())])


class Strata(Strict):
    """Items cut by propensity, Q1 the least shown (see `kernels.strata`): how, and into how many.

    The slice `stratum` is that of the first number.
    """

    kind: Literal["equal_mass", "equal_count", "equal_width"] = "equal_mass"
    n: tuple[Annotated[int, Field(ge=2, le=10)], ...] = (2,)

    @field_validator("n")
    @classmethod
    def _differ(cls, n: tuple[int, ...]) -> tuple[int, ...]:
        if not n or len(set(n)) < len(n):
            raise ValueError("give at least one number of strata, each once")
        return n


class Exposure(Strict):
    """Estimates beside the holdout's for what a recommender exposed (see `kernels.estimators`).

    Under chances `ips` is unbiased for sums (hits, precision, DCG). Weighted NDCG is not, and can be
    farther from the truth than the holdout: its ideal list holds only what was shown. `ips_pooled` puts
    the weighted DCG of all users over the ideal of a user with the mean number of relevant items,
    estimated alike.

    `clip`, `switch`, `shrink`: settings of clipped_ips, switch_dr and dros. `without_most_popular`: the
    share of the items, most popular first, that the slice `most_popular` leaves out or keeps alone; 0:
    no such slice. `rewards`: a table (item_id[, user_id], reward) of a model's chances that an item is
    liked, for dm, dr, switch_dr and dros.
    """

    propensities: Propensities = Propensities()
    estimators: tuple[
        Literal[
            "ips",
            "clipped_ips",
            "snips_user",
            "snips_global",
            "ips_pooled",
            "dm",
            "dr",
            "switch_dr",
            "dros",
            "stratified",
        ],
        ...,
    ] = ("ips", "clipped_ips", "snips_user", "snips_global", "stratified")
    clip: Annotated[float, Field(gt=0)] = 100.0
    switch: Annotated[float, Field(gt=0)] = 100.0
    shrink: Annotated[float, Field(gt=0)] = 100.0
    strata: Strata = Strata()
    without_most_popular: Annotated[float, Field(ge=0, lt=1)] = 0.01
    rewards: Location | None = None

    @model_validator(mode="after")
    def _of_items(self) -> Exposure:
        if self.propensities.method == "naive_bayes":
            raise ValueError("naive_bayes gives chances of ratings, and estimates need those of items")
        if not self.estimators or len(set(self.estimators)) < len(self.estimators):
            raise ValueError("name at least one estimator, each once")
        return self


EXPOSURE_SLICES = ("stratum", "most_popular")
"""Keys of slices that `evaluation.exposure` makes."""


class Evaluation(Strict):
    """What is measured: metrics, cut-offs, definition, slices.

    `features`: a table (item_id, vector) of what items are like, for the metric `diversity`.
    `multiverse`: also measure under every defensible definition (`evaluation.multiverse`).
    `exposure`: estimates that correct for what was shown, by propensities of the items.
    `uncut`: count all ranks; false: only up to the largest k, several times faster on large catalogues,
    with the same values at every k and none over the whole ranking.
    """

    metrics: tuple[str, ...] = DEFAULT_METRICS
    k: tuple[int, ...] = (1, 3, 5, 10, 20)
    curve: bool = False
    parts: tuple[Name, ...] = ("test",)
    preset: str | None = None
    definition: dict[str, Any] = {}
    candidates_path: Location | None = None
    features: Location | None = None
    draw: Draw = Draw()
    slices: tuple[Slice, ...] = (Slice(key="popularity", of="popularity"),)
    bootstrap: Bootstrap = Bootstrap()
    user_metrics: bool = True
    multiverse: bool = False
    exposure: Exposure | None = None
    uncut: bool = True

    @field_validator("k")
    @classmethod
    def _positive(cls, k: tuple[int, ...]) -> tuple[int, ...]:
        if not k or min(k) < 1 or max(k) > INT:
            raise ValueError(f"cut-offs must be whole numbers from 1 to {INT}")
        return tuple(sorted(set(k)))

    @field_validator("metrics", "parts")
    @classmethod
    def _some(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if not names:
            raise ValueError("name at least one")
        return names

    @field_validator("slices")
    @classmethod
    def _keys_differ(cls, slices: tuple[Slice, ...]) -> tuple[Slice, ...]:
        if len({cut.key for cut in slices}) < len(slices):
            raise ValueError("give each slice a key of its own")
        return slices

    @model_validator(mode="after")
    def _keys_free(self) -> Evaluation:
        taken = [cut.key for cut in self.slices if self.exposure and cut.key in EXPOSURE_SLICES]
        if taken:
            raise ValueError(f"slice '{taken[0]}' is made by evaluation.exposure: choose another key")
        return self

    @model_validator(mode="after")
    def _short_curve(self) -> Evaluation:
        if self.curve and max(self.k) > LONGEST_CURVE:
            raise ValueError(f"curve keeps every cut-off up to the largest k: at most {LONGEST_CURVE}")
        return self

    @model_validator(mode="after")
    def _whole_rankings(self) -> Evaluation:
        whole = [name for name in ("multiverse", "exposure") if getattr(self, name)]
        if whole and not self.uncut:
            raise ValueError(f"{whole[0]} needs all ranks: leave uncut true")
        return self

    @property
    def cutoffs(self) -> tuple[int, ...]:
        """The cut-offs, or every 1..max(k) where the whole curve is kept."""
        return tuple(range(1, max(self.k) + 1)) if self.curve else self.k

    def resolve(self) -> Definition:
        """The definition: preset, then single axes."""
        return make_definition(self.preset, self.definition)


class Gate(Strict):
    """A bound on a fact of the split's manifest: what lies outside it warns, or fails the job.

    `part`: the part whose fact it is (`log` for the whole); None: every part that has the fact.
    """

    fact: Name
    part: Name | None = None
    above: float | None = None
    below: float | None = None
    action: Literal["fail", "warn"] = "fail"

    @model_validator(mode="after")
    def _one_bound(self) -> Gate:
        if (self.above is None) == (self.below is None):
            raise ValueError("give one of 'above' (fails above it) and 'below' (fails below it)")
        return self


class Comparisons(Strict):
    """Which differences between models, and between nights, hold.

    `baseline`: model that all others are held against; None: the best other one, by metric.
    `baseline_night`: a night that every later one is compared with, beside the one before.
    `minimum_difference`: the smallest difference that matters. `planned_users`: differences after
    which the interval over all nights should be narrowest; choose it before looking.
    `metrics`, `k`: None takes all that have a value per user.
    """

    baseline: Name | None = None
    baseline_night: date | None = None
    metrics: tuple[str, ...] | None = None
    k: tuple[Count | None, ...] | None = None
    minimum_difference: Annotated[float, Field(ge=0)] = 0.0
    replicates: Annotated[int, Field(ge=1, le=100_000)] = 1000
    planned_users: Annotated[int, Field(ge=2, le=10**12)] = 10_000

    @field_validator("baseline_night", mode="before")
    @classmethod
    def _written_out(cls, night: Any) -> Any:
        return _written(night)


class Regression(Strict):
    """A fall of a metric against an earlier night that ends the job with exit code 4.

    `k`: None is the whole ranking. `against`: the model's previous night, or
    `comparisons.baseline_night`. `certain`: only where the interval of the difference excludes 0.
    """

    metric: str
    k: Count | None = None
    drop: Annotated[float, Field(ge=0)]
    part: Name = "test"
    model: Name | None = None
    against: Literal["previous", "baseline"] = "previous"
    certain: bool = False


class Paradoxes(Strict):
    """Where parts and whole disagree on which of two models is better (Simpson's paradox).

    `by`: slice keys whose labels are the strata; None: `stratum` where there is `evaluation.exposure`,
    else `popularity`. `metrics` (those of ranks), `k` (null: the whole ranking), `parts`: None takes
    all that are measured. `against`: all pairs of models, or each with the best one, or with
    `comparisons.baseline`. `flips`: also find the smallest set of items, or of users, whose removal
    turns a verdict, for metrics that are sums over items; against which models says `flips_against`.
    """

    by: tuple[Name, ...] | None = None
    metrics: tuple[str, ...] | None = None
    k: tuple[Count | None, ...] | None = None
    parts: tuple[Name, ...] | None = None
    replicates: Annotated[int, Field(ge=1, le=100_000)] = 1000
    against: Literal["all", "best", "baseline"] = "all"
    flips: tuple[Literal["items", "users"], ...] = ("items",)
    flips_against: Literal["all", "best", "baseline"] = "best"

    def keys(self, evaluation: Evaluation) -> tuple[str, ...]:
        """The slice keys whose labels are the strata."""
        return self.by or ("stratum" if evaluation.exposure else "popularity",)


class Benchmark(Strict):
    """One benchmark file: one complete protocol."""

    name: Name
    description: str = ""
    dataset: Dataset
    split: Split = Split()
    models: tuple[Model, ...]
    evaluation: Evaluation = Evaluation()
    headline: Annotated[str, Field(pattern="^[a-z_0-9]+(@[1-9][0-9]{0,8})?$")] = "ndcg@10"
    gates: tuple[Gate, ...] = ()
    comparisons: Comparisons | None = None
    regressions: tuple[Regression, ...] = ()
    paradoxes: Paradoxes | None = None
    ran_by: str | None = None

    @model_validator(mode="after")
    def _comparable(self) -> Benchmark:
        for wrong, message in (*_comparison_mistakes(self), *_paradox_mistakes(self)):
            if wrong:
                raise ValueError(message)
        return self

    @field_validator("models")
    @classmethod
    def _names_differ(cls, models: tuple[Any, ...]) -> tuple[Any, ...]:
        names = [model.name for model in models]
        if not names or len(set(names)) < len(names):
            raise ValueError("give at least one model, each under a name of its own")
        return models


def _comparison_mistakes(benchmark: Benchmark) -> list[tuple[bool, str]]:
    """What comparisons and regressions ask for that the rest of the file does not give."""
    asked, evaluation = benchmark.comparisons or Comparisons(), benchmark.evaluation
    wanted = bool(benchmark.comparisons or benchmark.regressions)
    compared = asked.metrics or evaluation.metrics
    cuts = asked.k or (*evaluation.cutoffs, None)
    pinned = any(rule.against == "baseline" for rule in benchmark.regressions)
    names = {model.name for model in benchmark.models}
    unknown = {asked.baseline, *(rule.model for rule in benchmark.regressions)} - names - {None}
    strange = [metric for metric in compared if metric not in evaluation.metrics]
    uncompared = [
        f"{rule.metric}@{rule.k or 'all'} of {rule.part}"
        for rule in benchmark.regressions
        if rule.metric not in compared or rule.k not in cuts or rule.part not in evaluation.parts
    ]
    return [
        (wanted and not evaluation.user_metrics, "comparisons need evaluation.user_metrics: true"),
        (bool(unknown), f"comparisons: no model '{next(iter(unknown), '')}' in this file"),
        (bool(strange), f"comparisons: {', '.join(strange)} not in evaluation.metrics"),
        (bool(uncompared), f"regressions: {', '.join(uncompared)} is not compared"),
        (
            pinned and asked.baseline_night is None,
            "regressions against 'baseline' need comparisons.baseline_night",
        ),
    ]


def _paradox_mistakes(benchmark: Benchmark) -> list[tuple[bool, str]]:
    """What the search for paradoxes asks for that the rest of the file does not give."""
    asked, evaluation = benchmark.paradoxes, benchmark.evaluation
    if asked is None:
        return []
    keys = (*(cut.key for cut in evaluation.slices), *(EXPOSURE_SLICES if evaluation.exposure else ()))
    cuts = [k for k in asked.k or () if k not in (*evaluation.cutoffs, None)]
    unknown = {
        "by": [key for key in asked.keys(evaluation) if key not in keys],
        "metrics": [metric for metric in asked.metrics or () if metric not in evaluation.metrics],
        "k": list(map(str, cuts)),
        "parts": [part for part in asked.parts or () if part not in evaluation.parts],
    }
    pinned = "baseline" in (asked.against, asked.flips_against)
    named = benchmark.comparisons is not None and benchmark.comparisons.baseline is not None
    missing = [(key, ", ".join(names)) for key, names in unknown.items()]
    return [
        *((bool(names), f"paradoxes.{key}: {names} not in evaluation") for key, names in missing),
        (pinned and not named, "paradoxes against 'baseline' need comparisons.baseline"),
    ]


def load_benchmark(source: str, overrides: Sequence[str] = ()) -> Benchmark:
    """A benchmark file by path, or by its name under conf/benchmarks, with `a.b=value` replaced."""
    path = find_benchmark(source)
    return make_benchmark(_read_yaml(path), overrides, str(path))


def make_benchmark(document: dict[str, Any], overrides: Sequence[str], where: str) -> Benchmark:
    """A benchmark from keys and values, with `a.b=value` replaced; `where` names them in errors."""
    for override in overrides:
        _apply(document, override)
    return parse(Benchmark, document, where)


def find_benchmark(source: str) -> Path:
    """The file meant by a path or by a name under conf/benchmarks."""
    for path in (Path(source), BENCHMARKS / f"{source}.yaml"):
        if _is_file(path):
            return path
    known = [path.stem for path in BENCHMARKS.glob("*.yaml")]
    raise ConfigError(f"no benchmark file '{_cut(source)}'", nearest(source, known))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name too long for a disk, a folder that may not be looked into
        return False


def _cut(text: str, longest: int = 300) -> str:
    """Text that the user wrote, no longer than one likes to read."""
    return text if len(text) <= longest else f"{text[:longest]}... ({len(text)} letters)"


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: not valid YAML: not UTF-8: {error.reason}", "save it as UTF-8"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", "check its permissions") from None
    document = load_yaml(text, str(path))
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: expected keys and values", "see conf/benchmarks/demo.yaml")
    return document


# ------------------------------------------------------------------------------------------- YAML

Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's where it is installed: ten times faster."""

DEEPEST = 50
"""Sections inside one another; a benchmark file has six."""

REPEATED = 100_000
"""Nodes that aliases (`*name`) may add to those written: a few lines of them can stand for millions."""


def load_yaml(text: str, where: str) -> Any:
    """The value of a YAML text, in time and memory that its length bounds.

    Raises:
        ConfigError: no YAML, a key that stands twice, too deep, or grown by aliases.
    """
    try:
        _survey(yaml.parse(text, Loader=Loader), where)
        return yaml.load(text, Loader=Loader)
    except yaml.YAMLError as error:
        told = _cut(" ".join(str(error).split()))
    # What PyYAML raises of a tag or a date that does not fit its text: !!int foo, 2026-99-99.
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        told = f"a value does not fit its tag or form: {_cut(str(error))}"
    raise ConfigError(f"{where}: not valid YAML: {told}", "quote text that is not meant as YAML")


class _Open:
    """A section or list whose end has not come: nodes in it, and the keys of a section."""

    def __init__(self, event: CollectionStartEvent) -> None:
        self.anchor, self.nodes = event.anchor, 1
        self.keys: set[str] | None = set() if isinstance(event, MappingStartEvent) else None
        self.is_key = True

    def takes(self, key: str | None) -> bool:
        """Count what comes next, a key or a value; False for a key that was there."""
        if self.keys is None:
            return True
        self.is_key, is_key = not self.is_key, self.is_key
        if not is_key or key is None or key == "<<":
            return True
        known = key in self.keys
        self.keys.add(key)
        return not known


def _survey(events: Iterable[Event], where: str) -> None:
    """Look at a document before anything is made of it: depth, keys, and how far aliases make it grow."""
    sizes: dict[str, int] = {}
    inside: list[_Open] = []
    repeated = 0
    for event in events:
        nodes = 0
        if isinstance(event, NodeEvent) and inside:
            key = event.value if isinstance(event, ScalarEvent) else None
            if key and not key.isascii() and any("\ud800" <= letter <= "\udfff" for letter in key):
                raise ConfigError(f"{where}: text that is no Unicode", _line(event))
            if not inside[-1].takes(key):
                raise ConfigError(f"{where}: key '{_cut(str(key))}' stands twice", _line(event))
        if isinstance(event, CollectionStartEvent):
            inside.append(_Open(event))
            if len(inside) > DEEPEST:
                raise ConfigError(f"{where}: more than {DEEPEST} sections in one another", _line(event))
        elif isinstance(event, CollectionEndEvent):
            ended = inside.pop()
            nodes = ended.nodes
            sizes |= {ended.anchor: nodes} if ended.anchor else {}
        elif isinstance(event, AliasEvent):
            nodes = _of_alias(event, sizes, inside, where)
            repeated += nodes
        elif isinstance(event, ScalarEvent):
            nodes = 1
        if inside:
            inside[-1].nodes += nodes
        if repeated > REPEATED:
            raise ConfigError(f"{where}: aliases add more than {REPEATED} values", _line(event))


def _of_alias(event: AliasEvent, sizes: dict[str, int], inside: list[_Open], where: str) -> int:
    name = str(event.anchor)
    if name in [section.anchor for section in inside]:
        raise ConfigError(f"{where}: *{_cut(name)} stands in itself", _line(event))
    return sizes.get(name, 1)


def _line(event: Event) -> str:
    return f"line {event.start_mark.line + 1}" if event.start_mark else ""


# ------------------------------------------------------------------------------------- overrides


def _apply(document: dict[str, Any], override: str) -> None:
    """Set one `a.b.0.c=value`; the value is read as YAML."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {_cut(key)}: expected KEY=VALUE", "e.g. --set split.seed=7")
    *parents, last = key.split(".")
    place: Any = document
    for step in parents:
        place = _descend(place, step, key)
    value = load_yaml(text, f"--set {_cut(key)}")
    if isinstance(place, list):
        place[_position(place, last, key)] = value
    elif isinstance(place, dict):
        place[last] = value
    else:
        raise _no_section(parents[-1], key)


def _no_section(step: str, key: str) -> ConfigError:
    told = f"--set {_cut(key)}: '{_cut(step)}' is not a section of the benchmark file"
    return ConfigError(told, "name a section, then its key: split.seed=7")


def _descend(place: Any, step: str, key: str) -> Any:
    if isinstance(place, list):
        return place[_position(place, step, key)]
    if not isinstance(place, dict) or not isinstance(place.get(step, {}), dict | list):
        raise _no_section(step, key)
    return place.setdefault(step, {})


def _position(place: list[Any], step: str, key: str) -> int:
    """An entry of a list by its number or, for models and slices, by its name."""
    names = [entry.get("name", entry.get("key")) for entry in place if isinstance(entry, dict)]
    if step in names:
        return names.index(step)
    if re.fullmatch("[0-9]{1,9}", step) and int(step) < len(place):
        return int(step)
    raise ConfigError(f"--set {_cut(key)}: no entry '{_cut(step)}'", nearest(step, map(str, names)))


def parse(model: type[M], document: Any, where: str) -> M:
    """Check a document; the first mistake becomes a ConfigError with file, key and nearest key."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise ConfigError(*_explain(model, error, where)) from None
    except UnicodeEncodeError:
        raise ConfigError(f"{where}: text that is no Unicode", "write it as UTF-8") from None


def _explain(model: type[BaseModel], error: ValidationError, where: str) -> tuple[str, str]:
    first = error.errors()[0]
    path = _cut(".".join(str(step) for step in first["loc"]) or "(top)")
    hint = ""
    if first["type"] == "extra_forbidden":
        hint = nearest(str(first["loc"][-1]), _keys_at(model, first["loc"][:-1]))
    elif first["type"] in ("literal_error", "union_tag_invalid"):
        context = first.get("ctx", {})
        known = re.findall(r"'([^']+)'", str(context.get("expected", context.get("expected_tags"))))
        given = first["input"].get("kind") if isinstance(first["input"], dict) else first["input"]
        hint = nearest(str(given), known)
    message = _cut(first["msg"].removeprefix("Value error, "))
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{where}: {path}: {message}{more}", hint


def _keys_at(model: type[BaseModel], path: Sequence[int | str]) -> list[str]:
    """The keys allowed at a path of a validation error."""
    current: Any = model
    for step in path:
        fields = getattr(current, "model_fields", {})
        options = _models_in(fields[step].annotation if step in fields else current)
        tagged = [o for o in options if step in get_args(_kind(o))]
        current = (tagged or options or [current])[0] if tagged or len(options) == 1 else options
    chosen = current if isinstance(current, list) else [current]
    return [name for option in chosen for name in getattr(option, "model_fields", {})]


def _kind(model: Any) -> Any:
    found = getattr(model, "model_fields", {}).get("kind")
    return found.annotation if found else None


def _models_in(annotation: Any) -> list[Any]:
    if isinstance(annotation, list):
        return annotation
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) is None:
        return []
    return [found for inner in get_args(annotation) for found in _models_in(inner)]


def digest(*parts: Any, length: int = 16) -> str:
    """A short hash of anything JSON can hold; equal parts, equal hash, on every machine."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:length]
