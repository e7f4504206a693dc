"""The SQL files, without a JVM: their form, and the portable ones run on SQLite with numbers by hand.

The rest (`LATERAL VIEW`, arrays) is Spark's own and runs against the demo.
"""

import math
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any

import pytest

import recbench_spark
from recbench_spark.boards.searches import SearchTrials, expected_best
from recbench_spark.metrics.kernels.about import ABOUT
from recbench_spark.night.report import view_until
from recbench_spark.schemas import TABLES
from tools.reference.sql import write_views

SQL = Path(recbench_spark.__file__).parent / "sql"
VIEWS = {path.stem: path.read_text() for path in sorted(SQL.glob("*.sql"))}
QUERIES = {path.stem: path.read_text() for path in sorted((SQL / "queries").glob("*.sql"))}
EVERY = {**VIEWS, **QUERIES}
PORTABLE = sorted(
    name for name, text in QUERIES.items() if not re.search("LATERAL VIEW|GET_JSON_OBJECT", text)
)

Rows = list[tuple[Any, ...]]


def needs(text: str) -> list[str]:
    return re.findall(r"^-- needs: (\w+)$", text, flags=re.MULTILINE)


def test_there_are_the_views_and_ten_queries() -> None:
    wanted = {"current_runs", "latest_metrics", "leaderboard", "best_known", "metrics_wide"}
    assert wanted <= set(VIEWS)
    assert len(QUERIES) >= 10


@pytest.mark.parametrize("name", EVERY)
def test_a_file_is_a_question_and_one_select(name: str) -> None:
    lines = EVERY[name].splitlines()
    assert lines[0].startswith("-- ") and "?" in lines[0]
    code = "\n".join(line for line in lines if not line.startswith("--"))
    assert "--" not in code and ";" not in code
    assert code.startswith(("SELECT", "WITH"))
    assert not re.search(r"\b(INSERT|UPDATE|DELETE|CREATE|DROP|rand)\b", code, re.IGNORECASE)


@pytest.mark.parametrize("name", EVERY)
def test_every_source_is_a_table_or_a_view(name: str) -> None:
    text = re.sub(r"^--.*$", "", EVERY[name], flags=re.MULTILINE)
    sources = set(re.findall(r"\b(?:FROM|JOIN)\s+(\w+)", text))
    defined_here = set(re.findall(r"\b(\w+)(?: \([\w, ]+\))? AS \(\s*(?:SELECT|VALUES)", text))
    assert sources
    assert sources <= set(TABLES) | set(VIEWS) | defined_here


@pytest.mark.parametrize("name", VIEWS)
def test_views_say_what_they_need_and_need_no_circle(name: str) -> None:
    used = set(re.findall(r"\b(?:FROM|JOIN)\s+(\w+)", VIEWS[name])) & set(VIEWS)
    assert used == set(needs(VIEWS[name]))
    reached, frontier = set(), used
    while frontier:
        reached |= frontier
        frontier = {n for view in frontier for n in needs(VIEWS[view])} - reached
    assert name not in reached


def test_the_facts_of_metrics_are_one_task_of_spark() -> None:
    """Spark makes a task for each part of a UNION: every leaderboard joins this view, and took 34 more."""
    assert "UNION" not in VIEWS["metric_facts"]
    assert VIEWS["metric_facts"].count("VALUES") == 1


def test_the_views_of_metrics_are_what_metrics_declare(database: sqlite3.Connection) -> None:
    for name, text in write_views().items():
        assert VIEWS[Path(name).stem] == text, "write them again: python -m tools.reference"
    rows = {row[0]: row[1:] for row in database.execute("SELECT * FROM metric_facts")}
    bounds = {name: [None if math.isinf(x) else x for x in about.bounds] for name, about in ABOUT.items()}
    assert rows == {
        name: (about.best, *bounds[name], about.depends_on_base_rate) for name, about in ABOUT.items()
    }
    assert (rows["ndcg"], rows["rmse"][:2], rows["pe"][0]) == (("large", 0, 1, 0), ("small", 0), "near 0")


# ------------------------------------------------------------------------------- on SQLite


def split_part(text: str | None, mark: str, place: int) -> str | None:
    """A part of a text, as Spark and DuckDB count them."""
    return None if text is None else [*text.split(mark), ""][place - 1]


@pytest.fixture
def database() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.create_function("ARRAY", 0, lambda: "")
        connection.create_function("SIZE", 1, len)
        connection.create_function("SPLIT_PART", 3, split_part)
        for table in TABLES.values():
            columns = ", ".join(f'"{name}"' for name in table.names)
            connection.execute(f"CREATE TABLE {table.name} ({columns})")
        done: set[str] = set()
        while len(done) < len(VIEWS):
            for name, text in VIEWS.items():
                if name not in done and set(needs(text)) <= done:
                    connection.execute(f"CREATE VIEW {name} AS {text}")
                    done.add(name)
        yield connection


