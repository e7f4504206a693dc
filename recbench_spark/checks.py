"""Findings on inputs and results: rows of the table `checks` before they have a run."""

from __future__ import annotations

from dataclasses import dataclass

TRAINING_ROWS = "list rows of training items"
"""Name of the check that counts the rows of given lists that recommend what the user already has."""


class CheckWarning(UserWarning):
    """A check that did not pass, as a warning of Python: `warnings.simplefilter` can name it."""


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

    def summary_line(self) -> str:
        """Return the check in one line, as warnings print it."""
        return f"{self.check}: {self.observed:g} ({self.detail})"


def warn_above_zero(check: str, observed: float, detail: str) -> Check:
    """A count that is reported, as a warning where it is not 0."""
    return Check(check, float(observed or 0), 0.0, "warning", detail)
