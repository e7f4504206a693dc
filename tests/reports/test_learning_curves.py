"""Learning curves in a report: lines, users below the figure, and crossings in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd

from recbench_spark.reports import make_learning_curves, render_html
from recbench_spark.schemas import CURVE_CROSSINGS, LEARNING_CURVES
from tests.reports.test_reports import number, report

MODELS = {"run-a": "a", "run-b": "b"}


def point(run: str, given: int, value: float | None, n: int = 12, part: str = "test") -> dict[str, Any]:
    ends = {} if value is None else {"ci_low": value - 0.05, "ci_high": value + 0.05}
    facts = {"run_id": run, "part": part, "metric": "ndcg", "k": 10, "definition": "v1;curve=1 to 3"}
    return {**facts, "given": given, "value": value, "n": n, **ends}


def crossing(shown: bool, **more: Any) -> dict[str, Any]:
    return {
        "part": "test", "definition": "v1;curve=1 to 3", "model": "a", "other": "b",
        "first": "b", "then": "a", "given": 2, "given_low": 1, "given_high": 3, "value": 0.3125,
        "share_holm": 0.01 if shown else 0.5,
        "shown": shown, **more,
    }  # fmt: skip


def make(points: list[dict[str, Any]], crossings: list[dict[str, Any]] = []):  # type: ignore[no-untyped-def] # noqa: B006
    return make_learning_curves(
        pd.DataFrame(points, columns=LEARNING_CURVES.names),
        MODELS,
        pd.DataFrame(crossings, columns=CURVE_CROSSINGS.names),
    )


POINTS = [
    *(point("run-a", given, 0.1 * given) for given in (1, 2, 3)),
    *(point("run-b", given, 0.25, n=12 - given) for given in (1, 2)),
    point("run-b", 3, None, n=9),
    point("run-c", 1, 0.9),
]


def test_lines_are_in_the_order_of_their_right_ends_and_have_their_users() -> None:
    (facts,) = make([*POINTS, point("run-a", 1, 0.5, part="valid")])
    curve = facts.curve
    assert [(line.model, line.ks) for line in curve.lines] == [("a", (1, 2, 3)), ("b", (1, 2))]
    assert curve.ks == (1, 2, 3) and curve.counts == (12, 12, 12) and curve.axis == "given ratings"
    assert curve.lines[0].estimates[2].interval == (0.1 * 3 - 0.05, 0.1 * 3 + 0.05)


def test_crossings_are_told_in_words() -> None:
    (facts,) = make(POINTS, [crossing(False, model="a", other="c"), crossing(True)])
    assert facts.crossings == (
        "b up to 2 given ratings, then a (interval 1 to 3): mean 0.3125 "
        "(adjusted share at the ends 0.010).",
        "a and c: no crossing shown (adjusted share at the ends 0.500).",
    )


def test_the_page_has_a_section_of_curves_only_where_there_are_some() -> None:
    plain = report(number("a", 0.5), number("b", 0.25))
    assert 'id="learning"' not in render_html(plain)
    page = render_html(replace(plain, learning_curves=make(POINTS, [crossing(True)])))
    assert 'id="learning"' in page and "ndcg by given ratings, test" in page
    assert "given ratings; below, the users averaged" in page and "b up to 2 given ratings, then a" in page
    assert 'y="268">12</text>' in page