def add(connection: sqlite3.Connection, table: str, **values: Any) -> None:
    names = ", ".join(f'"{name}"' for name in values)
    marks = ", ".join("?" for _ in values)
    connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(values.values()))


def add_run(connection: sqlite3.Connection, run_id: str, model: str, **values: Any) -> None:
    defaults = {
        "suite": "s", "logical_date": "2026-01-01", "model_kind": "als", "attempt": 1,
        "status": "succeeded", "finished_at": "2026-01-01 01:00", "dataset": "d", "split": "RO_RS",
        "split_id": "split1", "source": "baseline",
    }  # fmt: skip
    add(connection, "runs", run_id=run_id, model=model, **{**defaults, **values})


def add_metric(connection: sqlite3.Connection, run_id: str, value: float | None, **more: Any) -> None:
    defaults = {
        "part": "test", "metric": "ndcg", "definition": "v1", "k": 10, "estimator": "holdout", "n": 4,
    }  # fmt: skip
    add(connection, "metrics", run_id=run_id, value=value, **{**defaults, **more})


def test_only_the_last_succeeded_attempt_of_a_night_is_current(database: sqlite3.Connection) -> None:
    add_run(database, "first", "m", attempt=1, finished_at="2026-01-01 01:00")
    add_run(database, "second", "m", attempt=2, finished_at="2026-01-01 02:00")
    add_run(database, "broken", "m", attempt=3, finished_at="2026-01-01 03:00", status="failed")
    add_run(database, "next", "m", logical_date="2026-01-02", finished_at="2026-01-02 01:00")
    rows = database.execute("SELECT run_id FROM current_runs ORDER BY logical_date").fetchall()
    assert rows == [("second",), ("next",)]


def read_board(database: sqlite3.Connection, metric: str = "ndcg") -> Rows:
    columns = "dataset, model, definition, position, value"
    query = f"SELECT {columns} FROM leaderboard WHERE metric = ? ORDER BY 1, 3, 4"
    return database.execute(query, (metric,)).fetchall()


LATER = {"finished_at": "2026-01-01 02:00"}


def test_a_run_with_other_metrics_hides_no_number_of_the_run_before(database: sqlite3.Connection) -> None:
    for run, model, more in (("a1", "als", {}), ("p", "pop", {}), ("a2", "als", LATER)):
        add_run(database, run, model, **more)
    for run, value, metric, k in (
        ("a1", 0.9, "ndcg", 10), ("a1", 0.3, "recall", 10), ("a1", 0.2, "recall", 5),
        ("p", 0.5, "ndcg", 10), ("a2", 0.4, "recall", 10), ("a2", 0.7, "mrr", 10),
    ):  # fmt: skip
        add_metric(database, run, value, metric=metric, k=k)
    assert read_board(database) == [("d", "als", "v1", 1, 0.9), ("d", "pop", "v1", 2, 0.5)]
    known = "SELECT metric, k, value, run_id FROM latest_metrics WHERE model = 'als' ORDER BY 1, 2"
    assert database.execute(known).fetchall() == [
        ("mrr", 10, 0.7, "a2"), ("ndcg", 10, 0.9, "a1"), ("recall", 5, 0.2, "a1"),
        ("recall", 10, 0.4, "a2"),
    ]  # fmt: skip
    assert ask(database, "which_model_is_best")[0][3:5] == ("als", 0.9)
    assert database.execute("SELECT run_id FROM current_runs ORDER BY 1").fetchall() == [
        ("a1",), ("a2",), ("p",),
    ]  # fmt: skip
    wide = "SELECT run_id, ndcg_10, recall_5, recall_10, mrr_10 FROM metrics_wide WHERE model = 'als'"
    assert set(database.execute(wide)) == {("a1", 0.9, 0.2, None, None), ("a2", None, None, 0.4, 0.7)}
    best = "SELECT value FROM best_known WHERE method = 'als' AND metric = 'recall' AND k = 10"
    assert database.execute(best).fetchall() == [(0.4,)]


def test_another_definition_is_a_board_of_its_own(database: sqlite3.Connection) -> None:
    for run, model, more in (("a", "als", {}), ("p", "pop", {}), ("preset", "als", LATER)):
        add_run(database, run, model, **more)
    for run, value, definition in (("a", 0.5, "v1"), ("p", 0.6, "v1"), ("preset", 0.8, "v1;gain=linear")):
        add_metric(database, run, value, definition=definition)
    assert read_board(database) == [
        ("d", "pop", "v1", 1, 0.6), ("d", "als", "v1", 2, 0.5), ("d", "als", "v1;gain=linear", 1, 0.8),
    ]  # fmt: skip


