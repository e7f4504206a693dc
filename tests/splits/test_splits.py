"""Splits: by hand on tiny logs, against a slow oracle, and the same whatever the partitioning."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from jobs.bench.randomness import hash_keys, uniform
from recbench_spark.config import Split
from recbench_spark.errors import DataError, ProtocolError
from recbench_spark.schemas import ABSENT, ID_KIND
from recbench_spark.splits.windows import find_time
from recbench_spark.storage.frame_blocks import FrameRows
from tests.labelled import count_dropped_rows, label_blocks, label_rows
from tests.log_schema import LOG_SCHEMA
from tests.splits.test_pairs import DAY, as_set, cut_in_pandas, settle_in_pandas, shop

Row = tuple[str, str, float, int | None, str | None, dict[str, str] | None]


def row(user: str, item: str, time: int | None = None, part: str | None = None, rating: float = 1.0) -> Row:
    return (user, item, rating, time, part, None)


def read_parts(labelled: Any) -> dict[tuple[str, str], str]:
    """Parts by user and item, of rows of this machine or of a frame."""
    rows = labelled if isinstance(labelled, list) else labelled.collect()
    assert len(rows) == len({(r.user_id, r.item_id) for r in rows})
    return {(r.user_id, r.item_id): r.part for r in rows}


def label_log(log: Any, *arguments: Any) -> Any:
    """Label a log: rows on this machine, or a frame by Spark."""
    return label_rows(log, *arguments) if isinstance(log, list) else label_blocks(log, *arguments).rows()


@contextmanager
def partitions(spark, n: int) -> Iterator[None]:
    """Exactly n partitions after a shuffle, without coalescing."""
    settings = {"spark.sql.shuffle.partitions": str(n), "spark.sql.adaptive.enabled": "false"}
    before = {key: spark.conf.get(key) for key in settings}
    for key, value in settings.items():
        spark.conf.set(key, value)
    yield
    for key, value in before.items():
        spark.conf.set(key, value)


# ------------------------------------------------------------------------------------- by hand


def test_temporal_by_hand() -> None:
    """Ten rows of one user in time order: eight train, one valid, one test; the last is test."""
    log = [row("u", f"i{n}", time=100 + n) for n in range(10)]
    parts = read_parts(label_log(log, Split(protocol="TO_RS", ratio=(0.8, 0.1, 0.1))))
    assert [parts["u", f"i{n}"] for n in range(10)] == ["train"] * 8 + ["valid", "test"]
    parts = read_parts(label_log(log, Split(protocol="TO_LS", valid=True)))
    assert [parts["u", f"i{n}"] for n in range(10)] == ["train"] * 8 + ["valid", "test"]
    parts = read_parts(label_log(log, Split(protocol="TO_LS")))
    assert [parts["u", f"i{n}"] for n in range(10)] == ["train"] * 9 + ["test"]


def test_equal_times_go_by_item_id() -> None:
    """All at once: the largest item id counts as the last one, by bytes ("9" after "10")."""
    log = [row("u", item, time=5) for item in ("10", "9", "a", "2")]
    assert read_parts(label_log(log, Split(protocol="TO_LS", valid=True))) == {
        ("u", "a"): "test",
        ("u", "9"): "valid",
        ("u", "2"): "train",
        ("u", "10"): "train",
    }


def test_few_rows() -> None:
    """One row stays in train; two give one test row; three, where valid is asked for, one each."""
    rows = [row(f"u{n}", f"i{i}", time=i) for n in (1, 2, 3) for i in range(n)]
    wanted = {1: ["train"], 2: ["train", "test"], 3: ["train", "valid", "test"]}
    for protocol in ("TO_RS", "TO_LS", "RO_RS", "RO_LS"):
        parts = read_parts(label_log(rows, Split(protocol=protocol, ratio=(0.8, 0.1, 0.1), valid=True)))
        for n, expected in wanted.items():
            labels = [part for (user, _), part in sorted(parts.items()) if user == f"u{n}"]
            assert sorted(labels) == sorted(expected), (protocol, n)


def test_shares_are_exact_where_binary_fractions_are_not() -> None:
    """0.1 * 30, 0.7 * 10, 0.29 * 100: floor of the decimal product, not of the binary one."""
    rows = [row(f"u{n}", f"i{i:03}", time=i) for n in (10, 30, 100) for i in range(n)]
    for test in (0.1, 0.29, 0.7, 0.3):
        parts = read_parts(label_log(rows, Split(protocol="TO_RS", ratio=(1 - test, 0.0, test))))
        for n in (10, 30, 100):
            held_out = [p for (user, _), p in parts.items() if user == f"u{n}" and p == "test"]
            assert len(held_out) == int(Fraction(str(test)) * n)


def test_rows_with_a_part_keep_it_and_count_for_nothing() -> None:
    rows = [row("u", f"i{n}", time=n) for n in range(4)]
    rows += [row("u", f"o{n}", time=1000 + n, part="open_loop") for n in range(6)]
    parts = read_parts(label_log(rows, Split(protocol="TO_LS")))
    assert [parts["u", f"i{n}"] for n in range(4)] == ["train"] * 3 + ["test"]
    assert {parts["u", f"o{n}"] for n in range(6)} == {"open_loop"}


def test_a_temporal_split_needs_times_of_the_rows_it_orders() -> None:
    without = [row("u", "a"), row("u", "b", time=1)]
    for protocol in ("TO_RS", "TO_LS"):
        with pytest.raises(ProtocolError, match="time in every row"):
            label_log(without, Split(protocol=protocol))
    assert set(read_parts(label_log(without, Split(protocol="RO_LS"))).values()) == {"train", "test"}
    open_loop = [row("u", "a", time=1), row("u", "b", part="open_loop")]
    assert read_parts(label_log(open_loop, Split(protocol="TO_LS")))["u", "b"] == "open_loop"


def test_given_parts_stay_and_must_all_be_there() -> None:
    rows = [row("u", "a", part="train"), row("u", "b", part="test")]
    assert read_parts(label_log(rows, Split(protocol="given"))) == {("u", "a"): "train", ("u", "b"): "test"}
    with pytest.raises(ProtocolError, match="without a part"):
        label_log([*rows, row("u", "c")], Split(protocol="given"))


# ---------------------------------------------------------------------------- against an oracle


def random_log(seed: int, users: int = 60) -> list[Row]:
    """Users of 1 to 40 rows, few distinct times, some rows of an open loop."""
    draw = random.Random(seed)
    rows = []
    for n in range(users):
        items = draw.sample(range(200), draw.randint(1, 40))
        for item in items:
            part = "open_loop" if draw.random() < 0.1 else None
            rows.append(row(f"user{n}", str(item), time=1_000_000 * draw.randint(0, 8), part=part))
    return rows


@dataclass(frozen=True)
class Hashes:
    """Spark's hashes of the pairs and ids of a log under one seed."""

    pair: dict[tuple[str, str], int]
    deal: dict[tuple[str, str], int]
    place: dict[Any, float]
    user: dict[str, int]


