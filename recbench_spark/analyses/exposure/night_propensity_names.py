"""Logs that propensities are fitted to, and names of propensities in tables. Without Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from recbench_spark.config import Propensities, digest
from recbench_spark.core.revisions import select_revisions
from recbench_spark.sources.opened_logs import choose_identity
from recbench_spark.storage.blocks import Rows
from recbench_spark.storage.file_tables import FileTables

SEED = 42
"""Seed of the simulated laws behind the goodness of fit, and of the cells drawn for logistic regression."""


@dataclass(frozen=True)
class ExposureLog:
    """Rows that propensities are fitted to.

    Attributes:
        store: the warehouse.
        split_id: name of the rows in the tables.
        rows: user_id, item_id, rating, part.
        parts: the parts that are fitted to; empty: all rows.
        items: the catalogue; None: the items that have rows.
        sample: part with ratings of items drawn at random, for naive Bayes.
    """

    store: FileTables
    split_id: str
    rows: Rows
    parts: tuple[str, ...] = ()
    items: Rows | None = None
    sample: str = ""


def method_name(store: FileTables, settings: Propensities) -> str:
    """Return the value of the column `method`: the settings, and a hash of the tables that they name.

    The hash holds the revision of a method that reads tables.
    """
    paths = [settings.path, settings.item_features, settings.user_features]
    identities: list[Any] = [choose_identity(store)(path) for path in paths if path]
    if not identities:
        return settings.name
    revised = select_revisions(settings.method)
    return f"{settings.name};content={digest([*identities, *([revised] if revised else [])], length=8)}"