def test_a_second_dataset_or_split_on_one_day_hides_nothing(database: sqlite3.Connection) -> None:
    others = {"dataset": "e", "split_id": "split2"}, {"split_id": "split3"}
    for n, more in enumerate(({}, *others)):
        for model, value in (("als", 0.5), ("pop", 0.4)):
            add_run(database, f"{model}{n}", model, **{**more, "finished_at": f"2026-01-01 0{n}:00"})
            add_metric(database, f"{model}{n}", value + n / 8)
    assert read_board(database) == [
        ("d", "als", "v1", 1, 0.5), ("d", "als", "v1", 1, 0.75), ("d", "pop", "v1", 2, 0.4),
        ("d", "pop", "v1", 2, 0.65), ("e", "als", "v1", 1, 0.625), ("e", "pop", "v1", 2, 0.525),
    ]  # fmt: skip


def test_an_older_night_of_one_dataset_is_the_latest_of_it(database: sqlite3.Connection) -> None:
    add_run(database, "a", "als")
    add_run(database, "b", "als", dataset="e", split_id="split2", logical_date="2026-01-02")
    add_metric(database, "a", 0.5)
    add_metric(database, "b", 0.6)
    assert [row[:2] for row in read_board(database)] == [("d", "als"), ("e", "als")]


def test_a_split_made_again_after_retention_is_the_same_data(database: sqlite3.Connection) -> None:
    add_run(database, "first", "als")
    add_run(database, "again", "als", split_id="split1.1", **LATER)
    add_metric(database, "first", 0.5)
    add_metric(database, "again", 0.6)
    assert [row[-1] for row in read_board(database)] == [0.6]


def test_a_number_of_another_slice_or_estimator_is_another_number(database: sqlite3.Connection) -> None:
    add_run(database, "first", "als")
    add_run(database, "again", "als", **LATER)
    for run, value in (("first", 0.5), ("again", 0.6)):
        add_metric(database, run, value, slice_key="popularity", slice_value=f"of {run}")
        add_metric(database, run, value, estimator=f"of {run}")
        add_metric(database, run, value, part="open_loop")
    assert sorted(database.execute("SELECT value FROM latest_metrics").fetchall()) == [
        (0.5,), (0.5,), (0.6,), (0.6,), (0.6,),
    ]  # fmt: skip


def test_a_comparison_counts_as_long_as_both_numbers_do(database: sqlite3.Connection) -> None:
    for run, more in (("a", {}), ("b", {})):
        add_run(database, run, run, **more)
        for metric in ("ndcg", "recall"):
            add_metric(database, run, 0.5, metric=metric)
    add_comparison(database, "a", "b", -1.0)
    add_run(database, "a2", "a", **LATER)
    shown = "SELECT DISTINCT metric, run_id, split_id FROM current_comparisons WHERE kind = 'pair'"
    add_metric(database, "a2", 0.5, metric="recall")
    assert database.execute(shown).fetchall() == [("ndcg", "a", "split1")]
    add_metric(database, "a2", 0.4)
    assert database.execute(shown).fetchall() == []


def test_rows_of_a_run_that_was_never_published_stay_invisible(database: sqlite3.Connection) -> None:
    add_metric(database, "orphan", 0.9)
    for view in ("latest_metrics", "leaderboard", "best_known", "metrics_wide"):
        assert database.execute(f"SELECT COUNT(*) FROM {view}").fetchone() == (0,)


def test_the_latest_night_is_shown_even_where_a_backfill_finished_later(
    database: sqlite3.Connection,
) -> None:
    add_run(database, "new", "m", logical_date="2026-01-02", finished_at="2026-01-02 01:00")
    add_run(database, "backfill", "m", logical_date="2026-01-01", finished_at="2026-01-09 01:00")
    add_metric(database, "new", 0.5)
    add_metric(database, "backfill", 0.9)
    assert database.execute("SELECT run_id, value FROM latest_metrics").fetchall() == [("new", 0.5)]


def test_a_report_of_an_earlier_night_knows_nothing_of_later_ones(database: sqlite3.Connection) -> None:
    for night, value in (("01", 0.5), ("02", 0.75), ("03", 0.9)):
        add_run(database, night, "m", logical_date=f"2026-01-{night}")
        add_metric(database, night, value)
    add_run(database, "old", "of before", logical_date="2026-01-01")
    add_metric(database, "old", 0.1)
    known = view_until(date(2026, 1, 2)).replace("DATE '", "'")  # a date is text to this database
    rows = database.execute(f"SELECT model, value FROM ({known}) AS known ORDER BY model").fetchall()
    assert rows == [("m", 0.75), ("of before", 0.1)]


