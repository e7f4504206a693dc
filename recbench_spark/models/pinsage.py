"""Settings of `kind: pinsage`: PinSage trained on items with common users."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from recbench_spark.core.strict_settings import Count
from recbench_spark.graphs.settings import Features, GraphLayers, LayerSettings, Width
from recbench_spark.models.networks.settings import FittedModel


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
