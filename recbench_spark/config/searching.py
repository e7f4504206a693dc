"""The section `search`: which settings of which models are searched, and what each method may spend."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from recbench_spark.config.base import Seed, Strict

MAX_SETTINGS = 100_000
"""Settings that a method is given at most: each is a fit."""

MAX_SEEDS = 1000
"""Fits a setting at most."""

MIN_SHARE = 1e-6
"""Of the training rows that are validated on, or left to train on: less holds no row of most logs."""

Choice = bool | int | float | str


class SettingRange(Strict):
    """The space of one setting: from `low` to `high`, on a logarithmic scale where `log`, or `values`.

    Whole numbers at both ends mean whole numbers between them.
    """

    low: int | float | None = None
    high: int | float | None = None
    log: bool = False
    values: tuple[Choice, ...] = ()

    @model_validator(mode="after")
    def _check_range(self) -> SettingRange:
        ends = self.low is not None and self.high is not None
        if bool(self.values) == (self.low is not None or self.high is not None):
            raise ValueError("give either low and high, or values")
        if not self.values and not ends:
            raise ValueError("give both low and high")
        if ends and not self.low < self.high:  # type: ignore[operator]
            raise ValueError(f"low {self.low} is not below high {self.high}")
        if self.log and not (ends and self.low > 0):  # type: ignore[operator]
            raise ValueError("a logarithmic scale needs low and high above 0")
        return self

    @property
    def whole(self) -> bool:
        """Whether only whole numbers are meant."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def at(self, u: float) -> Choice:
        """The value at a place in [0, 1).

        >>> Range(low=0.001, high=0.1, log=True).at(0.5), Range(low=1, high=4).at(0.99)
        (0.01, 4)
        """
        if self.values:
            return self.values[int(u * len(self.values))]
        assert self.low is not None and self.high is not None
        low, high = float(self.low), float(self.high) + (1 if self.whole else 0)
        found = low * (high / low) ** u if self.log else low + (high - low) * u
        return min(int(found), int(self.high)) if self.whole else float(f"{found:.6g}")

    def place(self, value: Choice) -> float:
        """A value as a number: itself, or its place among the choices."""
        return float(self.values.index(value)) if self.values else float(value)

    def extend_beyond(self, side: Literal["low", "high"]) -> SettingRange | None:
        """The range that goes on from an edge, half as wide; None where there is nothing beyond.

        >>> Range(low=0.01, high=0.04).beyond("low").model_dump(include={"low", "high"})
        {'low': 0.0, 'high': 0.01}
        """
        if self.values:
            return None
        assert self.low is not None and self.high is not None
        low, high = (self._below_low(), self.low) if side == "low" else (self.high, self._above_high())
        if self.whole:
            low, high = math.floor(low), math.ceil(high)
        return None if low >= high else SettingRange(low=low, high=high, log=self.log and low > 0)

    def _below_low(self) -> float:
        """Half a width below the lower end, never past 0."""
        assert self.low is not None and self.high is not None
        if self.log:
            found = float(self.low) / math.sqrt(self.high / self.low)
            return float(f"{found:.6g}") if not self.whole else max(found, 1.0)
        found = self.low - (self.high - self.low) / 2
        return max(found, 0.0) if self.low >= 0 else found

    def _above_high(self) -> float:
        assert self.low is not None and self.high is not None
        found = (
            self.high * math.sqrt(self.high / self.low) if self.log else 1.5 * self.high - 0.5 * self.low
        )
        return float(f"{found:.6g}")


class SearchSettings(Strict):
    """One budget for every method.

    `budget`: settings that each is given. `method`: points of low discrepancy, or at random, both by hash
    of `seed`. `share`: of the training rows of `fold`, drawn by hash, to validate on (where models rank: of
    each user's, in the order of the split). The test rows of this fold are never looked at; those of other
    folds are, since what one fold trains on another one tests. `seeds`: fits a setting, whose mean counts.
    `spaces`: by model, by setting; a dot leads into a section (`rates.user_factors`).
    """

    budget: Annotated[int, Field(ge=1, le=MAX_SETTINGS)] = 16
    method: Literal["sobol", "random"] = "sobol"
    seed: Seed = 42
    share: Annotated[float, Field(ge=MIN_SHARE, le=1 - MIN_SHARE)] = 0.05
    fold: Annotated[int, Field(ge=0)] = 0
    seeds: Annotated[int, Field(ge=1, le=MAX_SEEDS)] = 1
    spaces: dict[str, dict[str, SettingRange]]

    @model_validator(mode="after")
    def _check_spaces(self) -> SearchSettings:
        empty = [name for name, space in self.spaces.items() if not space]
        if empty or not self.spaces:
            raise ValueError(f"spaces{f'.{empty[0]}' if empty else ''}: name a setting and its range")
        return self
