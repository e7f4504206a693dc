"""Users with several queries: each is ranked as if it were asked alone, and users weigh alike."""

from __future__ import annotations

import os
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc_csv
import pytest

import recbench_spark
from recbench_spark.core.resampling import mean_and_error, moments, row_mean_and_error
from recbench_spark.engine.measures import reduce_pieces
from recbench_spark.engine.whole_users import keep_users_whole
from recbench_spark.errors import ConfigError, DataError, SchemaError
from recbench_spark.evaluation.evaluation import evaluate
from recbench_spark.metrics.questions import Owners
from recbench_spark.metrics.ranking_counts import checks_from_counts, count_measure
from tests.evaluation.test_engines import comparable, drawn, frames, ids
from tests.evaluation.test_task_tables import answer, evaluate_in_tasks

SEEDS = range(*map(int, os.environ.get("RECBENCH_QUERY_SEEDS", "0,18").split(",")))
"""Worlds drawn: a few in the suite, as many as one likes by hand."""

RANKS = ("item_ids", "relevance", "above", "tied", "before", "length", "top_items")
ASKED = ("truth", "lists", "scores", "candidates")
POPULAR = ("novelty", "mean_popularity")


def drawn_queries(seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """A world of `test_engines` whose users have up to four queries, in one kind of id."""
    tables, options = drawn(seed)
    rng = np.random.default_rng(seed + 10_000)
    if options.get("definition", {}).get("candidates") in ("uniform", "popularity"):
        options = {name: value for name, value in options.items() if name not in ("definition", "draw")}
    if rng.random() < 0.4:
        options["definition"] = {**options.get("definition", {}), "weigh": "rows"}
    kind, most = str(rng.choice(["int", "text", "digits"])), int(rng.integers(1, 5))
    for name in {*ASKED} & {*tables}:
        queries = ids(rng, kind, rng.integers(0, most, len(tables[name])))
        tables[name] = tables[name].append_column("query_id", queries)
    return tables, options


def rename_users(tables: dict[str, Any]) -> dict[str, Any]:
    """The slow oracle's world: each query is a user of its own, with the user's training and vector."""
    queries: dict[str, set[str]] = {}
    for user, query in zip(*_texts(tables["truth"], "user_id", "query_id"), strict=True):
        queries.setdefault(user, set()).add(query)
    return {
        name: (_repeat(table[0], queries), table[1])
        if isinstance(table, tuple)
        else _rename(table)
        if name in ASKED
        else _repeat(table, queries)
        if "user_id" in table.column_names
        else table
        for name, table in tables.items()
    }


def _texts(table: pa.Table, *names: str) -> list[list[str]]:
    columns = []
    for name in names:
        column = table.column(name)
        column = column.cast(pa.int64()) if not pa.types.is_string(column.type) else column
        columns.append(column.cast(pa.string()).to_pylist())
    return columns


def _rename(table: pa.Table) -> pa.Table:
    names = [f"{user}|{query}" for user, query in zip(*_texts(table, "user_id", "query_id"), strict=True)]
    return table.drop_columns("query_id").set_column(0, "user_id", pa.array(names, pa.string()))


def _repeat(table: pa.Table, queries: dict[str, set[str]]) -> pa.Table:
    (users,) = _texts(table, "user_id")
    rows = [(n, f"{one}|{query}") for n, one in enumerate(users) for query in queries.get(one, "-")]
    taken = table.take([n for n, _ in rows])
    return taken.set_column(0, "user_id", pa.array([name for _, name in rows], pa.string()))


def by_query(result: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Each query's ranks, by user and query."""
    rows = result.rankings.to_pylist()
    key = {id(row): row["user_id"] + (f"|{row['query_id']}" if row["query_id"] else "") for row in rows}
    return {key[id(row)]: [row[name] for name in names] for row in rows}


@pytest.mark.parametrize(
    "seed", [*SEEDS[:3], *(pytest.param(n, marks=pytest.mark.full) for n in SEEDS[3:])]
)
def test_a_query_is_ranked_as_if_it_were_asked_alone(seed: int) -> None:
    tables, options = drawn_queries(seed)
    options["metrics"] = tuple(name for name in options["metrics"] if name not in POPULAR)
    try:
        result = evaluate(**tables, **options)
    except DataError as error:
        assert "in common" in error.message
        return
    alone = {**options, "definition": {**options.get("definition", {}), "weigh": "users"}, "bootstrap": 0}
    expected = evaluate(**rename_users(tables), **alone)
    assert by_query(result, RANKS) == by_query(expected, RANKS)
    check_means(result, expected, options.get("definition", {}).get("weigh", "users"))


def check_means(result: Any, expected: Any, weigh: str) -> None:
    """Means and standard errors as exact fractions of what each query has alone."""
    values: dict[Any, dict[str, list[Fraction]]] = {}
    for row in expected.user_metrics.to_pylist():
        for k, value in zip(row["ks"], row["values"], strict=True):
            users = values.setdefault((row["metric"], k), {})
            if value is not None:
                users.setdefault(row["user_id"].rpartition("|")[0], []).append(Fraction(value))
    seen = 0
    for row in result.metrics.to_pylist():
        users = values.get((row["metric"], row["k"]))
        if row["slice_key"] is None and users is not None:
            mean, error, n = _expect(list(users.values()), weigh)
            assert row["n"] == n and row["value"] == pytest.approx(mean, abs=1e-14)
            assert row["stderr"] == pytest.approx(error, rel=1e-5, abs=1e-7) or (row["stderr"], error) == (
                0,
                0,
            )
            seen += 1
    assert seen or not values


def _expect(users: list[list[Fraction]], weigh: str) -> tuple[float | None, float | None, int]:
    rows = [value for user in users for value in user]
    if weigh == "users":
        rows = [sum(user) / len(user) for user in users]
        users = [[row] for row in rows]
    if not rows:
        return None, None, 0
    mean, m = sum(rows) / len(rows), len(users)
    residuals = sum((sum(user) - mean * len(user)) ** 2 for user in users)
    error = float(residuals * m / (m - 1)) ** 0.5 / len(rows) if m > 1 else None
    return float(mean), error, len(rows)


@pytest.mark.parametrize(
    "seed", [*SEEDS[:3], *(pytest.param(n, marks=pytest.mark.full) for n in SEEDS[3:])]
)
def test_tasks_change_no_bit_of_queries(seed: int, tmp_path: Path) -> None:
    tables, options = drawn_queries(seed)
    here = answer(lambda: evaluate(**tables, **options))
    there = answer(evaluate_in_tasks, tmp_path, (3, 17, 1)[seed % 3], tables, options)
    assert here == there, options


@pytest.mark.parametrize("seed", SEEDS[:4])
def test_spark_changes_no_bit_of_queries(spark: Any, seed: int) -> None:
    tables, options = drawn_queries(seed)
    here = answer(lambda: evaluate(**tables, **options))
    assert here == answer(lambda: evaluate(**frames(spark, tables), **options)), options


# ------------------------------------------------------------------------------------------ by hand

TRUTH = {"user_id": [1, 1, 1, 2], "query_id": ["p", "p", "q", "p"], "item_id": [10, 11, 12, 10]}
LISTS = {
    "user_id": [1, 1, 1, 2, 2],
    "query_id": ["p", "q", "q", "p", "p"],
    "item_id": [10, 10, 12, 11, 10],
    "rank": [1, 1, 2, 1, 2],
}
"""Recall at 1: user 1 has 1/2 and 0, user 2 has 0; at 2: 1/2 and 1, and 1."""


def test_users_weigh_alike_and_rows_on_request() -> None:
    def at(weigh: str) -> list[Any]:
        made = recbench_spark.evaluate(
            TRUTH, lists=LISTS, k=(1, 2), metrics="recall", definition={"weigh": weigh}
        )
        rows = made.metrics.to_pylist()
        return [(row["value"], row["stderr"], row["n"], row["definition"]) for row in rows]

    assert at("users") == [(1 / 8, 1 / 8, 2, "v1"), (7 / 8, 1 / 8, 2, "v1")]
    # Sums and rows of the users: 1/2 of 2, 0 of 1: mean 1/6, residuals 1/6 and -1/6, times 2 / (2 - 1).
    rows, error = "v1;weigh=rows", (2 * 2 / 36) ** 0.5 / 3
    assert at("rows") == [
        (1 / 6, pytest.approx(error), 3, rows),
        (5 / 6, pytest.approx(error), 3, rows),
    ]


def test_values_of_users_and_counts() -> None:
    result = recbench_spark.evaluate(TRUTH, lists=LISTS, k=(1, 2), metrics="recall")
    rows = [(row["user_id"], row["values"], row["n_relevant"]) for row in result.user_metrics.to_pylist()]
    assert rows == [("1", [0.25, 0.75], 3), ("2", [0.0, 1.0], 1)]
    counts = {check.check: check.observed for check in result.checks}
    assert (counts["test: users"], counts["test: queries"]) == (2, 3)
    assert counts["listed queries without truth"] == 0
    assert result.rankings.column("query_id").to_pylist() == ["p", "q", "p"]


def test_one_query_a_user_changes_no_bit() -> None:
    tables, options = drawn(3)
    plain = comparable(evaluate(**tables, **options))
    for name in {*ASKED} & {*tables}:
        tables[name] = tables[name].append_column("query_id", pa.array(["q"] * len(tables[name])))
    result = comparable(evaluate(**tables, **options))
    assert result["metrics"] == plain["metrics"] and result["user_metrics"] == plain["user_metrics"]


def test_models_are_compared_by_users() -> None:
    better = {**LISTS, "item_id": [10, 12, 10, 10, 11]}
    compared = recbench_spark.compare(
        {"better": better, "base": LISTS}, TRUTH, metrics="recall@1", bootstrap=10
    )
    (row,) = compared.differences.to_pylist()
    assert (row["users"], row["value"], row["other_value"]) == (2, 7 / 8, 1 / 8)
    with pytest.raises(ConfigError, match="weigh"):
        recbench_spark.compare(
            {"a": LISTS, "b": better}, TRUTH, metrics="recall@1", definition={"weigh": "rows"}
        )
    swapped = {**TRUTH, "query_id": ["p", "q", "p", "p"]}
    sides = {"a": evaluate(TRUTH, lists=LISTS), "b": evaluate(swapped, lists=LISTS)}
    with pytest.raises(ConfigError, match="held-out items of 2 of 3"):
        recbench_spark.compare(sides)


def test_text_files_and_names_of_columns(tmp_path: Path) -> None:
    truth, lists = (
        pa.table({**one, "query_id": [f"0{q}" for q in one["query_id"]]}) for one in (TRUTH, LISTS)
    )
    here = comparable(evaluate(truth, lists=lists))
    for name, table in (("truth", truth), ("lists", lists)):
        renamed = ["userId" if one == "user_id" else one for one in table.column_names]
        pc_csv.write_csv(table.rename_columns(renamed), tmp_path / f"{name}.csv")
        renamed = ["impression" if one == "query_id" else one for one in table.column_names]
        pc_csv.write_csv(table.rename_columns(renamed), tmp_path / f"{name}_other.csv")
    for more, columns in (("", None), ("_other", {"query_id": "impression"})):
        paths = [str(tmp_path / f"{name}{more}.csv") for name in ("truth", "lists")]
        read = recbench_spark.evaluate(paths[0], lists=paths[1], columns=columns)
        assert comparable(read)["metrics"] == here["metrics"]


def test_what_does_not_fit_is_refused() -> None:
    plain = {name: column for name, column in LISTS.items() if name != "query_id"}
    with pytest.raises(SchemaError, match="lists has no column query_id"):
        recbench_spark.evaluate(TRUTH, lists=plain)
    plain_truth = {name: column for name, column in TRUTH.items() if name != "query_id"}
    with pytest.raises(SchemaError, match="lists has query_id beside user_id, and truth has none"):
        recbench_spark.evaluate(plain_truth, lists=LISTS)
    with pytest.raises(ConfigError, match=r"definition\.weigh is rows, and the truth has no query_id"):
        recbench_spark.evaluate(plain_truth, lists=plain, definition={"weigh": "rows"})
    with pytest.raises(DataError, match="no user's query_id in common"):
        recbench_spark.evaluate(TRUTH, lists={**LISTS, "query_id": ["P", "Q", "Q", "P", "P"]})
    with pytest.raises(DataError, match="truth: 1 rows whose query_id is NULL"):
        recbench_spark.evaluate({**TRUTH, "query_id": ["p", None, "q", "p"]}, lists=LISTS)
    vectors = (
        {"user_id": [1, 2], "vector": [[1.0], [2.0]]},
        {"item_id": [10, 11, 12], "vector": [[1.0]] * 3},
    )
    train = {"user_id": [1], "item_id": [13]}
    with pytest.raises(ConfigError, match=r"definition\.candidates is uniform, and the truth has query_id"):
        recbench_spark.evaluate(
            TRUTH, embeddings=vectors, train=train, definition={"candidates": "uniform"}
        )


# ------------------------------------------------------------------------------------------ batches


@pytest.mark.parametrize("unnamed", ["", "first", "last"])
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 7, 30])
def test_batches_are_cut_between_users(rows: int, unnamed: str) -> None:
    """A user's first or last question may have no name, and be alone in its batch."""
    users = list("aabcccccccdeeffffffffffffg")
    other = {"first": ["", *users[:-1]], "last": [*users[1:], ""], "": users}[unnamed]
    queries = [
        None if one != beside else str(n) for n, (one, beside) in enumerate(zip(users, other, strict=True))
    ]
    table = pa.table({"user_id": users, "part": ["test"] * len(users), "query_id": queries})
    made = list(keep_users_whole(iter(table.to_batches(max_chunksize=rows))))
    assert pa.Table.from_batches(made).equals(table.combine_chunks())
    ends = [(one.column("user_id")[0].as_py(), one.column("user_id")[-1].as_py()) for one in made]
    assert all(before[1] < after[0] for before, after in pairwise(ends))


