"""Indexes in a report: the best recall first, settings in words, a section only where there are some."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

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


# ------------------------------------------------------------------------------------------ curves


def draw(*rows: dict[str, Any]) -> list[ElementTree.Element]:
    """The figures of the section, as XML."""
    page = render_html(replace(report(number("als.ivf_1", 0.5)), retrieval=make(*rows)))
    assert "<script" not in page and "http" not in page.split('id="retrieval"')[1].split("</section>")[0]
    return [ElementTree.fromstring(text) for text in re.findall(r'<svg class="chart".*?</svg>', page, re.S)]


def place(value: float, low: float, high: float, start: float, end: float) -> float:
    return round(start + (value - low) / (high - low) * (end - start), 1)


def test_curves_show_each_setting_where_it_lies() -> None:
    """Recall on a line, rates and proposed items on logarithms; a sweep is joined from few to many."""
    rows = (
        row("r1", 0.5, queries_per_second=8000.0, candidates=50.0),
        row("r2", 0.9, queries_per_second=500.0, candidates=400.0),
    )
    rates, proposed = draw(*rows)
    for figure, ends, recalls in ((rates, (500, 8000), (0.9, 0.5)), (proposed, (50, 400), (0.5, 0.9))):
        low, high = math.log(ends[0] / 1.3), math.log(ends[1] * 1.3)
        xs = [place(math.log(end), low, high, 40, 330) for end in ends]
        ys = [place(recall, 0.45, 1.02, 220, 14) for recall in recalls]
        dots = [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in figure.iter("circle")]
        assert dots == list(zip(xs, ys, strict=True))
        (line,) = (path.attrib["d"] for path in figure.iter("path") if path.attrib["class"] == "line")
        assert line == "M" + "L".join(f"{x} {y}" for x, y in dots)
        assert [text.text for text in figure.iter("text") if text.attrib["class"] == "name"] == ["als ivf"]
    assert rates.find("title").text == "recall@10 by users a second, in blocks, test"
    assert "als.ivf_8 0.900 at 500, als.ivf_1 0.500 at 8,000" in rates.find("desc").text
    ticks = [text.text for text in rates.iter("text") if text.attrib["class"] == "tick middle"]
    assert ticks == ["500", "1,000", "2,000", "5,000", "10,000", "users a second, in blocks"]


def test_kinds_have_curves_of_their_own_and_what_is_not_measured_has_no_point() -> None:
    other = row("r2", 0.9, index_kind="hnsw", candidates=None)
    (figure,) = draw(row("r1", 0.5), other)
    assert "users a second" in figure.find("title").text and len(list(figure.iter("circle"))) == 2
    assert not [path for path in figure.iter("path") if path.attrib["class"] == "line"]
    names = [text.text for text in figure.iter("text") if text.attrib["class"] == "name"]
    assert names == ["als hnsw", "als ivf"]
    assert not draw(row("r1", 0.5)), "one point is no curve"
    assert not draw(row("r1", 0.5), row("r2", None))
