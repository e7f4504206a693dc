"""Compute the share of worlds each model wins.

There is a share against each other model.
"""

from __future__ import annotations

import pandas as pd

from recbench_spark.reports.facts import MultiverseFacts, PairFacts
from recbench_spark.reports.frame_values import PART_ORDER, order_index


def make_multiverse(pairs: pd.DataFrame) -> tuple[MultiverseFacts, ...]:
    """Return the shares by part, from rows of `multiverse_pairs`."""
    parts = sorted(pairs.part.unique(), key=lambda part: order_index(part, PART_ORDER))
    return tuple(_make_part_multiverse(part, pairs[pairs.part == part]) for part in parts)


def _make_part_multiverse(part: str, pairs: pd.DataFrame) -> MultiverseFacts:
    """Return a part's shares over all protocols.

    Models are sorted by the worlds they win.
    """
    counted = pairs.astype({"won": float, "worlds": float})
    counted["share"] = counted.won / counted.worlds
    wins = counted.groupby("model").won.sum().sort_values(ascending=False, kind="stable")
    models = tuple(wins.index)
    grouped = counted.groupby(["model", "other"]).agg(
        won=("won", "sum"), worlds=("worlds", "sum"), low=("share", "min"), high=("share", "max")
    )
    grouped["share"] = grouped.won / grouped.worlds

    def matrix(column: str) -> tuple[tuple[float | None, ...], ...]:
        shares = grouped[column].to_dict()
        return tuple(tuple(shares.get((model, other)) for other in models) for model in models)

    return MultiverseFacts(
        part, models, matrix("share"), matrix("low"), matrix("high"),
        int(grouped.worlds.max()), counted.suite.nunique(),
    )  # fmt: skip


def make_pairs(pairs: pd.DataFrame) -> tuple[PairFacts, ...]:
    """Return each pair's share in each suite, least certain first."""
    counted = pairs[pairs.model < pairs.other].astype({"won": float, "worlds": float})
    facts = [
        _make_pair(str(part), str(model), str(other), rows)
        for (part, model, other), rows in counted.groupby(["part", "model", "other"])
    ]
    return tuple(sorted(facts, key=lambda pair: (abs(pair.share - 0.5), pair.part, pair.model, pair.other)))


def _make_pair(part: str, model: str, other: str, rows: pd.DataFrame) -> PairFacts:
    sums = rows.groupby("suite")[["won", "worlds"]].sum()
    by_protocol = tuple((str(suite), row.won / row.worlds) for suite, row in sums.iterrows())
    return PairFacts(part, model, other, rows.won.sum() / rows.worlds.sum(), by_protocol)
