"""Verdicts: a model is called too good, not told apart or not to be told, and the night says so."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from recbench_spark.config import Benchmark, parse
from recbench_spark.config.placeholders import fill_placeholders
from recbench_spark.errors import ConfigError
from recbench_spark.night.night_status import find_finished_night
from recbench_spark.night.result_files import NightRecord
from recbench_spark.night.verdicts import describe_power
from recbench_spark.query.answers import make_query_runner
from recbench_spark.storage.arrow_store import ArrowStore
from tests.nights import run

USERS, ITEMS = 60, 40


def write_log(folder: Path) -> dict[str, list[str]]:
    """Ten rows a user, of which the last two are tested; return these."""
    rows = [
        (f"u{u}", f"i{(u * 7 + 3 * n) % ITEMS}", 1_600_000_000 + 60 * n + u)
        for u in range(USERS) for n in range(10)
    ]  # fmt: skip
    pd.DataFrame(rows, columns=["user_id", "item_id", "event_time"]).to_csv(folder / "log.csv", index=False)
    return {f"u{u}": [f"i{(u * 7 + 3 * n) % ITEMS}" for n in (8, 9)] for u in range(USERS)}


def write_lists(path: Path, first: dict[str, list[str]]) -> None:
    """Lists of ten items: the given ones, then some that the log does not have of the user."""
    lists = {}
    for user, items in first.items():
        known = {(int(user[1:]) * 7 + 3 * n) % ITEMS for n in range(10)}
        lists[user] = [*items, *(f"i{n}" for n in range(ITEMS) if n not in known)][:10]
    rows = [(user, item, rank) for user, items in lists.items() for rank, item in enumerate(items, 1)]
    frame = pd.DataFrame(rows, columns=["user_id", "item_id", "rank"])
    frame.drop_duplicates(["user_id", "item_id"]).to_csv(path, index=False)


def suite(folder: Path, **more: Any) -> Benchmark:
    content = {
        "name": "judged",
        "dataset": {"name": "log", "reader": "csv", "path": str(folder / "log.csv"), "columns":
                    {"user_id": "user_id", "item_id": "item_id", "event_time": "event_time"}},
        "split": {"order": "temporal", "holdout": "last_n", "n": 2},
        "models": [
            {"name": "popular", "kind": "popular"},
            {"name": "ours", "kind": "lists", "path": str(folder / "lists-{logical_date}.csv")},
        ],
        "evaluation": {"metrics": ["ndcg", "recall"], "k": [10], "parts": ["test"],
                       "definition": {"gaps": "close"}},
        "headline": "ndcg@10",
        "comparisons": {"baseline": "popular", "replicates": 50},
        "regressions": [{"metric": "ndcg", "k": 10, "drop": 0.5, "rise": 0.3}],
        **more,
    }  # fmt: skip
    return parse(Benchmark, content, "tests/night/test_verdicts.py")


def read_night(store: ArrowStore, day: date) -> NightRecord:
    content = json.loads((Path(store.root) / "results" / f"night-judged-{day}.json").read_text())
    return NightRecord.model_validate(content)


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> tuple[ArrowStore, Path, list[Any]]:
    """Three nights: honest lists, lists of what is tested, and lists of training items."""
    folder = tmp_path_factory.mktemp("judged")
    truth = write_log(folder)
    trained = {user: [f"i{(int(user[1:]) * 7 + 3 * n) % ITEMS}" for n in range(3)] for user in truth}
    days = [date(2026, 1, day) for day in (1, 2, 3)]
    for day, first in zip(days, ({user: [] for user in truth}, truth, trained), strict=True):
        write_lists(folder / f"lists-{day}.csv", first)
    store = ArrowStore(str(folder / "warehouse"))
    return store, folder, [run(store, suite(folder), day) for day in days]


def test_what_is_too_good_is_doubted(nights: tuple[ArrowStore, Path, list[Any]]) -> None:
    store, _, ran = nights
    assert ran[0].outcome.doubts == ()
    (rise,) = [text for text in ran[1].outcome.doubts if "allowed_rise" in text]
    assert rise.startswith("ours: too good (a rise beyond allowed_rise), ndcg@10 of test is 1.0000, ")
    assert any("(the best possible value)" in text for text in ran[1].outcome.doubts)
    assert ran[1].outcome.exit_code == 0
    record = read_night(store, date(2026, 1, 2))
    assert tuple(record.doubts) == ran[1].outcome.doubts
    assert [(one.model, one.kind, one.verdict) for one in record.verdicts] == [
        ("ours", "pair", "too good"), ("popular", "previous", "equivalent"),
    ]  # fmt: skip
    page = (Path(store.root) / "reports" / "judged-2026-01-02.html").read_text()
    assert "too good" in page and "Look before you ship" in page


def test_a_number_that_does_not_hold_is_not_judged(nights: tuple[ArrowStore, Path, list[Any]]) -> None:
    _, _, ran = nights
    (doubt,) = [text for text in ran[2].outcome.doubts if "cannot tell" in text]
    assert doubt == "ours: cannot tell, the check 'list rows of training items' did not pass"


def test_verdicts_are_answered_in_sql(nights: tuple[ArrowStore, Path, list[Any]]) -> None:
    ask = make_query_runner(nights[0])
    rows = ask("SELECT * FROM model_verdicts WHERE metric = 'ndcg' ORDER BY logical_date, model, kind")
    shown = list(
        zip(rows.logical_date.astype(str).str[-2:], rows.model, rows.kind, rows.verdict, strict=True)
    )
    assert shown[0][:3] == ("01", "ours", "pair") and shown[0][3] in ("better", "worse", "not told apart")
    assert {one[3] for one in shown if one[:2] == ("02", "ours")} == {"too good"}
    assert {one[3] for one in shown if one[:2] == ("03", "ours")} == {"cannot tell"}


def test_a_night_says_before_what_it_could_tell(
    nights: tuple[ArrowStore, Path, list[Any]], tmp_path: Path
) -> None:
    store, folder, _ = nights
    (first,) = [line for line in describe_power(store.root, suite(folder)) if line.startswith("ours")]
    assert first.startswith("ours with popular: ndcg@10 of test 0.")
    assert describe_power(str(tmp_path / "none"), suite(folder)) == []
    assert describe_power(store.root, suite(folder, comparisons=None, regressions=[])) == []


def test_numbers_made_again_are_told_with_their_cause(tmp_path: Path) -> None:
    truth = write_log(tmp_path)
    store, benchmark, day = (
        ArrowStore(str(tmp_path / "warehouse")),
        suite(tmp_path, restated={"above": 0.002}, regressions=[]),
        date(2026, 1, 4),
    )
    lists = tmp_path / f"lists-{day}.csv"
    write_lists(lists, {user: items[:1] for user, items in truth.items()})
    first = run(store, benchmark, day).outcome
    assert first.restated == ()
    (doubt,) = [text for text in first.doubts if text.startswith("ours")]
    assert "too good (the best order of its candidates), ndcg of test is 0.6131" in doubt
    assert run(store, benchmark, day, force=True).outcome.restated == ()
    write_lists(lists, truth)
    again = run(store, benchmark, day).outcome
    (sentence,) = [text for text in again.restated if "ndcg@10" in text]
    assert sentence.startswith(
        "ours: ndcg@10 of test is 1.0000, 0.6131 before on this night: +0.3869, by inputs"
    )
    assert again.exit_code == 3 and read_night(store, day).restated == list(again.restated)
    with (tmp_path / "log.csv").open("a") as log:  # a late row, which is user 0's last now
        log.write("u0,i1,1600009999\n")
    late = run(store, benchmark, day).outcome
    assert {text.rpartition("by ")[2] for text in late.restated} == {"log"}
    ask = make_query_runner(store)
    causes = ask(
        "SELECT DISTINCT model, cause FROM restatements WHERE metric = 'ndcg' ORDER BY model, cause"
    )
    assert causes.to_numpy().tolist() == [["ours", "inputs"], ["ours", "log"], ["popular", "log"]]
    number = "metric = 'ndcg' AND k = 10 AND model = 'ours'"
    parts = ask(
        "SELECT run_id, group_key, SUM(difference) AS moved, MAX(value - other_value) AS whole "
        f"FROM changes WHERE {number} GROUP BY run_id, group_key"
    )
    assert {*parts.group_key} == {"users", "n_relevant"} and len(parts) == 4
    assert parts.moved.to_numpy() == pytest.approx(parts.whole.to_numpy(), abs=1e-12)
    moved = ask(f"SELECT difference FROM restatements WHERE {number} AND slice_key IS NULL").difference
    assert {round(one, 9) for one in parts.whole} == {round(one, 9) for one in moved}


def test_doubts_end_the_job_where_the_file_says_so(nights: tuple[ArrowStore, Path, list[Any]]) -> None:
    store, folder, _ = nights
    both = suite(folder, exit_on=["too good", "cannot tell"])
    codes = [run(store, both, date(2026, 1, day)).outcome.exit_code for day in (1, 2, 3)]
    assert codes == [0, 5, 4]  # the third night has a regression, too
    both = suite(folder, exit_on=["too good", "cannot tell"], regressions=[])
    day = date(2026, 1, 3)
    assert run(store, both, day).outcome.exit_code == 6
    done = find_finished_night(store.root, fill_placeholders(both, day), day)
    assert done is not None and done.exit_code == 6
    only = suite(folder, exit_on=["too good"], regressions=[])
    assert run(store, only, day).outcome.exit_code == 0
    with pytest.raises(ConfigError, match="exit_on"):
        suite(folder, exit_on=["too bad"])
