"""The manifest: every fact by hand, and hashes that depend on the rows and not on their order."""

from __future__ import annotations

import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark.engine.local import LocalEngine
from recbench_spark.engine.sessions import SparkEngine
from recbench_spark.splits.audit import COLUMNS, read_labelled
from recbench_spark.splits.manifests import LogRows, Manifest, build_manifest, format_manifest
from recbench_spark.storage.blocks import PieceRows
from recbench_spark.storage.frame_blocks import FrameRows
from tests.labelled import open_pieces

SCHEMA = "user_id string, item_id string, rating double, event_time long, part string"
TYPES = (pa.string(), pa.string(), pa.float64(), pa.int64(), pa.string())
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


def audit(frame: DataFrame, rows: int, settings: str) -> Manifest:
    return build_manifest(FrameRows(frame), LogRows(rows), settings, SparkEngine(frame.sparkSession))


def audit_here(rows, n: int, settings: str) -> Manifest:
    """Audit rows on this machine."""
    arrays = map(pa.array, map(list, zip(*rows, strict=True)), TYPES)
    engine, table = LocalEngine(""), pa.Table.from_arrays(list(arrays), COLUMNS)
    return build_manifest(PieceRows(engine, [table], open_pieces), LogRows(n), settings, engine)


def collect_facts(rows=ROWS, log_rows: int = 9) -> dict[tuple[str, str], float | str]:
    facts = audit_here(rows, log_rows, '{"seed": 1}').facts
    assert len(facts) == len({(row.part, row.fact) for row in facts})
    return {(row.part, row.fact): row.detail if row.value is None else row.value for row in facts}


def test_facts_by_hand() -> None:
    facts = collect_facts()
    assert {key: value for key, value in facts.items() if key[1] != "content_hash"} == {
        ("train", "rows"): 4, ("train", "users"): 2, ("train", "items"): 3,
        ("test", "rows"): 3, ("test", "users"): 3, ("test", "items"): 3,
        ("open_loop", "rows"): 1, ("open_loop", "users"): 1, ("open_loop", "items"): 1,
        ("log", "rows_read"): 9,
        ("log", "settings"): '{"seed": 1}',
        ("log", "rejected_rows"): 0,
        ("log", "duplicates_dropped"): 0, ("log", "repeats_dropped"): 0,
        ("log", "new_pairs_dropped"): 0, ("log", "unordered_pairs"): 0,
        ("log", "overlap"): 0,
        # w is never in train; neither is d, nor e of the open loop.
        ("log", "test_only_users"): 1,
        ("log", "test_only_items"): 2,
        ("test", "cold_users"): 1, ("test", "cold_items"): 1,
        ("open_loop", "cold_users"): 0, ("open_loop", "cold_items"): 1,
        # Of train a 2/4, b 1/4, c 1/4; of test b, c, d 1/3 each: (2/4 + 1/12 + 1/12 + 1/3) / 2.
        ("test", "popularity_drift"): 0.5, ("open_loop", "popularity_drift"): 1,
        # The earliest test row is at 20; of four training rows, those at 30 and 50 are later.
        ("train", "future_share"): 0.5, ("train", "future_rows"): 2,
        # v is tested at 20 and trains at 50; u is tested at 40, after all it trains on.
        ("train", "own_future_rows"): 1,
    }  # fmt: skip


def test_an_overlap_is_counted() -> None:
    """(u, a) in train and test, (v, a) in train and open loop; (v, b) may be in test and open loop."""
    shown = [("v", item, 1.0, 60, "open_loop") for item in "ab"]
    rows = [*ROWS, ("u", "a", 1.0, 60, "test"), *shown]
    assert collect_facts(rows)["log", "overlap"] == 2


def test_a_log_without_times_has_no_leakage_in_time() -> None:
    rows = [(user, item, rating, None, part) for user, item, rating, _, part in ROWS]
    assert ("train", "future_share") not in collect_facts(rows)


def test_a_temporal_split_of_one_user_does_not_leak() -> None:
    rows = [("u", f"i{n}", 1.0, n, "train" if n < 8 else "test") for n in range(10)]
    assert collect_facts(rows)["train", "future_share"] == 0


def test_parts_of_any_protocol() -> None:
    """Given and later rows are not training; the earliest held-out row may be one of the probe."""
    rows = [
        ("u", "a", 1.0, 1, "train"),
        ("u", "b", 1.0, 9, "train"),
        ("v", "a", 1.0, 2, "given"),
        ("v", "b", 1.0, 5, "probe"),
        ("v", "c", 1.0, 7, "test"),
        ("u", "c", 1.0, 3, "later"),
    ]
    facts = collect_facts(rows, log_rows=6)
    assert facts["train", "future_rows"] == 1
    assert facts["train", "own_future_rows"] == 0
    assert [facts[part, "cold_users"] for part in ("given", "probe", "test", "later")] == [1, 1, 1, 0]
    assert facts["log", "test_only_items"] == 1
    assert facts["probe", "popularity_drift"] == 0.5


