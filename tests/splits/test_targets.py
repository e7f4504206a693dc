"""Targets and validation inside a cut in time: by hand, and against a slow oracle. Without a JVM."""

from __future__ import annotations

import os
import random
from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
import xxhash

from recbench_spark.config import Split
from recbench_spark.errors import ProtocolError
from recbench_spark.splits.labels import UNASKED, label_rows, read_dropped
from recbench_spark.splits.manifests import LogRows, list_log_facts
from recbench_spark.splits.rules import make_rule
from tests import labelled
from tests.log_schema import LOG_SCHEMA

SEEDS = range(*map(int, os.environ.get("RECBENCH_TARGET_SEEDS", "0,12").split(",")))
"""Worlds drawn: a few in the suite, as many as one likes by hand."""

Row = tuple[str, str, int]
CUT = {"holdout": "period", "start": "1970-01-01T00:00:20Z", "length": "6s", "valid": True}
SECOND = 1_000_000


def label(
    log: list[Row], pieces: int = 1, duplicates: str = "keep_last", **split: Any
) -> set[tuple[Any, ...]]:
    """The rows that stay: user, item, second, part."""
    rows = [(user, item, 1.0, time * SECOND, None, None) for user, item, time in log]
    made = labelled.label_rows(rows, Split(**{**CUT, **split}), duplicates, pieces)
    return {(row.user_id, row.item_id, row.event_time // SECOND, row.part) for row in made}


def draw_log(seed: int) -> list[Row]:
    """Few items and seconds, so that pairs repeat and times are equal; no row stands twice."""
    draw = random.Random(seed)
    rows = {(f"u{draw.randrange(9)}", f"i{draw.randrange(8)}", draw.randrange(5, 30)) for _ in range(160)}
    return draw.sample(sorted(rows), len(rows))


def hash_row(seed: int, *texts: str) -> int:
    number = 42
    for text in texts:
        number = xxhash.xxh64_intdigest(text.encode(), seed=number)
    number = xxhash.xxh64_intdigest(seed.to_bytes(8, "little", signed=True), seed=number)
    return number - 2**64 if number >= 2**63 else number


def oracle(log: list[Row], duplicates: str, **settings: Any) -> set[tuple[Any, ...]]:
    """One user and one row after the other."""
    split, of_users = Split(**{**CUT, **settings}), defaultdict[str, list[Row]](list)
    for row in log:
        of_users[row[0]].append(row)
    kept: set[tuple[Any, ...]] = set()
    for user, rows in of_users.items():
        parts = label_user(user, sorted(rows, key=lambda row: (row[2], row[1])), split)
        for held_out in ("valid", "test"):
            ask(parts, held_out, split, duplicates)
        kept |= drop_duplicates(parts, duplicates)
    return kept


def label_user(user: str, rows: list[Row], split: Split) -> dict[Row, str]:
    begin = 14 if split.validation == "time" else 20
    names = ((26, "later"), (20, "test"), (begin, "valid"), (0, "train"))
    parts = {row: next(name for bound, name in names if row[2] >= bound) for row in rows}
    trained = [row for row in rows if parts[row] == "train"]
    place = (hash_row(split.seed, user, "valid") % 2**64 >> 11) / 2**53
    if split.validation == "time" or len(trained) < 2:
        return parts
    if split.validation == "users":
        if place >= split.valid_users:
            return parts
        parts |= dict.fromkeys(trained, "given")
    return {**parts, trained[-1]: "valid"}


def ask(parts: dict[Row, str], held_out: str, split: Split, duplicates: str) -> None:
    """Choose the asked row; a row that `repeats` leaves out has no part."""
    trained = {row[1] for row, part in parts.items() if part in ("train", "given")}
    known = trained | (
        {row[1] for row, part in parts.items() if part == "valid"} if held_out == "test" else set()
    )
    mine = [row for row, part in parts.items() if part == held_out]
    for row in mine:
        if (split.repeats == "drop" and row[1] in known) or (
            split.repeats == "only" and row[1] not in trained
        ):
            parts[row] = ""
    mine = [row for row in mine if parts[row]]
    if split.targets == "all" or not mine:
        return
    if split.targets == "random":
        item = max(
            {row[1] for row in mine}, key=lambda item: hash_row(split.seed, mine[0][0], item, "target")
        )
        mine_of = [row for row in mine if row[1] == item]
        chosen = mine_of[0 if duplicates == "keep_first" else -1]
    else:
        chosen = mine[0 if split.targets == "first" else -1]
    parts |= {row: "later" for row in mine if row != chosen}


def drop_duplicates(parts: dict[Row, str], keep: str) -> set[tuple[Any, ...]]:
    stays: dict[Any, Row] = {}
    for row, part in parts.items():
        key = (row[1], part)
        if part and not (keep == "keep_first" and key in stays):
            stays[key] = row
    return {(*row, part) for (_, part), row in stays.items()}


SETTINGS = [
    {"targets": targets, "repeats": repeats}
    for targets in ("all", "first", "last", "random")
    for repeats in ("drop", "keep", "only")
] + [
    {"targets": targets, "validation": validation, "valid_users": 0.4 if validation == "users" else 0.1}
    for targets in ("all", "first")
    for validation in ("last_row", "users")
]  # fmt: skip


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_slow_oracle_in_any_pieces(settings: dict[str, Any]) -> None:
    for seed in SEEDS:
        log, duplicates = draw_log(seed), ("keep_last", "keep_first")[seed % 2]
        expected = oracle(log, duplicates, **settings, seed=seed)
        for pieces in (1, 3, 17):
            assert label(log, pieces, duplicates, **settings, seed=seed) == expected, (seed, pieces)


LOG = [
    *zip("uuuuuuu", "abcbdef", (5, 15, 20, 21, 22, 22, 27), strict=True),
    *(("v", "a", 6), ("v", "c", 7), ("v", "d", 25)),
]


@pytest.mark.parametrize(
    ("targets", "tested"), [("all", {"c", "d", "e"}), ("first", {"c"}), ("last", {"e"})]
)
def test_targets_by_hand(targets: str, tested: set[str]) -> None:
    """b is validated, so a repeat; d and e have one time, and e the later id."""
    rows = label(LOG, targets=targets)
    assert {item for user, item, _, part in rows if (user, part) == ("u", "test")} == tested
    assert {item for user, item, _, part in rows if part == "later"} == {"c", "d", "e", "f"} - tested
    assert ("v", "d", 25, "test") in rows and len(rows) == 9


def test_a_random_target_is_of_the_seed_and_of_each_item_once() -> None:
    log = [
        ("u", "z", 1),
        *(("u", f"i{n}", 20 + n % 3) for n in range(6)),
        *(("u", "i0", 23 + n) for n in range(3)),
    ]
    chosen = [
        [row[1] for row in label(log, targets="random", seed=seed) if row[3] == "test"]
        for seed in range(60)
    ]
    assert all(len(items) == 1 for items in chosen) and len({items[0] for items in chosen}) == 6


def test_validation_by_hand() -> None:
    log = [*LOG, ("w", "a", 3), ("w", "b", 21)]  # a single row before the cut stays in training
    last = label(log, validation="last_row")
    assert {row[:2] for row in last if row[3] == "valid"} == {("u", "b"), ("v", "c")}
    users = label(log, validation="users", valid_users=0.999)
    assert all(("w", "a", 3, "train") in rows for rows in (last, users))
    assert {row[:2] for row in users if row[3] == "valid"} == {("u", "b"), ("v", "c")}
    assert {row[:2] for row in users if row[3] == "given"} == {("u", "a"), ("v", "a")}


def test_several_test_parts_share_one_target() -> None:
    rows = label([*LOG, ("w", "a", 3)], targets="last", parts=("quiz", "test"))
    assert sorted(row[0] for row in rows if row[3] in ("quiz", "test")) == ["u", "v"]


def test_rows_with_a_part_are_no_choice() -> None:
    rows = [("u", "a", 1.0, 0, None, None), ("u", "b", 1.0, 21 * SECOND, "test", None),
            ("u", "c", 1.0, 22 * SECOND, None, None), ("u", "d", 1.0, 23 * SECOND, None, None)]  # fmt: skip
    made = labelled.label_rows(rows, Split(**{**CUT, "targets": "last"}))
    assert {row.item_id: row.part for row in made} == {"a": "train", "b": "test", "c": "later", "d": "test"}


def test_the_manifest_counts_rows_that_are_not_asked() -> None:
    table = pa.table(
        {
            "user_id": [row[0] for row in LOG],
            "item_id": [row[1] for row in LOG],
            "rating": [1.0] * len(LOG),
            "event_time": [row[2] * SECOND for row in LOG],
        }
    )
    rule = make_rule(
        Split(**{**CUT, "targets": "first"}), "keep_last", (14 * SECOND, 20 * SECOND, 26 * SECOND)
    )
    counts = read_dropped(label_rows(table, rule))
    assert counts["test", UNASKED] == 2
    facts = [fact for fact in list_log_facts(LogRows(len(LOG), dropped=counts)) if fact.fact == UNASKED]
    assert [(fact.part, fact.value) for fact in facts] == [("test", 2.0)]
    assert not [fact for fact in list_log_facts(LogRows(len(LOG))) if fact.fact == UNASKED]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"targets": "last"}, "'last' needs holdout 'period', or order 'temporal' with group 'global'"),
        ({"targets": "last", "group": "global"}, "targets 'last' needs"),
        ({"protocol": "TO_LS", "targets": "first"}, "targets 'first' needs"),
        ({"holdout": "consecutive", "targets": "first"}, "targets 'first' needs"),
        ({**CUT, "targets": "successive", "parts": ["a", "b"]}, "'successive' goes with one of parts"),
        ({**CUT, "validation": "users", "valid": False}, "validation 'users' needs valid: true"),
        ({"protocol": "TO_RS", "validation": "last_row", "valid": True}, "validation 'last_row' needs"),
        ({"order": "temporal", "group": "global", "ratio": [0.7, 0.1, 0.2], "valid": True,
          "validation": "last_row"}, "the second of ratio must be 0"),
        ({**CUT, "valid_users": 0.3}, "valid_users goes with validation users"),
    ],
)  # fmt: skip
def test_settings_that_contradict_each_other(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Split(**settings)


def test_targets_need_times() -> None:
    with pytest.raises(ProtocolError, match="needs a time in every row"):
        labelled.label_rows([("u", "a", 1.0, None, None, None)], Split(**{**CUT, "targets": "last"}))


def test_names_say_what_is_asked_and_defaults_keep_the_old_one() -> None:
    plain = Split(**CUT)
    assert "targets" not in plain.describe() and "targets" not in plain.model_dump()
    assert (
        "targets last validation users 0.1" in Split(**CUT, targets="last", validation="users").describe()
    )
    shares = Split(order="temporal", group="global", ratio=(0.8, 0, 0.2), valid=True, validation="last_row")
    assert Split(holdout="period", start="2026-01-01", valid=True, validation="users").gives_rows
    assert not shares.gives_rows and shares.cuts_time


def test_spark_labels_the_same_rows(spark: Any) -> None:
    log = draw_log(3)
    rows = [(user, item, 1.0, time * SECOND, None, None) for user, item, time in log]
    frame = spark.createDataFrame(rows, LOG_SCHEMA).repartition(5)
    for settings in ({"targets": "random"}, {"targets": "last", "validation": "users", "valid_users": 0.4}):
        made = labelled.label_blocks(frame, Split(**{**CUT, **settings})).rows().collect()
        parts = {(row.user_id, row.item_id, row.event_time // SECOND, row.part) for row in made}
        assert parts == oracle(log, "keep_last", **settings)