def compute_hashes(spark, rows: list[Row], seed: int) -> Hashes:
    pair = ("user_id", "item_id")
    hashed = (
        spark.createDataFrame(rows, LOG_SCHEMA)
        .select(
            *pair,
            hash_keys(*pair, seed=seed).alias("pair"),
            hash_keys(*pair, F.lit("deal"), seed=seed).alias("deal"),
            uniform(*pair, seed=seed).alias("place"),
            uniform("user_id", seed=seed).alias("user_place"),
            uniform("item_id", seed=seed).alias("item_place"),
            hash_keys("user_id", seed=seed).alias("user"),
        )
        .collect()
    )
    places = {(r.user_id, r.item_id): r.place for r in hashed}
    places |= {("users", r.user_id): r.user_place for r in hashed}
    places |= {("items", r.item_id): r.item_place for r in hashed}
    return Hashes(
        {(r.user_id, r.item_id): r.pair for r in hashed},
        {(r.user_id, r.item_id): r.deal for r in hashed},
        places,
        {r.user_id: r.user for r in hashed},
    )


Event = tuple[str, str, int]


def oracle(rows: list[Row], split: Split, hashes: Hashes) -> dict[tuple[str, str], str]:
    """Every protocol by sorting Python lists: slow and plain."""
    parts = {(r[0], r[1]): r[4] for r in rows if r[4]}
    events = [(r[0], r[1], r[3]) for r in rows if r[4] is None]
    if split.group == "user":
        labels = label_owners(events, split, hashes)
    elif split.temporal:
        labels = labels_in_time(events, split)
    elif split.holdout == "folds":
        labels = {e[:2]: fold_label(hashes.pair[e[:2]], split) for e in events}
    else:
        bounds = (split.ratio[0], split.ratio[0] + split.ratio[1])
        names = ("train", "valid", "test")
        labels = {e[:2]: names[sum(hashes.place[e[:2]] >= b for b in bounds)] for e in events}
    for pair, part in labels.items():
        parts[pair] = split.parts[hashes.deal[pair] % len(split.parts)] if part == "test" else part
    return parts


