"""Candidates as of the moment: each test row alone, among the items that existed then."""

from __future__ import annotations

import math
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recbench_spark.config import Benchmark, parse
from recbench_spark.core.hashed_ids import hash_ids
from recbench_spark.core.hashing import hash_longs, mix, stream
from recbench_spark.errors import ConfigError, DataError, ProtocolError
from recbench_spark.night.benchmark_checks import check_benchmark
from recbench_spark.night.night import make_run_key, open_night
from recbench_spark.ranking import scored
from recbench_spark.ranking.kernels.negatives import ROUNDS
from recbench_spark.schemas import CHECKS, MANIFESTS, METRICS, RANKINGS, RUNS, SPLITS, USER_METRICS
from recbench_spark.storage.arrow_store import ArrowStore
from tests.night.test_successive import read_numbers
from tests.nights import DATE, Ran, read_rows, run, run_in_pieces, small, work_in

SEEDS = range(*map(int, os.environ.get("RECBENCH_ASOF_SEEDS", "0,6").split(",")))
"""Worlds drawn: a few in the suite, as many as one likes by hand."""

END, DIMS = 100, 3
LOG = ("user_id", "item_id", "rating", "event_time")
DRAW = {"n": 3, "per": "positive", "seed": 7}


class World(NamedTuple):
    """A log, a protocol, axes of the definition, vectors of items and users, periods, candidates."""

    log: pa.Table
    split: dict[str, Any]
    axes: dict[str, Any]
    items: pa.Table
    users: pa.Table
    periods: pa.Table
    given: pa.Table


def draw_world(seed: int) -> World:
    """Few users and items; items appear over time, rows share times, and pairs repeat."""
    rng = np.random.default_rng(seed)
    n, n_users, n_items = (int(rng.integers(*ends)) for ends in ((60, 180), (2, 12), (8, 25)))
    time, born = rng.integers(0, END, n), np.sort(rng.integers(0, END, n_items))
    item = rng.integers(0, np.maximum(np.searchsorted(born, time, "right"), 1))
    columns = ([f"u{one}" for one in rng.integers(0, n_users, n)], [f"i{one}" for one in item])
    log = pa.table(dict(zip(LOG, (*columns, rng.integers(1, 6, n) * 1.0, time * 1_000_000), strict=True)))
    period = {"holdout": "period", "start": "1970-01-01T00:00:50Z", "length": "35s", "valid": seed % 4 == 0}
    splits = (
        {**period, "targets": "successive"}, period, {"protocol": "TO_RS", "ratio": [0.6, 0.1, 0.3]},
        {"protocol": "RO_RS", "ratio": [0.7, 0.0, 0.3], "seed": seed}, {"protocol": "TO_LS"},
    )  # fmt: skip
    seen = ("first_seen", "availability")[seed % 7 % 2]
    axes = {
        "candidates_as_of": seen,
        "first_seen_in": ["log", "train"][rng.integers(2)] if seen == "first_seen" else "log",
        "unavailable": ["left_out", "miss"][rng.integers(2)],
        "candidates": ["unseen", "all"][rng.integers(2)],
        "threshold": [None, 3][rng.integers(2)],
        "weigh": ["users", "rows"][rng.integers(2)],
    }
    vectors = [
        pa.table({
            f"{side}_id": [f"{side[0]}{k}" for k in range(count)],
            "vector": pa.array(rng.integers(-2, 3, (count, DIMS)).tolist(), pa.list_(pa.float32())),
        })
        for side, count in (("item", n_items), ("user", n_users))
    ]  # fmt: skip
    periods = draw_periods(rng, born)
    rng = np.random.default_rng([seed, 1])
    axes["candidates"] = ["unseen", "all", "given", "uniform", "popularity"][rng.integers(5)]
    if axes["candidates"] in ("unseen", "all"):
        axes["candidates"] = ["unseen", "all"][seed % 2]
    pairs = np.argwhere(rng.random((n_users, n_items)) < 0.5)
    given = pa.table({"user_id": [f"u{u}" for u, _ in pairs], "item_id": [f"i{i}" for _, i in pairs]})
    return World(log, splits[seed % len(splits)], axes, *vectors, periods, given)