def test_equal_values_share_a_position_and_null_comes_last(database: sqlite3.Connection) -> None:
    for model, value in (("a", 0.5), ("b", 0.75), ("c", 0.5), ("d", None), ("e", 0.25)):
        add_run(database, model, model)
        add_metric(database, model, value)
    rows = database.execute("SELECT position, model FROM leaderboard ORDER BY position, model")
    assert rows.fetchall() == [(1, "b"), (2, "a"), (2, "c"), (4, "e"), (5, "d")]


@pytest.mark.parametrize(
    ("metric", "values", "best"),
    [("ndcg", (0.2, 0.3), "y"), ("rmse", (0.2, 0.3), "x"), ("pe", (-0.3, 0.2), "y")],
)
def test_each_metric_is_ranked_in_its_own_direction(
    database: sqlite3.Connection, metric: str, values: tuple[float, float], best: str
) -> None:
    for model, value in zip("xy", values, strict=True):
        add_run(database, model, model, model_kind=model)
        add_metric(database, model, value, metric=metric, k=None)
    for view in ("leaderboard", "best_known"):
        assert database.execute(f"SELECT model FROM {view} WHERE position = 1").fetchall() == [(best,)]


@pytest.mark.parametrize(
    "difference",
    [{"definition": "v1;gain=linear"}, {"k": 5}, {"k": None}, {"part": "valid"}, {"estimator": "ips"}],
)
def test_numbers_that_mean_different_things_are_never_ranked_together(
    database: sqlite3.Connection, difference: dict[str, Any]
) -> None:
    for model, value, more in (("a", 0.5, {}), ("b", 0.9, difference)):
        add_run(database, model, model, model_kind=model)
        add_metric(database, model, value, **more)
    for view in ("leaderboard", "best_known"):
        assert database.execute(f"SELECT position FROM {view}").fetchall() == [(1,), (1,)]


def test_a_model_of_an_earlier_night_stays_while_the_split_is_the_same(
    database: sqlite3.Connection,
) -> None:
    add_run(database, "new", "a", logical_date="2026-01-02", split_id="split1")
    add_run(database, "same", "b", logical_date="2026-01-01", split_id="split1")
    add_run(database, "other", "c", logical_date="2026-01-01", split_id="split0")
    for run, value in (("new", 0.5), ("same", 0.7), ("other", 0.9)):
        add_metric(database, run, value)
    rows = database.execute("SELECT position, model FROM leaderboard ORDER BY position").fetchall()
    assert rows == [(1, "b"), (2, "a")]


def test_slices_are_not_on_the_leaderboard(database: sqlite3.Connection) -> None:
    add_run(database, "a", "a")
    add_metric(database, "a", 0.5)
    add_metric(database, "a", 0.9, slice_key="popularity", slice_value="head")
    assert database.execute("SELECT value FROM leaderboard").fetchall() == [(0.5,)]
    assert database.execute("SELECT COUNT(*) FROM latest_metrics").fetchone() == (2,)


def test_the_best_known_value_of_a_method_over_nights_settings_and_sources(
    database: sqlite3.Connection,
) -> None:
    add_run(database, "als1", "als_8", source="rerun", at_grid_edge="rank", ran_by="us")
    add_run(database, "als2", "als_32", logical_date="2026-01-02", source="own", ran_by="inventor")
    add_run(database, "paper1", "BPR", model_kind="published", source="published", source_year=2020)
    add_run(database, "paper2", "WMF", model_kind="published", source="published", source_year=2021)
    for run, value in (("als1", 0.4), ("als2", 0.3), ("paper1", 0.5), ("paper2", 0.2)):
        add_metric(database, run, value)
    rows = database.execute(
        "SELECT position, method, model, value, ran_by, source_year, at_grid_edge "
        "FROM best_known ORDER BY position"
    ).fetchall()
    assert rows == [
        (1, "BPR", "BPR", 0.5, None, 2020, None),
        (2, "als", "als_8", 0.4, "us", None, "rank"),
        (3, "WMF", "WMF", 0.2, None, 2021, None),
    ]


def test_rigs_over_different_base_rates_are_ranked_with_a_warning(database: sqlite3.Connection) -> None:
    for model, base_rate in (("a", 0.1), ("b", 0.2)):
        add_run(database, model, model, model_kind="predictions")
        add_metric(database, model, 0.5, metric="rig", k=None)
        add_metric(database, model, 0.5, metric="auc", k=None)
        add_metric(database, model, base_rate, metric="mean_outcome", k=None)
    rows = database.execute("SELECT metric, warning IS NOT NULL FROM best_known").fetchall()
    assert set(rows) == {("rig", 1), ("auc", 0), ("mean_outcome", 0)}
    database.execute("UPDATE metrics SET value = 0.1 WHERE metric = 'mean_outcome'")
    assert database.execute("SELECT COUNT(warning) FROM best_known").fetchone() == (0,)


