"""Models of the library cornac as models of a benchmark file: `{name: bpr, kind: cornac, model: BPR}`.

Any model of cornac that gives vectors of users and items, or biases of items, can be named: MF, SVD, PMF,
MMMF, BPR, WBPR, NMF, BaselineOnly and others. Cornac is no requirement of this package: install the extra
`zoo` on the driver and on the workers.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any, Literal

import numpy as np
from pydantic import Field

from recbench_spark.errors import ConfigError, MissingError, nearest
from recbench_spark.models.rating.interface import Indices, Ratings
from recbench_spark.models.rating.kinds import VectorModel
from recbench_spark.models.rating.own import Vectors

INSTALL = "pip install 'recbench-spark[zoo]', on the driver and on the workers"

OURS = ("self", "name", "seed", "verbose", "trainable", "init_params", "user_text", "item_text")
"""Parameters of cornac's classes that a benchmark file does not set."""


class CornacModel(VectorModel):
    """A model of the library cornac, fitted in one task with one thread unless `num_threads` is set.

    Attributes:
        model: name of the class in `cornac.models`.
        settings: parameters of the class; those that are missing have cornac's defaults.
    """

    kind: Literal["cornac"]
    model: str
    settings: dict[str, bool | int | float | str] = Field(default_factory=dict)

    def check(self, reader: str) -> None:
        """Check that cornac has the class, and the class the settings.

        Raises:
            MissingError: cornac is not installed.
            ConfigError: an unknown class or setting.
        """
        known = [name for name in inspect.signature(find_class(self.model)).parameters if name not in OURS]
        for name in self.settings:
            if name not in known:
                raise ConfigError(
                    f"model {self.name}: cornac's {self.model} has no setting '{name}'",
                    nearest(name, known),
                )

    def fit(self, ratings: Ratings, seed: int) -> Vectors:
        """Fit cornac's model to the ratings in the order of their indices, and return its vectors.

        Raises:
            MissingError: cornac is not installed here.
            ConfigError: the model has neither vectors nor biases of items, or a setting is out of range.
        """
        chosen = find_class(self.model)
        parameters = inspect.signature(chosen).parameters
        fixed = {"num_threads": 1, "verbose": False, "seed": seed}
        given = {name: value for name, value in fixed.items() if name in parameters} | self.settings
        data = make_dataset(ratings, seed)
        try:
            model = chosen(**given).fit(data)
        except Exception as error:  # code of another library, which may be older than its requirements
            reason = f"{type(error).__name__}: {error}"
            raise ConfigError(f"cornac's {self.model}: {reason}", "see cornac's documentation") from error
        return read_vectors(model, data, ratings)


def find_class(name: str) -> Any:
    """Return a class of `cornac.models`.

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
    """Return cornac's dataset; its rows are in the order of user and item, whatever theirs was."""
    order = np.lexsort((ratings.ratings_r, ratings.items_r, ratings.users_r))
    columns = (column[order].tolist() for column in (ratings.users_r, ratings.items_r, ratings.ratings_r))
    return import_module("cornac.data").Dataset.build(list(zip(*columns, strict=True)), seed=seed)


def read_vectors(model: Any, data: Any, ratings: Ratings) -> Vectors:
    """Return the vectors by which cornac searches a fitted model, or the biases of its items.

    Raises:
        ConfigError: the model has neither.
    """
    users, items = (np.fromiter(ids.keys(), np.int64) for ids in (data.uid_map, data.iid_map))
    if hasattr(model, "get_user_vectors"):
        measure = model.get_vector_measure()
        if not str(measure).startswith("dot product"):
            raise ConfigError(
                f"cornac's {type(model).__name__} ranks by {measure}, not by products",
                "hand its scores over: kind: scores",
            )
        tables = (model.get_user_vectors(), model.get_item_vectors())
        if any(hasattr(table, "toarray") for table in tables):
            raise ConfigError(
                f"cornac's {type(model).__name__} has sparse tables and no vectors",
                "hand its scores over: kind: scores",
            )
        p, q = (np.asarray(table, np.float64) for table in tables)
        return Vectors(_spread(p, users, ratings.n_users), _spread(q, items, ratings.n_items))
    if hasattr(model, "i_biases"):
        bias = _spread(np.asarray(model.i_biases, np.float64)[:, None], items, ratings.n_items)
        return Vectors(np.zeros((ratings.n_users, 1)), np.zeros_like(bias), bias[:, 0])
    raise ConfigError(
        f"cornac's {type(model).__name__} gives no vectors, and its scores cannot be taken yet",
        "hand its scores over: kind: scores",
    )


def _spread(rows: Any, place_r: Indices, n: int) -> Any:
    """Return (n, d) the rows at their places; the others are 0."""
    spread = np.zeros((n, rows.shape[1]))
    spread[place_r] = rows
    return spread
