"""Settings of graph models: `graph`, `pinsage` and `graphsage`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from recbench_spark.core.strict_settings import Count
from recbench_spark.graphs.settings import Features, GraphLayers, LayerSettings, Width
from recbench_spark.models.networks.settings import FittedModel
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

    adapter: ClassVar[str] = "graph_models:GraphNetAdapter"
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


class FittedLayers(FittedModel):
    """Settings for equal graph layers and their training.

    `neighbour_dropout`: the probability of an item losing its neighbours in a minibatch, in any of the
    layers. Without it training never includes an item without edges, and such items get poor vectors.
    """

    # A new default changes the results: raise the revisions `graphsage` and `pinsage` with it.
    added_later: ClassVar[frozenset[str]] = FittedModel.added_later | {"neighbour_dropout"}

    features: Features = Features(kind="hashed")
    """Features of items before the first layer."""
    depth: Annotated[int, Field(ge=1, le=8)] = 2
    """Number of layers."""
    width: Width = 64
    """Length of a node's vector after each layer."""
    hidden: Width = 64
    """Length of a neighbour's vector before pooling."""
    join: Literal["concat", "add"] = "concat"
    """Join of a node's own vector and the pooled one: side by side, or their sum."""
    negatives: Annotated[int, Field(ge=1, le=1 << 20)] = 500
    """Random items which a minibatch shares as negatives."""
    batch: Count = 512
    neighbour_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.02
    similarity: Literal["dot", "cosine"] = "dot"
    """Score of a pair: the product of the vectors, or their cosine."""

    def make_layers(self, form: Literal["convolve", "sage"], aggregator: str) -> tuple[LayerSettings, ...]:
        """Return the layers' settings as a graph model takes them."""
        one = {"form": form, "aggregator": aggregator, "width": self.width, "hidden": self.hidden}
        return (LayerSettings.model_validate({**one, "join": self.join}),) * self.depth


class PinSageModel(FittedLayers):
    """PinSage over items linked by random walks (Ying et al. 2018).

    A user is the mean of its items. A neighbourhood has the `top` items most visited by `walks` walks with
    `hops` hops (`recbench neighbourhoods`). Pairs join each of a user's items with the `pairs` next ones in
    an order by hash.

    `curriculum`: epoch n has n - 1 hard negatives for each pair, with `hard_ranks` by personalised
    PageRank. `per_pair`: negatives are not shared.
    """

    adapter: ClassVar[str] = "trained_graphs:PinSageAdapter"
    paths: ClassVar[tuple[str, ...]] = ("features.path",)
    kind: Literal["pinsage"]
    aggregator: Literal["importance", "mean", "max", "sum"] = "importance"
    """Function which pools the neighbours; `importance` weights them by walk visits."""
    final: tuple[Width, ...] = (64,)
    """Widths of the dense layers at the end."""
    top: Annotated[int, Field(ge=1, le=1 << 12)] = 50
    """Items in a neighbourhood."""
    walks: Annotated[int, Field(ge=1, le=1 << 20)] = 200
    """Random walks from each item."""
    hops: Annotated[int, Field(ge=1, le=1 << 10)] = 5
    """Hops in a walk."""
    restart: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Chance of a walk returning to its start after a hop."""
    pairs: Annotated[int, Field(ge=1, le=1000)] = 2
    """Pairs per item of a user: with the next ones in an order by hash."""
    margin: Annotated[float, Field(ge=0)] = 0.1
    """Margin of the loss by which a pair must beat a negative."""
    curriculum: bool = False
    per_pair: bool = False
    hard_ranks: tuple[Count, Count] = (2000, 5000)
    """First and last rank of the hard negatives by personalised PageRank, for `curriculum`."""

    @model_validator(mode="after")
    def _check_ranks(self) -> PinSageModel:
        low, high = self.hard_ranks
        if low >= high:
            raise ValueError(f"hard_ranks: {low} to {high} is not a band, e.g. [2000, 5000]")
        return self

    @model_validator(mode="after")
    def _check_side(self) -> PinSageModel:
        if self.features.side not in (None, "item"):
            raise ValueError(f"features.side: {self.features.side}, and items are the only nodes")
        return self

    def over(self, weights: str | None) -> GraphLayers:
        """Return the layers over the neighbourhoods."""
        layers = self.make_layers("convolve", self.aggregator)
        features = self.features.model_copy(update={"side": None})  # items are the only nodes
        return GraphLayers(
            features=features, layers=layers, final=self.final, seed=self.seed, weights=weights
        )


class GraphSageModel(FittedLayers):
    """GraphSAGE without labels (Hamilton et al. 2017).

    Users are near their items and far from random ones.

    `samples`: neighbours drawn in each layer, the first layer first, anew for each minibatch. The final
    vectors use all neighbours. `weight`: Q, the negative items' weight in the loss. `final`: dense layers
    at the end. Without one the vectors end in a ReLU, and most products of two are 0. `neighbour_dropout`
    is off by default, because it costs items with edges more than 1 % of their hit rate
    (docs/how_to/graph_models.md).
    """

    adapter: ClassVar[str] = "trained_graphs:GraphSageAdapter"
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
