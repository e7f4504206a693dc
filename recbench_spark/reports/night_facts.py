"""Define facts that compare a night with earlier ones.

They are values over nights, falls, and differences between models.
"""

from __future__ import annotations

from dataclasses import dataclass

VISIBLE_P = 0.05
"""Largest p by Holm to tell two models apart in a paired test."""


@dataclass(frozen=True)
class NightValue:
    """A model's value on a night, with interval and users."""

    day: str
    value: float
    low: float | None
    high: float | None
    users: int

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends of the interval, or None."""
        return None if self.low is None or self.high is None else (self.low, self.high)


@dataclass(frozen=True)
class Trend:
    """A model's values on the last nights, ascending.

    The last one is from the report's night.
    """

    nights: tuple[NightValue, ...]

    @property
    def change(self) -> float:
        """Difference between the last value and the one before."""
        return self.nights[-1].value - self.nights[-2].value

    @property
    def other_date(self) -> str:
        """Night before the change."""
        return self.nights[-2].day


@dataclass(frozen=True)
class Fall:
    """A regression behind an earlier night.

    A model fell by more than its benchmark file allows.

    Attributes:
        kind: previous: the model's last night before; baseline: the night named in the file; pair: another
            model.
        other: the other model.
        label: the measure as people write it.
        best: which end of the metric's values is best.
        users: users with a value on both nights.
        difference, low, high: the change of the mean and its interval.
        causes: what the two runs have recorded differently, in words.
        is_shipped: False for a model nobody could deploy, such as the world's truth.
        slice: the users, with a comma before; empty: all.
    """

    model: str
    kind: str
    part: str
    label: str
    best: str
    value: float
    other_value: float
    users: int
    day: str
    other_date: str
    difference: float
    low: float | None
    high: float | None
    allowed: float | None
    causes: tuple[str, ...] = ()
    is_shipped: bool = True
    other: str = ""
    slice: str = ""


@dataclass(frozen=True)
class ComparedPair:
    """A difference between two models or two nights.

    Attributes:
        kind: pair, previous or baseline.
        other: the other model; the other night where it is the model itself.
        users: users with a value in both runs.
        p: p of the paired test, adjusted by Holm for all tests in its family; None: no such test.
        verdict: better, worse, equivalent or unclear.
    """

    kind: str
    part: str
    label: str
    definition: str
    model: str
    other: str
    value: float
    other_value: float
    difference: float
    low: float | None
    high: float | None
    p: float | None
    verdict: str
    users: int
    regressed: bool

    @property
    def gap(self) -> NightValue:
        """The difference with its interval, ready to draw."""
        return NightValue("", self.difference, self.low, self.high, self.users)


@dataclass(frozen=True)
class Advice:
    """Findings with the same remedy: what to do, and where."""

    title: str
    what_to_do: str
    findings: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class Opening:
    """The first screen: what happened, and what can be shipped.

    Attributes:
        tone: bad, warn or good.
        verdict: whether anything is wrong, in one line without a full stop.
        events: sentences on what happened, the most important first.
        shipped: a sentence for each part on the best model that can be shipped.
        finding: a sentence on a model that held-out part and open loop judge differently; empty: none.
        evaluated: what was measured, in a sentence; empty where no manifest is known.
    """

    tone: str
    verdict: str
    events: tuple[str, ...]
    shipped: tuple[str, ...]
    finding: str = ""
    evaluated: str = ""

    @property
    def sentences(self) -> tuple[str, ...]:
        """The page's sentences, the most important first.

        The sentences say what is wrong, else what was found.
        """
        findings = (*([self.finding] if self.finding else []), *self.shipped)
        verdict = f"{self.verdict}."
        return (*findings, verdict) if self.tone == "good" else (verdict, *findings)


@dataclass(frozen=True)
class PlantedFault:
    """One row of `self_tests`."""

    description: str
    users: int
    applies: bool
    changed: str
    seen: bool | None
    seen_by: str | None
    sentence: str | None
    rule: str | None