def test_questions_without_a_name_count_wherever_batches_end() -> None:
    """Users a and b have one question without a name; of c's two one has a name."""
    names = ("user_id", "part", "length", "relevance", "above", "tied", "query_id")
    rows = [
        (user, "test", 1, [1.0], [0], [0], query)
        for user, query in zip("abcc", [None] * 3 + ["q"], strict=True)
    ]
    table = pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))
    for size in (1, 2, 4):
        pieces = [[one] for one in keep_users_whole(iter(table.to_batches(max_chunksize=size)))]
        counts = reduce_pieces({"counts": count_measure(None)}, pieces)["counts"]
        observed = {check.check: check.observed for check in checks_from_counts(counts, ["test"])}
        assert (observed["test: users"], observed["test: queries"]) == (3, 4)


def test_rows_add_up_with_a_piece_where_nobody_has_two() -> None:
    values = np.random.default_rng(5).random((9, 2))
    user_q = np.array([0, 0, 1, 1, 1, 2, 3, 4, 5])
    pieces = [
        Owners(user_q[:5], user_q[:5]).weigh(values[:5], "rows"),
        Owners(user_q[5:], None).weigh(values[5:], "rows"),
    ]
    added = sum(owners.moments(rows) for owners, rows in pieces)
    assert np.array_equal(added, Owners(user_q, user_q).moments(values))
    alone = pieces[1][0].moments(values[5:])
    plain = mean_and_error(moments(values[5:]))
    assert all(np.array_equal(a, b) for a, b in zip(row_mean_and_error(alone), plain, strict=False))