def draw_periods(rng: np.random.Generator, born: Any) -> pa.Table:
    """Periods of items: none for a few; from before their first row on, or later; with ends and without."""
    periods = []
    for item, first in enumerate(born):
        times = np.unique(rng.integers(first - 20, END + 20, rng.integers(0, 5)))
        times = times if rng.integers(4) else np.array([-1000])
        until = [*times[1::2].tolist(), None]
        periods += [(f"i{item}", int(begin), until[n]) for n, begin in enumerate(times[::2])]
    periods += [("nobody's", 0, 5), ("nobody's", 5, None)]
    names = ("item_id", "available_from", "available_until")
    order = rng.permutation(len(periods))
    table = pa.table(dict(zip(names, map(list, zip(*periods, strict=True)), strict=True))).take(order)
    seconds = [(table[name].cast(pa.int64()).to_numpy(zero_copy_only=False)) for name in names[1:]]
    columns = [pa.array(one * 1e6, pa.float64(), from_pandas=True).cast(pa.int64()) for one in seconds]
    return pa.table([table["item_id"], *columns], names)


def make_night(folder: Path, world: World, **changes: Any) -> Benchmark:
    """Write a world's files, and return its benchmark."""
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(world.log, folder / "log.parquet")
    scores = [
        {"user_id": user, "item_id": item, "score": sum(x * y for x, y in zip(one, other, strict=True))}
        for user, one in zip(*map(list, world.users.to_pydict().values()), strict=True)
        for item, other in zip(*map(list, world.items.to_pydict().values()), strict=True)
        if (len(user) + len(item)) % 3
    ]
    tables = {
        "items": world.items, "users": world.users, "scores": pa.Table.from_pylist(scores),
        "periods": world.periods, "given": world.given,
    }  # fmt: skip
    for name, table in tables.items():
        pq.write_table(table, folder / f"{name}.parquet")
    vectors = {"items": str(folder / "items.parquet"), "users": str(folder / "users.parquet")}
    models = [
        {"name": "popular", "kind": "popular"}, {"name": "item_knn", "kind": "item_knn", "neighbours": 5},
        {"name": "vectors", "kind": "embeddings", **vectors},
        {"name": "scores", "kind": "scores", "path": str(folder / "scores.parquet")},
    ]  # fmt: skip
    dataset: dict[str, Any] = {
        "name": "log",
        "reader": "parquet",
        "path": str(folder / "log.parquet"),
        "time_unit": "us",
    }
    dataset["availability"] = {"path": str(folder / "periods.parquet")}
    given = {"candidates_path": str(folder / "given.parquet")}
    evaluation = {
        "metrics": ["ndcg", "recall", "coverage"], "k": [1, 5], "bootstrap": {"replicates": 20},
        "slices": [{"key": "popularity", "of": "popularity"}], "definition": world.axes,
        "uncut": False, "draw": DRAW,
        **(given if world.axes.get("candidates") == "given" else {}),
        **changes.pop("evaluation", {}),
    }  # fmt: skip
    file = {"name": "moments", "dataset": {**dataset, **changes}, "split": world.split}
    return parse(Benchmark, {**file, "models": models, "evaluation": evaluation}, "test_moments.py")


class Question(NamedTuple):
    """A user's test rows of one time, what was known before, and the items that existed.

    n_truth: the rows that count for a draw.
    """

    user: str
    number: int
    tested: list[Any]
    before: list[Any]
    items: set[str]
    gone: list[Any]
    moment: int
    n_truth: int


def list_questions(made: Ran, world: World) -> Iterator[Question]:
    """Each question by the split's rows alone."""
    rows = read_rows(made.store, SPLITS)
    seen: dict[str, int] = {}
    for row in rows:
        if world.axes["first_seen_in"] == "log" or row.part == "train":
            seen[row.item_id] = min(row.event_time, seen.get(row.item_id, row.event_time))
    successive = world.split.get("targets") == "successive"
    for user in sorted({row.user_id for row in rows}):
        own = sorted(
            (row for row in rows if row.user_id == user), key=lambda one: (one.event_time, one.item_id)
        )
        tested = [row for row in own if row.part == "test"]
        groups: dict[Any, list[Any]] = defaultdict(list)
        for place, row in enumerate(tested):
            groups[place if successive else row.event_time].append(row)
        for number, group in enumerate(groups.values(), 1):
            now = group[0].event_time
            before = [row for row in own if row.part in ("train", "valid")]
            before += tested[: number - 1] if successive else []
            items = {item for item, first in seen.items() if first <= now}
            if world.axes["candidates_as_of"] == "availability":
                items = {
                    item for item, begin, end in zip(*world.periods.to_pydict().values(), strict=True)
                    if begin <= now < (math.inf if end is None else end)
                } & {row.item_id for row in rows}  # fmt: skip
            gone = [row for row in group if row.item_id not in items]
            if world.axes["unavailable"] == "left_out":
                group = [row for row in group if row not in gone]  # noqa: PLW2901
            yield Question(user, number, group, before, items, gone, now, len(group))


