"""Settings for the section `models`, one class per kind."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import Field, SerializeAsAny, field_validator, model_validator

from recbench_spark.core.own_modules import import_attribute
from recbench_spark.core.strict_settings import INT, Count, Location, Name, Seed, Strict, parse, shorten
from recbench_spark.errors import ConfigError, nearest
from recbench_spark.models.fold_in_kinds import FoldInRidge
from recbench_spark.retrieval.settings import AnyIndexSettings
from recbench_spark.storage.uris import place_side

KIND_MODULES: dict[str, tuple[str, ...]] = {
    "rating.means": ("means",),
    "networks.settings": ("gru4rec", "lightgcn", "memn2n", "mf_bpr", "sasrec"),
    "graph": ("graph", "graphsage", "pinsage"),
    "cornac": ("cornac",),
    "rating.kinds": (),
}
"""Modules of this package with more kinds. All others stand in a module of their name, or in the last one,
which compiles kernels.
"""


class Provenance(Strict):
    """Origin of a figure: person, publication, and search behind it.

    `search_space`, `budget` and `at_edge` (settings whose best value lies on the edge of the searched
    space) come from the table `trials` where a file does not set them.
    """

    added_later: ClassVar[frozenset[str]] = frozenset({"at_edge"})

    source: Literal["own", "baseline", "rerun", "published"] = "baseline"
    """Origin of the figure: the method under test, a baseline, a rerun, or a publication."""
    ran_by: str | None = None
    """Person or team who ran it."""
    year: Annotated[int, Field(ge=1990, le=2100)] | None = None
    """Year of the publication."""
    search_space: dict[str, tuple[float, ...]] = {}
    """Searched values of each setting; filled in from the table `trials`."""
    budget: str | None = None
    """Effort of the search in words; filled in from the table `trials`."""
    at_edge: tuple[str, ...] = ()
    """Settings whose best value lies on the edge of the searched space."""


class ModelConfig(Strict):
    """Base for one model's settings, registered by its `kind`.

    A subclass whose `kind` is a Literal is registered at its definition.
    `behaviour`: `module:Class` of a `models.adapters.model_adapter.ModelAdapter`, imported at first use, so
    settings load without Spark and torch; kinds in this package name theirs in `adapter`, below
    `models.adapters`. `paths`: settings which are paths (`features.path` for a setting in a section):
    `{logical_date}` is filled in, and the content at the path enters a run's key. `measured`: False for
    figures others measured. `facts`: facts a night reads from the model itself, for gates. `revised`: names
    in `revisions` its numbers depend on, beside its kind's. `unkeyed`: settings which change no number and
    enter no key. `unfitted`: settings no fit depends on: models which differ only in them share one fit.
    `fitted_by_version`: True if another `version` is another fit. `fold_in_revisions`: names in `revisions`
    behind the numbers of held-out users, where `folds_given_rows` is true. `needs_times`: True if the model
    reads row times, whatever the split does.
    """

    behaviour: ClassVar[str] = ""
    adapter: ClassVar[str] = ""
    paths: ClassVar[tuple[str, ...]] = ()
    measured: ClassVar[bool] = True
    facts: ClassVar[tuple[str, ...]] = ()
    revised: ClassVar[tuple[str, ...]] = ()
    unkeyed: ClassVar[frozenset[str]] = frozenset()
    unfitted: ClassVar[frozenset[str]] = frozenset()
    fitted_by_version: ClassVar[bool] = False
    fold_in_revisions: ClassVar[tuple[str, ...]] = ("fold_in", "held_out_users")
    needs_times: ClassVar[bool] = False

    name: Name
    """Name of the model in tables and reports."""
    version: str = "1"
    """Your version of the model: another one is another run."""
    provenance: Provenance = Provenance()
    """Origin of the figures."""
    kind: str
    """Kind of the model: a name on this page, or `module:Class` in your own package."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Register the class under its kind; each kind has one class."""
        for kind in _kinds(cls):
            other = MODELS.setdefault(kind, cls)
            if (other.__module__, other.__name__) != (cls.__module__, cls.__name__):
                raise TypeError(f"kind '{kind}' is taken by {other.__module__}.{other.__name__}")

    @property
    def counts_catalogue(self) -> bool:
        """True if a fit counts all log items, trained or not."""
        return False

    @property
    def folds_given_rows(self) -> bool:
        """True if held-out users get vectors from their given rows."""
        return False

    @property
    def shows_validation(self) -> bool:
        """True if the model sees part valid when ranking another part."""
        return False

    def hide_validation(self) -> Self:
        """Return the model without the rows `shows_validation` means."""
        return self

    def check(self, reader: str) -> None:
        """Check, before Spark starts, what single settings cannot see.

        Args:
            reader: the reader of the dataset.

        Raises:
            ConfigError: a setting does not fit another one, or the dataset.
        """


