"""Nights of a log with events: any file, what is asked and ranked, and what is said."""

from __future__ import annotations

import csv
import io
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recbench_spark.config import Benchmark, Dataset, make_benchmark, parse
from recbench_spark.errors import ConfigError, DataError
from recbench_spark.night.benchmark_checks import check_benchmark
from recbench_spark.night.split import identify_split, prepare_split
from recbench_spark.ranking.part_users import select_part_users
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import CANDIDATES, CHECKS, ITEMS, MANIFESTS, METRICS, SPLITS, USER_BLOCKS
from recbench_spark.sources import text_pieces
from recbench_spark.storage.arrow_store import ArrowStore
from tests.nights import read_rows, run
from tests.splits.test_events import draw_rows, find_cut, split_slowly

EVENTS: dict[str, Any] = {
    "column": "event",
    "weights": {"view": 1, "cart": 3, "purchase": 5, "gift": 0.1},
    "targets": ["purchase", "gift"],
}
NAMES = ("user_id", "item_id", "event_time", "event")
GLOBAL = {"order": "temporal", "group": "global", "ratio": [0.7, 0.1, 0.2]}


FILES = ("log.csv", "log.parquet", "log.json")


def write(path: Path, rows: list[Any], names: tuple[str, ...] = NAMES, types: Any = None) -> Path:
    """Write rows as the file's suffix says; `types`: Arrow's, where the values do not say them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        columns = zip(zip(*rows, strict=True), types or [None] * len(names), strict=True)
        pq.write_table(pa.table([pa.array(*one) for one in columns], names), path, row_group_size=23)
    elif path.suffix == ".json":
        path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
    else:
        with path.open("w") as file:
            shown = ([str(one).lower() if isinstance(one, bool) else one for one in row] for row in rows)
            csv.writer(file).writerows([names, *shown])
    return path


def make(
    path: Path, split: dict[str, Any], sections: dict[str, Any] | None = None, **log: Any
) -> Benchmark:
    dataset = {"name": "log", "reader": path.suffix[1:], "path": str(path), "events": EVENTS, **log}
    models = [{"name": "popular", "kind": "popular"}]
    document = {"name": "events", "dataset": dataset, "split": split, "models": models}
    return make_benchmark({**document, **(sections or {})}, [], "test")


def split_log(
    folder: Path, benchmark: Benchmark, store: Any = None
) -> tuple[ArrowStore, dict[tuple[str, str], Any]]:
    store = store or ArrowStore(str(folder))
    split_id, _ = identify_split(store, benchmark)
    prepare_split(store, benchmark, split_id, Journal(io.StringIO()))
    return store, {(row["part"], row["fact"]): row["value"] for row in store.rows(MANIFESTS)}


def read_split(store: ArrowStore) -> list[Any]:
    return sorted(
        (
            *(row[name] for name in ("user_id", "item_id", "part", "rating")),
            row["event_time"] // 1_000_000,
            row["signal"],
        )
        for row in store.rows(SPLITS)
    )


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.full) for n in range(1, 4))])
def test_every_file_gives_the_split_of_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, file: str
) -> None:
    monkeypatch.setattr(text_pieces, "BYTES_A_PIECE", [150, 4000][seed % 2])
    rows, where = draw_rows(seed), [{"column": "item_id", "not_in": ["i3"]}] if seed % 2 else []
    more: dict[str, Any] = {"attributes": ["event"]} if seed == 2 else {}
    protocol = [GLOBAL, {"protocol": "TO_LS", "valid": True}][seed // 2]
    benchmark = make(write(tmp_path / file, rows), protocol, where=where, **more)
    store, facts = split_log(tmp_path / "w", benchmark)
    left = [row for row in rows if not where or row[1] != "i3"]
    wanted, counts = split_slowly(left, benchmark.dataset, benchmark.split)
    assert read_split(store) == sorted(wanted, key=lambda one: one[:3])
    of_log = {fact: value for (part, fact), value in facts.items() if part == "log"}
    assert {name: of_log[name] for name in counts} == counts
    assert of_log["rows_read"] == len(rows) and of_log["overlap"] == 0
    for event in EVENTS["weights"]:
        own = sum(
            value for (part, fact), value in facts.items() if fact == f"rows_of_{event}" and part != "log"
        )
        assert own == of_log.get(f"rows_of_{event}", 0)
    masked = find_masked(store, ["test"])
    for user in {row[0] for row in wanted if row[2] == "test"}:
        known = {row[1] for row in wanted if row[0] == user and row[2] == "train" and not row[5]}
        known |= {row[1] for row in wanted if row[0] == user and row[2] == "valid"}
        assert masked[user] == known


def find_masked(store: ArrowStore, parts: list[str]) -> dict[str, set[str]]:
    names = {row["item_index"]: row["item_id"] for row in store.rows(ITEMS)}
    blocks = pa.Table.from_pylist(store.rows(USER_BLOCKS), USER_BLOCKS.arrow_schema)
    users = select_part_users(blocks, parts, None, keep_empty=False)
    return {row["user_id"]: {names[item] for item in row["masked"]} for row in users.to_pylist()}


def test_a_period_ends_with_the_log_and_trains_on_what_came_before(tmp_path: Path) -> None:
    """The last row is a view on day 9, so the last two days are 8 and 9; before them all are views."""
    day = 86_400
    rows = [(f"u{n % 3}", f"i{n}", n * day, "view") for n in range(8)]
    rows += [("u0", "i7", 8 * day, "purchase"), ("u1", "i1", 9 * day, "view")]
    benchmark = make(write(tmp_path / "log.csv", rows), {"holdout": "period", "length": "2d"})
    store, facts = split_log(tmp_path / "w", benchmark)
    assert [row[:3] for row in read_split(store) if row[2] != "train"] == [
        ("u0", "i7", "test"), ("u1", "i1", "later")
    ]  # fmt: skip
    assert facts["train", "rows_of_view"] == 8 and facts["log", "period_begin"] == 8 * day * 1_000_000


def test_rows_that_a_log_holds_out_are_asked_only_of_targets(tmp_path: Path) -> None:
    names = (*NAMES, "part")
    rows = [
        ("u", "a", 1, "purchase", "train"), ("u", "b", 2, "view", "train"), ("u", "b", 3, "view", "test"),
        ("u", "b", 4, "purchase", "test"), ("u", "c", 5, "cart", "valid"), ("u", "a", 6, "gift", "valid"),
    ]  # fmt: skip
    for file in ("log.csv", "log.parquet"):
        path = write(tmp_path / file, rows, names)
        store, facts = split_log(
            tmp_path / f"w{file}", make(path, {"protocol": "given", "repeats": "keep"})
        )
        assert [row[1:4] for row in read_split(store)] == [
            ("a", "train", 5.0), ("a", "valid", 1.0), ("b", "later", 1.0), ("b", "test", 1.0),
            ("b", "train", 1.0), ("c", "later", 3.0),
        ]  # fmt: skip
        assert facts["log", "repeats"] == 1


def test_consecutive_folds_train_on_all_other_events(tmp_path: Path) -> None:
    rows = draw_rows(5)
    path = write(tmp_path / "log.csv", [(*row, n) for n, row in enumerate(rows)], (*NAMES, "place"))
    benchmark = make(path, {"holdout": "consecutive", "folds": 3, "fold": 1, "repeats": "keep"})
    store, _ = split_log(tmp_path / "w", benchmark)
    pairs = {
        row[:2]
        for place, row in enumerate(rows)
        if place * 3 // len(rows) == 1 and row[3] in EVENTS["targets"]
    }
    made = read_split(store)
    assert {row[:2] for row in made if row[2] == "test"} == pairs
    assert {row[2] for row in made} == {"train", "test"}


@pytest.mark.parametrize("file", FILES)
def test_strange_events_are_refused_or_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str
) -> None:
    rows = [("u", f"i{n}", n, ["view", "purchase"][n % 2]) for n in range(8)]
    path = write(tmp_path / file, [*rows, ("u", "x", 9, "purchse")])
    with pytest.raises(ConfigError, match="the log has event 'purchse', which has no weight") as caught:
        split_log(tmp_path / "a", make(path, {"protocol": "TO_LS"}))
    assert "did you mean 'purchase'?" in caught.value.hint and "not_in: [purchse]" in caught.value.hint
    left_out = [{"column": "event", "not_in": ["purchse"]}]
    split_log(tmp_path / "b", make(path, {"protocol": "TO_LS"}, where=left_out))
    said = capsys.readouterr().err
    assert "no row has event 'cart'" in said and "no row has event 'gift'" in said
    nobody = {**EVENTS, "targets": ["gift"]}
    for protocol in ({"protocol": "TO_LS"}, {"protocol": "RO_RS"}):
        with pytest.raises(DataError, match=r"no row has event gift \(targets\)") as none:
            split_log(tmp_path / f"c{protocol}", make(path, protocol, where=left_out, events=nobody))
        assert "events of the log: purchase, view" in none.value.hint


def test_a_row_without_event_is_bad(tmp_path: Path) -> None:
    rows = [("u", f"i{n}", n, ["view", "purchase"][n % 2]) for n in range(8)] + [("u", "x", 9, "")]
    for file in ("log.csv", "log.parquet"):
        path = write(tmp_path / file, rows)
        with pytest.raises(DataError, match=r"1 rows whose 'event' is not an event \(dataset.events\)"):
            split_log(tmp_path / "a", make(path, {"protocol": "TO_LS"}))
        _, facts = split_log(tmp_path / f"b{file}", make(path, {"protocol": "TO_LS"}, bad_rows="reject"))
        assert facts["log", "rejected_rows"] == 1


def test_events_may_be_numbers(tmp_path: Path) -> None:
    rows = [("u", f"i{n}", n, [1, 4][n % 2]) for n in range(8)]
    events = {"column": "event", "weights": {1: 1, 4: 2}, "targets": [4]}
    made = []
    for file, whole in (("log.csv", True), ("log.parquet", True), ("x/log.parquet", False)):
        own = rows if whole else [(*row[:3], float(row[3])) for row in rows]
        path = write(tmp_path / file, own)
        store, _ = split_log(tmp_path / f"w{file}", make(path, {"protocol": "TO_LS"}, events=events))
        made.append(read_split(store))
    assert made[0] == made[1] == made[2] and {row[3] for row in made[0]} == {1.0, 2.0}


def test_duplicates_are_of_one_event(tmp_path: Path) -> None:
    rows = [("u", "a", 1, "view"), ("u", "a", 2, "cart"), ("u", "b", 3, "purchase"), ("u", "c", 4, "gift")]
    for file in ("log.csv", "log.parquet"):
        path = write(tmp_path / file, rows)
        split_log(tmp_path / f"a{file}", make(path, {"protocol": "TO_LS"}, duplicates="error"))
        path = write(tmp_path / file, [*rows, ("u", "a", 9, "view")])
        with pytest.raises(DataError, match="2 rows of user u, item a"):
            split_log(tmp_path / f"b{file}", make(path, {"protocol": "TO_LS"}, duplicates="error"))


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ({"targets": ["purchse"]}, "'purchse' has no weight"),
        ({"weights": {"purchase": 0, "gift": 1}}, "greater than 0"),
        ({"weights": {}}, "weights"),
        ({"targets": []}, "targets"),
        ({"targets": ["gift", "gift"]}, "given twice"),
        ({"cap": 0}, "cap"),
    ],
)
def test_wrong_events_are_refused(events: dict[str, Any], message: str) -> None:
    document = {"name": "log", "reader": "csv", "path": "log.csv", "events": {**EVENTS, **events}}
    with pytest.raises(ConfigError, match=message):
        parse(Dataset, document, "dataset")
    document = {"name": "log", "reader": "world", "events": EVENTS}
    with pytest.raises(ConfigError, match="all rows of a generated world count alike"):
        parse(Dataset, document, "dataset")


def test_absent_events_change_no_name_and_present_ones_do(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", draw_rows(1))
    identify = [
        identify_split(ArrowStore(str(tmp_path / "w")), make(path, GLOBAL, events=events))[0]
        for events in (None, EVENTS, {**EVENTS, "cap": 3})
    ]
    assert len(set(identify)) == 3
    dataset = make(path, GLOBAL).dataset
    assert parse(Dataset, json.loads(dataset.model_dump_json()), "again") == dataset
    assert "events" not in make(path, GLOBAL, events=None).dataset.model_dump()


def test_a_curve_cannot_tell_events_apart(tmp_path: Path) -> None:
    curve = {"evaluation": {"learning_curve": {"given": [1]}}}
    with pytest.raises(ConfigError, match="learning_curve masks all trained items"):
        check_benchmark(make(tmp_path / "log.csv", {"held_out": {"test": 0.2}}, curve))


SHOP = [
    ("u", "a", 1, "purchase"), ("u", "b", 2, "view"), ("u", "c", 3, "view"), ("u", "b", 9, "purchase"),
    ("v", "a", 1, "view"), ("v", "c", 2, "purchase"), ("v", "a", 9, "purchase"),
    ("w", "b", 1, "purchase"), ("w", "c", 2, "cart"), ("w", "d", 3, "purchase"), ("w", "b", 9, "purchase"),
]  # fmt: skip
"""Scores rank a, b, c, d. Asked are b of u, a of v, and b of w again, which w has bought before."""

MRR = {
    "drop": (1 + 1) / 2,  # u: b before c, d; v: a before b, d
    "keep": (1 / 2 + 1 + 1 / 2) / 3,
    "only": 1 / 2,
}


@pytest.mark.parametrize("repeats", MRR)
def test_viewed_items_stay_candidates_and_bought_ones_do_not(tmp_path: Path, repeats: str) -> None:
    ranked = [(user, item, -rank) for user in "uvw" for rank, item in enumerate("abcd")]
    write(tmp_path / "scores.csv", ranked, ("user_id", "item_id", "score"))
    lists = [(user, item, rank + 1) for user in "uvw" for rank, item in enumerate("abcd")]
    write(tmp_path / "lists.csv", lists, ("user_id", "item_id", "rank"))
    sections = {
        "models": [
            {"name": "scores", "kind": "scores", "path": str(tmp_path / "scores.csv")},
            {"name": "lists", "kind": "lists", "path": str(tmp_path / "lists.csv")},
        ],
        "evaluation": {"metrics": ["mrr"], "k": [5], "slices": [], "bootstrap": {"replicates": 0}},
        "headline": "mrr@5",
    }
    path = write(tmp_path / "log.csv", SHOP)
    store = ArrowStore(str(tmp_path / "w"))
    ran = run(store, make(path, {"protocol": "TO_LS", "repeats": repeats}, sections))
    assert ran.outcome.failed == {}
    (row,) = read_rows(store, METRICS, metric="mrr", k=5, run_id=ran.outcome.run_ids["scores"])
    assert row.value == pytest.approx(MRR[repeats], abs=1e-15)
    warned = read_rows(store, CHECKS, check="list rows of training items")
    # Bought before: a of u, c of v, b and d of w; viewed items count for nothing.
    assert [one.observed for one in warned] == ([4.0] if repeats == "drop" else [])


LAST = {"holdout": "period", "start": "1970-01-01T00:00:09Z", "targets": "last"}
DRAWN = {
    "drop": {"u": "cd", "v": "bd"},
    "keep": {"u": "acd", "v": "bcd", "w": "acd"},
    "only": {"w": "acd"},
}


@pytest.mark.parametrize("mode", ["uniform", pytest.param("popularity", marks=pytest.mark.full)])
@pytest.mark.parametrize("split", [{"protocol": "TO_LS"}, LAST])
@pytest.mark.parametrize("repeats", MRR)
def test_bought_items_are_drawn_where_repeats_are_asked_and_viewed_ones_always(
    tmp_path: Path, repeats: str, split: dict[str, Any], mode: str
) -> None:
    """A draw of 100 from four items takes all that may be drawn."""
    vectors = {
        "users": [(user, [1.0]) for user in "uvw"],
        "items": [(item, [-ord(item)]) for item in "abcd"],
    }
    sides = {
        side: str(write(tmp_path / f"{side}.parquet", rows, ("id", "vector")))
        for side, rows in vectors.items()
    }
    evaluation = {"metrics": ["mrr"], "k": [5], "slices": [], "bootstrap": {"replicates": 0}}
    sections = {
        "models": [{"name": "by_letter", "kind": "embeddings", **sides}],
        "evaluation": evaluation | {"definition": {"candidates": mode}, "draw": {"n": 100}},
        "headline": "mrr@5",
    }
    store = ArrowStore(str(tmp_path / "w"))
    benchmark = make(write(tmp_path / "log.csv", SHOP), {**split, "repeats": repeats}, sections)
    assert run(store, benchmark).outcome.failed == {}
    names = {row["item_index"]: row["item_id"] for row in store.rows(ITEMS)}
    drawn = {
        row["user_id"]: "".join(sorted(map(names.get, row["items"]))) for row in store.rows(CANDIDATES)
    }
    assert drawn == DRAWN[repeats]
    (row,) = read_rows(store, METRICS, metric="mrr", k=5, estimator="holdout")
    assert row.value == pytest.approx(MRR[repeats], abs=1e-15)


@pytest.mark.parametrize("protocol", [GLOBAL, {"protocol": "TO_LS"}, {"protocol": "RO_RS"}])
def test_on_spark_the_split_is_the_same(spark: Any, tmp_path: Path, protocol: dict[str, Any]) -> None:
    from recbench_spark.storage.store import Store

    made = []
    for file in ("log.csv", "log.parquet"):
        benchmark = make(write(tmp_path / file, draw_rows(random.Random(7).randrange(99))), protocol)
        for store in (ArrowStore(str(tmp_path / f"a{file}")), Store(spark, str(tmp_path / f"s{file}"))):
            made.append(read_split(split_log(tmp_path, benchmark, store)[0]))
    assert made[0] == made[1] == made[2] == made[3] and made[0]


def test_the_cut_is_that_of_targets(tmp_path: Path) -> None:
    rows = draw_rows(2)
    benchmark = make(write(tmp_path / "log.parquet", rows), GLOBAL)
    cut = find_cut(rows, benchmark.split, benchmark.dataset)
    assert cut is not None
    store, _ = split_log(tmp_path / "w", benchmark)
    assert all(row[4] < cut[0] for row in read_split(store) if row[2] == "train")
