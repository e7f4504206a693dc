"""Section `evaluation.learning_curve`: points, users, and tested rows."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from recbench_spark.core.strict_settings import Count, Seed, Strict

MAX_POINTS = 1000
"""Most points in a curve: each is a row of `learning_curves` per metric and cut-off."""

MAX_DRAWS = 100


class LearningCurve(Strict):
    """Values after a held-out user has given 1, 2, ... L ratings.

    `given`: L, for the points 1 .. L; or a list of points. `order`: the order of a user's rows, by time or
    by a hash with `seed`; `draws` such orders are averaged. `test`: with `common` the first L rows are
    neither truth nor candidates at any point; with `rest` everything not given is the truth. `minimum`:
    fewest tested rows. `users`: `fixed` are those with L + minimum rows or more, at every point; with
    `as_long_as` a user with n rows stands up to min(L, n - minimum). `rankings`: also keep the ranks of
    each user's tested items at each point (table `curve_rankings`).
    """

    added_later: ClassVar[frozenset[str]] = frozenset({"rankings"})

    given: tuple[Count, ...] | Annotated[int, Field(ge=1, le=MAX_POINTS)]
    order: Literal["time", "hash"] = "time"
    draws: Annotated[int, Field(ge=1, le=MAX_DRAWS)] = 1
    """Orders by hash for each user, for `order` hash; their values are averaged."""
    seed: Seed = 42
    """Seed for orders by hash."""
    test: Literal["common", "rest"] = "common"
    minimum: Count = 1
    users: Literal["fixed", "as_long_as"] = "fixed"
    rankings: bool = False

    @field_validator("given", mode="before")
    @classmethod
    def _check_number(cls, given: Any) -> Any:
        if isinstance(given, int) and not 1 <= given <= MAX_POINTS:
            raise ValueError(
                f"{given} is no number of given ratings: 1 to {MAX_POINTS}, or a list of points"
            )
        return given

    @field_validator("given")
    @classmethod
    def _check_given(cls, given: Any) -> Any:
        if isinstance(given, tuple) and (not given or any(b <= a for a, b in pairwise(given))):
            raise ValueError("give the points in ascending order, each once, such as [1, 2, 5, 20]")
        if isinstance(given, tuple) and len(given) > MAX_POINTS:
            raise ValueError(f"at most {MAX_POINTS} points")
        return given

    @model_validator(mode="after")
    def _check_draws(self) -> LearningCurve:
        if self.order == "time" and self.draws > 1:
            raise ValueError("draws: there is one order by time; several draws go with order 'hash'")
        return self

    @property
    def points(self) -> tuple[int, ...]:
        """The numbers of given ratings, ascending."""
        return self.given if isinstance(self.given, tuple) else tuple(range(1, self.given + 1))

    def describe(self) -> str:
        """Return the settings as one axis of definitions.

        >>> LearningCurve(given=20, order="hash", draws=5).describe()
        'curve=1 to 20 given by hash x 5, test common, minimum 1, users fixed'
        """
        given = ",".join(map(str, self.given)) if isinstance(self.given, tuple) else f"1 to {self.given}"
        order = self.order if self.order == "time" else f"hash x {self.draws}"
        seed = f" (seed {self.seed})" if self.order == "hash" and self.seed != 42 else ""
        return (
            f"curve={given} given by {order}{seed}, test {self.test}, minimum {self.minimum}, "
            f"users {self.users}"
        )
