"""Splits: by hand on tiny logs, against a slow oracle, and the same whatever the partitioning."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import pytest

from recbench_spark.config import Split
from recbench_spark.errors import DataError, ProtocolError
from recbench_spark.protocol.splits import labelled, without_duplicates
from recbench_spark.randomness import hashed
from recbench_spark.schemas import INTERACTIONS

pytestmark = pytest.mark.spark

Row = tuple[str, str, float, int | None, str | None, dict[str, str] | None]


def row(user: str, item: str, time: int | None = None, part: str | None = None, rating: float = 1.0) -> Row:
    return (user, item, rating, time, part, None)


def parts_of(frame) -> dict[tuple[str, str], str]:
    found = frame.select("user_id", "item_id", "part").collect()
    assert len(found) == len({(r.user_id, r.item_id) for r in found})
    return {(r.user_id, r.item_id): r.part for r in found}


@contextmanager
def partitions(spark, n: int) -> Iterator[None]:
    """Really n partitions after a shuffle: nothing is coalesced."""
    asked = {"spark.sql.shuffle.partitions": str(n), "spark.sql.adaptive.enabled": "false"}
    before = {key: spark.conf.get(key) for key in asked}
    for key, value in asked.items():
        spark.conf.set(key, value)
    yield
    for key, value in before.items():
        spark.conf.set(key, value)


# ------------------------------------------------------------------------------------- by hand


def test_temporal_by_hand(spark) -> None:
    """Ten rows of one user in time order: eight train, one valid, one test; the last is test."""
    log = spark.createDataFrame([row("u", f"i{n}", time=100 + n) for n in range(10)], INTERACTIONS)
    parts = parts_of(labelled(log, Split(protocol="TO_RS", ratio=(0.8, 0.1, 0.1))))
    assert [parts["u", f"i{n}"] for n in range(10)] == ["train"] * 8 + ["valid", "test"]
    parts = parts_of(labelled(log, Split(protocol="TO_LS", valid=True)))
    assert [parts["u", f"i{n}"] for n in range(10)] == ["train"] * 8 + ["valid", "test"]
    parts = parts_of(labelled(log, Split(protocol="TO_LS")))
    assert [parts["u", f"i{n}"] for n in range(10)] == ["train"] * 9 + ["test"]


def test_equal_times_go_by_item_id(spark) -> None:
    """All at once: the largest item id counts as the last one, by bytes ("9" after "10")."""
    log = spark.createDataFrame([row("u", item, time=5) for item in ("10", "9", "a", "2")], INTERACTIONS)
    assert parts_of(labelled(log, Split(protocol="TO_LS", valid=True))) == {
        ("u", "a"): "test",
        ("u", "9"): "valid",
        ("u", "2"): "train",
        ("u", "10"): "train",
    }


def test_few_rows(spark) -> None:
    """One row stays in train; two give one test row; three, where valid is asked for, one each."""
    rows = [row(f"u{n}", f"i{i}", time=i) for n in (1, 2, 3) for i in range(n)]
    log = spark.createDataFrame(rows, INTERACTIONS)
    wanted = {1: ["train"], 2: ["train", "test"], 3: ["train", "valid", "test"]}
    for protocol in ("TO_RS", "TO_LS", "RO_RS", "RO_LS"):
        parts = parts_of(labelled(log, Split(protocol=protocol, ratio=(0.8, 0.1, 0.1), valid=True)))
        for n, expected in wanted.items():
            found = [part for (user, _), part in sorted(parts.items()) if user == f"u{n}"]
            assert sorted(found) == sorted(expected), (protocol, n)


def test_shares_are_exact_where_binary_fractions_are_not(spark) -> None:
    """0.1 * 30, 0.7 * 10, 0.29 * 100: floor of the decimal product, not of the binary one."""
    rows = [row(f"u{n}", f"i{i:03}", time=i) for n in (10, 30, 100) for i in range(n)]
    log = spark.createDataFrame(rows, INTERACTIONS)
    for test in (0.1, 0.29, 0.7, 0.3):
        parts = parts_of(labelled(log, Split(protocol="TO_RS", ratio=(1 - test, 0.0, test))))
        for n in (10, 30, 100):
            held_out = [p for (user, _), p in parts.items() if user == f"u{n}" and p == "test"]
            assert len(held_out) == int(Fraction(str(test)) * n)


def test_rows_with_a_part_keep_it_and_count_for_nothing(spark) -> None:
    rows = [row("u", f"i{n}", time=n) for n in range(4)]
    rows += [row("u", f"o{n}", time=1000 + n, part="open_loop") for n in range(6)]
    parts = parts_of(labelled(spark.createDataFrame(rows, INTERACTIONS), Split(protocol="TO_LS")))
    assert [parts["u", f"i{n}"] for n in range(4)] == ["train"] * 3 + ["test"]
    assert {parts["u", f"o{n}"] for n in range(6)} == {"open_loop"}


def test_a_temporal_split_needs_times_of_the_rows_it_orders(spark) -> None:
    without = [row("u", "a"), row("u", "b", time=1)]
    log = spark.createDataFrame(without, INTERACTIONS)
    for protocol in ("TO_RS", "TO_LS"):
        with pytest.raises(ProtocolError, match="time in every row"):
            labelled(log, Split(protocol=protocol))
    assert set(parts_of(labelled(log, Split(protocol="RO_LS"))).values()) == {"train", "test"}
    open_loop = spark.createDataFrame(
        [row("u", "a", time=1), row("u", "b", part="open_loop")], INTERACTIONS
    )
    assert parts_of(labelled(open_loop, Split(protocol="TO_LS")))["u", "b"] == "open_loop"


def test_given_parts_stay_and_must_all_be_there(spark) -> None:
    rows = [row("u", "a", part="train"), row("u", "b", part="test")]
    log = spark.createDataFrame(rows, INTERACTIONS)
    assert parts_of(labelled(log, Split(protocol="given"))) == {("u", "a"): "train", ("u", "b"): "test"}
    with pytest.raises(ProtocolError, match="without a part"):
        labelled(spark.createDataFrame([*rows, row("u", "c")], INTERACTIONS), Split(protocol="given"))


# ---------------------------------------------------------------------------- against an oracle


def random_log(seed: int, users: int = 60) -> list[Row]:
    """Users of 1 to 40 rows, few distinct times, some rows of an open loop."""
    draw = random.Random(seed)
    rows = []
    for n in range(users):
        items = draw.sample(range(200), draw.randint(1, 40))
        for item in items:
            part = "open_loop" if draw.random() < 0.1 else None
            rows.append(row(f"user{n}", str(item), time=draw.randint(0, 8), part=part))
    return rows


def oracle(rows: list[Row], split: Split, hashes: dict[tuple[str, str], int]) -> dict[tuple[str, str], str]:
    """User by user: sort, cut the end off for test, the end of the rest for valid."""
    parts = {(r[0], r[1]): r[4] for r in rows if r[4]}
    of_user: dict[str, list[Any]] = defaultdict(list)
    for user, item, _, time, part, _ in rows:
        if part is None:
            first = time if split.protocol.startswith("TO") else hashes[user, item]
            of_user[user].append((first, item))
    for user, keys in of_user.items():
        items = [item for _, item in sorted(keys)]
        if split.protocol.endswith("LS"):
            wanted_valid, wanted_test = int(split.valid), 1
        else:
            wanted_valid, wanted_test = (
                max(1, int(Fraction(str(share)) * len(items))) if share else 0 for share in split.ratio[1:]
            )
        n_test = min(wanted_test, len(items) - 1)
        n_valid = min(wanted_valid, len(items) - 1 - n_test)
        labels = ["train"] * (len(items) - n_test - n_valid) + ["valid"] * n_valid + ["test"] * n_test
        parts |= {(user, item): label for item, label in zip(items, labels, strict=True)}
    return parts


SPLITS = [
    Split(protocol="RO_RS", ratio=(0.8, 0.1, 0.1), seed=7),
    Split(protocol="TO_RS", ratio=(0.8, 0.1, 0.1)),
    Split(protocol="RO_RS", ratio=(0.5, 0.0, 0.5)),
    Split(protocol="TO_RS", ratio=(0.1, 0.6, 0.3)),
    Split(protocol="RO_LS", valid=True, seed=8),
    Split(protocol="TO_LS", valid=True),
    Split(protocol="RO_LS"),
    Split(protocol="TO_LS"),
]


@pytest.mark.parametrize("split", SPLITS, ids=Split.describe)
def test_labels_equal_the_oracle_whatever_the_partitioning(spark, split: Split) -> None:
    rows = random_log(seed=1)
    log = spark.createDataFrame(rows, INTERACTIONS)
    hashed_rows = log.select("user_id", "item_id", hashed("user_id", "item_id", seed=split.seed).alias("h"))
    hashes = {(r.user_id, r.item_id): r.h for r in hashed_rows.collect()}
    wanted = oracle(rows, split, hashes)
    assert len(wanted) == len(rows)
    for n in (1, 3, 17):
        random.Random(n).shuffle(rows)
        with partitions(spark, n):
            spread = spark.createDataFrame(rows, INTERACTIONS).repartition(n)
            assert parts_of(labelled(spread, split)) == wanted, n


def test_another_seed_is_another_split(spark) -> None:
    log = spark.createDataFrame(random_log(seed=2), INTERACTIONS)
    one, other = (parts_of(labelled(log, Split(seed=seed))) for seed in (1, 2))
    assert one.keys() == other.keys()
    moved = sum(one[pair] != other[pair] for pair in one)
    assert moved > len(one) / 10


# ------------------------------------------------------------------------------------ duplicates


def kept(frame) -> dict[tuple[str, str], tuple[float, int | None]]:
    return {(r.user_id, r.item_id): (r.rating, r.event_time) for r in frame.collect()}


def test_duplicates_keep_the_last_or_the_first_then_the_highest_rating(spark) -> None:
    rows = [
        row("u", "a", time=3, rating=1.0),
        row("u", "a", time=9, rating=2.0),
        row("u", "a", time=9, rating=4.0),
        row("u", "a", time=1, rating=3.0),
        row("u", "b", rating=2.0),
        row("u", "b", rating=5.0),
        row("v", "a", time=1, rating=1.0),
    ]
    log = spark.createDataFrame(rows, INTERACTIONS)
    rest = {("u", "b"): (5.0, None), ("v", "a"): (1.0, 1)}
    assert kept(without_duplicates(log, "keep_last")) == {("u", "a"): (4.0, 9), **rest}
    assert kept(without_duplicates(log, "keep_first")) == {("u", "a"): (3.0, 1), **rest}
    assert without_duplicates(log, "keep_last").columns == INTERACTIONS.names


def test_duplicates_are_refused_where_asked(spark) -> None:
    rows = [row("u", "a"), row("u", "a"), row("v", "a")]
    with pytest.raises(DataError, match="2 rows of user u, item a") as error:
        without_duplicates(spark.createDataFrame(rows, INTERACTIONS), "error")
    assert "keep_last" in error.value.hint
    clean = spark.createDataFrame(rows[1:], INTERACTIONS)
    assert without_duplicates(clean, "error").count() == 2


def test_the_duplicate_kept_does_not_depend_on_the_order_of_rows(spark) -> None:
    """Equal in time, rating and part: only the attributes differ, and they decide."""
    rows = [("u", f"i{n}", 1.0, 5, None, {"page": str(p)}) for n in range(30) for p in range(4)]
    for n in (1, 3):
        random.Random(n).shuffle(rows)
        log = spark.createDataFrame(rows, INTERACTIONS).repartition(n)
        pages = {r.attributes["page"] for r in without_duplicates(log, "keep_last").collect()}
        assert pages == {"3"}
