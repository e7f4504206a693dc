"""Models without learning: popularity, random scores, true factors, switches.

True factors come from the generated world; no model there can be better. A switch has two other models
(see `night.switches`).
"""

from __future__ import annotations

from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.config import PopularModel, RandomModel, SwitchModel, TruthModel
from recbench_spark.core.checks import Check
from recbench_spark.errors import ConfigError
from recbench_spark.models.adapters.model_adapter import ModelAdapter, SplitData, Trained
from recbench_spark.ranking.inputs import RankingInput
from recbench_spark.ranking.sources import HashSource
from recbench_spark.splits.worlds import true_factors
from recbench_spark.storage.blocks import StoredRows
from recbench_spark.storage.shared_arrays import SharedRows


class PopularAdapter(ModelAdapter[PopularModel]):
    """Ranks by popularity: an item's bias counts its training interactions."""

    runs_local: ClassVar[bool] = True
    reads_grades = False
    folds_prefixes: ClassVar[bool] = True

    def fit(self, data: SplitData) -> Trained:
        """Take the counts of items with training rows; see `train_popular`."""
        return train_popular(data.open_items())


def train_popular(items: StoredRows) -> Trained:
    """Return one row per item with training rows.

    The catalogue has the counts (item_id, n_train).
    """
    return Trained(items=items.open(("item_id", "n_train"), score_items, ("item_id", "vector", "bias")))


def score_items(items: pa.Table) -> pa.Table:
    """Return an empty vector and a bias for each trained item.

    `items`: item_id, n_train.
    """
    trained = items.filter(pc.greater(items.column("n_train"), 0))
    ids, counts = (trained.column(name) for name in ("item_id", "n_train"))
    vectors = pa.array([[]], pa.list_(pa.float32())).take(pa.array([0] * len(ids), pa.int32()))
    return pa.table([ids, vectors, counts.cast(pa.float64())], ["item_id", "vector", "bias"])


class RandomAdapter(ModelAdapter[RandomModel]):
    """Ranks by a uniform score per (user, item), drawn by hash."""

    runs_local: ClassVar[bool] = True
    reads_grades = False
    learns: ClassVar[bool] = False
    folds_prefixes: ClassVar[bool] = True

    def load(self, data: SplitData) -> Trained:
        """Return a model without tables: there is nothing to load."""
        return Trained()

    def source(self, trained: Trained, data: SplitData) -> HashSource:
        """Return the source which hashes user and item ids."""
        rows = data.known_items.rows
        return HashSource(SharedRows(f"{rows.key}-ids", rows.files), data.n_items, self.settings.seed)


class TruthAdapter(ModelAdapter[TruthModel]):
    """Ranks by users' true preferences in the generated world."""

    runs_local: ClassVar[bool] = True

    def fit(self, data: SplitData) -> Trained:
        """Return the true factors of users and items."""
        users, items = true_factors(data.store.engine, data.world)
        return Trained(users=users, items=items)


class SwitchAdapter(ModelAdapter[SwitchModel]):
    """Describes a switch, which has values only on learning curves."""

    runs_local: ClassVar[bool] = True
    learns: ClassVar[bool] = False

    def load(self, data: SplitData) -> Trained:
        """Return a model without tables: its two models have theirs."""
        return Trained()

    def describe(self) -> str:
        """Describe the switch in words."""
        settings = self.settings
        pair = (
            f"{settings.first}, then {settings.then}"
            if settings.first
            else "two models that part valid chooses"
        )
        place = (
            "a place that part valid chooses" if settings.at == "auto" else f"{settings.at} given ratings"
        )
        return f"{pair}, with the first one up to {place}"

    def prepare_ranking(self, users: Any, data: SplitData) -> tuple[RankingInput, list[Check]]:
        """Raise ConfigError: only learning curves have a switch's values."""
        raise ConfigError(
            f"model {self.settings.name}: a switch ranks nothing by itself",
            "it is measured where evaluation.learning_curve is set",
        )
