"""Settings of `kind: graph`: embeddings over a split's training graph."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import model_validator

from recbench_spark.graphs.settings import Features, GraphLayers
from recbench_spark.models.settings import ModelConfig

SIDES = ("user", "item")
"""Sides of a split's graph. Messages go both ways."""

DRIFT = (
    "drift_common",
    "drift_cosine_p01",
    "drift_cosine_p10",
    "drift_cosine_p50",
    "drift_neighbours_kept",
)
"""Facts on how far embeddings moved since the night before, by side (`graphs.drift`)."""


class GraphNet(GraphLayers, ModelConfig):
    """Embeds users and items by PinSage or GraphSAGE layers.

    Edges are the rows in part `train`, each once for messages either way. No held-out row is read.

    `weighted`: the ratings are the weights. `features`: the default is hashed ids
    (docs/how_to/graph_embeddings.md). An item (or user) in a feature table without a training row is a node
    without edges and has an embedding. With all other features it has none and is not ranked. `similarity`:
    function of both vectors which gives the score.
    """

    paths: ClassVar[tuple[str, ...]] = ("features.path", "weights")
    facts: ClassVar[tuple[str, ...]] = DRIFT
    kind: Literal["graph"]
    features: Features = Features(kind="hashed")
    mode: Literal["projected", "bipartite"] = "bipartite"
    weighted: bool = False
    similarity: Literal["dot", "cosine"] = "dot"

    @model_validator(mode="after")
    def _require_two_sides(self) -> GraphNet:
        self.check_sides(SIDES)
        return self
