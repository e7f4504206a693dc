"""Describe graphs and embeddings: strict, frozen settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from recbench_spark.core import revisions
from recbench_spark.core.strict_settings import Name, Strict, digest, make_error
from recbench_spark.errors import nearest
from recbench_spark.graphs.kernels.forms import Aggregator, LayerForm

Width = Annotated[int, Field(ge=1, le=8192)]

COLUMNS = {"src": "src", "dst": "dst", "weight": "weight"}
LIST_COLUMNS = {"node": "node", "neighbours": "neighbours", "weights": "weights"}


class GraphSource(Strict):
    """A graph's edges: where they are, how to read them.

    `edges` is a file or folder (CSV, Parquet) or a Delta table with one row per edge; messages go from
    `src` to `dst`, and both ways if `directed` is false. With two `sides` the graph is bipartite: src is
    on the first side, dst on the second, and messages go both ways. `lists`: one row per node with its
    neighbours, as arrays (node, neighbours[, weights]). `columns` maps the standard names to the table's
    columns. `where` keeps the rows with one value in a text column. `nodes`: tables with an id column, by
    side, for nodes that belong to the graph even without an edge.
    """

    edges: str
    format: Literal["csv", "parquet", "delta"] | None = None
    """Table format; None: by the file's name."""
    columns: dict[str, str] = Field(default_factory=dict)
    lists: bool = False
    directed: bool = True
    """Messages go from src to dst alone; false: both ways."""
    sides: Annotated[tuple[Name, ...], Field(min_length=1, max_length=2)] = ("node",)
    """Side names: one, or two for a bipartite graph."""
    weighted: bool = False
    """Edges have a column weight."""
    ids: Literal["auto", "numeric", "text"] = "auto"
    """Read ids as numbers or as text; auto looks at the column."""
    where: dict[str, str] = Field(default_factory=dict)
    partitions: dict[str, str] = Field(default_factory=dict)
    """Partition values to read from a Delta table."""
    nodes: dict[Name, str] = Field(default_factory=dict)
    node_column: str = "id"
    """Id column in the tables of `nodes`."""
    duplicates: Literal["keep", "drop"] = "keep"
    """Keep an edge that stands twice as two, or drop the second one."""
    self_loops: Literal["keep", "drop"] = "keep"
    """Keep or drop edges from a node to itself."""
    bad_rows: Literal["error", "drop"] = "error"
    """Rows without an id: stop with an error, or drop them."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seed for hashing ids."""

    @model_validator(mode="after")
    def _check_graph_source(self) -> GraphSource:
        if len(set(self.sides)) < len(self.sides):
            raise ValueError("sides: two different names")
        if self.lists and len(self.sides) > 1:
            raise ValueError("lists: neighbourhoods are of nodes of one side")
        unknown = set(self.nodes) - set(self.sides)
        if unknown:
            raise ValueError(f"nodes: no side {sorted(unknown)[0]}; sides are {', '.join(self.sides)}")
        known = LIST_COLUMNS if self.lists else COLUMNS
        wrong = set(self.columns) - set(known)
        if wrong:
            name = sorted(wrong)[0]
            raise make_error(f"columns: no column {name}", nearest(name, known))
        sources = [self.column(name_) for name_ in known]
        if len(set(sources)) < len(sources):
            raise ValueError(
                f"columns: {max(sources, key=sources.count)} cannot be two of {', '.join(known)}"
            )
        return self

    @property
    def bipartite(self) -> bool:
        """True where there are two sides."""
        return len(self.sides) == 2

    def column(self, standard: str) -> str:
        """Return the table's name for a standard column."""
        return self.columns.get(standard, standard)