def test_shares_of_the_multiverse_by_hand(database: sqlite3.Connection) -> None:
    """Model a wins two of four worlds, draws one and loses one: 2.5 of 4."""
    for model, values in (("a", (0.5, 0.6, 0.3, 0.1)), ("b", (0.4, 0.5, 0.3, 0.2))):
        add_run(database, model, model)
        for k, value in enumerate(values, start=1):
            add(
                database,
                "multiverse",
                run_id=model,
                part="test",
                metric="ndcg",
                k=k,
                definition="v1",
                value=value,
            )
    (row,) = ask(database, "how_much_is_the_protocols_doing")
    assert row == ("d", "test", "a", "b", 2.5 / 4, 2.5 / 4, 2.5 / 4, 1, 4)


def test_metrics_wide_never_mixes_definitions_in_a_column(database: sqlite3.Connection) -> None:
    add_run(database, "a", "a")
    add_metric(database, "a", 0.25)
    add_metric(database, "a", 0.75, definition="v1;gain=linear")
    add_metric(database, "a", 0.5, k=None)
    add_metric(database, "a", 0.125, metric="recall", k=5, definition="v1;recall_by=min_k_relevant")
    rows = database.execute("SELECT ndcg_10, ndcg_full, recall_5, definition FROM metrics_wide").fetchall()
    assert rows == [(0.25, 0.5, 0.125, None)]


@pytest.mark.parametrize("name", PORTABLE)
def test_portable_queries_run_on_an_empty_and_on_a_small_warehouse(
    database: sqlite3.Connection, name: str
) -> None:
    assert ask(database, name) == []
    for number, model in enumerate("ab"):
        add_run(database, model, model, model_kind=model)
        for part in ("test", "open_loop"):
            for metric in ("ndcg", "recall", "mrr"):
                add_metric(database, model, 0.5 + number, metric=metric, part=part)
        add(
            database,
            "multiverse",
            run_id=model,
            part="test",
            metric="ndcg",
            k=5,
            definition="v1",
            value=number,
        )
    for model, other, difference in (("a", "b", -1.0), ("b", "a", -0.5)):
        add_comparison(database, model, other, difference)
    for group in ("stayed", "joined"):
        add_change(database, group)
    add_paradox(database, "a", "b")
    add(database, "checks", run_id="a", check="c", severity="info", passed=True)
    add(database, "manifests", split_id="split1", part="log", fact="rows", value=1.0)
    ceiling = {"part": "test", "metric": "ndcg", "definition": "v1", "k": 10, "ceiling": 1.0, "lost": 0.5}
    add(database, "ceilings", run_id="a", **ceiling)
    add(database, "user_spreads", run_id="a", part="test", metric="ndcg", definition="v1", k=10)
    add(database, "fronts", suite="s", part="test", front="ndcg@10, hit@10", compared_at="2026-01-01")
    add(database, "graph_runs", model="g", layer=1, edges=8, seconds=1.0, predicted_seconds=4.0)
    add_entry(database, "BPMF", 0.82)
    add(database, "verdicts", entry_id="BPMF", board="b", code="edge", reason="the best lies on the edge")
    add_replay(database, "clicks", 0.25)
    assert ask(database, name)


def add_comparison(connection: sqlite3.Connection, model: str, other: str, difference: float) -> None:
    """A pair of models of one night, and a fall of each since the night before."""
    common = {
        "comparison_id": "c", "suite": "s", "logical_date": "2026-01-01", "other_date": "2026-01-01",
        "part": "test", "metric": "ndcg", "k": 10, "definition": "v1", "estimator": "holdout", "users": 4,
        "run_id": model, "model": model, "difference": difference, "ci_low": difference - 0.1,
        "ci_high": difference + 0.1, "p_holm": 0.01, "p_bh": 0.01, "split_id": "split1",
        "minimum_difference": 0.0, "regressed": 1, "allowed_drop": 0.1, "verdict": "worse",
        "with_baseline": 1, "compared_at": "2026-01-01",
    }  # fmt: skip
    add(connection, "comparisons", **common, kind="pair", other=other, other_run_id=other)
    add(connection, "comparisons", **common, kind="previous", other=model, other_run_id=other)