def label_owners(events: list[Event], split: Split, hashes: Hashes) -> dict[tuple[str, str], str]:
    owner = 1 if split.held_out and split.held_out.of == "items" else 0
    of: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        of[event[owner]].append(event)
    labelled = {}
    for name, mine in of.items():
        order = sorted((e[2] if split.temporal else hashes.pair[e[:2]], e[1 - owner], e[:2]) for e in mine)
        labels = label_one_owner(len(order), name, split, hashes)
        labelled |= {pair: label for (_, _, pair), label in zip(order, labels, strict=True)}
    return labelled


def label_one_owner(n: int, name: str, split: Split, hashes: Hashes) -> list[str]:
    """The labels of one owner's rows, first to last."""
    if split.holdout == "folds":
        return [fold_label(n - place + hashes.user[name], split) for place in range(n)]
    remaining = 1
    if split.holdout == "leave_one_out":
        n_valid, n_test = int(split.valid), 1
    elif split.holdout == "last_n":
        n_valid, n_test = split.n * split.valid, split.n
    elif split.holdout == "n_given":
        remaining, n_valid, n_test = 0, 0, max(n - split.n, 0)
    else:
        n_valid, n_test = (
            max(1, int(Fraction(str(share)) * n)) if share else 0 for share in split.ratio[1:]
        )
    n_test = min(n_test, n - remaining)
    n_valid = min(n_valid, n - remaining - n_test)
    labels = ["train"] * (n - n_test - n_valid) + ["valid"] * n_valid + ["test"] * n_test
    if split.held_out:
        place, test = hashes.place[split.held_out.of, name], split.held_out.test
        if place >= test + split.held_out.valid:
            return ["train"] * n
        held_out = "test" if place < test else "valid"
        return ["given" if label == "train" else held_out for label in labels]
    return labels


def fold_label(number: int, split: Split) -> str:
    fold = number % split.folds
    if split.valid and fold == (split.fold + 1) % split.folds:
        return "valid"
    return "test" if fold == split.fold else "train"


def labels_in_time(events: list[Event], split: Split) -> dict[tuple[str, str], str]:
    times = sorted(e[2] for e in events)
    end = times[-1] + 1
    if split.holdout == "ratio":
        n_valid, n_test = (int(Fraction(str(share)) * len(times)) for share in split.ratio[1:])
        start, valid = times[len(times) - n_test], times[len(times) - n_test - n_valid]
    else:
        length = 1_000_000 * int(split.length[:-1])
        step = 1_000_000 * int(split.step[:-1]) if split.step else length
        end -= split.window * step
        if split.start:
            end = int(split.start.timestamp()) * 1_000_000 + split.window * step + length
        start = end - length
        valid = start - length if split.valid else start
    names = ((end, "later"), (start, "test"), (valid, "valid"), (-1, "train"))
    return {e[:2]: next(name for bound, name in names if e[2] >= bound) for e in events}


SEED = 7
SPLITS = [
    Split(protocol="RO_RS", ratio=(0.8, 0.1, 0.1), seed=SEED),
    Split(protocol="TO_RS", ratio=(0.8, 0.1, 0.1), seed=SEED),
    Split(protocol="RO_RS", ratio=(0.5, 0.0, 0.5), seed=SEED),
    Split(protocol="TO_RS", ratio=(0.1, 0.6, 0.3), seed=SEED),
    Split(protocol="RO_LS", valid=True, seed=SEED),
    Split(protocol="TO_LS", valid=True, seed=SEED),
    Split(protocol="RO_LS", seed=SEED),
    Split(protocol="TO_LS", seed=SEED),
    Split(holdout="last_n", n=3, valid=True, seed=SEED),
    Split(order="temporal", holdout="n_given", n=5, parts=("valid", "test"), seed=SEED),
    Split(protocol="netflix", seed=SEED),
    Split(protocol="netflix", n=6, parts=("probe", "qualifying"), seed=SEED),
    Split(holdout="folds", folds=5, fold=4, valid=True, seed=SEED),
    Split(holdout="folds", group="user", folds=3, fold=1, seed=SEED),
    Split(group="global", ratio=(0.7, 0.1, 0.2), seed=SEED),
    Split(order="temporal", group="global", ratio=(0.7, 0.1, 0.2), seed=SEED),
    Split(holdout="period", length="2s", valid=True, seed=SEED),
    Split(holdout="period", length="2s", step="1s", window=2, seed=SEED),
    Split(holdout="period", start="1970-01-01T00:00:03Z", length="1s", window=1, seed=SEED),
    Split(protocol="TO_RS", held_out={"test": 0.3, "valid": 0.2}, seed=SEED),
    Split(holdout="n_given", n=0, held_out={"of": "items", "test": 0.4}, seed=SEED),
    Split(order="temporal", holdout="last_n", n=2, held_out={"of": "items", "test": 0.5}, seed=SEED),
]  # fmt: skip


