"""Settings of `kind: lightgcn`: factors smoothed over the user-item graph."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from recbench_spark.models.networks.settings import FactorModelConfig


class LightGcnModel(FactorModelConfig):
    """LightGCN (He et al. 2020).

    It is MF-BPR over the mean of 0 to `layers` normalised sums over neighbours. The whole graph is smoothed
    in each minibatch, so fewer and larger minibatches are faster.
    """

    kind: Literal["lightgcn"]
    layers: Annotated[int, Field(ge=1, le=16)] = 3
    """Number of averaged sums over neighbours."""
