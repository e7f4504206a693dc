"""Gates: bounds a benchmark file sets on manifest facts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from recbench_spark.config import AGE_FACT, Gate, Split, make_age_gate
from recbench_spark.core.checks import Check
from recbench_spark.errors import GateError


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


def gate_checks(gates: Sequence[Gate], facts: Iterable[Mapping[str, Any]]) -> list[GateCheck]:
    """Check every gate on each of its parts.

    A gate without any fact fails.

    Args:
        gates: bounds in the benchmark file.
        facts: rows of the manifest (part, fact, value); a later row replaces an earlier one for the same
            fact.
    """
    rows = {(row["part"], row["fact"]): row for row in facts if row["value"] is not None}
    values = {key: row["value"] for key, row in rows.items()}
    checks = [check for gate in gates for check in _check_gate(gate, values)]
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


def _check_gate(gate: Gate, values: Mapping[tuple[str, str], float]) -> list[GateCheck]:
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
    severity = "error" if gate.action == "fail" else "warning"
    return GateCheck(f"{part}: {gate.fact}", value, bound, severity, detail, outside)


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
