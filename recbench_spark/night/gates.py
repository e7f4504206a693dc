"""Gates: bounds a benchmark file sets on manifest facts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

from recbench_spark.config import AGE_FACT, Gate, Split, make_age_gate
from recbench_spark.core.checks import Check
from recbench_spark.errors import GateError
from recbench_spark.schemas import MANIFESTS, RUNS, TIME_FACTS
from recbench_spark.storage.file_tables import FileTables


@dataclass(frozen=True)
class GateCheck(Check):
    """A gate's result on one fact.

    A value equal to the bound passes.
    """

    outside: bool = False

    @property
    def passed(self) -> bool:
        """True if the fact is within the bound."""
        return not self.outside


def gate_checks(
    gates: Sequence[Gate], facts: Iterable[Mapping[str, Any]], before: Iterable[Mapping[str, Any]] = ()
) -> list[GateCheck]:
    """Check every gate on each of its parts.

    A gate without any fact fails. Gates on moves pass where there was no night before.

    Args:
        gates: bounds in the benchmark file.
        facts: rows of the manifest (part, fact, value); a later row replaces an earlier one for the same
            fact.
        before: rows of the manifest of the night before.
    """
    rows = {(row["part"], row["fact"]): row for row in facts if row["value"] is not None}
    values = {key: row["value"] for key, row in rows.items()}
    earlier = {(row["part"], row["fact"]): row for row in before if row["value"] is not None}
    checks = [
        check
        for gate in gates
        for check in (
            _check_moves(gate, values, earlier) if compares_nights(gate) else _check_gate(gate, values)
        )
    ]
    age = rows.get(("log", AGE_FACT))
    return [_explain_age(check, age) if age else check for check in checks]


def _explain_age(check: GateCheck, age: Mapping[str, Any]) -> GateCheck:
    """Show the newest row's time in a log age check."""
    about_age = check.check == f"log: {AGE_FACT}"
    return replace(check, detail=f"{check.detail}; {age['detail']}") if about_age else check


def select_gates(gates: Sequence[Gate], split: Split, facts: Iterable[Mapping[str, Any]]) -> list[Gate]:
    """Return the gates that apply.

    The default gate on a log's age needs times.
    """
    timed = any(row["fact"] == AGE_FACT for row in facts)
    return [gate for gate in gates if timed or gate != make_age_gate(split)]


def compares_nights(gate: Gate) -> bool:
    """Return whether a gate compares with the night before."""
    return gate.moved is not None or gate.still


def read_facts_before(store: FileTables, suite: str, dataset: str, day: date) -> list[dict[str, Any]]:
    """Return the manifest of a suite's last night before a day, if any."""
    filters = [("suite", "=", suite), ("status", "=", "succeeded"), ("logical_date", "<", day)]
    runs = store.rows(RUNS, filters, ["logical_date", "started_at", "dataset", "split_id"])
    of_log = [row for row in runs if row["dataset"] == dataset]
    if not of_log:
        return []
    last = max(of_log, key=lambda row: (row["logical_date"], row["started_at"]))
    facts: list[dict[str, Any]] = store.rows(MANIFESTS, [("split_id", "=", last["split_id"])])
    return facts


Values = Mapping[tuple[str, str], float]
Rows = Mapping[tuple[str, str], Mapping[str, Any]]


def _check_moves(gate: Gate, values: Values, earlier: Rows) -> list[GateCheck]:
    """Compare a fact's values with those of the night before; a fact that is gone moved."""
    keys = [key for key in sorted(earlier) if key[1] == gate.fact and gate.part in (None, key[0])]
    checks = []
    for part, fact in keys:
        now, then = values.get((part, fact), 0.0), earlier[part, fact]["value"]
        text = earlier[part, fact]["detail"] if fact in TIME_FACTS else f"{then:.15g}"
        moved = abs(now - then) / max(abs(then), 1.0)
        outside = moved == 0 if gate.still else moved > (gate.moved or 0.0)
        bound = "if it stands still" if gate.still else f"if it moves by more than {gate.moved:g} of it"
        detail = f"gate: {gate.action} {bound}; {text} on the night before"
        name = f"{part}: {fact} {'stands still' if gate.still else 'moved'}"
        checks.append(GateCheck(name, now, gate.moved, _name_severity(gate), detail, outside))
    return checks


def _name_severity(gate: Gate) -> str:
    return "error" if gate.action == "fail" else "warning"


def _check_gate(gate: Gate, values: Values) -> list[GateCheck]:
    parts = sorted(part for part, fact in values if fact == gate.fact and gate.part in (None, part))
    checks = [_check_fact(gate, part, values[part, gate.fact]) for part in parts]
    return checks or [_check_fact(gate, gate.part or "every part", math.nan)]


def _check_fact(gate: Gate, part: str, value: float) -> GateCheck:
    bound, side = (gate.below, "below") if gate.above is None else (gate.above, "above")
    assert bound is not None
    outside = math.isnan(value) or (value > bound if side == "above" else value < bound)
    detail = (
        "no such fact in the manifest" if math.isnan(value) else f"gate: {gate.action} {side} {bound:g}"
    )
    return GateCheck(f"{part}: {gate.fact}", value, bound, _name_severity(gate), detail, outside)


def gate_error(checks: Sequence[Check]) -> GateError | None:
    """Return the job's error after failed gates, else None.

    Only gates with action `fail` count.
    """
    failed = [c for c in checks if not c.passed and c.severity == "error"]
    if not failed:
        return None
    words = "; ".join(f"{c.check} is {c.observed:g} ({c.detail})" for c in failed)
    gates = "gate" if len(failed) == 1 else "gates"
    return GateError(f"{len(failed)} {gates} failed: {words}", "see the table manifests, and `gates`")
