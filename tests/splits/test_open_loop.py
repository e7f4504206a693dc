"""An open loop beside a closed one: pairs in both, duplicates in each, by hand and against plain sets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from recbench_spark.config import Benchmark, make_benchmark, parse
from recbench_spark.errors import ConfigError
from recbench_spark.night.benchmark_checks import check_benchmark
from recbench_spark.schemas import MANIFESTS, METRICS
from recbench_spark.splits.audit import AuditRequest, count_piece
from recbench_spark.splits.labels import SplitRule, label_rows
from recbench_spark.storage.store import Store
from tests.nights import run

Row = tuple[str, str, float, str | None]


def make_log(rows: list[Row]) -> pa.Table:
    users, items, ratings, parts = zip(*rows, strict=True) if rows else ((), (), (), ())
    return pa.table(
        {
            "user_id": pa.array(users, pa.string()),
            "item_id": pa.array(items, pa.string()),
            "rating": pa.array(ratings, pa.float64()),
            "event_time": pa.nulls(len(rows), pa.int64()),
            "part": pa.array(parts, pa.string()),
        }
    )


def label(rows: list[Row], *, keeps: bool = False, **settings: Any) -> list[tuple[str, str, float, str]]:
    rule = SplitRule(by="position", duplicates="keep_last", keeps_known=keeps, seed=3, **settings)
    made = label_rows(make_log(rows), rule).to_pylist()
    return sorted((row["user_id"], row["item_id"], row["rating"], row["part"]) for row in made)


CLOSED: list[Row] = [("u", str(n), 3.0, None) for n in range(10)]
OPENED: list[Row] = [("u", str(n), 5.0, "open_loop") for n in range(8, 14)]


def test_all_pairs_of_the_open_loop_stay() -> None:
    """Ten closed rows are divided 8 to 2, as without an open loop; its six rows stay, known or not."""
    alone = label(CLOSED)
    made = label(CLOSED + OPENED, keeps=True)
    assert [row for row in made if row[3] != "open_loop"] == alone
    assert [row[1] for row in made if row[3] == "open_loop"] == sorted(str(n) for n in range(8, 14))


def test_known_pairs_leave_the_open_loop_and_stay_in_training() -> None:
    alone = label(CLOSED)
    train = {row[1] for row in alone if row[3] == "train"}
    made = label(CLOSED + OPENED)
    assert [row for row in made if row[3] != "open_loop"] == alone
    assert {row[1] for row in made if row[3] == "open_loop"} == {str(n) for n in range(8, 14)} - train


def test_a_log_that_gives_all_parts_drops_known_pairs_too() -> None:
    rows: list[Row] = [("u", "1", 2.0, "train"), ("u", "1", 5.0, "open_loop"), ("u", "2", 4.0, "open_loop")]
    for keeps, wanted in ((True, ["1", "2"]), (False, ["2"])):
        rule = SplitRule(by="given", duplicates="keep_last", keeps_known=keeps)
        made = label_rows(make_log(rows), rule).to_pylist()
        assert [row["item_id"] for row in made if row["part"] == "open_loop"] == wanted
        assert [row["rating"] for row in made if row["part"] == "train"] == [2.0]


@given(
    st.lists(
        st.tuples(
            st.sampled_from("uv"), st.sampled_from("abcd"), st.sampled_from([1.0, 2.0, 3.0]), st.booleans()
        ),
        max_size=20,
    ),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_duplicates_are_dropped_in_each_loop(drawn: list[Any], keeps: bool, random: Any) -> None:
    """Each loop keeps one row of a pair, with a rating that it has; the order of rows never decides."""
    rows: list[Row] = [(u, i, r, "open_loop" if opened else None) for u, i, r, opened in drawn]
    made = label(rows, keeps=keeps)
    shuffled = list(rows)
    random.shuffle(shuffled)
    assert label(shuffled, keeps=keeps) == made
    closed = {row[:2] for row in rows if row[3] is None}
    assert {row[:2] for row in made if row[3] != "open_loop"} == closed
    train = {row[:2] for row in made if row[3] == "train"}
    opened = {row[:2] for row in rows if row[3] and (keeps or row[:2] not in train)}
    assert {row[:2] for row in made if row[3] == "open_loop"} == opened
    assert len(made) == len(closed) + len(opened)
    for user, item, rating, part in made:
        loop = "open_loop" if part == "open_loop" else None
        assert (user, item, rating, loop) in rows


def test_known_pairs_are_an_overlap_only_where_they_must_not_be() -> None:
    rows = make_log([("u", "1", 2.0, "train"), ("u", "1", 5.0, "open_loop"), ("u", "2", 4.0, "open_loop")])
    for keeps, overlap in ((False, 1), (True, 0)):
        counts = count_piece(rows, AuditRequest({"train": 1, "open_loop": 2}, None, keeps))
        totals = {row["id"]: row["n0"] for row in counts.to_pylist() if row["of"] == 2}
        assert (totals["overlap"], totals["known"]) == (overlap, 1)


# ----------------------------------------------------------------------------------- settings

FILE = """
name: x
dataset: {name: coat, reader: READER, path: somewhere, CLOSED}
split: {SPLIT}
models: [{name: p, kind: popular}]
evaluation: {parts: [PARTS], definition: {candidates: CANDIDATES}}
"""


def check(
    reader: str = "coat",
    closed: str = "closed_loop: split",
    split: str = "holdout: ratio",
    parts: str = "test",
    candidates: str = "all",
) -> None:
    text = FILE.replace("READER", reader).replace("CLOSED", closed).replace("SPLIT", split)
    text = text.replace("PARTS", parts).replace("CANDIDATES", candidates)
    check_benchmark(make_benchmark(yaml.safe_load(text), [], "test"))


def test_settings_that_go_together() -> None:
    check()
    check(closed="", split="protocol: given, open_loop: all", parts="open_loop")
    check(split="holdout: ratio, open_loop: all", parts="open_loop, test")
    check("csv", "", split="holdout: ratio, open_loop: all", parts="open_loop", candidates="rated")
    check("world", "", split="holdout: ratio, open_loop: all", parts="test", candidates="unseen")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reader": "movielens_1m"}, "has no closed loop beside an open one"),
        ({"split": "protocol: given"}, "needs a split.holdout other than 'given'"),
        ({"closed": ""}, "all closed rows of reader 'coat' train, so the split has no test rows"),
        (
            {"reader": "movielens_1m", "closed": "", "split": "open_loop: all"},
            "reader 'movielens_1m' has no open loop",
        ),
        (
            {"split": "open_loop: all", "parts": "open_loop", "candidates": "unseen"},
            "they are no candidates under definition.candidates 'unseen'",
        ),
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(**settings)


# ----------------------------------------------------------------------------- published figures


@pytest.mark.data
def test_a_night_on_coat_gives_the_published_figures(spark, shared_data, tmp_path) -> None:
    """Most popular in the open loop, over all items: NDCG at 100, 30, 20, 10, 5 and of the whole list.

    The figures are those of the authors' code; `test_exposure.py` computes them from arrays.
    """
    document = {
        "name": "coat",
        "dataset": {"name": "coat", "reader": "coat", "path": str(shared_data / "coat")},
        "split": {"protocol": "given", "open_loop": "all"},
        "models": [{"name": "popular", "kind": "popular"}],
        "evaluation": {
            "parts": ["open_loop"],
            "metrics": ["ndcg"],
            "k": [5, 10, 20, 30, 100],
            "definition": {"candidates": "all", "ties": "expected", "threshold": 4, "hit": "count"},
        },
    }
    store = Store(spark, str(tmp_path))
    run(store, parse(Benchmark, document, "test"))
    rows = store.read(METRICS).where("metric = 'ndcg' AND slice_key IS NULL").collect()
    values = {row.k: row.value for row in rows}
    published = {100: 0.12482, 30: 0.06709, 20: 0.05588, 10: 0.03522, 5: 0.02561, None: 0.24194}
    assert values.keys() == published.keys()
    np.testing.assert_allclose([values[k] for k in published], list(published.values()), atol=5e-6)
    facts = {(row.part, row.fact): row.value for row in store.read(MANIFESTS).collect()}
    assert facts["open_loop", "rows"] == 4_640 and facts["train", "rows"] == 6_960
    assert facts["open_loop", "known_pairs"] == 366 and facts["log", "overlap"] == 0
