"""Settings of graphs and of embeddings over them; strict and frozen, as those of a benchmark file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from recbench_spark import revisions
from recbench_spark.config.base import Name, Strict, digest, make_error, parse
from recbench_spark.config.loading import read_yaml
from recbench_spark.errors import nearest
from recbench_spark.kernels.graph.forms import Aggregator, LayerForm

Width = Annotated[int, Field(ge=1, le=8192)]

COLUMNS = {"src": "src", "dst": "dst", "weight": "weight"}
LIST_COLUMNS = {"node": "node", "neighbours": "neighbours", "weights": "weights"}


class GraphSource(Strict):
    """The source of a graph's edges, and the options of reading them.

    `edges` is a file or folder (CSV, Parquet) or a Delta table with one row per edge; messages go from
    `src` to `dst`, and both ways if `directed` is false. With two `sides` the graph is bipartite: src is of
    the first side, dst of the second, and messages go both ways. `lists`: one row per node with its
    neighbours, as arrays (node, neighbours[, weights]). `columns` maps the standard names to the table's
    columns. `where` keeps the rows with one value of a text column. `nodes`: tables with an id column, by
    side, of nodes that belong to the graph even without an edge.
    """

    edges: str
    format: Literal["csv", "parquet", "delta"] | None = None
    columns: dict[str, str] = Field(default_factory=dict)
    lists: bool = False
    directed: bool = True
    sides: Annotated[tuple[Name, ...], Field(min_length=1, max_length=2)] = ("node",)
    weighted: bool = False
    ids: Literal["auto", "numeric", "text"] = "auto"
    where: dict[str, str] = Field(default_factory=dict)
    partitions: dict[str, str] = Field(default_factory=dict)
    nodes: dict[Name, str] = Field(default_factory=dict)
    node_column: str = "id"
    duplicates: Literal["keep", "drop"] = "keep"
    self_loops: Literal["keep", "drop"] = "keep"
    bad_rows: Literal["error", "drop"] = "error"
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0

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
        """Return the table's name of a standard column."""
        return self.columns.get(standard, standard)


class Features(Strict):
    """Features of nodes before the first layer.

    `path`: a table (id, vector) of the nodes of `side` (bipartite: the second one). Other kinds: `degrees`
    (the number of neighbours), `constant` (1), or `hashed` (`dims` numbers in [-1, 1) by hash of the id).
    """

    path: str | None = None
    side: Name | None = None
    id_column: str = "id"
    kind: Literal["table", "degrees", "constant", "hashed"] = "degrees"
    dims: Width = 64
    missing: Literal["error", "zero"] = "error"

    @model_validator(mode="after")
    def _check_feature_path(self) -> Features:
        if (self.kind == "table") != (self.path is not None):
            raise ValueError("path belongs to kind: table, and to it alone")
        return self


class LayerSettings(Strict):
    """Settings of one layer (see `kernels.graph.layers`)."""

    form: Literal["convolve", "sage"] = "sage"
    aggregator: Aggregator = "mean"
    width: Width = 64
    hidden: Width | None = None
    join: Literal["concat", "add"] = "concat"
    activation: Literal["relu", "none"] = "relu"
    normalise: bool = True
    neighbours: Annotated[int, Field(ge=1)] = 25

    @model_validator(mode="after")
    def _check_aggregator(self) -> LayerSettings:
        if self.form == "convolve" and self.aggregator in ("gcn", "lstm"):
            raise ValueError("convolve pools by sum, mean, importance or max; gcn and lstm are sage's")
        return self

    def layer_form(self) -> LayerForm:
        """Return the settings as the kernels take them."""
        return LayerForm(
            self.form,
            self.aggregator,
            self.width,
            self.hidden or self.width,
            self.join,
            self.activation == "relu",
            self.normalise,
            self.neighbours,
        )