def label_by_all(log, splits: list[Split]) -> list[dict[tuple[str, str], str]]:
    """Label by many protocols; a frame in one Spark job."""
    if isinstance(log, list):
        return [read_parts(label_rows(log, split)) for split in splits]
    frames = [
        label_log(log, split).select(F.lit(n).alias("split"), "user_id", "item_id", "part")
        for n, split in enumerate(splits)
    ]
    by_split: list[dict[tuple[str, str], str]] = [{} for _ in splits]
    for n, user, item, part in reduce(DataFrame.unionAll, frames).collect():
        assert (user, item) not in by_split[n]
        by_split[n][user, item] = part
    return by_split


@pytest.mark.parametrize(("n", "every"), [(1, 5), pytest.param(3, 1, marks=pytest.mark.slow), (17, 5)])
def test_labels_equal_the_oracle_whatever_the_partitioning(spark, n: int, every: int) -> None:
    """All protocols on three partitions, every fifth on one and on seventeen."""
    rows = random_log(seed=1, users=30)
    hashes = compute_hashes(spark, rows, SEED)
    random.Random(n).shuffle(rows)
    chosen = SPLITS[1::every] if every > 1 else SPLITS
    with partitions(spark, n):
        log = spark.createDataFrame(rows, LOG_SCHEMA).repartition(n)
        for split, labels in zip(chosen, label_by_all(log, chosen), strict=True):
            assert labels == oracle(rows, split, hashes), split.describe()


def test_folds_do_not_overlap_and_leave_nothing_out() -> None:
    """Each row is in the test part of exactly one fold; per user, folds differ by one row at most."""
    rows = [r for r in random_log(seed=3, users=12) if r[4] is None]
    for group in ("global", "user"):
        splits = [Split(holdout="folds", group=group, folds=4, fold=fold) for fold in range(4)]
        folds = label_by_all(rows, splits)
        tested = Counter(pair for parts in folds for pair, part in parts.items() if part == "test")
        assert tested == Counter({(r[0], r[1]): 1 for r in rows})
        if group == "user":
            sizes = [Counter(user for (user, _), part in f.items() if part == "test") for f in folds]
            for user in {r[0] for r in rows}:
                assert max(s[user] for s in sizes) - min(s[user] for s in sizes) <= 1


def test_netflix_by_hand() -> None:
    """Twenty ratings: the last nine are dealt to probe, quiz and test; of five, the first one stays."""
    rows = [row("u", f"i{n:02}", time=n) for n in range(20)]
    rows += [row("v", f"i{n}", time=n) for n in range(5)]
    (parts,) = label_by_all(rows, [Split(protocol="netflix")])
    assert {parts["u", f"i{n:02}"] for n in range(11)} == {"train"}
    assert {parts["u", f"i{n:02}"] for n in range(11, 20)} == {"probe", "quiz", "test"}
    assert [parts["v", f"i{n}"] == "train" for n in range(5)] == [True] + [False] * 4


def test_cuts_in_time_by_hand() -> None:
    """Ten rows; a fifth held out begins with the ninth, at 8, which the eighth shares: both are test."""
    times = [0, 1, 2, 3, 4, 5, 6, 8, 8, 9]
    rows = [row(f"u{n}", "i", time=1_000_000 * time) for n, time in enumerate(times)]
    splits = [
        Split(order="temporal", group="global"),
        Split(holdout="period", start="1970-01-01T00:00:05", length="2s"),
        Split(holdout="period", length="2s", step="3s", window=1),
    ]
    cuts = label_by_all(rows, splits)
    by_ratio, by_start, rolling = ([parts[f"u{n}", "i"] for n in range(10)] for parts in cuts)
    assert by_ratio == ["train"] * 7 + ["test"] * 3
    assert by_start == ["train"] * 5 + ["test"] * 2 + ["later"] * 3
    # The last window is (7, 9]; one step before it, (4, 6].
    assert rolling == ["train"] * 5 + ["test"] * 2 + ["later"] * 3