def add_change(connection: sqlite3.Connection, group: str, **more: Any) -> None:
    """Add the part of one group in the change of model a since run b."""
    common = {
        "change_id": "c", "suite": "s", "logical_date": "2026-01-02", "other_date": "2026-01-01",
        "model": "a", "run_id": "a", "other_run_id": "b", "part": "test", "metric": "ndcg", "k": 10,
        "definition": "v1", "estimator": "holdout", "group_key": "users", "group_value": group,
        "mix_change": 0.25, "within_change": 0.0, "difference": 0.25, "explained_at": "2026-01-02",
    }  # fmt: skip
    add(connection, "changes", **{**common, **more})


def test_only_the_last_explanation_of_a_run_counts(database: sqlite3.Connection) -> None:
    for run in ("a", "b", "old"):
        add_run(database, run, run)
    add_change(database, "stayed", explained_at="2026-01-03", change_id="again", difference=0.5)
    add_change(database, "stayed")
    add_change(database, "stayed", explained_at="2026-01-04", other_run_id="old", other_date="2025-12-31")
    add_change(database, "stayed", explained_at="2026-01-05", other_run_id="never")
    (row,) = ask(database, "why_did_the_number_move")
    assert (row[1], row[10], *row[-3:]) == ("2026-01-02", "stayed", 0.5, None, None)


def add_paradox(connection: sqlite3.Connection, model: str, other: str, **more: Any) -> None:
    """A pair of models that all strata reverse, and two items of a hundred that turn the verdict."""
    common = {
        "paradox_id": "p", "suite": "s", "logical_date": "2026-01-01", "split_id": "split1", "model": model,
        "other": other, "run_id": model, "other_run_id": other, "part": "test", "metric": "ndcg", "k": 10,
        "definition": "v1", "found_at": "2026-01-01",
    }  # fmt: skip
    values = {"slice_key": "popularity", "kind": "full", "certain": 1, "opposed_share": 1.0, **more}
    add(connection, "paradoxes", **{**common, **values})
    add(connection, "flips", **common, removed_are="items", removed=2, out_of=100)


def test_the_last_search_of_a_pair_counts_whichever_model_led(database: sqlite3.Connection) -> None:
    for model in "ab":
        add_run(database, model, model)
    add_paradox(database, "a", "b", paradox_id="old")
    add_paradox(database, "b", "a", paradox_id="new", found_at="2026-01-02", kind="none", certain=0)
    rows = database.execute("SELECT paradox_id, model, kind FROM current_paradoxes").fetchall()
    assert rows == [("new", "b", "none")]
    assert ask(database, "where_do_parts_and_whole_disagree") == []
    assert ask(database, "how_few_items_decide")[0][7:11] == ("items", 2, 100, 0.02)


def ask(database: sqlite3.Connection, name: str) -> Rows:
    return database.execute(QUERIES[name]).fetchall()


def test_which_model_is_best_says_whether_the_next_interval_overlaps(
    database: sqlite3.Connection,
) -> None:
    for model, value, low, high in (("a", 0.5, 0.4, 0.6), ("b", 0.3, 0.2, 0.4), ("c", 0.1, 0, 0.15)):
        add_run(database, model, model)
        add_metric(database, model, value, ci_low=low, ci_high=high)
    rows = [(row[3], row[7], row[8]) for row in ask(database, "which_model_is_best")]
    assert rows == [("a", "b", 1), ("b", "c", 0), ("c", None, None)]


def test_change_from_night_to_night(database: sqlite3.Connection) -> None:
    for day, value in ((1, 0.25), (2, 0.75), (4, 0.5)):
        add_run(database, f"r{day}", "m", logical_date=f"2026-01-0{day}")
        add_metric(database, f"r{day}", value)
    changes = [row[5] for row in ask(database, "how_do_models_change_over_nights")]
    assert changes == [None, 0.5, -0.25]


def test_metrics_that_disagree_are_counted_by_pairs_of_models(database: sqlite3.Connection) -> None:
    # ndcg orders a > b > c, recall a > c > b: of the pairs ab, ac, bc one is reversed.
    values = {"a": (0.9, 0.9), "b": (0.5, 0.1), "c": (0.1, 0.5)}
    for model, (ndcg, recall) in values.items():
        add_run(database, model, model)
        add_metric(database, model, ndcg)
        add_metric(database, model, recall, metric="recall")
    (row,) = ask(database, "do_the_metrics_agree")
    assert row == ("s", "test", "ndcg@10", "recall@10", 3, 1, "v1", "v1", "holdout", "d")


def test_places_gained_in_the_open_loop(database: sqlite3.Connection) -> None:
    for model, held_out, uniform in (("a", 0.9, 0.1), ("b", 0.5, 0.5)):
        add_run(database, model, model)
        add_metric(database, model, held_out)
        add_metric(database, model, uniform, part="open_loop")
    rows = [row[3:7] for row in ask(database, "does_the_open_loop_agree")]
    assert rows == [("a", 1, 2, -1), ("b", 2, 1, 1)]