def choose_candidates(world: World, one: Question, rows: list[Any]) -> set[str]:
    """Candidates of a question: those there were, of them the given, or the truth and a slow draw."""
    rule, known = world.axes["candidates"], {row.item_id for row in one.before}
    if rule in ("unseen", "all"):
        return one.items - (known if rule == "unseen" else set())
    truth = {row.item_id for row in one.tested}
    if rule == "given":
        users, items = world.given.to_pydict().values()
        return one.items & {item for user, item in zip(users, items, strict=True) if user == one.user}
    names = sorted({row.item_id for row in rows})
    trained = [row.item_id for row in rows if row.part == "train"]
    weights = [1 if rule == "uniform" else trained.count(name) for name in names]
    places = [name for name, weight in zip(names, weights, strict=True) for _ in range(weight)]
    free = (one.items - known - truth) & set(places)
    (key,) = hash_longs(np.array([one.moment]), hash_ids(pa.array([one.user])))
    start, drawn = stream(np.uint64(DRAW["seed"]), key), []
    with np.errstate(over="ignore"):
        for n in range(ROUNDS * (wanted := DRAW["n"] * one.n_truth)):
            item = places[int(mix(start + np.uint64(n))) % len(places)]
            if item in free and item not in drawn and len(drawn) < wanted:
                drawn.append(item)
        last = {item: -float(mix(start ^ np.uint64(names.index(item)))) for item in free - {*drawn}}
    rest = sorted(sorted(last), key=lambda item: last[item])
    return truth & one.items | {*drawn, *rest[: wanted - len(drawn)]}


def ask_alone(folder: Path, world: World, questions: list[Question], rows: list[Any]) -> Ran:
    """The slow oracle's night: each question is a user of its own, with a table of its candidates."""
    known, listed = {row.item_id for row in rows}, set(world.items.column("item_id").to_pylist())
    log = [
        (row.user_id, row.item_id, row.rating, row.event_time, row.part)
        for row in rows
        if row.part == "train"
    ]
    log += [("zz", item, 1.0, 0, "given") for item in sorted(known)]
    # A user without truth keeps ids in common where no question has a candidate.
    given, scores, users = [{"user_id": "zz", "item_id": item} for item in sorted(known)], [], []
    vector_u = dict(zip(*map(list, world.users.to_pydict().values()), strict=True))
    makes = world.split.get("targets") == "successive"
    for one in questions:
        name = f"{one.user}|{one.number}"
        users.append({"user_id": name, "vector": vector_u[one.user]})
        for row in one.before:
            part = "given" if makes or row.part == "train" else "valid"
            log.append((name, row.item_id, row.rating, row.event_time, part))
        log += [(name, row.item_id, row.rating, row.event_time, "test") for row in one.tested]
        given += [
            {"user_id": name, "item_id": item} for item in sorted(choose_candidates(world, one, rows))
        ]
        given.append({"user_id": name, "item_id": "nothing"})
        # Items that the log does not know keep their place in another system's scores.
        scores += [(name, one.user, item) for item in sorted(one.items | (listed - known))]
    names = (*LOG, "part")
    axes = {key: one for key, one in world.axes.items() if key == "threshold"} | {"candidates": "given"}
    table = pa.table(dict(zip(names, map(list, zip(*log, strict=True)), strict=True)))
    vectors = pa.Table.from_pylist(users, world.users.schema)
    alone = World(table, {"holdout": "given"}, axes, world.items, vectors, *world[-2:])
    evaluation = {"candidates_path": str(folder / "candidates.parquet"), "uncut": True}
    benchmark = make_night(folder, alone, columns={"part": "part"}, evaluation=evaluation)
    pq.write_table(pa.Table.from_pylist(given), folder / "candidates.parquet")
    written = pq.read_table(folder.parent / "1" / "scores.parquet").to_pylist()
    of = {(row["user_id"], row["item_id"]): row["score"] for row in written}
    kept = [{"user_id": name, "item_id": item, "score": of[user, item]}
            for name, user, item in scores if (user, item) in of]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(kept or written[:1]), folder / "scores.parquet")
    return run(ArrowStore(str(folder / "warehouse")), benchmark)


