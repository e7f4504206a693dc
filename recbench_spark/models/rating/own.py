"""Models of other packages that a task fits: a class by its name, and the vectors that it returns."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from recbench_spark.config.models import make_model
from recbench_spark.errors import DataError, DivergedError
from recbench_spark.models.rating.interface import Fit, Ratings, RatingSettings
from recbench_spark.models.rating.sgd import Table, make_score_fit


class Vectors(NamedTuple):
    """Vectors that rank: the score of user u and item i is users_ud[u] . items_id[i] + bias_i[i].

    Attributes:
        users_ud: (users, d) numbers.
        items_id: (items, d) numbers.
        bias_i: (items,) numbers; None: no bias.
    """

    users_ud: npt.ArrayLike
    items_id: npt.ArrayLike
    bias_i: npt.ArrayLike | None = None


class VectorLearner(RatingSettings):
    """Settings of a `kinds.VectorModel` in a task.

    Attributes:
        kind: `module:Class`.
        positives: the pairs to learn from, as in `kinds.VectorModel`.
        version: the version of the model in the benchmark file.
        settings: the settings of the class.
    """

    positives: Literal["all", "relevant"] = "all"
    version: str = "1"
    settings: dict[str, bool | Any]


def fit_vectors(train: Ratings, learner: VectorLearner, seed: int, watched: Ratings | None = None) -> Fit:
    """Fit the class and check its vectors; users and items without a training pair get zero vectors.

    Raises:
        ConfigError: the class cannot be imported.
        DataError: the vectors have other shapes than the ratings need, or are no numbers.
        DivergedError: a vector is not finite.
    """
    document = {"name": "model", "kind": learner.kind, "version": learner.version, **learner.settings}
    model: Any = make_model({**document, "positives": learner.positives}, "model")
    users_ud, items_id, bias_i = Vectors(*model.fit(train, seed))
    p_ud = _check_table(users_ud, train.n_users, "users", learner.kind)
    q_id = _check_table(items_id, train.n_items, "items", learner.kind)
    if p_ud.shape[1] != q_id.shape[1]:
        raise DataError(
            f"{learner.kind}: users have {p_ud.shape[1]} dimensions, and items {q_id.shape[1]}",
            "return vectors of one length",
        )
    bias = np.zeros(train.n_items) if bias_i is None else np.asarray(bias_i, np.float64)
    if bias.shape != (train.n_items,):
        raise DataError(f"{learner.kind}: the bias has shape {bias.shape}", f"return ({train.n_items},)")
    error = DivergedError(f"{learner.kind} returned numbers that are not finite", "see its settings")
    return make_score_fit(train, (p_ud, q_id), 1, watched, bias_i=bias, error=error)


def _check_table(table: npt.ArrayLike, rows: int, what: str, kind: str) -> Table:
    array = np.asarray(table)
    if array.dtype.kind not in "fiu" or array.ndim != 2 or len(array) != rows or not array.shape[1]:
        raise DataError(
            f"{kind}: vectors of {what} have shape {array.shape} and type {array.dtype}",
            f"return ({rows}, d) numbers, a row for each index",
        )
    return array.astype(np.float32)
