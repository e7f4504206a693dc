"""Waiting for what happens, in the place of sleeping for as long as it usually takes."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 120.0
"""Seconds after which a condition counts as one that will never hold, on the busiest machine."""


def wait_until(condition: Callable[[], object]) -> None:
    """Return as soon as a condition holds.

    Raises:
        AssertionError: it did not hold within `PATIENCE` seconds.
    """
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"nothing happened in {PATIENCE:.0f} s"
        time.sleep(0.005)
