"""Means of users and items as a model of a night: a sum a user and item, on the cluster."""

from __future__ import annotations

from typing import Literal

from recbench_spark.config.models import ModelConfig
from recbench_spark.models.rating.means import MeansSettings


class MeansModel(MeansSettings, ModelConfig):
    """r_ui = mu + b_i + b_u, means of items and users, shrunk: the settings of `rating.means`.

    A night fits it on the cluster (`training.means`); among many fits it is one task like the others.
    """

    kind: Literal["means"]
