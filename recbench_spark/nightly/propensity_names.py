"""Names of propensities in the table `propensities`. Without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recbench_spark.config import Propensities, digest
from recbench_spark.nightly.split import choose_identity

if TYPE_CHECKING:
    from recbench_spark.storage.arrow_store import AnyStore


def method_name(store: AnyStore, settings: Propensities) -> str:
    """Return the value of the column `method`: the settings, and hashes of the tables that they name."""
    paths = [settings.path, settings.item_features, settings.user_features]
    identities = [choose_identity(store)(path) for path in paths if path]
    return f"{settings.name};content={digest(identities, length=8)}" if identities else settings.name