def test_corrected_values_stand_beside_the_holdout_and_the_open_loop(database: sqlite3.Connection) -> None:
    for model, held, weighed, truth in (("a", 0.5, 0.2, 0.1), ("b", 0.4, 0.3, 0.2)):
        add_run(database, model, model)
        add_metric(database, model, held)
        add_metric(database, model, weighed, estimator="ips", definition="v1;propensities=true")
        add_metric(database, model, None, estimator="dr", definition="v1;propensities=true;rewards=None")
        add_metric(database, model, truth, part="open_loop")
    columns = (4, 5, 7, 8, 11, 12, 13, 14)
    assert [tuple(row[c] for c in columns) for row in ask(database, "what_does_exposure_hide")] == [
        ("b", "ips", 0.4, 0.3, 0.2, 2, 1, 1),
        ("a", "ips", 0.5, 0.2, 0.1, 1, 2, 2),
    ]


def test_layers_over_graphs_stand_beside_their_prediction(database: sqlite3.Connection) -> None:
    for layer, seconds, at in ((1, 2.0, "2026-01-02"), (2, 0.0, "2026-01-01")):
        add(
            database,
            "graph_runs",
            layer=layer,
            edges=8,
            seconds=seconds,
            predicted_seconds=4.0,
            started_at=at,
        )
    rows = [(row[2], row[12], row[13]) for row in ask(database, "how_fast_is_each_graph_layer")]
    assert rows == [(1, 0.5, 4.0), (2, 0.0, None)]


def add_replay(connection: sqlite3.Connection, model: str, value: float, **more: Any) -> None:
    """Add a replay of a model at one point: its yield, its lift, bounds, and the share of unseen pairs."""
    run = {"model_kind": "replay", "split": "given", "split_id": "log", "run_id": f"{model} run", **more}
    add_run(connection, model=model, **run)
    common = {"run_id": run["run_id"], "model": model, "point": "p", "same_log": 0, "n": 8}
    low, high = value - 0.125, value + 0.125
    band = {"metric": "click_yield", "value": value, "ci_low": low, "ci_high": high}
    add(connection, "replays", **common, **band, unseen="reference")
    against = {"unseen": "reference", "other": "logged"}
    add(connection, "replays", **common, metric="click_yield", value=0.1, **against)
    for unseen, bound in (("zero", value / 2), ("probability", value * 2)):
        add(connection, "replays", **common, metric="click_yield", value=bound, unseen=unseen)
    lift = {"metric": "click_lift", "unseen": "reference", "value": value / 0.25 - 1}
    band = {"ci_low": low / 0.25 - 1, "ci_high": high / 0.25 - 1}
    add(connection, "replays", **common, **lift, **band, other="logged")
    add(connection, "replays", **common, **{**lift, "value": 9}, other="third")
    add(connection, "replays", **common, metric="share_unseen", value=0.5)


def test_click_models_of_the_latest_replay_stand_in_the_order_of_their_yield(
    database: sqlite3.Connection,
) -> None:
    add_replay(database, "old", 0.9, logical_date="2025-12-31")
    add_replay(database, "calm", 0.25)
    add_replay(database, "eager", 0.75)
    add_replay(database, "calm", 0.0, run_id="again", **LATER)
    add_replay(database, "eager", 0.1, run_id="broken", status="failed", finished_at="2026-01-09")
    rows = ask(database, "which_click_model_wins")
    assert [row[2:14] for row in rows] == [
        ("eager", "p", 0.75, 0.625, 0.875, 2, 1.5, 2.5, 0.375, 1.5, 0.5, "better than what was logged"),
        ("calm", "p", 0, -0.125, 0.125, -1, -1.5, -0.5, 0, 0, 0.5, "worse than what was logged"),
    ]
    database.execute("UPDATE replays SET same_log = 1 WHERE run_id = 'again'")
    database.execute("UPDATE replays SET ci_low = NULL, ci_high = NULL WHERE run_id = 'eager run'")
    assert [row[13] for row in ask(database, "which_click_model_wins")] == [
        "too few queries for an interval", "may have been fitted to the replayed rows",
    ]  # fmt: skip


def add_entry(connection: sqlite3.Connection, name: str, value: float, **more: Any) -> None:
    defaults = {
        "board": "b",
        "method": name,
        "lower_is_better": 1,
        "entry_id": name,
        "entered_at": "2026-01-01",
    }
    add(connection, "boards", name=name, value=value, **{**defaults, **more})