def read_ranks(made: Ran, cutoff: int | None = None) -> dict[str, dict[str, Any]]:
    """Ranks by model and question, as `user|query`, the truth by item."""
    models = {row.run_id: row.model for row in read_rows(made.store, RUNS)}
    ranks: dict[str, dict[str, Any]] = defaultdict(dict)
    for row in read_rows(made.store, RANKINGS, part="test"):
        name = row.user_id if row.query_id is None else f"{row.user_id}|{row.query_id}"
        truth = sorted(zip(row.item_ids, row.relevance, row.above, row.tied, row.before, strict=True))
        if cutoff is not None and models[row.run_id] != "scores":
            truth = [
                (item, grade, above, tied, before) if above < cutoff else (item, grade, cutoff, 0, 0)
                for item, grade, above, tied, before in truth
            ]
        assert name not in ranks[models[row.run_id]]
        ranks[models[row.run_id]][name] = (truth, row.length, list(row.top_items)[:5])
    return ranks


def ask(folder: Path, world: World, store: Any = None) -> Ran:
    return run(store or ArrowStore(str(folder / "warehouse")), make_night(folder, world))


@pytest.fixture
def tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small worlds take the way of large ones: products of tiles."""
    monkeypatch.setattr(scored, "LITTLE", 0)


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize(
    "seed", [*SEEDS[:1], *(pytest.param(n, marks=pytest.mark.full) for n in (*SEEDS[1:], 15, 27))]
)
def test_each_question_is_ranked_as_if_it_were_asked_alone(seed: int, tmp_path: Path) -> None:
    world = draw_world(seed)
    try:
        made = run_in_pieces(tmp_path, lambda folder: ask(folder, world), read_bits)
    except (DataError, ProtocolError) as error:  # nothing is asked, or was a candidate
        assert re.search("no test rows|none of its", error.message)
        return
    assert not made.outcome.failed
    every = list(list_questions(made, world))
    questions = [one for one in every if one.tested]
    check_counts(made, world, every)
    if not questions:
        return
    ranks = read_ranks(made, cutoff=5)
    assert set(ranks) == {"popular", "item_knn", "vectors", "scores"}
    with work_in(1):
        alone = ask_alone(tmp_path / "alone", world, questions, read_rows(made.store, SPLITS))
    assert ranks == read_ranks(alone, cutoff=5)
    check_means(made)


def check_counts(made: Ran, world: World, questions: list[Question]) -> None:
    """The checks' numbers, counted from the questions."""
    checks = {row.check: row.observed for row in read_rows(made.store, CHECKS)}
    rule, rows = world.axes["candidates"], read_rows(made.store, SPLITS)
    if rule in ("uniform", "popularity"):
        world = world._replace(axes={**world.axes, "candidates": "unseen"})
    items = [len(choose_candidates(world, one, rows)) for one in questions]
    if rule == "given":
        known = {row.item_id for row in rows}
        pairs = [*zip(*map(list, world.given.to_pydict().values()), strict=True)]
        every = [sum(user == one.user and item in known for user, item in pairs) for one in questions]
        assert checks["test: candidates that did not exist then"] == sum(every) - sum(items)
    pools = {
        f"{one.user}|{one.number}": len(one.items - {row.item_id for row in (*one.before, *one.tested)})
        for one in questions
    }
    for row in read_rows(made.store, RANKINGS, part="test") if rule == "uniform" else ():
        assert row.query_id is None or row.pool in (None, pools[f"{row.user_id}|{row.query_id}"])
    assert checks["test: candidates as of the moment"] == pytest.approx(sum(items) / len(items))
    assert checks["test: truth that was no candidate then"] == sum(len(one.gone) for one in questions)
    facts = {(row.part, row.fact): row.value for row in read_rows(made.store, MANIFESTS)}
    assert facts["test", "questions"] == len(questions)


