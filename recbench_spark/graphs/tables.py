"""Tables of graphs, and of embeddings computed over them."""

from __future__ import annotations

from recbench_spark.core.columns import (
    BINARY,
    BOOLEAN,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    STRING,
    TIMESTAMP,
    Table,
    TableColumn,
    array_type,
    text_column,
)

MODEL_ID = text_column("model_id", "Hash of graph, features, weights and settings: same id, same bits.")
GRAPH_ID = text_column("graph_id", "Hash of the edges' identity and the settings they are read by.")

GRAPHS = Table(
    "graphs",
    "One row per graph that has been built: its size and its source.",
    (
        GRAPH_ID,
        TableColumn(
            "sides", array_type(STRING), "Names of the sides; one where it is not bipartite.", False
        ),
        TableColumn("nodes", LONG, "Nodes of all sides.", False),
        TableColumn("edges", LONG, "Edges as stored: both ways counts twice.", False),
        TableColumn("blocks", INT, "Blocks of nodes, over all sides.", False),
        TableColumn("weighted", BOOLEAN, "Whether edges have weights.", False),
        TableColumn("source", STRING, "Where the edges are from: a path, or a split and its part.", False),
        TableColumn(
            "source_identity",
            STRING,
            "Identity of what was read: of files their content, of a Delta table its id and files.",
        ),
        TableColumn("settings_json", STRING, "The settings they were read by."),
        TableColumn("seconds", DOUBLE, "Wall-clock seconds of the build.", False),
        TableColumn("laid_out_at", TIMESTAMP, "When it was built, UTC.", False),
    ),
)

GRAPH_NODES = Table(
    "graph_nodes",
    "One row per node: its dense id and the number of its incoming edges.",
    (
        GRAPH_ID,
        text_column("side", "Side of the node; node where there is one."),
        text_column("id", "Original id, as text."),
        TableColumn(
            "node_index", LONG, "Dense id: place in the order of hashed ids, side after side.", False
        ),
        TableColumn("block", INT, "Block of nodes it is in.", False),
        TableColumn("edges", LONG, "Edges into it.", False),
    ),
    partition_by=("graph_id",),
)

GRAPH_VECTORS = Table(
    "graph_vectors",
    "Vectors after a layer, some thousand nodes per row, committed by groups of blocks.",
    (
        MODEL_ID,
        TableColumn("layer", INT, "Layer they come out of, from 1.", False),
        TableColumn("block", INT, "Block of nodes.", False),
        TableColumn("first", LONG, "node_index of the first node.", False),
        TableColumn("nodes", INT, "Nodes of the row, by node_index.", False),
        TableColumn("dims", INT, "Dimensions of a vector.", False),
        text_column("dtype", "float16 or float32, little-endian."),
        TableColumn("vectors", BINARY, "The vectors, end to end.", False),
    ),
    partition_by=("model_id", "layer"),
)

GRAPH_RUNS = Table(
    "graph_runs",
    "One row per layer of a run over a graph: its plan, its time, and the predicted time.",
    (
        MODEL_ID,
        GRAPH_ID,
        text_column("model", "Name of the model."),
        TableColumn("layer", INT, "Layer, from 1; after the last one the pools of the other side.", False),
        text_column("aggregator", "sum, mean, importance, max, gcn or lstm."),
        text_column("plan", "G: vectors gathered, R: replicated and mapped, S: partial sums scattered."),
        TableColumn("nodes", LONG, "Nodes whose vectors were computed.", False),
        TableColumn("edges", LONG, "Edges aggregated over.", False),
        TableColumn("width", INT, "Dimensions of a message.", False),
        TableColumn("vectors_projected", LONG, "Vectors that went through a projection: each once.", False),
        TableColumn("bytes_shuffled", LONG, "Payload of the shuffle: vectors or partial sums.", False),
        TableColumn("predicted_bytes", LONG, "The same as predicted before the run.", False),
        TableColumn("seconds", DOUBLE, "Wall-clock seconds.", False),
        TableColumn("predicted_seconds", DOUBLE, "As predicted before the run.", False),
        TableColumn("amounts_json", STRING, "Amount of work, as the cost model counts it.", False),
        TableColumn("cores", INT, "Tasks at once.", False),
        TableColumn("started_at", TIMESTAMP, "When the layer began, UTC.", False),
    ),
    constraints={"plan_known": "plan IN ('G', 'R', 'S')"},
)

NEIGHBOURHOODS = Table(
    "neighbourhoods",
    "One row per node: the nodes that short random walks from it visit most (`recbench neighbourhoods`).",
    (
        text_column(
            "neighbourhood_id", "Hash of graph, side and the walks' settings: same name, same rows."
        ),
        text_column("side", "Side of the nodes; node where there is one."),
        text_column("node", "Original id of the node, as text."),
        TableColumn(
            "neighbours", array_type(STRING), "Original ids, most visited first; never the node itself."
        ),
        TableColumn("weights", array_type(FLOAT), "Visits over the visits of all kept: they sum to 1."),
        TableColumn("visits", array_type(INT), "Visits of each."),
        TableColumn("visited", INT, "Different nodes visited, kept or not."),
    ),
    partition_by=("neighbourhood_id",),
)

NEAREST_NODES = Table(
    "nearest_nodes",
    "One row per node: the nodes of its side whose vectors are nearest (`recbench embed --nearest`).",
    (
        text_column("nearest_id", "Hash of model, length, index and similarity: same name, same rows."),
        text_column("model_id", "Model of the vectors."),
        text_column("side", "Side of the nodes; node where there is one."),
        text_column("node", "Original id of the node, as text."),
        TableColumn(
            "neighbours",
            array_type(STRING),
            "Original ids, nearest first, ties by smaller node_index; never the node itself.",
        ),
        TableColumn("scores", array_type(DOUBLE), "Cosine or product of each, in float64."),
    ),
    partition_by=("nearest_id",),
)