def test_cuts_that_leave_nothing_to_train_on_are_refused() -> None:
    log = [row("u", f"i{n}", time=5) for n in range(5)]
    with pytest.raises(ProtocolError, match="no training rows"):
        label_log(log, Split(order="temporal", group="global"))
    sizes = r"no training rows and no test rows \(train 0, valid 0, test 0, later 5\)"
    with pytest.raises(ProtocolError, match=sizes):
        label_log(log, Split(holdout="period", length="1d", window=3))
    with pytest.raises(ProtocolError, match="no rows to split"):
        label_log([], Split(order="temporal", group="global"))


def test_the_time_at_a_place_is_that_of_the_sorted_list(spark) -> None:
    """Times from microseconds to centuries apart, with ties: every pass of counting is needed."""
    draw = random.Random(5)
    times = [
        draw.choice([draw.randrange(10), draw.randrange(10**9), draw.randrange(-(10**16), 10**16)])
        for _ in range(60)
    ]
    times += [7] * 5
    frame = spark.createDataFrame([(time,) for time in times], "event_time LONG").coalesce(1).cache()
    for place in (0, 20, 30, 64):
        assert find_time(FrameRows(frame), place, min(times), max(times)) == sorted(times)[place]
    frame.unpersist()


def test_another_seed_is_another_split() -> None:
    log = random_log(seed=2)
    one, other = (read_parts(label_log(log, Split(seed=seed))) for seed in (1, 2))
    assert one.keys() == other.keys()
    moved = sum(one[pair] != other[pair] for pair in one)
    assert moved > len(one) / 10


def test_ids_stored_as_integers_and_a_log_without_parts_are_split_alike(spark) -> None:
    """They travel as integers, without the column; ties and hashes still go by the bytes of the text."""
    rows = [
        row(user.removeprefix("user"), item, time, None, rating)
        for user, item, rating, time, _, _ in random_log(seed=4, users=12)
    ]
    plain = spark.createDataFrame([*rows, *rows[:9]], LOG_SCHEMA)
    note = {ID_KIND: "integer"}
    ids = [F.col(name).cast("bigint").alias(name, metadata=note) for name in ("user_id", "item_id")]
    part = F.lit(None).cast("string").alias("part", metadata={ABSENT: True})
    noted = plain.select(*ids, "rating", "event_time", part, "attributes")
    splits = [
        Split(protocol="TO_LS"),
        Split(protocol="RO_RS", parts=("quiz", "test")),
        Split(group="global"),
    ]
    for split in splits:
        as_text, as_numbers = (label_log(log, split, "keep_last") for log in (plain, noted))
        assert as_numbers.columns == LOG_SCHEMA.names
        assert [f.dataType for f in as_numbers.schema] == [f.dataType for f in LOG_SCHEMA]
        assert read_parts(as_numbers) == read_parts(as_text)
        assert len(read_parts(as_numbers)) == len(rows)


# ------------------------------------------------------------------------------------ duplicates


def without_duplicates(log: Any, keep: str) -> Any:
    """One row per pair, labelled by a split that needs nothing of the log."""
    return label_log(log, Split(group="global"), keep)


def remaining(rows) -> dict[tuple[str, str], tuple[float, int | None]]:
    return {(r.user_id, r.item_id): (r.rating, r.event_time) for r in rows}


def test_duplicates_keep_the_last_or_the_first() -> None:
    rows = [
        row("u", "a", time=3, rating=1.0),
        row("u", "a", time=9, rating=2.0),
        row("u", "a", time=1, rating=3.0),
        row("u", "b", rating=5.0),
        row("u", "b", rating=5.0),
        row("v", "a", time=1, rating=1.0),
    ]
    rest = {("u", "b"): (5.0, None), ("v", "a"): (1.0, 1)}
    assert remaining(without_duplicates(rows, "keep_last")) == {("u", "a"): (2.0, 9), **rest}
    assert remaining(without_duplicates(rows, "keep_first")) == {("u", "a"): (3.0, 1), **rest}


