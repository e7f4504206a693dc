"""The manifest: every fact by hand, and hashes that know the rows and not their order."""

from __future__ import annotations

import random

import pytest

from recbench_spark.protocol.manifests import manifest

pytestmark = pytest.mark.spark

SCHEMA = "user_id string, item_id string, rating double, event_time long, part string"
ROWS = [
    ("u", "a", 1.0, 10, "train"),
    ("u", "b", 1.0, 30, "train"),
    ("u", "c", 1.0, 40, "test"),
    ("v", "a", 1.0, 5, "train"),
    ("v", "b", 1.0, 20, "test"),
    ("w", "d", 1.0, 25, "test"),
    ("u", "e", 1.0, None, "open_loop"),
    ("v", "c", 1.0, 50, "train"),
]


def facts_of(spark, rows=ROWS, log_rows: int = 9) -> dict[tuple[str, str], float | str]:
    found = manifest(spark.createDataFrame(rows, SCHEMA), log_rows, '{"seed": 1}').collect()
    assert len(found) == len({(row.part, row.fact) for row in found})
    return {(row.part, row.fact): row.detail if row.value is None else row.value for row in found}


def test_facts_by_hand(spark) -> None:
    facts = facts_of(spark)
    assert {key: value for key, value in facts.items() if key[1] != "content_hash"} == {
        ("train", "rows"): 4, ("train", "users"): 2, ("train", "items"): 3,
        ("test", "rows"): 3, ("test", "users"): 3, ("test", "items"): 3,
        ("open_loop", "rows"): 1, ("open_loop", "users"): 1, ("open_loop", "items"): 1,
        ("log", "rows_read"): 9,
        ("log", "settings"): '{"seed": 1}',
        ("log", "duplicates_dropped"): 1,
        ("log", "overlap"): 0,
        # w is never in train; neither is d, nor e of the open loop.
        ("log", "test_only_users"): 1,
        ("log", "test_only_items"): 2,
        # The earliest test row is at 20; of four training rows, those at 30 and 50 are later.
        ("train", "future_share"): 0.5,
    }  # fmt: skip


def test_an_overlap_is_counted(spark) -> None:
    """Rows (u, a) in train and test, and (v, b) twice: two pairs."""
    rows = [*ROWS, ("u", "a", 1.0, 60, "test"), ("v", "b", 1.0, 60, "open_loop")]
    assert facts_of(spark, rows)["log", "overlap"] == 2


def test_a_log_without_times_has_no_leakage_in_time(spark) -> None:
    rows = [(user, item, rating, None, part) for user, item, rating, _, part in ROWS]
    assert ("train", "future_share") not in facts_of(spark, rows)


def test_a_temporal_split_of_one_user_does_not_leak(spark) -> None:
    rows = [("u", f"i{n}", 1.0, n, "train" if n < 8 else "test") for n in range(10)]
    assert facts_of(spark, rows)["train", "future_share"] == 0


def test_the_content_hash_knows_rows_and_not_their_order(spark) -> None:
    before = {key: value for key, value in facts_of(spark).items() if key[1] == "content_hash"}
    assert len(set(before.values())) == len(before) == 3
    shuffled = random.Random(1).sample(ROWS, len(ROWS))
    after = facts_of(spark, shuffled)
    assert {key: after[key] for key in before} == before
    changed = [("u", "a", 2.0, 10, "train"), *ROWS[1:]]
    moved = facts_of(spark, changed)
    assert moved["train", "content_hash"] != before["train", "content_hash"]
    assert moved["test", "content_hash"] == before["test", "content_hash"]
