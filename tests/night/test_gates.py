"""Gates: bounds held against facts, and what they do to a night."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from recbench_spark.config import Benchmark, Gate, parse
from recbench_spark.config.placeholders import fill_placeholders
from recbench_spark.errors import GATE, GateError
from recbench_spark.night.gates import gate_checks, gate_error, select_gates
from recbench_spark.night.night import check_night_gates, open_night
from recbench_spark.night.standalone_runs import check_rows
from recbench_spark.schemas import RUNS
from recbench_spark.splits.windows import list_age_facts
from tests.nights import DATE, Ran, models, read_rows, run, small

DAY = date(2026, 3, 12)

FACTS: list[dict[str, Any]] = [
    {"part": "train", "fact": "rows", "value": 80.0},
    {"part": "test", "fact": "rows", "value": 20.0},
    {"part": "log", "fact": "overlap", "value": 0.0},
    {"part": "log", "fact": "settings", "value": None},
]


def failures_by_check(*gates: Gate) -> dict[str, tuple[bool, str]]:
    return {check.check: (check.passed, check.severity) for check in gate_checks(gates, FACTS)}


def test_bounds_are_allowed_themselves() -> None:
    assert failures_by_check(Gate(fact="overlap", above=0)) == {"log: overlap": (True, "error")}
    assert failures_by_check(Gate(fact="rows", part="test", below=20)) == {"test: rows": (True, "error")}
    assert failures_by_check(Gate(fact="rows", part="test", below=20.5)) == {"test: rows": (False, "error")}


def test_a_gate_without_a_part_holds_for_every_part() -> None:
    assert failures_by_check(Gate(fact="rows", above=50, action="warn")) == {
        "test: rows": (True, "warning"),
        "train: rows": (False, "warning"),
    }


def test_a_fact_that_is_not_there_does_not_pass() -> None:
    (check,) = gate_checks([Gate(fact="future_rows", part="train", above=0)], FACTS)
    assert not check.passed and check.detail == "no such fact in the manifest"
    assert not gate_checks([Gate(fact="settings", above=0)], FACTS)[0].passed


def test_only_gates_that_fail_fail_the_job() -> None:
    warn, fail = Gate(fact="rows", above=50, action="warn"), Gate(fact="rows", part="train", above=50)
    assert gate_error(gate_checks([warn], FACTS)) is None
    error = gate_error(gate_checks([warn, fail], FACTS))
    assert error is not None and error.exit_code == GATE
    assert error.message == "1 gate failed: train: rows is 80 (gate: fail above 50)"


def growing(reader: str = "csv", **sections: Any) -> Benchmark:
    document = {
        "name": "b",
        "dataset": {"name": "d", "reader": reader, "path": "/log", **sections.pop("dataset", {})},
        "models": [{"name": "p", "kind": "popular"}],
        **sections,
    }
    return fill_placeholders(parse(Benchmark, document, "test"), date(2026, 3, 12))


OWN = {"fact": "newest_age_days", "above": 30}


@pytest.mark.parametrize(
    ("sections", "days"),
    [
        ({}, []),
        ({"split": {"holdout": "period", "length": "1d"}}, [2]),
        ({"split": {"holdout": "period", "length": "12h"}}, [1]),
        ({"split": {"holdout": "period", "length": "1mo"}}, [62]),
        ({"split": {"holdout": "period", "start": "2026-03-01", "length": "7d"}}, []),
        ({"split": {"holdout": "period", "start": "{logical_date}", "length": "7d"}}, [14]),
        ({"dataset": {"until": "{logical_date}"}}, [2]),
        ({"dataset": {"path": "/log/{logical_date:%Y/%m/%d}"}}, [2]),
        ({"dataset": {"until": "2026-03-12"}}, []),
        ({"dataset": {"until": "{logical_date}"}, "gates": [OWN]}, [30]),
        ({"reader": "movielens_100k", "split": {"holdout": "period", "length": "30d"}}, []),
    ],
)
def test_a_log_that_grows_has_a_gate_on_its_age(sections: dict[str, Any], days: list[float]) -> None:
    """Its file says so by `{logical_date}` or by the last period; published data sets never grow."""
    filled = growing(**sections)
    assert [gate.above for gate in filled.gates if gate.fact == "newest_age_days"] == days
    assert fill_placeholders(filled, date(2030, 1, 1)) == filled


def test_a_log_that_stopped_warns() -> None:
    """The day of Rome ends at 23:00 UTC; 2.5 days before that is 11:00 of the 10th."""
    filled = growing(dataset={"until": "{logical_date}", "time_zone": "Europe/Rome"})
    newest = {"part": "log", "fact": "newest_event", "detail": "2026-03-10 11:00:00 UTC"}
    newest["value"] = datetime(2026, 3, 10, 11, tzinfo=UTC).timestamp() * 1e6
    rows = [newest, *(fact._asdict() for fact in list_age_facts([newest], DAY, filled.dataset.zone))]
    (check,) = gate_checks(select_gates(filled.gates, filled.split, rows), rows)
    assert (check.observed, check.passed, check.severity) == (2.5, False, "warning")
    words = "gate: warn above 2; newest_event 2026-03-10 11:00:00 UTC, at the end of 2026-03-12"
    assert check.detail == words
    assert gate_error([check]) is None
    assert select_gates(filled.gates, filled.split, []) == []  # a log without times


def test_a_gate_stops_the_night_before_any_model_runs(small_night: Ran) -> None:
    gate = {"fact": "rows", "part": "test", "below": 1e9}
    store = small_night.store
    with pytest.raises(GateError, match=r"test: rows is .* below 1e"):
        run(store, small(name="gated", models=models("popular"), gates=[gate]))
    (failed,) = read_rows(store, RUNS, suite="gated")
    assert failed.status == "failed" and "gate failed" in failed.error
    result = json.loads((Path(store.root) / "results" / f"{failed.run_id}.json").read_text())
    assert result["exit_code"] == GATE


def test_a_warning_stands_in_the_checks_of_the_run(small_night: Ran) -> None:
    gate = {"fact": "rows", "part": "test", "below": 1e9, "action": "warn"}
    store = small_night.store
    checks = check_night_gates(open_night(store, small(gates=[gate]), DATE))
    (row,) = check_rows("a_run", checks)
    result = tuple(row[name] for name in ("check", "severity", "threshold", "passed"))
    assert result == ("test: rows", "warning", 1e9, False)


def check_moves(now: float, before: float | None, **gate: Any) -> list[bool]:
    facts = [{"part": "test", "fact": "rows", "value": now}]
    earlier = [] if before is None else [{"part": "test", "fact": "rows", "value": before}]
    return [check.passed for check in gate_checks([Gate(fact="rows", **gate)], facts, earlier)]


def test_a_gate_on_moves_compares_with_the_night_before() -> None:
    assert check_moves(90, 100, moved=0.1) == check_moves(110, 100, moved=0.1) == [True]
    assert check_moves(89, 100, moved=0.1) == check_moves(100.5, 100, moved=0) == [False]
    assert check_moves(100, 100, still=True) == [False] and check_moves(101, 100, still=True) == [True]
    assert check_moves(5, None, moved=0) == check_moves(5, None, still=True) == []


def test_a_fact_that_is_gone_has_moved() -> None:
    before = [{"part": "valid", "fact": "rows", "value": 7.0}]
    (check,) = gate_checks([Gate(fact="rows", moved=0.5, action="warn")], FACTS, before)
    assert (check.check, check.passed, check.severity) == ("valid: rows moved", False, "warning")
    assert check.detail == "gate: warn if it moves by more than 0.5 of it; 7 on the night before"


@pytest.mark.parametrize("bounds", [{}, {"above": 1, "moved": 0}, {"still": True, "below": 1}])
def test_a_gate_has_one_bound(bounds: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="give one of 'above'"):
        Gate(fact="rows", **bounds)


def test_times_of_the_night_before_are_told_as_texts() -> None:
    row = {"part": "log", "fact": "newest_event", "value": 1.5e15, "detail": "2017-07-14 02:40:00 UTC"}
    (check,) = gate_checks([Gate(fact="newest_event", still=True)], [row], [row])
    assert check.detail == "gate: fail if it stands still; 2017-07-14 02:40:00 UTC on the night before"
