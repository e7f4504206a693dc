"""Pairs and ids of a call against slow versions."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from recbench_spark.evaluation.ground_truth import distinct_pairs
from recbench_spark.sources.arrow_rows import distinct_ids, find_indices


@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_pairs_stand_once_with_their_highest_value(seed: int, repeats: bool) -> None:
    """Users "u9" and items "i9" are unknown, or NULL; without repeats no pair stands twice."""
    rng = np.random.default_rng(seed)
    cells = rng.choice(80, 70, replace=repeats)
    pairs = [(f"u{cell % 8}", [None, f"i{cell // 8}"][int(rng.random() < 0.9)]) for cell in cells]
    values = rng.integers(0, 3, len(pairs)).astype(float)
    users, items = pa.array([f"u{n}" for n in range(8)]), pa.array([f"i{n}" for n in (3, 1, 0, 2, 7)])
    table = pa.table({"user_id": [u for u, _ in pairs], "item_id": [i for _, i in pairs], "rating": values})
    best: dict[tuple[int, int], float] = {}
    known = items.to_pylist()
    rows = [(int(u[1]), known.index(i), v) for (u, i), v in zip(pairs, values, strict=True) if i in known]
    for user, item, value in rows:
        best[user, item] = max(best.get((user, item), 0.0), value)
    result, dropped = distinct_pairs(table, find_indices(table.column("user_id"), users), items)
    kept = zip(result.user_r.tolist(), result.item_r.tolist(), result.value_r.tolist(), strict=True)
    assert list(kept) == [(*pair, best[pair]) for pair in sorted(best)]
    assert dropped == len(rows) - len(best)
    assert repeats == bool(dropped)


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        ([0, 0, 1, 2, 1], ["c", "a", "b"]),
        ([1, 0, 2], ["a", "c", "b"]),
        ([0, 2, 1], ["c", "b", "a"]),
        ([0, 1, 1], ["c", "a"]),
        ([1, 1], ["a"]),
        ([0, None, 1, 2], ["c", "a", "b"]),
        ([], []),
    ],
)
def test_ids_are_in_the_order_of_their_first_row(index: list[int | None], expected: list[str]) -> None:
    column = pa.DictionaryArray.from_arrays(pa.array(index, pa.int32()), pa.array(["c", "a", "b"]))
    assert distinct_ids([column]).to_pylist() == expected
