"""Logs behind propensities, and propensities' names in tables.

No Spark is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from recbench_spark.config import Propensities, digest
from recbench_spark.core.revisions import select_revisions
from recbench_spark.sources.opened_logs import choose_identity
from recbench_spark.storage.blocks import Rows
from recbench_spark.storage.file_tables import FileTables

SEED = 42
"""Seed for simulated laws behind the goodness of fit, and for cells drawn for logistic regression."""


@dataclass(frozen=True)
class ExposureLog:
    """Rows to fit propensities to.

    Attributes:
        store: the warehouse.
        split_id: the rows' name in the tables.
        rows: user_id, item_id, rating, part.
        parts: the parts to fit to; empty: all rows.
        items: the catalogue; None: the items with rows.
        sample: part with ratings of items drawn at random, for naive Bayes.
    """

    store: FileTables
    split_id: str
    rows: Rows
    parts: tuple[str, ...] = ()
    items: Rows | None = None
    sample: str = ""


def method_name(store: FileTables, settings: Propensities) -> str:
    """Return the value for the column `method`.

    The value names the settings, and a hash of their tables. A method reading tables adds its revision to
    the hash.
    """
    paths = [settings.path, settings.item_features, settings.user_features]
    identities: list[Any] = [choose_identity(store)(path) for path in paths if path]
    if not identities:
        return settings.name
    revised = select_revisions(settings.method)
    return f"{settings.name};content={digest([*identities, *([revised] if revised else [])], length=8)}"