def check_means(made: Ran) -> None:
    """Recall at 1 of each question by hand, then of users."""
    definition = made.benchmark.evaluation.resolve()
    for run_row in read_rows(made.store, RUNS):
        users = defaultdict(list)
        for row in read_rows(made.store, RANKINGS, run_id=run_row.run_id, part="test"):
            relevant = [grade >= (definition.threshold or 0.5) for grade in row.relevance]
            first = [above + before == 0 for above, before in zip(row.above, row.before, strict=True)]
            if sum(relevant):
                hits = sum(one and two for one, two in zip(relevant, first, strict=True))
                users[row.user_id].append(Fraction(hits, sum(relevant)))
        means = {user: sum(values) / len(values) for user, values in users.items()}
        listed = {
            row.user_id: row.values[0]
            for row in read_rows(made.store, USER_METRICS, run_id=run_row.run_id, metric="recall")
            if row.values[0] is not None
        }
        assert listed == {user: pytest.approx(float(mean), abs=1e-14) for user, mean in means.items()}
        (value,) = [
            row for row in read_rows(made.store, METRICS, run_id=run_row.run_id, metric="recall", k=1)
            if row.slice_key is None and row.estimator == "holdout"
        ]  # fmt: skip
        rows = [one for values in users.values() for one in values]
        rows = list(means.values()) if definition.weigh == "users" else rows
        mean = pytest.approx(float(sum(rows) / len(rows)), abs=1e-14) if rows else None
        assert (value.n, value.value) == (len(rows), mean)
        assert f"candidates_as_of={definition.candidates_as_of}" in value.definition


def read_bits(made: Ran) -> tuple[Any, Any]:
    return read_ranks(made), read_numbers(made)


BY_HAND = [
    # a and b are popular, in this order; c appears at 50, d at 60 by u2's test row alone.
    *(("u1", "a", 0), ("u2", "a", 1), ("u3", "a", 2), ("u1", "b", 3), ("u2", "b", 4), ("u4", "e", 5)),
    *(("u3", "c", 50), ("u1", "c", 55), ("u2", "d", 60), ("u2", "c", 70), ("u1", "e", 70)),
]


@pytest.mark.parametrize(
    ("axes", "recall", "candidates", "gone"),
    [
        # u1 has one candidate beside e: c, from 50 on. Its rows at 55 and 70 are two queries. By popularity
        # e is first, c and d follow: c is 2nd at 55 and e 1st at 70. u2: d 3rd of e, c, d; c 2nd. u3's c at
        # 50 is 3rd after b and e.
        ({}, Fraction(1, 2) / 3, Fraction(2 + 3 + 3 + 3 + 3, 5), 0),
        ({"weigh": "rows"}, Fraction(1, 5), Fraction(2 + 3 + 3 + 3 + 3, 5), 0),
        # In training alone, c and d never were: only u1's e has a rank, and it is the first of one.
        ({"first_seen_in": "train"}, Fraction(1), Fraction(1 + 1 + 1 + 1 + 2, 5), 4),
        ({"first_seen_in": "train", "unavailable": "miss"}, Fraction(1, 2) / 3, Fraction(6, 5), 4),
        (
            {"first_seen_in": "train", "unavailable": "miss", "weigh": "rows"}, Fraction(1, 5),
            Fraction(6, 5), 4,
        ),
    ],
)  # fmt: skip
def test_a_world_by_hand(
    axes: dict[str, str], recall: Fraction, candidates: Fraction, gone: int, tmp_path: Path
) -> None:
    log = pa.table({
        "user_id": [row[0] for row in BY_HAND], "item_id": [row[1] for row in BY_HAND],
        "event_time": [row[2] for row in BY_HAND],
    })  # fmt: skip
    pq.write_table(log, tmp_path / "log.parquet")
    benchmark = parse(
        Benchmark,
        {
            "name": "hand",
            "dataset": {"name": "log", "reader": "parquet", "path": str(tmp_path / "log.parquet")},
            "split": {"holdout": "period", "start": "1970-01-01T00:00:40Z", "length": "40s"},
            "models": [{"name": "popular", "kind": "popular"}],
            "evaluation": {
                "metrics": ["recall"], "k": [1], "bootstrap": {"replicates": 10}, "slices": [],
                "definition": {"candidates_as_of": "first_seen", **axes},
            },
        },
        "hand",
    )  # fmt: skip
    made = run(ArrowStore(str(tmp_path / "warehouse")), benchmark)
    (row,) = [row for row in read_rows(made.store, METRICS) if row.metric == "recall"]
    assert row.value == pytest.approx(float(recall))
    checks = {row.check: row for row in read_rows(made.store, CHECKS)}
    assert checks["test: candidates as of the moment"].observed == pytest.approx(float(candidates))
    assert checks["test: truth that was no candidate then"].observed == gone
    itself = checks.get("test: truth seen at its own moment")
    assert (itself and itself.observed) == (None if "first_seen_in" in axes else 2)


PERIOD = {"holdout": "period", "start": "2020-01-01", "length": "7d"}
AS_OF = {"candidates_as_of": "first_seen"}
MEANS = {"name": "means", "kind": "means"}


