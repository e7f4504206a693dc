"""The section `models`: one class a kind."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, field_validator

from recbench_spark.config.base import INT, Count, Location, Name, Seed, Strict
from recbench_spark.definitions import range_of


class Provenance(Strict):
    """Who ran it, where a figure is from, what was searched."""

    source: Literal["own", "baseline", "rerun", "published"] = "baseline"
    ran_by: str | None = None
    year: Annotated[int, Field(ge=1990, le=2100)] | None = None
    search_space: dict[str, tuple[float, ...]] = {}
    budget: str | None = None


class _Model(Strict):
    name: Name
    version: str = "1"
    provenance: Provenance = Provenance()


class RandomModel(_Model):
    """Every (user, item) a uniform score by hash."""

    kind: Literal["random"]
    seed: Seed = 42


class PopularModel(_Model):
    """Training interactions of the item."""

    kind: Literal["popular"]


class ItemKnnModel(_Model):
    """Cosine item-kNN: each item i keeps its most similar items j, whose presence in a history counts.

    `scores: sum` is sum_j s_ij r_uj with the cosines s_ij as they are. `centred_mean` scales an item's
    similarities to sum to 1 and is mean_i + sum_j s_ij (r_uj - mean_j): r_uj is 1 for a relevant
    training row and 0 else, mean_i the mean of that column over all users, so popularity counts.
    """

    kind: Literal["item_knn"]
    scores: Literal["sum", "centred_mean"] = "sum"
    neighbours: Count = 100
    max_history: Annotated[int, Field(ge=2, le=INT)] = 1000


class AlsModel(_Model):
    """Spark MLlib's alternating least squares."""

    kind: Literal["als"]
    rank: Annotated[int, Field(ge=1, le=2048)] = 32
    iterations: Annotated[int, Field(ge=1, le=10_000)] = 10
    regularization: Annotated[float, Field(ge=0)] = 0.05
    alpha: Annotated[float, Field(ge=0)] = 1.0
    implicit: bool = True
    seed: Seed = 42


class TruthModel(_Model):
    """The generated world's true factors, which know no noise of ratings."""

    kind: Literal["truth"]


class EmbeddingsModel(_Model):
    """Vectors another system made: (user_id, vector[, bias]) and (item_id, vector[, bias])."""

    kind: Literal["embeddings"]
    users: Location
    items: Location
    similarity: Literal["dot", "cosine"] = "dot"


class ScoresModel(_Model):
    """A table (user_id, item_id, score) another system made."""

    kind: Literal["scores"]
    path: Location


class ListsModel(_Model):
    """Ranked lists (user_id, item_id, rank or score) another system made."""

    kind: Literal["lists"]
    path: Location


class PublishedModel(_Model):
    """Figures from a publication, kept beside our own: `ndcg@10: 0.31` or `rmse: 0.77`.

    A figure is a number that its metric can take (`definitions.RANGES`): 17.0 per cent is 0.17.
    """

    kind: Literal["published"]
    figures: dict[str, float]

    @field_validator("figures")
    @classmethod
    def _possible(cls, figures: dict[str, float]) -> dict[str, float]:
        for figure, value in figures.items():
            low, high = range_of(figure)
            if not (math.isfinite(value) and low <= value <= high):
                raise ValueError(f"{figure}: {value:g} is no value of it: it lies in {low:g} to {high:g}")
        return figures


Model = Annotated[
    RandomModel
    | PopularModel
    | ItemKnnModel
    | AlsModel
    | TruthModel
    | EmbeddingsModel
    | ScoresModel
    | ListsModel
    | PublishedModel,
    Field(discriminator="kind"),
]
