"""Settings of `kind: means`: user and item means on the cluster."""

from __future__ import annotations

from typing import ClassVar, Literal

from recbench_spark.models.rating.means import MeansSettings
from recbench_spark.models.settings import ModelConfig


class MeansModel(MeansSettings, ModelConfig):
    """Predicts r_ui = mu + b_i + b_u, with shrunk means.

    The settings are those of `rating.means`. A night fits the model on the cluster
    (`models.adapters.means`). Among many fits it is one task like the others. Items without training rows
    are in no list.
    """

    revised: ClassVar[tuple[str, ...]] = ("trained_items",)
    kind: Literal["means"]
