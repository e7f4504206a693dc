"""Settings of `kind: graphsage`: GraphSAGE on the user-item graph."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from recbench_spark.graphs.settings import GraphLayers, Width
from recbench_spark.models.graph import SIDES
from recbench_spark.models.pinsage import FittedLayers


class GraphSageModel(FittedLayers):
    """GraphSAGE without labels (Hamilton et al. 2017).

    Users are near their items and far from random ones.

    `samples`: neighbours drawn in each layer, the first layer first, anew for each minibatch. The final
    vectors use all neighbours. `weight`: Q, the negative items' weight in the loss. `final`: dense layers
    at the end. Without one the vectors end in a ReLU, and most products of two are 0. `neighbour_dropout`
    is off by default, because it costs items with edges more than 1 % of their hit rate
    (docs/how_to/graph_models.md).
    """

    paths: ClassVar[tuple[str, ...]] = ("features.path",)
    kind: Literal["graphsage"]
    aggregator: Literal["mean", "max", "gcn", "lstm"] = "mean"
    """Function which pools the neighbours' vectors."""
    samples: tuple[Annotated[int, Field(ge=1, le=10_000)], ...] = ()
    final: tuple[Width, ...] = (64,)
    weight: Annotated[float, Field(ge=0)] = 1.0
    neighbour_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0

    @model_validator(mode="after")
    def _check_samples(self) -> GraphSageModel:
        if self.samples and len(self.samples) != self.depth:
            raise ValueError(
                f"samples: {len(self.samples)} sizes, and depth is {self.depth}: one per layer"
            )
        return self

    @model_validator(mode="after")
    def _require_two_sides(self) -> GraphSageModel:
        self.over(None).check_sides(SIDES)
        return self

    def over(self, weights: str | None) -> GraphLayers:
        """Return the layers over the split's graph."""
        layers = self.make_layers("sage", self.aggregator)
        return GraphLayers(
            features=self.features, layers=layers, final=self.final, seed=self.seed, weights=weights
        )