class Features(Strict):
    """Node features before the first layer.

    `path`: a table (id, vector) for the nodes on `side` (bipartite: the second one). `kind`: without a
    table, `degrees` (the number of neighbours), `constant` (1), or `hashed` (`dims` numbers in [-1, 1) by
    id hash).
    """

    path: str | None = None
    side: Name | None = None
    """Side whose nodes are in the table; bipartite: the second one by default."""
    id_column: str = "id"
    """Name of the id column."""
    kind: Literal["table", "degrees", "constant", "hashed"] = "degrees"
    """Source of the features: a table, degrees, a constant, or id hashes."""
    dims: Width = 64
    """Numbers per node, for `hashed`."""
    missing: Literal["error", "zero"] = "error"
    """Nodes missing in the table: stop with an error, or use zeros."""

    @model_validator(mode="after")
    def _check_feature_path(self) -> Features:
        if (self.kind == "table") != (self.path is not None):
            raise ValueError("path belongs to kind: table, and to it alone")
        return self


class LayerSettings(Strict):
    """One layer's settings (see `graphs.kernels.layers`)."""

    form: Literal["convolve", "sage"] = "sage"
    """PinSage's layer (convolve) or GraphSAGE's (sage)."""
    aggregator: Aggregator = "mean"
    """Function that pools the neighbours' vectors."""
    width: Width = 64
    """Numbers per node after the layer."""
    hidden: Width | None = None
    """Numbers per neighbour before pooling; None: the width."""
    join: Literal["concat", "add"] = "concat"
    """Join with a node's own vector: side by side, or their sum."""
    activation: Literal["relu", "none"] = "relu"
    """Function after the layer."""
    normalise: bool = True
    """Scale vectors to length 1 after the layer."""
    neighbours: Annotated[int, Field(ge=1)] = 25
    """Most neighbours to pool."""

    @model_validator(mode="after")
    def _check_aggregator(self) -> LayerSettings:
        if self.form == "convolve" and self.aggregator in ("gcn", "lstm"):
            raise ValueError("convolve pools by sum, mean, importance or max; gcn and lstm are sage's")
        return self

    def layer_form(self) -> LayerForm:
        """Return the settings as the kernels take them."""
        how = (self.join, self.activation == "relu", self.normalise, self.neighbours)
        return LayerForm(self.form, self.aggregator, self.width, self.hidden or self.width, *how)