@pytest.mark.parametrize(
    ("changes", "axes", "message"),
    [
        ({}, {"first_seen_in": "train"}, "first_seen_in is 'train', and definition.candidates_as_of"),
        ({}, {"unavailable": "miss"}, "unavailable is 'miss', and definition.candidates_as_of is 'none'"),
        ({}, {"candidates_as_of": "availability"}, "'availability', and dataset.availability is missing"),
        ({}, {"candidates_as_of": "availability", "first_seen_in": "train"}, "first_seen_in is 'train'"),
        *(
            ({}, {**AS_OF, "candidates": one}, f"and definition.candidates is '{one}'")
            for one in ("rated",)
        ),
        ({"paradoxes": {"metrics": ["ndcg"]}}, AS_OF, "paradoxes is for users who are asked once"),
        (
            {"evaluation": {"exposure": {"propensities": {"method": "power_law"}}}}, AS_OF,
            "evaluation.exposure is for users who are asked once",
        ),
        (
            {"evaluation": {"task": "rating", "metrics": ["rmse"]}, "models": [MEANS], "headline": "rmse"},
            AS_OF, "evaluation.task rating",
        ),
        (
            {"dataset": {"name": "l", "reader": "lightgcn", "path": "l"}, "split": {"protocol": "given"}},
            AS_OF, "logs of reader 'lightgcn' have no times",
        ),
    ],
)  # fmt: skip
def test_what_does_not_go_together(changes: dict[str, Any], axes: dict[str, str], message: str) -> None:
    evaluation = {"metrics": ["ndcg"], "k": [5], "definition": axes, **changes.get("evaluation", {})}
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_benchmark(small(**{"split": PERIOD, **changes, "evaluation": evaluation}))


def test_rows_without_a_time_are_refused(tmp_path: Path) -> None:
    world = draw_world(1)
    world = world._replace(split={"protocol": "RO_RS"}, log=world.log.drop_columns(["event_time"]))
    with pytest.raises(DataError, match=r"definition.candidates_as_of: .* rows have no event_time"):
        ask(tmp_path / "night", world)


def test_a_table_of_availability_counts_only_where_it_decides(tmp_path: Path) -> None:
    """The split is the same with it, and another without times; its content is in runs' keys alone."""
    names = []
    for rule in ("first_seen", "availability"):
        for shift in (0, 1):
            world = draw_world(0)
            begin = world.periods["available_from"].to_numpy() - shift
            world = world._replace(periods=world.periods.set_column(1, "available_from", pa.array(begin)))
            world.axes["candidates_as_of"] = rule
            world.axes["first_seen_in"] = "log"
            night = open_night(ArrowStore(str(tmp_path / "w")), make_night(tmp_path / "f", world), DATE)
            names.append((night.split_id, make_run_key(night, night.benchmark.models[0])))
    (seen, same, one, other) = names
    assert seen == same
    assert one[1] != other[1] != seen[1]
    world = draw_world(0)._replace(axes={})
    night = open_night(ArrowStore(str(tmp_path / "w")), make_night(tmp_path / "f", world), DATE)
    assert [len({split for split, _ in names}), names[0][0] == night.split_id] == [1, False]


@pytest.mark.parametrize(
    ("begins", "ends", "message"),
    [
        ([5, 1], [None, 3], None),
        ([1, 3], [3, None], None),
        ([1, 2], [3, 5], "1 periods overlap another one, e.g. item 'i0' from 1970-01-01 00:00:01 until"),
        ([1, 5], [None, 6], "1 periods overlap another one"),
        (
            [1, 5],
            [1, 6],
            "1 periods do not end after they begin, e.g. item 'i0' from 1970-01-01 00:00:01 until",
        ),
        (
            [7, 1],
            [6, 6],
            "1 periods do not end after they begin, e.g. item 'i0' from 1970-01-01 00:00:07 until",
        ),
        ([1, None], [2, None], "1 rows have no available_from"),
    ],
)
def test_wrong_periods_are_refused(begins: Any, ends: Any, message: str | None, tmp_path: Path) -> None:
    micros = ([None if one is None else one * 1_000_000 for one in column] for column in (begins, ends))
    columns = dict(zip(("available_from", "available_until"), micros, strict=True))
    world = draw_world(1)._replace(periods=pa.table({"item_id": ["i0", "i0"], **columns}))
    world.axes["unavailable"] = "miss"
    try:
        ask(tmp_path / "night", world)
    except DataError as error:
        assert message and message in error.message
    else:
        assert message is None