def test_duplicates_are_refused_where_asked() -> None:
    rows = [row("u", "a"), row("u", "a"), row("v", "a")]
    with pytest.raises(DataError, match="2 rows of user u, item a") as error:
        without_duplicates(rows, "error")
    assert "keep_last" in error.value.hint
    assert len(without_duplicates(rows[1:], "error")) == 2


def test_the_duplicate_kept_does_not_depend_on_the_order_of_rows() -> None:
    """Equal in time, rating and part: only the attributes differ, and a hash of them decides."""
    rows = [("u", f"i{n}", 1.0, 5, None, {"page": str(p)}) for n in range(30) for p in range(4)]
    pages = []
    for n in (1, 3):
        random.Random(n).shuffle(rows)
        kept = label_log(rows, Split(group="global"), "keep_last", n)
        pages.append({r.item_id: dict(r.attributes)["page"] for r in kept})
    assert pages[0] == pages[1] and len(pages[0]) == 30 and len(set(pages[0].values())) == 4


def test_every_level_of_the_rule_is_independent_of_partitions(spark) -> None:
    """Few times, ratings, parts and attributes, some missing: one row of each pair in each part."""
    draw = random.Random(9)
    rows = [
        (
            f"u{draw.randrange(6)}",
            f"i{draw.randrange(8)}",
            draw.choice([0.0, -0.0, 1.0]),
            draw.choice([1, 2, -(2**63)]),
            draw.choice([None, None, "open_loop"]),
            draw.choice([None, {"a": None}, {"a": "x"}, {"a": "y"}, {"a": "x", "b": "z"}]),
        )
        for _ in range(150)
    ]
    log = spark.createDataFrame(rows, LOG_SCHEMA)
    as_text = F.to_json(F.struct(*LOG_SCHEMA.names)).alias("row")
    for keep, split in (("keep_last", Split(protocol="TO_RS")), ("keep_first", Split(group="global"))):
        one, many = (
            sorted(r.row for r in label_log(log.repartition(n), split, keep).select(as_text).collect())
            for n in (1, 3)
        )
        assert one == many and len(one) < len(rows)
        parts = label_log(log, split, keep).select("user_id", "item_id", "part").collect()
        assert len(set(parts)) == len(parts)
    with pytest.raises(DataError, match="rows of user"):
        label_log(log, split, "error")


def test_shares_of_a_cut_in_time_are_shares_of_all_rows() -> None:
    """Ten pairs, the first of them forty times more at the end: a fifth of fifty rows is test, one pair."""
    rows = [row("u", f"i{n}", time=n) for n in range(10)]
    rows += [row("u", "i0", time=100 + n) for n in range(40)]
    split = Split(group="global", order="temporal", repeats="keep")
    made = label_log(rows, split, "keep_first")
    assert sorted((r.part, r.item_id, r.event_time) for r in made) == [
        ("test", "i0", 130), *(("train", f"i{n}", n) for n in range(10))
    ]  # fmt: skip
    dropped = label_log(rows, split.model_copy(update={"repeats": "drop"}), "keep_first")
    assert {r.part for r in dropped} == {"train"} and len(dropped) == 10


@pytest.mark.parametrize("pieces", [1, 17])
def test_a_shop_is_split_on_spark_as_pandas_does(spark, pieces: int) -> None:
    """A period, and shares cut at one instant: shares of all rows, repeats included."""
    log = shop(users=30, rows=900)
    begin = [Split(holdout="period", start="1970-01-26T00:00:00Z", length="4d", valid=True)]
    shares = [Split(order="temporal", group="global", ratio=(0.7, 0.1, 0.2), repeats="keep")]
    times = np.sort(log.event_time.to_numpy())
    n_test, n_valid = int(len(log) * 0.2), int(len(log) * 0.1)
    cuts = [(21 * DAY, 25 * DAY, 29 * DAY), (times[-n_test - n_valid], times[-n_test], 10**18)]
    with partitions(spark, pieces):
        rows = spark.createDataFrame(log.assign(part=None, attributes=None), LOG_SCHEMA).repartition(pieces)
        for split, cut in zip([*begin, *shares], cuts, strict=True):
            wanted, counts = settle_in_pandas(log.assign(part=cut_in_pandas(log, cut)), split.repeats)
            blocks = label_blocks(rows, split, "keep_last")
            assert as_set(blocks.rows().toPandas()) == as_set(wanted)
            dropped = count_dropped_rows(blocks)
            by_reason = {why: sum(n for (_, w), n in dropped.items() if w == why) for why in counts}
            assert by_reason == counts and len(counts) == 1 + (split.repeats == "drop")