def test_the_table_for_a_terminal() -> None:
    rows = [
        {"part": "test", "fact": "rows", "value": 1234.0, "detail": None},
        {"part": "train", "fact": "rows", "value": 5.0, "detail": None},
        {"part": "train", "fact": "future_share", "value": 0.25, "detail": "share"},
        {"part": "log", "fact": "settings", "value": None, "detail": "{}"},
        {"part": "test", "fact": "content_hash", "value": None, "detail": "99"},
    ]
    assert format_manifest(rows).splitlines() == [
        "               train   test",
        "future_share  0.2500",
        "rows               5  1,234",
        "test content_hash 99",
    ]


def test_the_content_hash_knows_rows_and_not_their_order() -> None:
    before = {key: value for key, value in collect_facts().items() if key[1] == "content_hash"}
    assert len(set(before.values())) == len(before) == 3
    shuffled = random.Random(1).sample(ROWS, len(ROWS))
    after = collect_facts(shuffled)
    assert {key: after[key] for key in before} == before
    changed = [("u", "a", 2.0, 10, "train"), *ROWS[1:]]
    moved = collect_facts(changed)
    assert moved["train", "content_hash"] != before["train", "content_hash"]
    assert moved["test", "content_hash"] == before["test", "content_hash"]


@pytest.mark.parametrize("seed", range(2))
def test_the_facts_do_not_know_how_the_rows_lie(spark, tmp_path, seed) -> None:
    """A user's rows in one file or in many, row groups of 7, rows of Spark: the same facts, pairs twice or
    not; the hash is Spark's."""
    draws = random.Random(seed)
    pairs = [(f"u{draws.randrange(9)}", f"ü{draws.randrange(12)}") for _ in range(90)]
    parts = ("train", "train", "train", "test", "valid", "open_loop", "given", "later")
    rows = [
        (*pair, draws.choice([-0.0, 0.0, 1.5]), draws.choice([None, *range(20)]), draws.choice(parts))
        for pair in (pairs if seed else sorted(set(pairs)))
    ]
    settings = '{"held_out": {"of": "items"}}'
    whole = spark.createDataFrame(rows, SCHEMA)
    expected = audit(whole.coalesce(1), 90, settings)
    distinct = [len({row[n] for row in rows}) for n in range(2)]
    assert [expected.users, expected.items] == distinct
    by_spark = whole.groupBy("part").agg(
        F.sum(F.xxhash64("user_id", "item_id", "rating", "event_time").cast("decimal(38,0)"))
    )
    hashes = {fact.part: fact.detail for fact in expected.facts if fact.fact == "content_hash"}
    assert hashes == {part: str(value) for part, value in by_spark.collect()}
    for n in (2, 5):
        assert audit(whole.repartition(n), 90, settings) == expected
    apart = sorted(rows, key=lambda row: row[0])
    for ordered, cuts in ((rows, 3), (apart, 1)):
        files = [str(tmp_path / f"{cuts}-{n}.parquet") for n in range(cuts)]
        for n, file in enumerate(files):
            columns = zip(*ordered[n::cuts], strict=True)
            table = pa.table(dict(zip(COLUMNS, map(list, columns), strict=True)))
            pq.write_table(table, file, row_group_size=7)
        for engine in (SparkEngine(spark), LocalEngine(str(tmp_path)), LocalEngine(str(tmp_path), 2)):
            labelled = PieceRows(engine, files, read_labelled)
            assert build_manifest(labelled, LogRows(90), settings, engine) == expected


def test_held_out_owners_of_whom_nothing_is_tested_are_counted() -> None:
    """Item a is tested, b and c are given alone, d trains; user w has nothing but a given row."""
    rows = [
        ("u", "a", 1.0, 10, "given"), ("v", "a", 1.0, 20, "test"), ("u", "b", 1.0, 5, "given"),
        ("w", "c", 1.0, 5, "given"), ("w", "c2", 1.0, 5, "open_loop"), ("u", "d", 1.0, 5, "train"),
    ]  # fmt: skip
    for of, n in (("items", 2), ("users", 1)):
        facts = audit_here(rows, 6, f'{{"held_out": {{"of": "{of}"}}}}').facts
        untested = [tuple(fact[:3]) for fact in facts if fact.fact.startswith("untested")]
        assert untested == [("given", f"untested_{of}", n)]
