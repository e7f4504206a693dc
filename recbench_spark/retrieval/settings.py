"""Settings for item indexes, one class per kind."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from recbench_spark.core.revisions import select_revisions
from recbench_spark.core.strict_settings import Count, Name, Seed, Strict, digest

MOST_CELLS = 2**20


class IndexSettings(Strict):
    """Settings shared by all kinds.

    `name`: the index in tables and reports; a model's run is `model.name`. `index_parts`: so many indexes
    divide the catalogue, and their candidates are joined. It changes what an approximate index finds, and
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
    """Cells around centroids; a query searches the nearest ones.

    The index is faiss's IndexIVFFlat.

    `cells`: number of centroids, or `auto`: 4 sqrt(items in a partition), at least one. `probes`: cells
    searched by a query. `sample`: items for training centroids, chosen by a hash of the item's place.
    """

    kind: Literal["ivf"]
    """`ivf`: cells around centroids."""
    cells: Annotated[int, Field(ge=1, le=MOST_CELLS)] | Literal["auto"] = "auto"
    probes: Count = 8
    sample: Count = 100_000


class GraphIndexSettings(IndexSettings):
    """A near-neighbour graph in layers (Malkov and Yashunin 2018).

    The index is faiss's IndexHNSWFlat.

    `links`: neighbours per item and layer. `built_with`: candidates while an item is added. `candidates`:
    candidates in a search, at least the length of the list.
    """

    kind: Literal["hnsw"]
    """`hnsw`: a layered graph of near neighbours."""
    links: Annotated[int, Field(ge=2, le=256)] = 32
    built_with: Count = 40
    candidates: Count = 64


class HashIndexSettings(IndexSettings):
    """Random-projection bands with a threshold on equal bands (Weak-AND).

    `bands` have `bits` bits each. `theta`: an item is a candidate if so many bands agree. `always`: share
    of items, the longest vectors, which are candidates for every query, because a sign does not see a
    length. Set it to 0 for cosines. `largest_bucket`: most items per band and token; others are left out
    and counted. `first_level`: two ways to the same candidates, or `auto`, the faster way on a sample.
    """

    kind: Literal["lsh"]
    """`lsh`: bands of signed random projections."""
    bands: Annotated[int, Field(ge=1, le=1024)] = 20
    """Number of bands."""
    bits: Annotated[int, Field(ge=1, le=63)] = 12
    """Bits in a band: signs of random projections."""
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
    """Nearest neighbours for all graph nodes, from `recbench embed --nearest`.

    `count`: nodes in a list. `index`: the index to search; `flat` gives exact lists. `similarity`: cosine,
    or the product of the vectors. `side`: only nodes on this side get lists, and only of each other; by
    default each side does.
    """

    count: Annotated[int, Field(ge=1, le=10_000)]
    index: AnyIndexSettings = FlatIndexSettings(name="flat", kind="flat")
    similarity: Literal["cosine", "dot"] = "cosine"
    side: Name | None = None

    def key(self, model_id: str) -> str:
        """Return a hash over everything the lists depend on."""
        index = self.index.model_dump(exclude={"name", "first_level"})
        revision = select_revisions("nearest_nodes").values()
        return digest("nearest", model_id, self.count, index, self.similarity, self.side, *revision)


class Retrieval(Strict):
    """Indexes to measure as extra runs, each named `model.index`.

    `models`: models in the file which have item vectors. `indexes`: settings of the indexes. `length`:
    items in a list, at least the largest cut-off. Lists through `flat` are exact lists at the same length.
    `recall`: for each model, the report names the fastest index with this recall on the part valid.
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