class GraphLayers(Strict):
    """Settings of the computation over a graph, independent of its edges.

    mode `projected`: a layer pools over a node's neighbours (Ying et al. 2018, section 3.2). `bipartite`:
    it pools over the neighbours of neighbours, items over boards over items (section 3.4): nodes of the
    second side are embedded, and those of the first side are pools of them.

    `plan`, `groups` and `batch` change no number and no name.
    """

    features: Features = Features()
    layers: Annotated[tuple[LayerSettings, ...], Field(min_length=1)] = (LayerSettings(), LayerSettings())
    final: tuple[Width, ...] = ()
    mode: Literal["projected", "bipartite"] = "projected"
    weights: str | None = None
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 42
    wire: Literal["float16", "float32"] = "float32"
    plan: Literal["auto", "G", "R", "S"] = "auto"
    blocks: Annotated[int, Field(ge=1, le=65536)] | None = None
    groups: Annotated[int, Field(ge=1)] | None = None
    batch: Annotated[int, Field(ge=1)] = 4096

    def forms(self) -> tuple[LayerForm, ...]:
        """Return the layers as the kernels take them."""
        return tuple(layer.layer_form() for layer in self.layers)

    def check_sides(self, sides: Sequence[str]) -> None:
        """Check the settings against the sides of a graph.

        Raises:
            ValueError: a mode, an aggregator or a side of features that does not fit this graph.
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
    """Embeddings of all nodes of a graph after some layers, as `jobs/embed.py` computes them."""

    name: Name = "graph"
    graph: GraphSource
    output: Literal["embeddings", "vectors"] = "embeddings"

    @model_validator(mode="after")
    def _fill_feature_side(self) -> GraphModel:
        self.check_sides(self.graph.sides)
        if not self.features.side and self.features.path:
            side = self.graph.sides[-1]
            object.__setattr__(self, "features", self.features.model_copy(update={"side": side}))
        return self

    def key(self, graph_id: str, features_id: str, weights_id: str) -> str:
        """Return the model's id: a hash of everything that its numbers depend on."""
        layers = [layer.model_dump() for layer in self.layers]
        features = self.features.model_dump(exclude={"path"})
        words = (self.mode, self.wire, list(self.final), self.seed)
        changed = [numbers] if (numbers := revisions.select_revisions("graph")) else []
        return digest("graph", graph_id, features, features_id, weights_id, layers, words, *changed)


class NeighbourhoodSettings(Strict):
    """Settings of neighbourhoods by random walks (see `kernels.graph.walks`).

    For each node of `side` (bipartite: the second one by default), the `top` nodes that `walks` walks of
    `hops` hops visit most. `way`: local maps the whole adjacency, join does not; auto chooses by the host's
    memory. `way` and `blocks` change no number and no name.
    """

    graph: GraphSource
    side: Name | None = None
    walks: Annotated[int, Field(ge=1, le=1 << 20)] = 200
    hops: Annotated[int, Field(ge=1, le=1 << 10)] = 5
    restart: Annotated[float, Field(ge=0, lt=1)] = 0.5
    top: Annotated[int, Field(ge=1, le=1 << 12)] = 50
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 42
    way: Literal["auto", "local", "join"] = "auto"
    blocks: Annotated[int, Field(ge=1, le=65536)] | None = None

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
        """Return the neighbourhoods' id: a hash of everything that their rows depend on."""
        walks = (self.walks, self.hops, self.restart, self.top, self.seed)
        return digest("neighbourhoods", graph_id, self.place, walks)


def load_model(path: str, more: dict[str, Any]) -> GraphModel:
    """Load a model from a YAML file, with the keys of `more` replaced.

    Raises:
        ConfigError: the file cannot be read, is no YAML, or has an unknown key or a value out of range.
    """
    return parse(GraphModel, merge_documents(read_yaml(Path(path), "see docs/graph.md"), more), path)


def merge_documents(document: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Return a document with the values of another one in place of its own, key by key."""
    merged = dict(document)
    for key, value in more.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge_documents(merged[key], value) if both else value
    return merged
