"""Queries in a log: each of a user's queries in the test part is asked alone, beside a slow oracle."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recbench_spark.core.definitions import SAMPLED
from recbench_spark.engine.local import LocalEngine
from recbench_spark.errors import ConfigError, ProtocolError, SchemaError
from recbench_spark.evaluation import shuffle
from recbench_spark.night.benchmark_checks import check_benchmark
from recbench_spark.schemas import CHECKS, MANIFESTS, METRICS, RANKINGS, RUNS, SPLITS, USER_METRICS
from recbench_spark.splits.audit import AuditRequest, count_repeated_pairs
from recbench_spark.splits.positions import encode_ids
from recbench_spark.storage.arrow_store import ArrowStore
from tests.night.test_successive import draw_log, make_benchmark, read_bits, read_numbers, read_ranks
from tests.nights import Ran, read_rows, run, run_in_pieces, small, work_in

SEEDS = range(*map(int, os.environ.get("RECBENCH_QUERY_SEEDS", "0,4").split(",")))
"""Worlds drawn: a few in the suite, as many as one likes by hand."""

TEST = {"holdout": "period", "start": "1970-01-01T00:01:00Z", "length": "30s"}


def draw_queries(seed: int) -> pa.Table:
    """Few queries a user, of any length; some rows have none, and users share names of queries."""
    log = draw_log(seed)
    number = np.random.default_rng(seed + 1000).integers(0, [3, 6, 1][seed % 3] + 1, len(log))
    queries = [None if one == 0 and seed % 2 else f"q{one}" for one in number]
    return log.append_column("session", pa.array(queries, pa.string()))


def ask(folder: Path, log: pa.Table, seed: int, store: Any = None, models: list[Any] | None = None) -> Ran:
    """The night of a log with queries."""
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(log, folder / "log.parquet", row_group_size=31)
    split = {**TEST, "valid": seed % 2 == 1, "targets": "all"}
    benchmark = make_benchmark(folder / "log.parquet", seed, split, models, query="session")
    return run(store or ArrowStore(str(folder / "warehouse")), benchmark)


def ask_alone(folder: Path, made: Ran, seed: int, models: list[Any] | None = None) -> Ran:
    """The slow oracle's night: each query is a user of its own, who was given what its user had."""
    parts: dict[str, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for row in read_rows(made.store, SPLITS):
        parts[row.user_id][row.part].append(row)
    log: list[tuple[Any, ...]] = []
    for user, own in parts.items():
        log += [(user, row.item_id, row.rating, row.event_time, "train") for row in own["train"]]
        queries = defaultdict(list)
        for row in own["test"]:
            queries[dict(row.attributes).get("session")].append(row)
        for query, rows in queries.items():
            name = f"{user}|{query}"
            masked = {row.item_id: row for row in own["valid"]}
            log += [(name, row.item_id, row.rating, row.event_time, "given") for row in own["train"]]
            log += [(name, row.item_id, row.rating, row.event_time, "valid") for row in masked.values()]
            log += [(name, row.item_id, row.rating, row.event_time, "test") for row in rows]
    names = ("user_id", "item_id", "rating", "event_time", "part")
    folder.mkdir(exist_ok=True)
    columns = dict(zip(names, map(list, zip(*log, strict=True)), strict=True))
    pq.write_table(pa.table(columns), folder / "log.parquet")
    split, columns = {"holdout": "given"}, {"part": "part"}
    benchmark = make_benchmark(folder / "log.parquet", seed, split, models, columns=columns)
    return run(ArrowStore(str(folder / "warehouse")), benchmark)


def name_missing(ranks: dict[Any, dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    """Name questions without a query as the oracle does."""
    return {
        model: {name if "|" in name else f"{name}|None": one for name, one in of.items()}
        for model, of in ranks.items()
    }


@pytest.mark.parametrize(
    "seed", [*SEEDS[:2], *(pytest.param(n, marks=pytest.mark.full) for n in SEEDS[2:])]
)
def test_each_query_is_ranked_as_if_it_were_asked_alone(seed: int, tmp_path: Path) -> None:
    log = draw_queries(seed)
    try:
        made = run_in_pieces(tmp_path, lambda folder: ask(folder, log, seed), read_bits)
    except ProtocolError as error:
        assert "no test rows" in error.message
        return
    ranks = name_missing(read_ranks(made))
    with work_in(1):
        assert ranks == read_ranks(ask_alone(tmp_path / "alone", made, seed))
    tested = [row for row in read_rows(made.store, SPLITS) if row.part == "test"]
    questions = {(row.user_id, dict(row.attributes).get("session")) for row in tested}
    assert len(ranks["popular"]) == len(questions)
    rows = [(row.user_id, row.item_id, dict(row.attributes).get("session")) for row in tested]
    assert len(rows) == len(set(rows)) == sum(len(one[0]) for one in ranks["popular"].values())
    facts = {(row.part, row.fact): row.value for row in read_rows(made.store, MANIFESTS)}
    assert facts["log", "overlap"] == 0
    assert facts["test", "questions"] == len(questions)
    check_means(made)
    users = {row.user_id for row in read_rows(made.store, USER_METRICS)}
    assert users <= {user for user, _ in questions}


def draw_scores(seed: int, log: pa.Table) -> pa.Table:
    """Scores and ranks of some items for each query; a few are unknown, or of queries that nobody asks."""
    rng = np.random.default_rng(seed + 7)
    questions = sorted({(row["user_id"], row["session"]) for row in log.to_pylist() if row["session"]})
    rows = [
        (user, query, f"i{item}", float(rng.integers(0, 9)), rank + 1)
        for user, query in [*questions, ("u0", "unasked")]
        for rank, item in enumerate(rng.permutation(27)[: rng.integers(1, 27)])
        if rng.random() < 0.9 or query == "unasked"
    ]
    names = ("user_id", "query_id", "item_id", "score", "rank")
    return pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))


def fold_lists(rows: pa.Table) -> pa.Table:
    """One row a query, with arrays of items and scores."""
    folded = rows.group_by(["user_id", "query_id"]).aggregate([("item_id", "list"), ("score", "list")])
    return folded.rename_columns(["user_id", "query_id", "item_id", "score"])


def write_models(folder: Path, rows: pa.Table) -> list[dict[str, Any]]:
    """Models that are files: scores by row and in arrays, and lists by rank."""
    folder.mkdir(parents=True)
    pq.write_table(rows.drop_columns(["rank"]), folder / "scores.parquet")
    pq.write_table(fold_lists(rows), folder / "arrays.parquet")
    pq.write_table(rows.drop_columns(["score"]), folder / "lists.parquet")
    kinds = {"scores": "scores", "arrays": "scores", "lists": "lists"}
    return [
        {"name": name, "kind": kind, "path": str(folder / f"{name}.parquet")}
        for name, kind in kinds.items()
    ]


@pytest.mark.parametrize("tasks", [1, pytest.param(3, marks=pytest.mark.full), 17])
def test_lists_and_scores_by_query_are_those_of_the_query_alone(
    tasks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = {1: 0, 3: 6, 17: 3}[tasks]
    log = draw_queries(seed)
    scores = draw_scores(seed, log)
    monkeypatch.setattr(LocalEngine, "count_tasks", lambda self, n: tasks)
    made = ask(tmp_path / "night", log, seed, models=write_models(tmp_path / "models", scores))
    alone = [f"{row['user_id']}|{row['query_id']}" for row in scores.to_pylist()]
    own = scores.drop_columns(["user_id"]).append_column("user_id", pa.array(alone))
    own = own.set_column(own.column_names.index("query_id"), "query_id", pa.array(alone))
    files = write_models(tmp_path / "own", own)
    for file in files:  # the oracle's users are the queries
        table = pq.read_table(file["path"])
        pq.write_table(table.drop_columns(["query_id"]), file["path"])
    ranks = name_missing(read_ranks(made))
    assert ranks == read_ranks(ask_alone(tmp_path / "alone", made, seed, files))
    assert ranks["scores"] == ranks["arrays"] != ranks["lists"]
    (lost,) = {
        row.observed for row in read_rows(made.store, CHECKS) if row.check == "listed queries without truth"
    }
    assert 1 <= lost < len(set(alone))


def test_lists_by_query_need_queries_and_their_spelling(tmp_path: Path) -> None:
    log = draw_queries(0)
    models = write_models(tmp_path / "models", draw_scores(0, log))[:1]
    path = tmp_path / "log.parquet"
    pq.write_table(log, path)
    plain = run(ArrowStore(str(tmp_path / "a")), make_benchmark(path, 0, {**TEST}, models))
    assert "query_id beside user_id, and the split asks for no query" in plain.log.read_text()
    rows = pq.read_table(models[0]["path"])
    spelt = pa.array([f"Q{one}" for one in rows.column("query_id").to_pylist()])
    pq.write_table(rows.set_column(1, "query_id", spelt), models[0]["path"])
    other = ask(tmp_path / "b", log, 0, models=models)
    assert "scores and truth have no user's query_id in common" in other.log.read_text()
    runs = [*read_rows(plain.store, RUNS), *read_rows(other.store, RUNS)]
    assert {row.status for row in runs} == {"failed"}


@pytest.mark.parametrize("tasks", [3, 17])
def test_pieces_and_order_change_no_bit(
    tasks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = draw_queries(5)
    here = ask(tmp_path / "one", log, 5)
    monkeypatch.setattr(LocalEngine, "count_tasks", lambda self, n: tasks)
    monkeypatch.setattr(shuffle, "PAIRS_PER_TASK", 1)
    shuffled = log.take(pa.array(np.random.default_rng(tasks).permutation(len(log))))
    there = ask(tmp_path / "many", shuffled, 5)
    assert read_ranks(here) == read_ranks(there)
    assert read_numbers(here) == read_numbers(there)


def test_one_query_a_user_has_the_ranks_of_a_log_without_queries(tmp_path: Path) -> None:
    log = draw_log(6)
    alone = ask(tmp_path / "one", log.append_column("session", log.column("user_id")), 6)
    benchmark = make_benchmark(tmp_path / "one" / "log.parquet", 6, {**TEST, "valid": False})
    plain = run(ArrowStore(str(tmp_path / "plain")), benchmark)
    ranks = {
        model: {name.partition("|")[0]: one for name, one in of.items()}
        for model, of in read_ranks(alone).items()
    }
    assert ranks == read_ranks(plain)


def test_an_item_of_two_queries_is_the_truth_of_both(tmp_path: Path) -> None:
    """A log that is counted by hand: u buys a in s1 and, twice, in s2; b trains."""
    rows = [("u", "b", 10, "s0"), ("v", "c", 11, "s0"), ("u", "a", 61, "s1"), ("u", "a", 62, "s2")]
    rows += [("u", "a", 63, "s2"), ("u", "c", 64, "s1")]
    user, item, time, session = (list(column) for column in zip(*rows, strict=True))
    log = pa.table({"user_id": user, "item_id": item, "rating": [1.0] * len(rows), "session": session})
    made = ask(tmp_path / "night", log.append_column("event_time", pa.array(np.array(time) * 10**6)), 0)
    truth = {(row.query_id, *row.item_ids) for row in read_rows(made.store, RANKINGS) if row.part == "test"}
    assert truth == {("s1", "a", "c"), ("s2", "a")}
    facts = {(row.part, row.fact): row.value for row in read_rows(made.store, MANIFESTS)}
    assert facts["log", "duplicates_dropped"] == 1 and facts["log", "overlap"] == 0
    check_means(made)


def check_means(made: Ran) -> None:
    """Recall at 5 of each question by hand, then of users or questions."""
    definition = made.benchmark.evaluation.resolve()
    for run_row in read_rows(made.store, RUNS):
        users = defaultdict(list)
        for row in read_rows(made.store, RANKINGS, run_id=run_row.run_id, part="test"):
            triples = zip(row.relevance, row.above, row.before, strict=True)
            hits = [0 <= n < 5 - m for grade, n, m in triples if grade >= (definition.threshold or 0)]
            if hits:
                users[row.user_id].append(Fraction(sum(hits), len(hits)))
        means = [sum(values) / len(values) for values in users.values()]
        means = (
            means if definition.weigh == "users" else [one for values in users.values() for one in values]
        )
        (value,) = [
            row for row in read_rows(made.store, METRICS, run_id=run_row.run_id, metric="recall", k=5)
            if row.slice_key is None
        ]  # fmt: skip
        wanted = pytest.approx(float(sum(means) / len(means)), abs=1e-14) if means else None
        assert (value.n, value.value) == (len(means), wanted)


LOG = {"name": "log", "reader": "csv", "path": "log.csv", "query": "session"}
PERIOD = {"holdout": "period", "start": "2020-01-01", "length": "7d"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"split": {**PERIOD, "targets": "successive"}},
            "split.targets successive has questions of its own beside dataset.query",
        ),
        (
            {"evaluation": {"definition": {"candidates_as_of": "first_seen"}}},
            "definition.candidates_as_of first_seen has questions of its own beside dataset.query",
        ),
        *(({"evaluation": {"definition": {"candidates": one}}}, one) for one in (*SAMPLED, "rated")),
        ({"paradoxes": {"metrics": ["ndcg"]}}, "paradoxes is for users who are asked once"),
        (
            {"comparisons": {}, "evaluation": {"definition": {"weigh": "rows"}}},
            "weigh is rows, and comparisons are of users",
        ),
    ],
)
def test_what_does_not_go_together(changes: dict[str, Any], message: str) -> None:
    evaluation = {"metrics": ["ndcg"], "k": [5], **changes.get("evaluation", {})}
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_benchmark(small(**{"split": PERIOD, "dataset": LOG, **changes, "evaluation": evaluation}))