MODELS: dict[str, type[ModelConfig]] = {}
"""Every imported model class, by its kind."""


def model_class(kind: str) -> type[ModelConfig]:
    """Return the class of a kind, or of another package's `module:Class`.

    Raises:
        ConfigError: there is no such kind, module or class.
    """
    if ":" in kind:
        return import_class(kind)
    if kind not in MODELS:
        own = kind if kind.isidentifier() and find_spec(f"{__package__}.{kind}") else list(KIND_MODULES)[-1]
        module = next((module for module, kinds in KIND_MODULES.items() if kind in kinds), own)
        import_module(f"{__package__}.{module}")
    if kind not in MODELS:
        raise ConfigError(f"no model of kind '{kind}'", nearest(kind, list_kinds()))
    return MODELS[kind]


def list_kinds() -> list[str]:
    """Return all kinds, after importing every module which defines some."""
    beside = [one.name for one in iter_modules(import_module(str(__package__)).__path__) if not one.ispkg]
    for module in (*beside, *KIND_MODULES):
        import_module(f"{__package__}.{module}")
    return sorted(MODELS)


def import_class(name: str) -> type[ModelConfig]:
    """Return the class behind `module:Class`.

    Raises:
        ConfigError: it cannot be imported, or is no model class.
    """
    model = import_attribute(name, "kind")
    if not (isinstance(model, type) and issubclass(model, ModelConfig) and _kinds(model)):
        raise ConfigError(
            f"kind '{name}' is not a class of models, that is a ModelConfig with a kind",
            "see recbench_spark/models/settings.py",
        )
    return model


def name_adapter(settings: type[ModelConfig]) -> str:
    """Return a settings class's adapter as `module:Class`."""
    if not (settings.behaviour or settings.adapter):
        raise ConfigError(
            f"{settings.__name__} has no `behaviour`",
            "name the class that fits it: behaviour = 'module:Class'",
        )
    return settings.behaviour or f"{__package__}.adapters.{settings.adapter}"


def _kinds(model: type[ModelConfig]) -> tuple[str, ...]:
    """Return a class's kinds; empty for a base of others."""
    return get_args(model.model_fields["kind"].annotation)


def make_model(document: Any, where: str) -> ModelConfig:
    """Make a model from a mapping, named `where` in errors.

    Raises:
        ConfigError: the kind is missing or unknown, or a setting is wrong.
    """
    if isinstance(document, ModelConfig):
        return document
    if not isinstance(document, Mapping) or not isinstance(document.get("kind"), str):
        keys = ", ".join(map(str, document)) if isinstance(document, Mapping) else ""
        given_keys = f"; given: {shorten(keys)}" if keys else ""
        raise ConfigError(
            f"{where}: expected keys and values with a 'kind'{given_keys}", "{name: my_als, kind: als}"
        )
    try:
        chosen = model_class(document["kind"])
    except ConfigError as error:
        raise ConfigError(f"{where}.kind: {error.message}", error.hint) from None
    (kind, *_) = _kinds(chosen)
    return parse(chosen, {**document, "kind": kind}, f"{where}.{kind}", separator=".")


class LearntItems(ModelConfig):
    """Base for models with learnt numbers per item.

    Attributes:
        items: `trained`: items with training rows; those in held-out rows change nothing. `catalogue`: all
            items in the log, as published recipes count them: table sizes, first random numbers and drawn
            negatives then depend on held-out rows. Models in `models.rating` count users likewise.
    """

    added_later: ClassVar[frozenset[str]] = frozenset({"items"})
    revised: ClassVar[tuple[str, ...]] = ("trained_items",)

    items: Literal["trained", "catalogue"] = "trained"

    @property
    def counts_catalogue(self) -> bool:
        """True if a fit counts all items in the log."""
        return self.items == "catalogue"


class RandomModel(ModelConfig):
    """Random scores: a uniform number per (user, item), by hash."""

    adapter: ClassVar[str] = "baselines:RandomAdapter"
    kind: Literal["random"]
    seed: Seed = 42
    """Seed of the hash."""


class PopularModel(ModelConfig):
    """Popularity: an item's score counts its training interactions.

    Items without one are in no list.
    """

    adapter: ClassVar[str] = "baselines:PopularAdapter"
    revised: ClassVar[tuple[str, ...]] = ("trained_items",)
    kind: Literal["popular"]


