"""Settings in the section `search`: spaces, and each method's budget."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from recbench_spark.core.strict_settings import Seed, Strict

MAX_SETTINGS = 100_000
"""Most settings per method: each of them is a fit."""

MAX_SEEDS = 1000
"""Most fits per setting."""

MIN_SHARE = 1e-6
"""Smallest share of training rows to validate on, or to train on: less has no row in most logs."""

Choice = bool | int | float | str


class SettingRange(Strict):
    """Space for one setting: from `low` to `high`, or `values`.

    With `log`, the scale is logarithmic. If both ends are whole numbers, only whole numbers between them
    are meant.
    """

    low: int | float | None = None
    """Lower end of the range."""
    high: int | float | None = None
    """Upper end of the range."""
    log: bool = False
    """Look at the range on a logarithmic scale."""
    values: tuple[Choice, ...] = ()
    """Values to choose from, in place of a range."""

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
        """True if only whole numbers are meant."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def at(self, u: float) -> Choice:
        """Return the value at a position in [0, 1).

        >>> SettingRange(low=0.001, high=0.1, log=True).at(0.5), SettingRange(low=1, high=4).at(0.99)
        (0.01, 4)
        """
        if self.values:
            return self.values[int(u * len(self.values))]
        assert self.low is not None and self.high is not None
        low, high = float(self.low), float(self.high) + (1 if self.whole else 0)
        value = low * (high / low) ** u if self.log else low + (high - low) * u
        return min(int(value), int(self.high)) if self.whole else float(f"{value:.6g}")

    def place(self, value: Choice) -> float:
        """Return a value, or a choice's position, as a number."""
        return float(self.values.index(value)) if self.values else float(value)

    def extend_beyond(self, side: Literal["low", "high"]) -> SettingRange | None:
        """Return the range beyond an edge, half as wide.

        None: there is nothing beyond.

        >>> SettingRange(low=0.01, high=0.04).extend_beyond("low").model_dump(include={"low", "high"})
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
        """Return the value half a width lower, at least 0."""
        assert self.low is not None and self.high is not None
        if self.log:
            value = float(self.low) / math.sqrt(self.high / self.low)
            return float(f"{value:.6g}") if not self.whole else max(value, 1.0)
        value = self.low - (self.high - self.low) / 2
        return max(value, 0.0) if self.low >= 0 else value

    def _above_high(self) -> float:
        assert self.low is not None and self.high is not None
        if self.log:
            return float(f"{self.high * math.sqrt(self.high / self.low):.6g}")
        return float(f"{1.5 * self.high - 0.5 * self.low:.6g}")


class SearchSettings(Strict):
    """One search budget for every method.

    `budget`: number of settings per method. `method`: points of low discrepancy, or random ones, both by
    hash of `seed`. `share`: share of the training rows in `fold`, drawn by hash, to validate on (for
    rankings: from each user's rows, in the split's order). The test rows of this fold are never read. Test
    rows of other folds are read, since they are training rows in this one. `seeds`: fits per setting, whose
    mean counts. `spaces`: by model, by setting; a dot leads into a section (`rates.user_factors`).
    """

    budget: Annotated[int, Field(ge=1, le=MAX_SETTINGS)] = 16
    method: Literal["sobol", "random"] = "sobol"
    seed: Seed = 42
    """Seed for the points and for the validation rows."""
    share: Annotated[float, Field(ge=MIN_SHARE, le=1 - MIN_SHARE)] = 0.05
    fold: Annotated[int, Field(ge=0)] = 0
    """Fold of the split whose training rows are divided."""
    seeds: Annotated[int, Field(ge=1, le=MAX_SEEDS)] = 1
    spaces: dict[str, dict[str, SettingRange]]

    @model_validator(mode="after")
    def _check_spaces(self) -> SearchSettings:
        empty = [name for name, space in self.spaces.items() if not space]
        if empty or not self.spaces:
            raise ValueError(f"spaces{f'.{empty[0]}' if empty else ''}: name a setting and its range")
        return self
