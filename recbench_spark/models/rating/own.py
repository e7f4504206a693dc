"""Models from other packages, named by class and fitted in tasks.

A fit returns vectors, or an object with its own scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from recbench_spark.core.arrays import Floats, Floats32, Ints
from recbench_spark.core.own_modules import import_attribute
from recbench_spark.errors import DataError, DivergedError
from recbench_spark.models.rating.interface import Fit, Ratings, RatingSettings
from recbench_spark.models.rating.sgd import make_score_fit
from recbench_spark.models.settings import make_model
from recbench_spark.ranking.kernels.scorers import check_block


class Vectors(NamedTuple):
    """User and item vectors, as a ranking model's `fit` returns.

    User u scores item i by users_ud[u] . items_id[i] + bias_i[i].

    Attributes:
        users_ud: (users, d) numbers.
        items_id: (items, d) numbers.
        bias_i: (items,) numbers; None: no bias.
    """

    users_ud: npt.ArrayLike
    items_id: npt.ArrayLike
    bias_i: npt.ArrayLike | None = None


class BlockScores(Protocol):
    """A fitted object which ranks by its own function.

    The object holds arrays, numbers and text.
    """

    def score(self, users: Any, items: Any) -> Any:
        """Return (users, items) numbers for arrays of indices."""


class VectorLearner(RatingSettings):
    """A task's settings for a `kinds.VectorModel`.

    Attributes:
        kind: `module:Class`.
        positives: the pairs to learn from, as in `kinds.VectorModel`.
        version: the model's version in the benchmark file.
        settings: the class's own settings.
    """

    positives: Literal["all", "relevant"] = "all"
    version: str = "1"
    settings: dict[str, bool | Any]


@dataclass(frozen=True)
class OwnModel:
    """Wraps another package's fitted object, which ranks by own scores.

    The object holds only arrays, numbers and text, so a file keeps it without pickle. A task makes it again
    without a call to `__init__`.

    Attributes:
        fitted: the object.
    """

    fitted: BlockScores

    kind: ClassVar[str] = "own"

    @property
    def class_name(self) -> str:
        """The object's class as `module:Class`, its name in the file."""
        return f"{type(self.fitted).__module__}:{type(self.fitted).__qualname__}"

    def score(self, users_b: Ints, items_i: Ints) -> Floats:
        """Return (b, i) scores, as `interface.ScoringModel`."""
        scores: Floats = self.fitted.score(users_b, items_i)
        return scores

    def predict(self, users_p: Ints, items_p: Ints, times_p: Ints | None = None) -> Floats:
        """Return (p,) scores for pairs, user by user.

        An unseen user or item scores 0.
        """
        out_p = np.zeros(len(users_p))
        order = np.argsort(users_p, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(users_p[order])) + 1):
            known = rows[(users_p[rows] >= 0) & (items_p[rows] >= 0)]
            if len(known):
                out_p[known] = np.asarray(self.score(users_p[known[:1]], items_p[known]))[0]
        return out_p

    def list_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the object's attributes as arrays.

        Raises DataError for anything but arrays, numbers and text.
        """
        held = getattr(self.fitted, "__dict__", None)
        if held is None or isinstance(self.fitted, tuple):
            raise DataError(
                f"{self.class_name}: a file cannot keep tuples and classes with slots",
                "give a class with plain attributes",
            )
        arrays = {}
        for name, value in held.items():
            if value is None and getattr(type(self.fitted), name, "") is None:
                continue  # the class has this value itself
            array = np.asarray(value)
            if array.dtype.kind not in "biufUS" or name in RESERVED:
                raise DataError(
                    f"{self.class_name}: a file cannot keep attribute '{name}', a {type(value).__name__}",
                    f"keep arrays, numbers and text, under other names than {', '.join(RESERVED)}",
                )
            arrays[name] = array
        return arrays


KIND = "kind"
"""Array in a stored model which holds its kind."""

RESERVED = (KIND, "file", "allow_pickle")
"""Names no array in a stored model can have, because numpy has arguments with these names."""


def make_own_model(kind: str, fields: Mapping[str, Any]) -> OwnModel:
    """Return a stored object again, with its arrays and numbers.

    Raises ConfigError without its class.
    """
    fitted = object.__new__(import_attribute(kind, "model"))
    for name, value in plain_values(fields).items():
        object.__setattr__(fitted, name, value)
    return OwnModel(fitted)


def plain_values(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Convert arrays without dimensions to numbers; keep others."""
    return {name: array.item() if array.ndim == 0 else array for name, array in arrays.items()}


def fit_vectors(train: Ratings, learner: VectorLearner, seed: int, watched: Ratings | None = None) -> Fit:
    """Fit the class and check its vectors or scores.

    Scores are checked on the watched pairs. Users and items without a training pair get zero vectors.

    Raises:
        ConfigError: the class cannot be imported.
        DataError: vectors or scores have other shapes than the ratings need, or are no numbers.
        DivergedError: a vector is not finite.
    """
    document = {"name": "model", "kind": learner.kind, "version": learner.version, **learner.settings}
    model: Any = make_model({**document, "positives": learner.positives}, "model")
    returned = model.fit(train, seed)
    if callable(getattr(returned, "score", None)):
        return fit_own(OwnModel(returned), watched)
    if not isinstance(returned, tuple) or len(returned) not in (2, 3):
        raise DataError(
            f"{learner.kind}: fit returned a {type(returned).__name__}",
            "return Vectors(users, items), or an object with a function score(users, items)",
        )
    users_ud, items_id, bias_i = Vectors(*returned)
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


def fit_own(model: OwnModel, watched: Ratings | None) -> Fit:
    """Check that the object survives storage; score the watched pairs."""
    arrays = model.list_arrays()
    if import_attribute(model.class_name, "the class of a fitted model") is not type(model.fitted):
        raise DataError(
            f"{model.class_name} is another class than that of the fitted model", "give it a name"
        )
    model = make_own_model(model.class_name, arrays)  # tasks score the object as its file gives it back
    if watched is None:
        return Fit(model, np.zeros(0), np.zeros(0), 1)
    items = np.arange(watched.n_items)
    check_block(model.score(np.zeros(1, np.int64), items), len(items), f"{model.class_name}: scores")
    return Fit(model, np.zeros(0), model.predict(watched.users_r, watched.items_r), 1)


def _check_table(table: npt.ArrayLike, rows: int, what: str, kind: str) -> Floats32:
    array = np.asarray(table)
    if array.dtype.kind not in "fiu" or array.ndim != 2 or len(array) != rows or not array.shape[1]:
        raise DataError(
            f"{kind}: vectors of {what} have shape {array.shape} and type {array.dtype}",
            f"return ({rows}, d) numbers, a row for each index",
        )
    return array.astype(np.float32)
