"""Collect models' passes over graphs, from rows of `graph_runs`."""

from __future__ import annotations

from typing import Any

import pandas as pd

from recbench_spark.reports.facts import GraphFacts, GraphPass


def make_graphs(runs: pd.DataFrame) -> tuple[GraphFacts, ...]:
    """Make facts for each model and its passes.

    Passes are in the order they ran.

    Args:
        runs: rows of `graph_runs` for a night's models.
    """
    facts_by_model = []
    for name, rows in runs.groupby("model_id", sort=True):
        ordered = rows.sort_values(["started_at", "layer"], kind="stable").to_dict("records")
        passes = tuple(_make_pass(row) for row in ordered)
        facts_by_model.append(
            GraphFacts(str(ordered[0]["model"]), str(name), int(ordered[0]["cores"]), passes)
        )
    return tuple(sorted(facts_by_model, key=lambda facts: (facts.model, facts.model_id)))


def _make_pass(row: dict[Any, Any]) -> GraphPass:
    return GraphPass(
        layer=int(row["layer"]),
        aggregator=str(row["aggregator"]),
        plan=str(row["plan"]),
        nodes=int(row["nodes"]),
        edges=int(row["edges"]),
        projected=int(row["vectors_projected"]),
        shuffled=int(row["bytes_shuffled"]),
        predicted_bytes=int(row["predicted_bytes"]),
        seconds=float(row["seconds"]),
        predicted=float(row["predicted_seconds"]),
    )
