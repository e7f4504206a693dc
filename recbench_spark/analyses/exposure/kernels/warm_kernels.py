"""Call of each kernel for exposure, to compile it."""

from __future__ import annotations

import numpy as np

from recbench_spark.analyses.exposure.kernels.shown_cells import sum_users


def warm() -> None:
    """Add up two cells."""
    shown_ui = np.array([[True, False]])
    sum_users(shown_ui, shown_ui, np.ones((1, 1)), np.ones((2, 1)), np.ones(3))