def test_progress_over_baselines_as_published_and_corrected_by_hand(database: sqlite3.Connection) -> None:
    add_entry(database, "BPMF", 0.82, method="Bayesian MF", ran_by="rival")
    add_entry(database, "again", 0.763, method="Bayesian MF", ran_by="rerun")
    add_entry(database, "MRMA", 0.7634, ran_by="inventor")
    add_entry(database, "elsewhere", 0.1, board="other", ran_by="rerun", method="Bayesian MF")
    (row,) = database.execute("SELECT method, published_progress, corrected_progress FROM board_progress")
    assert row[0] == "MRMA" and row[1:] == pytest.approx((0.0566, -0.0004))
    (gap,) = database.execute("SELECT method, rival, rerun, ours, gap FROM board_gaps")
    assert gap[0] == "Bayesian MF" and gap[1:4] == (0.82, 0.763, None) and gap[4] == pytest.approx(0.057)
    best = database.execute("SELECT name, position FROM board_best WHERE board = 'b' ORDER BY position")
    assert best.fetchall() == [("again", 1), ("MRMA", 2)]


def test_a_later_row_of_an_entry_replaces_the_earlier_one(database: sqlite3.Connection) -> None:
    add_entry(database, "als", 0.8, method="ALS", entered_at="2026-01-01")
    add_entry(database, "als", 0.8, method="ALS", entered_at="2026-01-02", budget_settings=16)
    for code, under_tuned in (("edge", None), ("no_power", False)):
        add(database, "verdicts", entry_id="als", board="b", code=code, reason="r", under_tuned=under_tuned)
    shown = database.execute("SELECT name, budget_settings, entered_at FROM board_entries").fetchall()
    assert shown == [("als", 16, "2026-01-01")]
    assert database.execute("SELECT budget_settings FROM board_best").fetchall() == [(16,)]
    assert database.execute("SELECT * FROM board_gaps").fetchall() == [], "one row is no gap"
    rows = ask(database, "which_baselines_are_under_tuned")
    assert [(row[7], row[8], row[-1]) for row in rows] == [
        (16, "edge", "under-tuned"), (16, "no_power", "no power"),
    ]  # fmt: skip


def test_a_kind_that_is_several_methods_is_known_by_model(database: sqlite3.Connection) -> None:
    for run, value in (("timesvd", 0.4), ("svdpp", 0.3)):
        add_run(database, run, run, model_kind="bayesian_mf")
        add_metric(database, run, value)
    rows = database.execute("SELECT method, value FROM best_known ORDER BY position").fetchall()
    assert rows == [("timesvd", 0.4), ("svdpp", 0.3)]


@pytest.mark.parametrize("metric", [None, "ndcg@20"])
def test_the_best_of_n_in_sql_is_that_of_the_board(
    database: sqlite3.Connection, metric: str | None
) -> None:
    values = [0.9, 0.8, 0.95, 0.85]
    for n, value in enumerate(values):
        add(
            database,
            "trials",
            trial_id=str(n),
            log_id="l",
            model="m",
            extends="s",
            metric=metric,
            value=value,
            finished_at="2026-01-01",
        )
    old = {"log_id": "l", "model": "m", "extends": "s", "metric": metric}
    other = {**old, "extends": "with fewer epochs"}
    add(database, "trials", trial_id="7", value=0.7, finished_at="2026-01-02", **other)
    add(database, "trials", trial_id="0", value=0.9, finished_at="2025-01-01", **old)
    add(database, "trials", trial_id="9", value=None, finished_at="2026-01-01", **old)
    trials = [{"settings": {"x": float(n)}, "value": value} for n, value in enumerate(values)]
    wanted = expected_best(
        SearchTrials(space={"x": (0.0, 3.0)}, trials=trials, lower_is_better=metric is None)
    )
    curve = "SELECT budget, expected_best, low, high FROM search_curves WHERE extends = 's' ORDER BY budget"
    rows = database.execute(curve)
    by_column = list(zip(*rows.fetchall(), strict=True))
    assert by_column[0] == (1, 2, 3, 4)
    for column, by_budget in zip(by_column[1:], wanted[1:], strict=True):
        assert column == pytest.approx(by_budget.tolist())


def test_a_leader_fitted_to_the_quiz_is_worn(database: sqlite3.Connection) -> None:
    for name, quiz, test in (("lucky", 0.80, 0.90), ("fair", 0.85, 0.87), ("plain", 0.86, 0.88)):
        add(
            database,
            "submissions",
            board="b",
            name=name,
            content=name,
            quiz=quiz,
            test=test,
            handed_in_at=name,
        )
    (row,) = database.execute("SELECT submissions, gap_of_the_leader, gap_of_others, worn FROM board_looks")
    assert row == pytest.approx((3, 0.10, 0.02, 0.08))
