"""Findings on inputs and results, for the table `checks`.

The rows have no run id yet.
"""

from __future__ import annotations

from dataclasses import dataclass

TRAINING_ROWS = "list rows of training items"
"""Name of the check on list rows with items from the user's training rows."""


class CheckWarning(UserWarning):
    """A failed check, as a Python warning.

    `warnings.simplefilter` can name it.
    """


@dataclass(frozen=True)
class Check:
    """One finding: a row of `checks` without its run id."""

    check: str
    observed: float
    threshold: float | None
    severity: str
    detail: str

    @property
    def passed(self) -> bool:
        """True without a threshold, or for values up to it."""
        return self.threshold is None or self.observed <= self.threshold

    def summary_line(self) -> str:
        """Return the check in one line, as warnings print it."""
        return f"{self.check}: {self.observed:g} ({self.detail})"


def warn_above_zero(check: str, observed: float, detail: str) -> Check:
    """Return a check on a count; it warns above 0."""
    return Check(check, float(observed or 0), 0.0, "warning", detail)
