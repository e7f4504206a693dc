"""Collect spreads over users, gaps between groups, and fronts for reports."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from recbench_spark.reports.frame_values import PART_ORDER, is_missing, order_key

Record = Mapping[str, Any]
"""Row of a table, None for NULL."""


@dataclass(frozen=True)
class UserFacts:
    """Spread of the headline's values over users of a part.

    Rows of `user_spreads`, the best worst tenth first, and of `group_gaps` and `preferences`, by model.
    """

    part: str
    measure: str
    spreads: tuple[Record, ...]
    gaps: tuple[Record, ...]
    preferences: tuple[Record, ...]

    @property
    def curves(self) -> tuple[Record, ...]:
        """Models with a Lorenz curve."""
        return tuple(row for row in self.spreads if row["lorenz"] is not None)


@dataclass(frozen=True)
class FrontFacts:
    """Front of a part: rows of `fronts`, the largest contribution first."""

    part: str
    front: str
    rows: tuple[Record, ...]

    @property
    def figures(self) -> tuple[str, ...]:
        """The figures in order."""
        return tuple(self.rows[0]["figures"])


@dataclass(frozen=True)
class BeyondMeans:
    """Sections on users and on several figures, where the file asks for them."""

    users: tuple[UserFacts, ...] = ()
    fronts: tuple[FrontFacts, ...] = ()


def make_user_facts(tables: Sequence[pd.DataFrame], measure: str) -> tuple[UserFacts, ...]:
    """Collect the headline's spreads, gaps and preferences by part.

    Args:
        tables: the night's rows of `user_spreads` and `group_gaps`, of the headline, and of `preferences`.
        measure: the headline's name.
    """
    listed = [list_newest(rows) for rows in tables]
    parts = sorted({row["part"] for row in listed[0]}, key=lambda part: order_key(part, PART_ORDER))
    facts = []
    for part in parts:
        users, groups, preferred = ([row for row in rows if row["part"] == part] for rows in listed)
        users.sort(key=lambda row: (-(row["worst_tenth"] or 0.0), row["zeros"], row["model"]))
        groups.sort(key=lambda row: (row["slice_key"], row["model"]))
        preferred.sort(key=lambda row: (row["measure"], -(row["value"] or 0.0), row["model"]))
        facts.append(UserFacts(part, measure, tuple(users), tuple(groups), tuple(preferred)))
    return tuple(facts)


def make_fronts(rows: pd.DataFrame) -> tuple[FrontFacts, ...]:
    """Collect fronts by part, the models with the largest contribution first."""
    fronts: dict[tuple[str, str], list[Record]] = {}
    for row in list_newest(rows):
        fronts.setdefault((row["part"], row["front"]), []).append(row)
    keys = sorted(fronts, key=lambda key: (*order_key(key[0], PART_ORDER), key[1]))
    return tuple(FrontFacts(*key, tuple(sorted(fronts[key], key=_order_models))) for key in keys)


def _order_models(row: Record) -> tuple[bool, float, str]:
    return not row["on_front"], -row["contribution"], row["model"]


def list_newest(rows: pd.DataFrame) -> list[Record]:
    """List the rows of the newest comparison, NULL as None."""
    records: list[Record] = [
        {
            str(name): None if not hasattr(value, "__len__") and is_missing(value) else value
            for name, value in row.items()
        }
        for row in rows.to_dict("records")
    ]
    last = max((row["compared_at"] for row in records), default=math.nan)
    return [row for row in records if row["compared_at"] == last]
