"""Metrics of groups, serendipity and diversity by category against WarpRec and RecTools."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from recbench_spark.metrics.kernels.item_groups import GROUP_METRICS, KINDS, GroupCounts, count_groups
from recbench_spark.metrics.kernels.user_lists import USER_METRICS, CountedItems, UserLists
from recbench_spark.ranking.known_items import order_popularity
from tests.libraries.inputs import KS, Input
from tests.libraries.test_presets import answers, draw_input

INPUTS = 1000


class Labels:
    """Groups of items by a table of zeros and ones, (i, g)."""

    def __init__(self, table: Any) -> None:
        self.table = np.asarray(table)
        self.sizes_g = self.table.sum(axis=0).astype(float)

    def label(self, items: CountedItems) -> Any:
        entry, group = np.nonzero(self.table[items.item_n])
        return entry, group, np.ones(len(entry))


def read_lists(given: Input, counts: Any) -> tuple[list[str], UserLists]:
    users = sorted(given["lists"], key=int)
    train = [given["train"][u] for u in users]
    shown = [[i for i, _ in given["lists"][u] if i not in given["train"][u]] for u in users]
    truth = [[i for i, _ in given["truth"].get(u, [])] for u in users]
    hits = [i in own for items, own in zip(shown, truth, strict=True) for i in items]

    def join(rows: list[list[int]]) -> CountedItems:
        items = np.array([i for row in rows for i in row], np.int64)
        return CountedItems(np.cumsum([0, *map(len, rows)]), items, counts[items])

    return users, UserLists(
        join(shown), np.array(hits, bool), join(truth), join(train), join(train), None, users=1, head=1,
        n_items=given["items"], open_popularity=lambda: order_popularity(counts),
    )  # fmt: skip


def add_tables(given: Input, seed: int) -> None:
    """Clusters from 1, up to three features, longer histories and what others had."""
    draw = np.random.default_rng(seed)
    given["clusters"] = draw.integers(1, 5, given["items"]).tolist()
    given["features"] = [[1, *draw.integers(0, 2, 3).tolist()] for _ in range(given["items"])]
    given["before"] = [[str(n), int(i)] for n in range(30) for i in draw.choice(given["items"], 4, False)]


@pytest.mark.slow
def test_a_thousand_inputs_have_the_groups_of_warprec() -> None:
    """It puts 0 for a disparity without a history, where we have no value."""
    inputs = [draw_input("warprec", n, users=8) for n in range(INPUTS)]
    for n, given in enumerate(inputs):
        add_tables(given, n)
        draw = np.random.default_rng(n)
        for user in given["lists"]:
            own = {item for item, _ in given["truth"].get(user, [])}
            given["train"][user] = [
                i for i in draw.permutation(given["items"])[:6].tolist() if i not in own
            ]
    theirs = answers("warprec", "\n".join(map(json.dumps, inputs)))
    for given, actual in zip(inputs, theirs, strict=True):
        values = actual["results"][0]["values"]
        mine = measure_groups(given)
        assert {*mine} <= {*values}
        for name, value in mine.items():
            if not (name.startswith("BiasDisparityBD") and np.isnan(value)):
                assert value == pytest.approx(values[name], abs=1e-6, rel=1e-6, nan_ok=True), name


def measure_groups(given: Input) -> dict[str, float]:
    _, lists = read_lists(given, np.ones(given["items"], np.int64))
    clusters = np.eye(max(given["clusters"]), dtype=int)[np.array(given["clusters"]) - 1]
    kinds = [kind for kind in KINDS if not kind.endswith("_share")]
    counts = count_groups(lists, Labels(clusters), kinds, KS)
    means = GroupCounts(**{kind: one.mean(axis=0) for kind, one in counts.items()})
    subtopics = USER_METRICS["subtopic_recall"].measure(lists, Labels(given["features"]), KS)
    numbers: dict[str, Any] = {"REO": GROUP_METRICS["reo"].measure(means)}
    numbers |= {"RSP": GROUP_METRICS["rsp"].measure(means), "SRecall": np.nanmean(subtopics, axis=0)}
    for g, column in enumerate(GROUP_METRICS["bias_disparity"].measure(means).T, 1):
        numbers[f"BiasDisparityBD_UC1_IC{g}"] = column
    return {f"{name}@{k}": float(v) for name, row in numbers.items() for k, v in zip(KS, row, strict=True)}


@pytest.mark.slow
def test_a_thousand_inputs_have_serendipity_and_diversity_of_rectools() -> None:
    """It has a diversity of 0 for one entry, where we have no value."""
    inputs = [draw_input("rectools", n, users=8) for n in range(INPUTS)]
    for n, given in enumerate(inputs):
        add_tables(given, n)
    theirs = answers("rectools", "\n".join(map(json.dumps, inputs)))
    for given, actual in zip(inputs, theirs, strict=True):
        had = np.bincount([item for _, item in given["before"]], minlength=given["items"])
        users, lists = read_lists(given, had)
        values = actual["results"][0]["values"]
        for name in ("serendipity", "category_diversity"):
            table = USER_METRICS[name].measure(lists, Labels(given["features"]), KS)
            for user, row in zip(users, table, strict=True):
                for k, value in zip(KS, row, strict=True):
                    expected = values[f"{name}@{k}@{user}"]
                    assert (np.isnan(value) and expected == 0) or value == pytest.approx(expected, abs=1e-9)