@pytest.mark.parametrize(
    ("log", "message"),
    [
        ({"reader": "movielens_100k"}, "reader movielens_100k is for users who are asked once"),
        (
            {"events": {"column": "event", "weights": {"buy": 1}, "targets": ["buy"]}},
            "dataset.events is for users who are asked once",
        ),
    ],
)
def test_logs_without_queries(log: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_benchmark(small(split=PERIOD, dataset={**LOG, **log}, evaluation={"metrics": ["ndcg"]}))


def test_spark_ranks_the_same_queries(spark: Any, tmp_path: Path) -> None:
    from recbench_spark.storage.store import Store

    log = draw_queries(3)
    models = [
        {"name": "popular", "kind": "popular"},
        *write_models(tmp_path / "models", draw_scores(3, log)),
    ]
    here = ask(tmp_path / "here", log, 3, models=models)
    there = ask(tmp_path / "there", log, 3, Store(spark, str(tmp_path / "spark")), models)
    assert read_ranks(here) == read_ranks(there)
    assert read_numbers(here) == read_numbers(there)


@pytest.mark.parametrize(
    ("more", "overlap"),
    [
        ([], 0),
        ([("u", "a", "test", "s3")], 0),
        ([("u", "a", "test", "s1")], 1),  # twice in a query
        ([("u", "b", "test", None), ("u", "b", "test", None)], 1),
        ([("u", "a", "valid", "s1")], 1),  # validation is known at the test
        ([("u", "c", "train", "s1")], 1),
        ([("u", "c", "later", "s1"), ("v", "a", "test", "s1")], 0),
    ],
)
def test_the_audit_counts_a_pair_once_in_each_query(more: list[Any], overlap: int) -> None:
    rows = [("u", "a", "test", "s1"), ("u", "a", "test", "s2"), ("u", "c", "train", "s0"), *more]
    user, item, part, query = (list(column) for column in zip(*rows, strict=True))
    kept = pa.array([[("session", one)] for one in query], pa.map_(pa.string(), pa.string()))
    table = encode_ids(pa.table({"user_id": user, "item_id": item, "attributes": kept}))
    parts = ("train", "valid", "later", "test")
    request = AuditRequest(dict.fromkeys(parts, 9), None, query="session")
    counts = count_repeated_pairs(table, np.array([parts.index(one) for one in part]), request)
    assert counts["overlap"] == overlap


def test_numbers_are_queries_and_a_missing_column_is_named(tmp_path: Path) -> None:
    log = draw_queries(0)
    numbers = pa.array([int(one[1:]) for one in log.column("session").to_pylist()])
    texts = ask(tmp_path / "texts", log, 0)
    place = log.column_names.index("session")
    whole = ask(tmp_path / "numbers", log.set_column(place, "session", numbers), 0)
    ranks = {
        model: {name.replace("|q", "|"): one for name, one in of.items()}
        for model, of in read_ranks(texts).items()
    }
    assert ranks == read_ranks(whole)
    with pytest.raises(SchemaError, match="session"):
        ask(tmp_path / "missing", log.drop_columns(["session"]), 0)
