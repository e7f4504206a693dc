"""The section of a report on embeddings over graphs."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pandas as pd

from recbench_spark.reports import make_graphs, render_html
from tests.reports.test_reports import demo

RUN = {
    "model_id": "s-m", "graph_id": "s-g", "model": "net", "aggregator": "mean", "plan": "G", "nodes": 30,
    "edges": 4000, "width": 8, "vectors_projected": 70, "bytes_shuffled": 12345, "predicted_bytes": 12400,
    "predicted_seconds": 1.0, "amounts_json": "[]", "cores": 2,
}  # fmt: skip


def runs(*rows: dict[str, Any]) -> pd.DataFrame:
    return pd.DataFrame([{**RUN, **row} for row in rows])


def test_passes_stand_in_the_order_in_which_they_ran() -> None:
    (facts,) = make_graphs(
        runs(
            {"layer": 2, "seconds": 3.0, "started_at": pd.Timestamp(20, unit="s")},
            {"layer": 1, "seconds": 0.5, "started_at": pd.Timestamp(10, unit="s")},
        )
    )
    assert [one.layer for one in facts.passes] == [1, 2]
    assert (facts.seconds, facts.predicted, facts.reach) == (3.5, 2.0, 3.0)
    assert facts.passes[0].rate == 8000


def test_the_page_shows_each_pass_beside_its_prediction() -> None:
    shown = runs({"layer": 1, "seconds": 0.5, "started_at": pd.Timestamp(10, unit="s")})
    page = render_html(replace(demo(), graphs=make_graphs(shown)))
    assert 'href="#graphs"' in page and "12,345" in page and "8,000" in page and "70" in page
    bars = [
        float(w) for w in re.findall(r'<rect class="(?:measured|predicted)"[^>]*width="([0-9.]+)"', page)
    ]
    assert bars[1] == 2 * bars[0]  # predicted: twice as long
    assert 'href="#graphs"' not in render_html(demo())
