"""Group findings of checks by what a reader can do about them."""

from __future__ import annotations

from collections.abc import Sequence

from recbench_spark.checks import TRAINING_ROWS
from recbench_spark.reports.facts import CheckRow, Report
from recbench_spark.reports.night_facts import Advice
from recbench_spark.reports.phrases import NOT_SHIPPED, format_number

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
    (("rows", "overlap", "not in ", "users", "equal times", "future", "dropped"), DATA),
)
"""Parts of names of checks, in the order in which they are looked for, and their advice."""

NATURE = ("Notes", "These follow from the kind of model; nothing is to be done.")

IMPERSONAL = {"random", "popular", "means", *NOT_SHIPPED}
"""Kinds of models whose ties are their nature."""

BY_NATURE = {
    "unranked truth items": IMPERSONAL,
    "tied truth items": IMPERSONAL,
    "users without output": {*NOT_SHIPPED},
}
"""Checks that some kinds of models cannot pass: parts of their names, and these kinds."""


def group_findings(report: Report) -> tuple[Advice, ...]:
    """Return the failed gates and warnings by what to do about them, the most urgent first."""
    kinds = map_kinds(report)
    groups: dict[tuple[str, str], list[CheckRow]] = {}
    for row in (*report.failures, *report.warnings):
        groups.setdefault(choose_advice(row, kinds), []).append(row)
    order = (GATES, OUTPUT, DATA, TIES, WEIGHTS, OTHER, NATURE)
    return tuple(
        Advice(*advice, tuple(_describe(row, report) for row in groups[advice]), advice == NATURE)
        for advice in order
        if advice in groups
    )


def map_kinds(report: Report) -> dict[str, str]:
    """Map each ranked model to its kind."""
    return {row.model: row.model_kind for board in report.leaderboards for row in board.rows}


def split_notes(report: Report) -> tuple[tuple[CheckRow, ...], tuple[CheckRow, ...]]:
    """Return the findings that ask for something, gates first, and those that are notes."""
    kinds = map_kinds(report)
    rows = (*report.failures, *report.warnings)
    notes = tuple(row for row in rows if choose_advice(row, kinds) == NATURE)
    return tuple(row for row in rows if row not in notes), notes


def choose_advice(row: CheckRow, kinds: dict[str, str]) -> tuple[str, str]:
    """Return title and advice of a check that did not pass."""
    if row.severity == "error":
        return GATES
    if _is_by_nature(row, kinds):
        return NATURE
    for parts, advice in ADVICE:
        if any(part in row.check for part in parts):
            return advice
    return OTHER


def _is_by_nature(row: CheckRow, kinds: dict[str, str]) -> bool:
    excused = set().union(*(some for name, some in BY_NATURE.items() if name in row.check))
    return bool(row.models) and all(kinds.get(model) in excused for model in row.models)


def _describe(row: CheckRow, report: Report) -> tuple[str, str, str]:
    """Return a finding's name, its numbers, and its models."""
    allowed = "" if row.threshold is None else f", allowed {format_number(row.threshold)}"
    return row.check, f"{format_number(row.observed)}{allowed}", name_models(row.models, report)


def name_models(models: Sequence[str], report: Report) -> str:
    """Return names of models, or `all models`."""
    return "all models" if len(models) == len(report.models) > 1 else ", ".join(models)
