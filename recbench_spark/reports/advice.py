"""Group check findings by what readers can do about them."""

from __future__ import annotations

import json
from collections.abc import Collection

from recbench_spark.core.checks import TRAINING_ROWS
from recbench_spark.reports.facts import CheckRow, Report
from recbench_spark.reports.night_facts import Advice
from recbench_spark.reports.phrases import NOT_SHIPPED, format_number, map_kinds

GATES = ("Failed gates", "Ship none of these models before the fact is explained or the bound is raised.")
OUTPUT = ("Look at a model's output", "Ask whoever makes it; its numbers count what is missing as misses.")
TIES = ("Break ties", "Give items different scores, or set `definition: {ties: expected}`.")
DATA = (
    "Look at the data",
    "Compare the counts in the section on the split with those of last night's report.",
)
WEIGHTS = ("Read the estimate with care", "Few rows carry it: look at its interval, or clip the weights.")
OTHER = ("Look at these", "The table of checks says what each one means.")

ADVICE = (
    (("users without output", "unranked truth items"), OUTPUT),
    (("duplicate list rows", "list rows of unknown items", "cells without a prediction"), OUTPUT),
    ((TRAINING_ROWS, "pairs unknown to the model", "queries without a vector"), OUTPUT),
    (("tied truth items",), TIES),
    (("effective rows", "strata proposed", "share of the weight", "effective rounds"), WEIGHTS),
    (("exposure:", "mean weight"), WEIGHTS),
    (("rows", "overlap", "not in ", "users", "equal times", "future", "dropped", "age_days"), DATA),
)
"""Parts of check names, in search order, with their advice."""

NATURE = ("Notes", "These follow from the kind of model or the generated world; nothing is to be done.")

IMPERSONAL = {"random", "popular", "means", *NOT_SHIPPED}
"""Model kinds whose ties are their nature."""

BY_NATURE = {
    "unranked truth items": IMPERSONAL,
    "tied truth items": IMPERSONAL,
    "with the truth of other users": IMPERSONAL,
    "users without output": {*NOT_SHIPPED},
}
"""Checks some model kinds cannot pass: parts of check names, and these kinds."""

LOCAL_KINDS = {"als", "als_wr", "implicit_als", "item_knn", "lightgcn", "mf_bpr", "mllib_als", "sgd_mf"}
"""Model kinds this package fits to relevant rows.

A generated world has users and items without such rows, and items that share no neighbour: what these
models lack there is the world's nature. A model from outside has no excuse there.
"""


def group_findings(report: Report) -> tuple[Advice, ...]:
    """Group the findings that need action, the most urgent first."""
    groups: dict[tuple[str, str], list[CheckRow]] = {}
    for row in split_notes(report)[0]:
        groups.setdefault(choose_advice(row, {}), []).append(row)
    order = (GATES, OUTPUT, DATA, TIES, WEIGHTS, OTHER)
    return tuple(
        Advice(*advice, tuple(_describe(row, report) for row in groups[advice]))
        for advice in order
        if advice in groups
    )


def _read_reader(config: str) -> str:
    try:
        settings = json.loads(config)
    except json.JSONDecodeError:
        return ""  # another system's run may describe itself in words
    dataset = settings.get("dataset") if isinstance(settings, dict) else None
    return str(dataset.get("reader")) if isinstance(dataset, dict) else ""


def split_notes(report: Report) -> tuple[tuple[CheckRow, ...], tuple[CheckRow, ...]]:
    """Separate findings that need action, gates first, from notes."""
    kinds = map_kinds(report.leaderboards)
    generated = {run.model for run in report.runs if _read_reader(run.config) == "world"}
    rows = (*report.failures, *report.warnings)
    notes = tuple(row for row in rows if choose_advice(row, kinds, generated) == NATURE)
    return tuple(row for row in rows if row not in notes), notes


def choose_advice(row: CheckRow, kinds: dict[str, str], generated: Collection[str] = ()) -> tuple[str, str]:
    """Return title and advice for a failed check.

    `generated`: models measured on a generated world.
    """
    if row.severity == "error":
        return GATES
    if _is_by_nature(row, kinds, generated):
        return NATURE
    for parts, advice in ADVICE:
        if any(part in row.check for part in parts):
            return advice
    return OTHER


def _is_by_nature(row: CheckRow, kinds: dict[str, str], generated: Collection[str]) -> bool:
    excused = set().union(*(some for name, some in BY_NATURE.items() if name in row.check))
    return bool(row.models and excused) and all(
        kinds.get(model) in excused or (model in generated and kinds.get(model) in LOCAL_KINDS)
        for model in row.models
    )


def _describe(row: CheckRow, report: Report) -> tuple[str, str, str]:
    """Return a finding's name, its numbers, and its models."""
    allowed = "" if row.threshold is None else f", allowed {format_number(row.threshold)}"
    is_every = len(row.models) == len(report.models) > 1
    models = "all models" if is_every else ", ".join(row.models)
    return row.check, f"{format_number(row.observed)}{allowed}", models
