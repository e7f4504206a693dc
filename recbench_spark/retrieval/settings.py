"""Kinds of indexes by which a product finds items, and their settings."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from recbench_spark.core.revisions import select_revisions
from recbench_spark.core.strict_settings import Count, Name, Seed, Strict, digest

MOST_CELLS = 2**20


class IndexSettings(Strict):
    """Settings that all kinds share.

    `name`: the index in tables and reports; a model's run is `model.name`. `index_parts`: the catalogue is
    cut into so many indexes, whose candidates are joined; it changes what an approximate index finds, and
    enters its name. `seed`: draws of the index.
    """

    name: Name
    index_parts: Count = 1
    seed: Seed = 42


class FlatIndexSettings(IndexSettings):
    """All items are compared: the list is exact."""

    kind: Literal["flat"]
    """`flat`: the exact index."""


class InvertedIndexSettings(IndexSettings):
    """Cells around centroids; a query looks into the nearest of them (faiss, IndexIVFFlat).

    `cells`: number of centroids, or `auto`: 4 sqrt(items of a part), at least one. `probes`: cells that a
    query looks into. `sample`: items that centroids are trained on, chosen by a hash of the item's place.
    """

    kind: Literal["ivf"]
    """`ivf`: cells around centroids."""
    cells: Annotated[int, Field(ge=1, le=MOST_CELLS)] | Literal["auto"] = "auto"
    probes: Count = 8
    sample: Count = 100_000


class GraphIndexSettings(IndexSettings):
    """A graph of near neighbours in layers (faiss, IndexHNSWFlat; Malkov and Yashunin 2018).

    `links`: neighbours of an item in a layer; `built_with`: candidates while an item is added;
    `candidates`: candidates of a search, at least the length of the list.
    """

    kind: Literal["hnsw"]
    """`hnsw`: a graph of near neighbours."""
    links: Annotated[int, Field(ge=2, le=256)] = 32
    built_with: Count = 40
    candidates: Count = 64


class HashIndexSettings(IndexSettings):
    """Bands of signed random projections and a threshold of equal bands (Weak-AND).

    `bands` of `bits` bits; `theta`: an item is a candidate if so many bands agree. `always`: share of the
    items, the longest vectors, that are candidates of each query: a sign does not see a length. Set it to
    0 for cosines. `largest_bucket`: items of one band and token beyond it are left out, and counted.
    `first_level`: two ways that find the same candidates; `auto` takes the faster one of a sample.
    """

    kind: Literal["lsh"]
    """`lsh`: bands of signed random projections."""
    bands: Annotated[int, Field(ge=1, le=1024)] = 20
    """Number of bands of bits."""
    bits: Annotated[int, Field(ge=1, le=63)] = 12
    """Bits of a band: signs of random projections."""
    theta: Annotated[float, Field(gt=0.0)] = 2.0
    always: Annotated[float, Field(ge=0.0, le=1.0)] = 0.05
    largest_bucket: Count = 100_000
    first_level: Literal["auto", "counting", "pivots"] = "auto"

    @model_validator(mode="after")
    def _check_theta(self) -> HashIndexSettings:
        if self.theta > self.bands:
            raise ValueError(
                f"theta {self.theta:g} is more than {self.bands} bands: no item is a candidate"
            )
        return self


AnyIndexSettings = Annotated[
    FlatIndexSettings | InvertedIndexSettings | GraphIndexSettings | HashIndexSettings,
    Field(discriminator="kind"),
]


class NearestNodes(Strict):
    """The nearest nodes of every node of a graph, as `recbench embed --nearest` finds them.

    `count`: nodes of a list. `index`: the index that finds them; `flat` gives the exact lists.
    `similarity`: cosine, or the product of the vectors. `side`: the side whose nodes get lists, of nodes of
    the same side; by default each side.
    """

    count: Annotated[int, Field(ge=1, le=10_000)]
    index: AnyIndexSettings = FlatIndexSettings(name="flat", kind="flat")
    similarity: Literal["cosine", "dot"] = "cosine"
    side: Name | None = None

    def key(self, model_id: str) -> str:
        """Return a hash of everything that the lists depend on."""
        index = self.index.model_dump(exclude={"name", "first_level"})
        revision = select_revisions("nearest_nodes").values()
        return digest("nearest", model_id, self.count, index, self.similarity, self.side, *revision)


class Retrieval(Strict):
    """Indexes through which models of the file are also measured, each as a run of its own: `model.index`.

    `models`: models of the file with vectors of items. `indexes`: settings of the indexes. `length`: items
    of a list, at least the largest cut-off. Lists through `flat` are the exact lists of the same length.
    `recall`: the report names, for each model, the fastest index with this recall on the part valid.
    """

    models: tuple[Name, ...] = Field(min_length=1)
    indexes: tuple[AnyIndexSettings, ...] = Field(min_length=1)
    length: Annotated[int, Field(ge=1, le=10_000)] = 100
    recall: Annotated[float, Field(gt=0, le=1)] | None = None

    @model_validator(mode="after")
    def _check_names(self) -> Retrieval:
        names = [index.name for index in self.indexes]
        if len(set(names)) < len(names):
            raise ValueError("indexes: give each index a name of its own")
        return self
