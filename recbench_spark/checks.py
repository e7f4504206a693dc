"""Findings on inputs and results: rows of the table `checks` before they have a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """A row of the table `checks` without its run."""

    check: str
    observed: float
    threshold: float | None
    severity: str
    detail: str

    @property
    def passed(self) -> bool:
        """Whether the observed value is at most the threshold, where there is one."""
        return self.threshold is None or self.observed <= self.threshold


def warn_above_zero(check: str, observed: float, detail: str) -> Check:
    """A count that is reported, as a warning where it is not 0."""
    return Check(check, float(observed or 0), 0.0, "warning", detail)
