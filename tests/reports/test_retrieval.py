"""Indexes in a report: the best recall first, settings in words, a section only where there are some."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pandas as pd

from recbench_spark.reports import choose_indexes, make_retrieval, render_html
from recbench_spark.schemas import RETRIEVAL_RUNS
from tests.reports.test_reports import number, report

NAMES = {"r1": "ivf_1", "r2": "ivf_8", "r3": "x"}


def row(run: str, recall: float | None, **more: Any) -> dict[str, Any]:
    facts = {
        "run_id": run, "part": "test", "k": 10, "recall": recall, "stderr": 0.0125, "n": 40,
        "short_lists": 3, "candidates": 120.4, "queries_per_second": 15_000.0,
        "single_queries_per_second": None, "build_seconds": 0.25, "bytes": 5_300_000, "items": 2_000,
        "cut_items": 0,
        "index_kind": "ivf",
        "settings_json": json.dumps({"kind": "ivf", "name": NAMES[run], "probes": 8}),
    }  # fmt: skip
    return {**facts, **more}


def make(*rows: dict[str, Any]):
    models = {"r1": "als.ivf_1", "r2": "als.ivf_8"}
    return make_retrieval(pd.DataFrame(rows, columns=RETRIEVAL_RUNS.names), models)


def test_the_best_recall_comes_first_and_other_runs_are_left_out() -> None:
    facts = make(row("r1", 0.5), row("r2", 0.875), row("r3", 1.0), row("r1", None, k=100))
    assert [(one.k, [index.model for index in one.indexes]) for one in facts] == [
        (10, ["als.ivf_8", "als.ivf_1"]),
        (100, ["als.ivf_1"]),
    ]
    assert facts[0].indexes[0].settings == "probes 8"


def test_the_page_has_a_section_only_where_there_are_indexes() -> None:
    plain = report(number("als.ivf_1", 0.5), number("als.ivf_8", 0.25))
    assert 'id="retrieval"' not in render_html(plain)
    page = render_html(replace(plain, retrieval=make(row("r1", 0.5), row("r2", None))))
    assert ('id="retrieval"' in page and "0.500 ± 0.013" in page) or "0.500 ± 0.012" in page
    assert "15,000" in page and "Recall@10" in page and 'title="probes 8"' in page


def test_an_index_is_chosen_on_valid_and_shown_on_test() -> None:
    """The fastest on test would be another one, and that has no say."""
    facts = make(
        row("r1", 0.75, part="valid", queries_per_second=900.0),
        row("r2", 0.875, part="valid", queries_per_second=500.0),
        row("r1", 0.99, queries_per_second=900.0),
        row("r2", 0.5),
    )
    assert choose_indexes(facts, 0.8) == (
        "als: als.ivf_8 is the fastest with recall@10 of 0.8 or more on valid: 0.875, test 0.500.",
    )
    assert choose_indexes(facts, 0.7)[0].startswith("als: als.ivf_1 is the fastest")
    assert choose_indexes(facts, 0.9) == ("als: no index has recall@10 of 0.9 or more on valid.",)
