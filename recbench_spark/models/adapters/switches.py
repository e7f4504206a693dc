"""Models which switch between two others; nothing is fitted here.

See `night.switches`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from recbench_spark.config import SwitchModel
from recbench_spark.core.checks import Check
from recbench_spark.errors import ConfigError
from recbench_spark.models.adapters.model_adapter import ModelAdapter, SplitData, Trained
from recbench_spark.ranking.inputs import RankingInput


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
