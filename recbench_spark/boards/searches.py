"""Trials in a search for settings, and expectations for fewer."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from recbench_spark.config import Strict
from recbench_spark.errors import DataError

Floats = npt.NDArray[np.float64]


class Trial(Strict):
    """A tried setting and its value on validation rows."""

    settings: dict[str, float]
    value: Annotated[float, Field(allow_inf_nan=False)]


class SearchTrials(Strict):
    """One method's trials on one benchmark.

    Attributes:
        space: for each searched setting, the values in a grid, or a range's lowest and highest.
        trials: settings that were run.
        noise: standard deviation of one trial's value over folds or seeds, 0 if not known.
        lower_is_better: true for errors.
        choices: settings with named choices, given by number; they have no edge.
    """

    space: dict[str, Annotated[tuple[float, ...], Field(min_length=1)]]
    trials: Annotated[tuple[Trial, ...], Field(min_length=1)]
    noise: Annotated[float, Field(ge=0)] = 0.0
    lower_is_better: bool = True
    choices: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check_settings(self) -> SearchTrials:
        for trial in self.trials:
            if set(trial.settings) != set(self.space):
                own, space = sorted(trial.settings), sorted(self.space)
                raise ValueError(f"a trial sets {own}, the space has {space}")
        return self

    def losses(self) -> Floats:
        """Return (n,) values as losses: smaller is always better."""
        sign = 1 if self.lower_is_better else -1
        return np.array([sign * trial.value for trial in self.trials])


class ExpectedBest(NamedTuple):
    """The best of n trials drawn at random.

    Attributes:
        budget_n: (n,) number of trials.
        expected_n: (n,) expected value of the best.
        low_n: (n,) lower end of its interval.
        high_n: (n,) its upper end.
    """

    budget_n: npt.NDArray[np.int64]
    expected_n: Floats
    low_n: Floats
    high_n: Floats


def expected_best(search: SearchTrials, level: float = 0.9) -> ExpectedBest:
    """Return the expected best of n trials, for each n.

    The interval is the middle `level` of its distribution. P(best of n is the i-th best of N or better) = 1
    - ((N - i) / N)^n, trials drawn with replacement from those that were run: Dodge et al., "Show your
    work" (EMNLP 2019), section 3.1. It knows only the trials that were run: the best of them is its bound,
    and for n near N it says little.

    Raises:
        DataError: the level is outside 0 to 1.
    """
    if not 0 < level < 1:
        raise DataError(f"an interval of level {level}", "give a level between 0 and 1, such as 0.9")
    losses = np.sort(search.losses())
    count = len(losses)
    budget_n = np.arange(1, count + 1)
    left = (count - np.arange(count + 1)) / count
    worse_ni = left[None, :] ** budget_n[:, None]
    expected = (worse_ni[:, :-1] - worse_ni[:, 1:]) @ losses
    low, high = (_quantile(losses, worse_ni, q) for q in ((1 - level) / 2, (1 + level) / 2))
    if search.lower_is_better:
        return ExpectedBest(budget_n, expected, low, high)
    return ExpectedBest(budget_n, -expected, -high, -low)


def late_gain(search: SearchTrials) -> float:
    """Return the gain from the second half of the trials.

    The gain is the expected best of N against the expected best of N / 2. A search that gained much by its
    last doubling is not finished. NaN for fewer than two trials.
    """
    count = len(search.trials)
    if count < 2:
        return float("nan")
    expected = expected_best(search).expected_n
    return float(abs(expected[count // 2 - 1] - expected[-1]))


def _quantile(losses: Floats, worse_ni: Floats, q: float) -> Floats:
    """Return the best trial's loss at probability q."""
    reached = 1 - worse_ni[:, 1:] >= q - 1e-12
    return np.asarray(losses[reached.argmax(axis=1)])
