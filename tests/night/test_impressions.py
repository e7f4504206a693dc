"""A log of MIND's shape, impressions as text cells, each a query: from the file to the printed board."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from recbench_spark.config import Benchmark, parse
from recbench_spark.schemas import MANIFESTS, METRICS, RUNS
from recbench_spark.storage.arrow_store import ArrowStore
from tests.nights import read_rows, run

NAMES = ["impression", "user_id", "time", "history", "shown"]


def write_behaviors(path: Path) -> None:
    """Twenty readers of 40 articles, some impressions each; a good article is clicked more often."""
    rng, lines = np.random.default_rng(3), []
    for number in range(60):
        user = int(rng.integers(20))
        history = " ".join(f"N{one}" for one in np.random.default_rng(user).permutation(40)[:4])
        shown = rng.permutation(40)[: rng.integers(3, 12)]
        clicked = rng.random(len(shown)) < (0.1 + 0.6 * (shown < 10))
        clicked[rng.integers(len(shown))] = True
        cell = " ".join(f"N{one}-{int(hit)}" for one, hit in zip(shown, clicked, strict=True))
        lines.append(f"{number}\tU{user}\t11/{1 + number % 15}/2019 9:05:{number:02} AM\t{history}\t{cell}")
    path.write_text("\n".join(lines) + "\n")


def explode(path: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The log, clicks and histories, and each impression's articles."""
    rows = pd.read_csv(path, sep="\t", names=NAMES, dtype={"impression": str})
    rows["event_time"] = pd.to_datetime(rows["time"], format="%m/%d/%Y %I:%M:%S %p")
    shown = rows.assign(cell=rows["shown"].str.split(" ")).explode("cell")
    shown[["item_id", "clicked"]] = shown["cell"].str.split("-", expand=True)
    past = rows.drop_duplicates("user_id")
    past = past.assign(item_id=past["history"].str.split(" "), part="train", impression=None)
    past = past.explode("item_id").assign(event_time=pd.Timestamp("2019-10-01"))
    log = pd.concat([past, shown[shown["clicked"] == "1"].assign(part="test")])
    return log[["user_id", "item_id", "event_time", "part", "impression"]], shown


def write_scores(folder: Path, shown: pd.DataFrame) -> list[dict[str, Any]]:
    """A model by row, in arrays with a time beside each score, and as lists in arrays or cells; a guess."""
    number, rng = shown["item_id"].str[1:].astype(int), np.random.default_rng(4)
    rows = shown.rename(columns={"impression": "query_id"})[
        ["user_id", "query_id", "item_id", "event_time"]
    ]
    ctr = rows.assign(score=np.where(number < 10, 2.0, 1.0) + number % 3)
    arrays = ctr.groupby(["user_id", "query_id"], as_index=False)[["item_id", "score", "event_time"]].agg(
        list
    )
    tables = {"ctr": ctr, "arrays": arrays, "guess": rows.assign(score=rng.permutation(len(rows)) * 1.0)}
    best = ctr.sort_values("item_id").sort_values("score", ascending=False, kind="stable")
    order = best.groupby(["user_id", "query_id"], as_index=False)[["item_id", "event_time"]].agg(list)
    tables |= {"order": order, "cells": order.assign(item_id=order["item_id"].str.join(" ")).iloc[:, :3]}
    for name, table in tables.items():
        table.to_parquet(folder / f"{name}.parquet")
    kinds = {"order": "lists", "cells": "lists"}
    return [
        {"name": name, "kind": kinds.get(name, "scores"), "path": str(folder / f"{name}.parquet")}
        for name in tables
    ]


def measure(shown: pd.DataFrame, scores: pd.DataFrame) -> dict[str, float]:
    """MIND's numbers, impression by impression; equal scores by id."""
    values: dict[str, list[float]] = {"auc": [], "mrr": [], "ndcg": []}
    both = shown.merge(scores, left_on=["impression", "item_id"], right_on=["query_id", "item_id"])
    for _, one in both.groupby("impression"):
        one = one.sort_values("item_id").sort_values("score", ascending=False, kind="stable")  # noqa: PLW2901
        hit, score = one["clicked"].to_numpy() == "1", one["score"].to_numpy()
        discount = 1 / np.log2(np.arange(len(hit)) + 2)
        values["ndcg"].append((hit * discount)[:5].sum() / discount[: min(hit.sum(), 5)].sum())
        values["mrr"].append(1 / (1 + hit.argmax()) if hit[:5].any() else 0.0)
        pairs = np.sign(score[hit][:, None] - score[~hit])
        values["auc"].append(float((pairs + 1).mean() / 2) if pairs.size else np.nan)
    return {name: float(np.nanmean(column)) for name, column in values.items()}


@pytest.mark.full
def test_impressions_from_the_file_to_the_board(tmp_path: Path) -> None:
    write_behaviors(tmp_path / "behaviors.tsv")
    log, shown = explode(tmp_path / "behaviors.tsv")
    log.to_parquet(tmp_path / "log.parquet")
    dataset = {"name": "mind", "reader": "parquet", "path": str(tmp_path / "log.parquet")}
    file = {
        "name": "impressions",
        "dataset": {**dataset, "query": "impression", "columns": {"part": "part"}},
        "split": {"holdout": "given", "repeats": "keep"},
        "models": write_scores(tmp_path, shown),
        "evaluation": {
            "metrics": ["ndcg", "mrr", "auc"], "k": [5], "bootstrap": {"replicates": 20},
            "slices": [], "definition": {"candidates": "all", "weigh": "rows"},
        },
    }  # fmt: skip
    made = run(ArrowStore(str(tmp_path / "warehouse")), parse(Benchmark, file, "impressions"))
    facts = {(row.part, row.fact): row.value for row in read_rows(made.store, MANIFESTS)}
    assert facts["test", "questions"] == shown["impression"].nunique() == 60
    models = {row.run_id: row.model for row in read_rows(made.store, RUNS)}
    rows = [row for row in read_rows(made.store, METRICS) if row.slice_key is None]
    values = {
        (models[row.run_id], row.metric): row.value
        for row in rows
        if row.k == (None if row.metric == "auc" else 5)
    }
    for name in ("ctr", "arrays", "guess"):
        scores = pd.read_parquet(tmp_path / f"{'guess' if name == 'guess' else 'ctr'}.parquet")
        wanted = measure(shown, scores[["query_id", "item_id", "score"]])
        assert {metric: values[name, metric] for metric in wanted} == pytest.approx(wanted, abs=1e-12)
    assert values["ctr", "ndcg"] > values["guess", "ndcg"]
    for metric in ("ndcg", "mrr", "auc"):
        assert values["order", metric] == values["cells", metric]
        assert metric == "auc" or values["order", metric] == values["ctr", metric]
    board = re.findall(r"^~? +(\d)  (\w+) +(0\.\d{4})", made.outcome.leaderboard, re.MULTILINE)
    best, guess = (f"{values[name, 'ndcg']:.4f}" for name in ("ctr", "guess"))
    assert board == [
        *(("1", name, best) for name in ("arrays", "cells", "ctr", "order")),
        ("5", "guess", guess),
    ]
