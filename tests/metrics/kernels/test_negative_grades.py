"""The four rules for grades below 0 in docs/how_to/learning_curves.md, by hand and by the engine."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest

from recbench_spark.core.definitions import Definition
from recbench_spark.metrics.kernels.accuracy import measure
from recbench_spark.ranking.kernels.rankings import Rankings

PAGE = Path(__file__).parents[3] / "docs" / "how_to" / "learning_curves.md"
STARS = ((1, 5, 3), (4, 5, 1), (1, 3))
"""Stars of the items of three users, in the order in which they are ranked."""

SECOND = 1 / math.log2(3)
BY_HAND = {
    # Grades -2, 2, 0; 1, 2, -2; -2, 0. The best order begins with 2 and 0; 2 and 1; nothing above 0.
    "clip": (2 * SECOND / 2, (1 + 2 * SECOND) / (2 + SECOND), None),
    # The worst order begins with -2 and then has an item without a rating, of grade 0, for each user.
    "worst": ((-2 + 2 * SECOND + 2) / (2 + 2), (1 + 2 * SECOND + 2) / (2 + SECOND + 2), 0.0),
    "zero_floor": (0.0, (1 + 2 * SECOND) / (2 + SECOND), None),
    "signed": ((-2 + 2 * SECOND) / 2, (1 + 2 * SECOND) / (2 + SECOND), 0.0),
}


def measure_users(rule: str) -> list[float | None]:
    """Return NDCG@2 of the three users; None where a user has no value."""
    lengths = [len(stars) for stars in STARS]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    above_p = np.concatenate([np.arange(length) for length in lengths])
    zeros_p = np.zeros(len(above_p), np.int64)
    ratings_p = np.concatenate(STARS).astype(np.float64)
    rankings = Rankings(offsets, ratings_p, above_p, zeros_p, zeros_p, np.array(lengths))
    definition = Definition.model_validate({"gain": "linear", "grade_origin": 3.0, "negative_grades": rule})
    values_u = measure(rankings, ("ndcg",), [2], definition, False)["ndcg"][:, 0]
    return [None if math.isnan(value) else float(value) for value in values_u]


@pytest.mark.parametrize("rule", BY_HAND)
def test_the_page_says_what_the_engine_computes(rule: str) -> None:
    (line,) = re.findall(rf"^\| `{rule}`: .*\| (.*) \| (.*) \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    printed = [None if cell == "no value" else float(cell) for cell in line]
    expected = [None if value is None else pytest.approx(value, abs=1e-12) for value in BY_HAND[rule]]
    assert measure_users(rule) == expected
    assert printed == [None if value is None else pytest.approx(value, abs=5e-4) for value in BY_HAND[rule]]
