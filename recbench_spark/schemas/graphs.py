"""Tables of graphs, and of embeddings computed over them layer by layer."""

from __future__ import annotations

from pyspark.sql import types as T

from recbench_spark.schemas.base import (
    BOOLEAN,
    DOUBLE,
    INT,
    LONG,
    STRING,
    TIMESTAMP,
    Column,
    Table,
    array_of,
    text_id,
)

MODEL_ID = text_id("model_id", "Hash of graph, features, weights and settings: same name, same bits.")
GRAPH_ID = text_id("graph_id", "Hash of the edges' identity and the settings they are read by.")

GRAPHS = Table(
    "graphs",
    "One row a graph that is laid out: its size and where its files lie.",
    (
        GRAPH_ID,
        Column("sides", array_of(STRING), "Names of the sides; one where it is not bipartite.", False),
        Column("nodes", LONG, "Nodes of all sides.", False),
        Column("edges", LONG, "Edges as stored: both ways counts twice.", False),
        Column("blocks", INT, "Blocks of nodes, over all sides.", False),
        Column("weighted", BOOLEAN, "Whether edges have weights.", False),
        Column("source", STRING, "Where the edges are from: a path, or a split and its part.", False),
        Column(
            "source_identity",
            STRING,
            "Identity of what was read: of files their content, of a Delta table its id and files.",
        ),
        Column("settings_json", STRING, "The settings they were read by."),
        Column("seconds", DOUBLE, "Wall-clock seconds of the layout.", False),
        Column("laid_out_at", TIMESTAMP, "When it was laid out, UTC.", False),
    ),
)

GRAPH_NODES = Table(
    "graph_nodes",
    "One row a node: its dense id and how many edges come into it.",
    (
        GRAPH_ID,
        text_id("side", "Side of the node; node where there is one."),
        text_id("id", "Original id, as text."),
        Column("node_index", LONG, "Dense id: place in the order of hashed ids, side after side.", False),
        Column("block", INT, "Block of nodes it is in.", False),
        Column("edges", LONG, "Edges into it.", False),
    ),
    partition_by=("graph_id",),
)

GRAPH_VECTORS = Table(
    "graph_vectors",
    "Vectors after a layer, some thousand nodes a row, committed by groups of blocks as they come.",
    (
        MODEL_ID,
        Column("layer", INT, "Layer they come out of, from 1.", False),
        Column("block", INT, "Block of nodes.", False),
        Column("first", LONG, "node_index of the first node.", False),
        Column("nodes", INT, "Nodes of the row, by node_index.", False),
        Column("dims", INT, "Dimensions of a vector.", False),
        text_id("dtype", "float16 or float32, little-endian."),
        Column("vectors", T.BinaryType(), "The vectors, end to end.", False),
    ),
    partition_by=("model_id", "layer"),
)

GRAPH_RUNS = Table(
    "graph_runs",
    "One row a layer of a run over a graph: how it was done, how long it took, what was predicted.",
    (
        MODEL_ID,
        GRAPH_ID,
        text_id("model", "Name of the model."),
        Column("layer", INT, "Layer, from 1; after the last one the pools of the other side.", False),
        text_id("aggregator", "sum, mean, importance, max, gcn or lstm."),
        text_id("plan", "G: vectors gathered, R: replicated and mapped, S: partial sums scattered."),
        Column("nodes", LONG, "Nodes whose vectors were computed.", False),
        Column("edges", LONG, "Edges aggregated over.", False),
        Column("width", INT, "Dimensions of a message.", False),
        Column("vectors_projected", LONG, "Vectors that went through a projection: each once.", False),
        Column("bytes_shuffled", LONG, "Payload of the shuffle: vectors or partial sums.", False),
        Column("predicted_bytes", LONG, "The same as predicted before the run.", False),
        Column("seconds", DOUBLE, "Wall-clock seconds.", False),
        Column("predicted_seconds", DOUBLE, "As predicted before the run.", False),
        Column("amounts_json", STRING, "What there was to do, as the cost model counts it.", False),
        Column("cores", INT, "Tasks at once.", False),
        Column("started_at", TIMESTAMP, "When the layer began, UTC.", False),
    ),
    constraints={"plan_known": "plan IN ('G', 'R', 'S')"},
)

NEIGHBOURHOODS = Table(
    "neighbourhoods",
    "One row a node: the nodes that short random walks from it visit most (`jobs/neighbourhoods.py`).",
    (
        text_id("neighbourhood_id", "Hash of graph, side and the walks' settings: same name, same rows."),
        text_id("side", "Side of the nodes; node where there is one."),
        text_id("node", "Original id of the node, as text."),
        Column("neighbours", array_of(STRING), "Original ids, most visited first; never the node itself."),
        Column("weights", array_of(T.FloatType()), "Visits over the visits of all kept: they sum to 1."),
        Column("visits", array_of(INT), "Visits of each."),
        Column("visited", INT, "Different nodes visited, kept or not."),
    ),
    partition_by=("neighbourhood_id",),
)