class GraphLayers(Strict):
    """Settings to compute over a graph, whatever its edges.

    mode `projected`: a layer pools over a node's neighbours (Ying et al. 2018, section 3.2). `bipartite`:
    it pools over neighbours of neighbours, items over boards over items (section 3.4): nodes on the
    second side are embedded, and those on the first side pool them.

    `plan`, `groups` and `batch` change no number and no name.
    """

    features: Features = Features()
    """Node features before the first layer."""
    layers: Annotated[tuple[LayerSettings, ...], Field(min_length=1)] = (LayerSettings(), LayerSettings())
    """Layers, the first one first."""
    final: tuple[Width, ...] = ()
    """Widths of the final dense layers."""
    mode: Literal["projected", "bipartite"] = "projected"
    """`projected` pools over neighbours; `bipartite` over their neighbours."""
    weights: str | None = None
    """File with the layers' weights; None: random ones by `seed`."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 42
    """Seed for random weights."""
    wire: Literal["float16", "float32"] = "float32"
    """Number type between tasks."""
    plan: Literal["auto", "G", "R", "S"] = "auto"
    """Plan by which tasks share the work; no number depends on it."""
    blocks: Annotated[int, Field(ge=1, le=65536)] | None = None
    """Node blocks; None: chosen from the size."""
    groups: Annotated[int, Field(ge=1)] | None = None
    """Block groups to compute in turn; None: chosen from the size."""
    batch: Annotated[int, Field(ge=1)] = 4096
    """Nodes a task computes together."""

    def forms(self) -> tuple[LayerForm, ...]:
        """Return the layers as the kernels take them."""
        return tuple(layer.layer_form() for layer in self.layers)

    def check_sides(self, sides: Sequence[str]) -> None:
        """Check the settings against a graph's sides.

        Raises:
            ValueError: a mode, an aggregator or a feature side does not fit this graph.
        """
        known, bipartite = ", ".join(sides), self.mode == "bipartite"
        if bipartite and len(sides) < 2:
            raise ValueError("mode bipartite: graph.sides must name two sides")
        for layer in self.layers if bipartite else ():
            if layer.aggregator in ("gcn", "lstm"):
                raise ValueError(f"mode bipartite pools twice, which {layer.aggregator} is not made for")
        if self.features.side and self.features.side not in sides:
            raise ValueError(f"features.side: {self.features.side} is none of {known}")
        if bipartite and self.features.side == sides[0]:
            raise ValueError("mode bipartite embeds the second side: name the sides the other way round")


class GraphModel(GraphLayers):
    """A model with its graph, as `recbench embed` embeds it."""

    name: Name = "graph"
    """Name for the embeddings."""
    graph: GraphSource
    """Source of the edges."""
    output: Literal["embeddings", "vectors"] = "embeddings"
    """Table to write."""

    @model_validator(mode="after")
    def _fill_feature_side(self) -> GraphModel:
        self.check_sides(self.graph.sides)
        if not self.features.side and self.features.path:
            side = self.graph.sides[-1]
            object.__setattr__(self, "features", self.features.model_copy(update={"side": side}))
        return self

    def key(self, graph_id: str, features_id: str, weights_id: str) -> str:
        """Return the model's id, a hash.

        The hash depends on everything that decides the model's numbers.
        """
        layers = [layer.model_dump() for layer in self.layers]
        features = self.features.model_dump(exclude={"path"})
        words = (self.mode, self.wire, list(self.final), self.seed)
        changed = [numbers] if (numbers := revisions.select_revisions("graph")) else []
        return digest("graph", graph_id, features, features_id, weights_id, layers, words, *changed)


class NeighbourhoodSettings(Strict):
    """Settings for neighbourhoods by random walks (see `graphs.kernels.walks`).

    A node on `side` (bipartite: the second one by default) gets the `top` nodes visited most by `walks`
    walks with `hops` hops. `way`: local maps the whole adjacency, join does not; auto chooses by the
    host's memory. `way` and `blocks` change no number and no name.
    """

    graph: GraphSource
    """Source of the edges."""
    side: Name | None = None
    """Side whose nodes get neighbourhoods."""
    walks: Annotated[int, Field(ge=1, le=1 << 20)] = 200
    """Random walks from each node."""
    hops: Annotated[int, Field(ge=1, le=1 << 10)] = 5
    """Hops in a walk."""
    restart: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Chance to return to the start after a hop."""
    top: Annotated[int, Field(ge=1, le=1 << 12)] = 50
    """Nodes in a neighbourhood."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 42
    """Seed for the walks."""
    way: Literal["auto", "local", "join"] = "auto"
    blocks: Annotated[int, Field(ge=1, le=65536)] | None = None
    """Node blocks; None: chosen from the size."""

    @model_validator(mode="after")
    def _check_walks(self) -> NeighbourhoodSettings:
        if self.side and self.side not in self.graph.sides:
            raise ValueError(f"side: {self.side} is none of {', '.join(self.graph.sides)}")
        if self.graph.lists:
            raise ValueError("lists: walks go over edges, and these are neighbourhoods already")
        return self

    @property
    def place(self) -> int:
        """Number of the side whose nodes get neighbours."""
        return self.graph.sides.index(self.side or self.graph.sides[-1])

    def key(self, graph_id: str) -> str:
        """Return the neighbourhoods' id, a hash.

        The hash depends on everything that decides the rows.
        """
        walks = (self.walks, self.hops, self.restart, self.top, self.seed)
        return digest("neighbourhoods", graph_id, self.place, walks)


def merge_documents(document: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Merge a document's values into another one, key by key.

    Values from `more` win.
    """
    merged = dict(document)
    for key, value in more.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge_documents(merged[key], value) if both else value
    return merged
