"""Findings about inputs and results: rows of the table `checks` before a run id is added."""

from __future__ import annotations

from dataclasses import dataclass

TRAINING_ROWS = "list rows of training items"
"""Name of the check that counts list rows which recommend an item of the user's training rows."""


class CheckWarning(UserWarning):
    """A check that did not pass, as a Python warning; `warnings.simplefilter` can name it."""


@dataclass(frozen=True)
class Check:
    """A row of the table `checks` without its run id."""

    check: str
    observed: float
    threshold: float | None
    severity: str
    detail: str

    @property
    def passed(self) -> bool:
        """True where there is no threshold, or the observed value is at most the threshold."""
        return self.threshold is None or self.observed <= self.threshold

    def summary_line(self) -> str:
        """Return the check in one line, as warnings print it."""
        return f"{self.check}: {self.observed:g} ({self.detail})"


def warn_above_zero(check: str, observed: float, detail: str) -> Check:
    """Return a check of a count; it is a warning where the count is not 0."""
    return Check(check, float(observed or 0), 0.0, "warning", detail)
