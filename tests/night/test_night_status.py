"""The hash of all that must be unchanged for a night to have nothing to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from recbench_spark.night.night_status import hash_following
from recbench_spark.storage.arrow_store import ArrowStore
from tests.nights import DATE, SMALL, small


@pytest.mark.parametrize(
    "change",
    [
        {"dataset": {**SMALL["dataset"], "name": "other_world"}},
        {"dataset": {**SMALL["dataset"], "world": {**SMALL["dataset"]["world"], "seed": 4}}},
        {"split": {**SMALL["split"], "seed": 6}},
        {"evaluation": {**SMALL["evaluation"], "metrics": ["mrr"]}},
        {"evaluation": {**SMALL["evaluation"], "definition": {"threshold": 3}}},
    ],
    ids=["dataset", "world", "split", "metrics", "definition"],
)
def test_a_night_of_other_data_or_numbers_is_not_recognised_by_the_file_of_this_one(
    change: dict[str, Any], tmp_path: Path
) -> None:
    store = ArrowStore(str(tmp_path / "warehouse"))
    hashed = hash_following(store, small(), DATE)
    assert hashed == hash_following(store, small(), DATE)
    assert hashed != hash_following(store, small(**change), DATE)
