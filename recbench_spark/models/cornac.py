"""Models from the library cornac: `{name: bpr, kind: cornac, model: BPR}`.

A benchmark file can name any cornac model which scores items. Models with user and item vectors (MF, SVD,
PMF, MMMF, BPR, WBPR, NMF and others), or with item biases (BaselineOnly), are stored as such. For others
all scores are stored, which small logs allow. This package does not require cornac: install the extra `zoo`
on the driver and on the workers.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

import numpy as np
from pydantic import Field

from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.core.extras import install_command
from recbench_spark.errors import ConfigError, MissingError, nearest
from recbench_spark.models.rating.interface import Ratings
from recbench_spark.models.rating.kinds import VectorModel
from recbench_spark.models.rating.own import Vectors

INSTALL = f"{install_command('zoo')}, on the driver and on the workers"

MAX_CELLS = 1 << 25
"""Most stored scores for a model without vectors: 256 MB."""

OURS = ("self", "name", "seed", "verbose", "trainable", "init_params", "user_text", "item_text")
"""Parameters of cornac's classes which no benchmark file sets."""


class CornacModel(VectorModel):
    """A cornac model, fitted in one task.

    It takes one thread unless `num_threads` is set.

    Attributes:
        model: name of the class in `cornac.models`.
        settings: parameters of the class; missing ones have cornac's defaults.
    """

    kind: Literal["cornac"]
    model: str
    settings: dict[str, bool | int | float | str | list[int]] = Field(default_factory=dict)

    def check(self, reader: str) -> None:
        """Check that cornac has the class, and the class the settings.

        Raises:
            MissingError: cornac is not installed.
            ConfigError: an unknown class or setting, or a size the model does not take.
        """
        parameters = inspect.signature(find_class(self.model)).parameters
        known = [name for name in parameters if name not in OURS]
        for name in self.settings:
            if name not in known:
                raise ConfigError(
                    f"model {self.name}: cornac's {self.model} has no setting '{name}'",
                    nearest(name, known),
                )
        values = {name: self.settings.get(name, one.default) for name, one in parameters.items()}
        layers, size = values.get("layers"), values.get("num_factors")
        if isinstance(layers, list | tuple) and layers and size is not None and size != list(layers)[-1]:
            raise ConfigError(
                f"model {self.name}: cornac's {self.model} takes no other num_factors than its last layer,"
                f" {list(layers)[-1]}; given: {size}",
                f"layers that end in {size}, or kind: neumf",
            )

    def fit(self, ratings: Ratings, seed: int) -> Vectors | ScoreTable:
        """Fit cornac's model to the ratings; return its vectors or scores.

        Ratings are in the order of their indices.

        Raises:
            MissingError: cornac is not installed here.
            ConfigError: a setting is out of range, or there are too many scores to store.
        """
        chosen = find_class(self.model)
        parameters = inspect.signature(chosen).parameters
        fixed = {"num_threads": 1, "verbose": False, "seed": seed}
        given = {name: value for name, value in fixed.items() if name in parameters} | self.settings
        data = make_dataset(ratings, seed)
        try:
            model = chosen(**given).fit(data)
        except Exception as error:  # another library's code, which may be older than its requirements
            reason = f"{type(error).__name__}: {error}"
            raise ConfigError(f"cornac's {self.model}: {reason}", "see cornac's documentation") from error
        return read_vectors(model, data, ratings) or read_scores(model, data, ratings)


def find_class(name: str) -> Any:
    """Return a class from `cornac.models`.

    Raises:
        MissingError: cornac is not installed.
        ConfigError: cornac has no such model.
    """
    try:
        models = import_module("cornac.models")
    except ImportError as error:
        raise MissingError(f"kind 'cornac' needs the library cornac: {error}", INSTALL) from None
    base = models.Recommender
    classes = {key: one for key, one in vars(models).items() if isinstance(one, type)}
    known = {key: one for key, one in classes.items() if issubclass(one, base) and one is not base}
    if name not in known:
        raise ConfigError(f"cornac has no model '{name}'", nearest(name, known))
    return known[name]


def make_dataset(ratings: Ratings, seed: int) -> Any:
    """Return cornac's dataset, sorted by user and item.

    The given row order does not matter.
    """
    order = np.lexsort((ratings.ratings_r, ratings.items_r, ratings.users_r))
    columns = (column[order].tolist() for column in (ratings.users_r, ratings.items_r, ratings.ratings_r))
    return import_module("cornac.data").Dataset.build(list(zip(*columns, strict=True)), seed=seed)


def read_vectors(model: Any, data: Any, ratings: Ratings) -> Vectors | None:
    """Return cornac's search vectors for a model, or its item biases.

    Returns None for a model with neither, and for vectors which are sparse or compared by a distance.
    """
    users, items = (np.fromiter(ids.keys(), np.int64) for ids in (data.uid_map, data.iid_map))
    if hasattr(model, "get_user_vectors"):
        tables = (model.get_user_vectors(), model.get_item_vectors())
        is_product = str(model.get_vector_measure()).startswith("dot product")
        if not is_product or any(hasattr(table, "toarray") for table in tables):
            return None
        p, q = (np.asarray(table, np.float64) for table in tables)
        return Vectors(_spread(p, users, ratings.n_users), _spread(q, items, ratings.n_items))
    if hasattr(model, "i_biases"):
        bias = _spread(np.asarray(model.i_biases, np.float64)[:, None], items, ratings.n_items)
        return Vectors(np.zeros((ratings.n_users, 1)), np.zeros_like(bias), bias[:, 0])
    return None


@dataclass(frozen=True)
class ScoreTable:
    """Scores for all pairs, (users, items), from models without vectors."""

    scores_ui: Floats

    def score(self, users_b: Ints, items_i: Ints) -> Floats:
        """Return (b, i) scores, as `rating.own.BlockScores`."""
        return self.scores_ui[np.ix_(users_b, items_i)]


def read_scores(model: Any, data: Any, ratings: Ratings) -> ScoreTable:
    """Return cornac's scores, user by user.

    Pairs unknown to cornac have 0.

    Raises:
        ConfigError: there are more than MAX_CELLS pairs, or the model does not score all items.
    """
    name = f"cornac's {type(model).__name__}"
    if ratings.n_users * ratings.n_items > MAX_CELLS:
        raise ConfigError(
            f"{name} has no vectors, and its {ratings.n_users:,} x {ratings.n_items:,} scores are too many",
            f"a model with vectors, or a log with at most {MAX_CELLS:,} pairs of users and items",
        )
    table = np.zeros((ratings.n_users, ratings.n_items))
    items = np.fromiter(data.iid_map.keys(), np.int64)
    for user, row in data.uid_map.items():
        scores = np.asarray(model.score(row), np.float64).ravel()
        if len(scores) != len(items):
            raise ConfigError(f"{name} gives {len(scores)} scores for {len(items)} items", "another model")
        table[user, items] = scores
    return ScoreTable(table)


def _spread(rows: Any, place_r: Ints, n: int) -> Any:
    """Return (n, d) the rows at their places; the others are 0."""
    spread = np.zeros((n, rows.shape[1]))
    spread[place_r] = rows
    return spread
