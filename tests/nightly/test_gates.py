"""Gates: bounds held against facts, and what they do to a night."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from recbench_spark.config import Gate
from recbench_spark.errors import GATE, GateError
from recbench_spark.nightly.gates import gate_checks, gate_error
from recbench_spark.nightly.night import check_night_gates, open_night
from recbench_spark.nightly.standalone_runs import check_rows
from recbench_spark.schemas import RUNS
from tests.nights import DATE, Ran, models, run, small

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


def test_a_gate_stops_the_night_before_any_model_runs(small_night: Ran) -> None:
    gate = {"fact": "rows", "part": "test", "below": 1e9}
    store = small_night.store
    with pytest.raises(GateError, match=r"test: rows is .* below 1e"):
        run(store, small(name="gated", models=models("popular"), gates=[gate]))
    (failed,) = store.read(RUNS).where("suite = 'gated'").collect()
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