class ItemKnnModel(ModelConfig):
    """Cosine item-kNN: similar items in the history raise a score.

    Each item i keeps its most similar items j. `scores: sum` is sum_j s_ij r_uj with the cosines s_ij as
    they are. `centred_mean` scales an item's similarities to sum to 1 and is mean_i + sum_j s_ij (r_uj -
    mean_j): r_uj is 1 for a relevant training row and 0 else, mean_i the mean of that column over all
    users, so popularity counts.
    """

    adapter: ClassVar[str] = "item_knn:ItemKnnAdapter"
    revised: ClassVar[tuple[str, ...]] = ("trained_items",)
    kind: Literal["item_knn"]
    scores: Literal["sum", "centred_mean"] = "sum"
    """`sum` adds cosines; `centred_mean` adds deviations from each item's mean."""
    neighbours: Count = 100
    """Most similar items kept for each item."""
    max_history: Annotated[int, Field(ge=2, le=INT)] = 1000
    """Most items which count in a history; a hash chooses them from a longer one."""


class MllibAlsModel(LearntItems):
    """Spark MLlib's alternating least squares, over all executors.

    Its last bits depend on the number of cores; `als` has the same objective, and fits on one host.
    """

    adapter: ClassVar[str] = "mllib_als:MllibAlsAdapter"
    kind: Literal["mllib_als"]
    rank: Annotated[int, Field(ge=1, le=2048)] = 32
    """Number of factors for each user and item."""
    iterations: Annotated[int, Field(ge=1, le=10_000)] = 10
    """Sweeps over users and items."""
    regularization: Annotated[float, Field(ge=0)] = 0.05
    """Weight of squared lengths (Spark's regParam)."""
    alpha: Annotated[float, Field(ge=0)] = 1.0
    """Growth of confidence with the rating, if `implicit`."""
    implicit: bool = True
    """Learn from confidence in pairs; false: predict ratings."""
    seed: Seed = 42
    """Seed of the first factors."""

    @property
    def folds_given_rows(self) -> bool:
        """True if a fold-in fits these settings; see `ModelConfig`."""
        return self.regularization > 0


class TruthModel(ModelConfig):
    """The generated world's true factors, without rating noise."""

    adapter: ClassVar[str] = "baselines:TruthAdapter"
    kind: Literal["truth"]

    def check(self, reader: str) -> None:
        """Check for the generated world; errors as `ModelConfig.check`."""
        if reader != "world":
            raise ConfigError(
                f"model {self.name}: only the generated world knows its true factors",
                "use another kind with this dataset",
            )


class EmbeddingsModel(ModelConfig):
    """Vectors from another system, or from a warehouse.

    The tables are (user_id, vector[, bias]) and (item_id, vector[, bias]). `warehouse` and `model_id` in
    place of both mean a warehouse's vectors of a model, such as one embedded by `recbench embed` with
    --sides user,item. With `fold_in` users get vectors from their given items, for learning curves. Then
    `users` can be left out.
    """

    adapter: ClassVar[str] = "external_models:EmbeddingsAdapter"
    added_later: ClassVar[frozenset[str]] = frozenset({"fold_in", "columns"})
    paths: ClassVar[tuple[str, ...]] = ("users", "items")
    fold_in_revisions: ClassVar[tuple[str, ...]] = ("fold_in",)
    kind: Literal["embeddings"]
    users: Location | None = None
    """Table (user_id, vector[, bias])."""
    items: Location
    """Table (item_id, vector[, bias])."""
    similarity: Literal["dot", "cosine"] = "dot"
    """Score of a pair: the product of the vectors, or their cosine."""
    columns: dict[str, str] = {}
    """Our column names and those in the tables, such as {user_id: userId}; usual names need none."""
    fold_in: FoldInRidge | None = None
    """Regression which gives users vectors from their given items."""

    @model_validator(mode="before")
    @classmethod
    def _place_stored_vectors(cls, document: Any) -> Any:
        """Replace a stored model by its user and item tables."""
        if not isinstance(document, Mapping) or not {"warehouse", "model_id"} & document.keys():
            return document
        rest = {name: value for name, value in document.items() if name not in ("warehouse", "model_id")}
        place, model_id = document.get("warehouse"), document.get("model_id")
        if not (isinstance(place, str) and isinstance(model_id, str)) or {"users", "items"} & rest.keys():
            raise ValueError("warehouse and model_id belong together, without users and items")
        sides = {f"{side}s": place_side(place, model_id, side) for side in ("user", "item")}
        return {**rest, **sides}

    @property
    def folds_given_rows(self) -> bool:
        """True if there are item vectors alone; see `ModelConfig`."""
        return self.users is None

    @model_validator(mode="after")
    def _check_users(self) -> Self:
        if self.users is None and self.fold_in is None:
            raise ValueError("users: a path is missing; with fold_in users follow from their given items")
        if self.fold_in and self.similarity == "cosine":
            raise ValueError("similarity: cosine with fold_in; scale the item vectors to length 1 instead")
        return self


