"""Factors smoothed over the graph of users and items: the settings of `kind: lightgcn`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from recbench_spark.models.networks.settings import FactorModelConfig


class LightGcnModel(FactorModelConfig):
    """LightGCN (He et al. 2020): MF-BPR over the mean of 0 to `layers` normalised sums over neighbours.

    The whole graph is smoothed in each minibatch: larger ones take fewer of these.
    """

    kind: Literal["lightgcn"]
    layers: Annotated[int, Field(ge=1, le=16)] = 3