def test_sums_over_rows_add_up_in_any_order() -> None:
    rng = np.random.default_rng(1)
    user_q = np.repeat(np.arange(40), rng.integers(1, 9, 40))
    values = np.where(rng.random((len(user_q), 3)) < 0.2, np.nan, rng.random((len(user_q), 3)))
    whole = Owners(user_q, user_q).moments(values)
    halves = [Owners(user_q[own], user_q[own] - user_q[own][0]).moments(values[own])
              for own in (user_q < 17, user_q >= 17)]  # fmt: skip
    assert np.array_equal(whole, sum(halves))
    mean, error, n, users = row_mean_and_error(whole)
    for c in range(3):
        listed = [[Fraction(v) for v in values[user_q == u, c] if not np.isnan(v)] for u in range(40)]
        expected = _expect([one for one in listed if one], "rows")
        assert (mean[c], n[c]) == (pytest.approx(expected[0], abs=1e-15), expected[2])
        assert error[c] == pytest.approx(expected[1], rel=1e-8)
        assert users[c] == sum(map(bool, listed))


def test_the_numbers_of_mind_by_its_own_formulas() -> None:
    """Wu et al. 2020: AUC and nDCG of each impression, averaged over impressions of many users."""
    rng = np.random.default_rng(4)
    rows: dict[str, list[Any]] = {
        name: [] for name in ("user_id", "impression", "item_id", "relevance", "score")
    }
    numbers = []
    for impression in range(60):
        n, user = int(rng.integers(3, 12)), int(rng.integers(0, 15))
        clicked = rng.random(n) < 0.3
        clicked[int(rng.integers(n))] = True
        clicked[0] = False
        if not clicked.any():
            clicked[1] = True
        score = rng.permutation(n).astype(float)
        for name, values in zip(
            rows, ([user] * n, [impression] * n, rng.permutation(40)[:n], clicked * 1.0, score), strict=True
        ):
            rows[name] += list(values)
        order = clicked[np.argsort(-score)]
        gains = 1 / np.log2(np.arange(2, n + 2))
        wins = [one > other for one in score[clicked] for other in score[~clicked]]
        ideal = gains[: min(5, clicked.sum())].sum()
        numbers.append((np.mean(wins), (order[:5] * gains[:5]).sum() / ideal))
    table = pa.table(rows)
    result = recbench_spark.evaluate(
        table.drop_columns("score"), scores=table.drop_columns("relevance"), k=5, metrics=("auc", "ndcg@5"),
        definition={"weigh": "rows", "gain": "binary"}, columns={"query_id": "impression"},
    )  # fmt: skip
    values = {row["metric"]: (row["value"], row["n"]) for row in result.metrics.to_pylist()}
    auc, ndcg = np.mean(numbers, axis=0)
    assert values["auc"] == (pytest.approx(auc, abs=1e-12), 60)
    assert values["ndcg"] == (pytest.approx(ndcg, abs=1e-12), 60)