class ScoresModel(ModelConfig):
    """A table (user_id, item_id, score) from another system."""

    adapter: ClassVar[str] = "external_models:ScoresAdapter"
    added_later: ClassVar[frozenset[str]] = frozenset({"columns"})
    paths: ClassVar[tuple[str, ...]] = ("path",)
    kind: Literal["scores"]
    path: Location
    """Table (user_id, item_id, score); it may hold `{logical_date}`."""
    columns: dict[str, str] = {}
    """Our column names and those in the table, such as {user_id: userId}; usual names need none."""


class ListsModel(ModelConfig):
    """Ranked lists (user_id, item_id, rank or score) from another system.

    `training_items`: listed items in the user's training rows count as they are (keep), or are taken out,
    as for models with scores (drop).
    """

    adapter: ClassVar[str] = "external_models:ListsAdapter"
    added_later: ClassVar[frozenset[str]] = frozenset({"training_items", "columns"})
    paths: ClassVar[tuple[str, ...]] = ("path",)
    kind: Literal["lists"]
    path: Location
    """Table (user_id, item_id, rank or score); it may hold `{logical_date}`."""
    columns: dict[str, str] = {}
    """Our column names and those in the table, such as {user_id: userId}; usual names need none."""
    training_items: Literal["keep", "drop"] = "keep"


class SwitchModel(ModelConfig):
    """Uses one model up to some given ratings, then another.

    Its values are those of the two models along the learning curve; nothing is ranked again.

    `at`: most given ratings at which `first` is used; `auto` chooses it on the part `valid` alone. Without
    `first` and `then` the pair is chosen there as well, among all models in the file.
    """

    adapter: ClassVar[str] = "baselines:SwitchAdapter"
    kind: Literal["switch"]
    first: Name | None = None
    """Model to use first."""
    then: Name | None = None
    """Model to use from then on."""
    at: Count | Literal["auto"] = "auto"

    @model_validator(mode="after")
    def _check_pair(self) -> SwitchModel:
        if (self.first is None) != (self.then is None):
            raise ValueError("name both 'first' and 'then', or neither of them")
        if self.first is None and self.at != "auto":
            raise ValueError("'at' needs the names 'first' and 'then'")
        if self.first is not None and self.first == self.then:
            raise ValueError(f"a switch from '{self.first}' to itself")
        return self


class RetrievedModel(ModelConfig):
    """Lists through an index, from a benchmark file's section `retrieval`.

    `base`: the model which scores. `length`: items in a list.
    """

    adapter: ClassVar[str] = "retrieved:RetrievedAdapter"
    kind: Literal["retrieved"]
    base: SerializeAsAny[ModelConfig]
    index: AnyIndexSettings
    """Settings of the index."""
    length: Count

    @field_validator("base", mode="before")
    @classmethod
    def _make_base(cls, base: Any) -> ModelConfig:
        return make_model(base, "retrieved.base")

    @property
    def paths(self) -> tuple[str, ...]:  # type: ignore[override]
        """Settings which are paths: the base's."""
        return tuple(f"base.{name}" for name in self.base.paths)

    @property
    def revised(self) -> tuple[str, ...]:  # type: ignore[override]
        """Revisions behind the numbers: the base's, and its kind's."""
        return (self.base.kind, *self.base.revised)

    @property
    def fold_in_revisions(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of revisions behind the base's fold-in."""
        return self.base.fold_in_revisions

    @property
    def folds_given_rows(self) -> bool:
        """True if the base has held-out users' vectors; see `ModelConfig`."""
        return self.base.folds_given_rows


class PublishedModel(ModelConfig):
    """Published figures, shown beside measured ones.

    Examples are `ndcg@10: 0.31` or `rmse: 0.77`. A figure is a number in its metric's range
    (`metrics.kernels.about.figure_range`): 17.0 per cent is 0.17.
    """

    measured: ClassVar[bool] = False
    kind: Literal["published"]
    figures: dict[str, float]
    """Figures by name, such as `{ndcg@10: 0.31}`."""

    @field_validator("figures")
    @classmethod
    def _check_figures(cls, figures: dict[str, float]) -> dict[str, float]:
        # Imported here: metrics load numba and scipy, which other settings do not need.
        from recbench_spark.metrics.kernels.about import figure_range  # noqa: PLC0415

        for figure, value in figures.items():
            low, high = figure_range(figure)
            if not (math.isfinite(value) and low <= value <= high):
                raise ValueError(f"{figure}: {value:g} lies outside {low:g} to {high:g}")
        return figures

    def check(self, reader: str) -> None:
        """Check for figure names; errors as `ModelConfig.check`."""
        for figure in self.figures:
            if not re.fullmatch(r"[a-z_0-9]+(@[1-9][0-9]{0,8})?", figure):
                raise ConfigError(f"model {self.name}: '{figure}' is not a figure", "e.g. ndcg@10 or rmse")
