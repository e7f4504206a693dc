"""Embed all nodes of a graph, layer by layer, so that no vector is computed twice.

    python jobs/embed.py --warehouse DIR --edges edges.csv
    python jobs/embed.py --warehouse DIR --edges likes.parquet --columns src=user,dst=item \\
        --sides user,item --features items.parquet --mode bipartite --form convolve --widths 128,128
    python jobs/embed.py --warehouse DIR --neighbourhoods ID --aggregator importance --form convolve
    python jobs/embed.py --warehouse DIR --split SPLIT_ID --weights model.safetensors --model model.yaml
    python jobs/embed.py ... --explain           what it will cost, with an interval, before any layer runs
    python jobs/embed.py ... --nodes 17,42       these nodes alone, the bits of the whole run
    python jobs/embed.py ... --nearest 20        also the table of the 20 nearest nodes of every node
    python jobs/embed.py ... --nearest 20 --nearest-index ivf:cells=4000,probes=16

Edges: CSV, Parquet or Delta, one row an edge (src, dst[, weight]); a CSV file without names in its first
line has these columns in this order. With --lists one row a node (node, neighbours[, weights]). Features:
a table (id, vector), in text with arrays of JSON, for all nodes of a side. The graph is built once for all
models; an interrupted run continues where it stopped. Exit codes: 0 fine, 1 failed, 2 wrong usage or
configuration, 3 the drift since --previous is outside a --gate (the embeddings are there).
"""

from __future__ import annotations

import argparse

from recbench_spark import cli
from recbench_spark.config import Gate
from recbench_spark.errors import nearest
from recbench_spark.graphs.kernels.forms import AGGREGATORS
from recbench_spark.models.graph import DRIFT


def parser() -> cli.Parser:
    """Make the parser of the flags."""
    flags = cli.Parser(__doc__ or "")
    flags.add_argument(
        "--warehouse",
        required=True,
        help="folder of the tables that driver and workers see, or s3://BUCKET/FOLDER",
    )
    source = flags.add_argument_group("the graph").add_mutually_exclusive_group()
    source.add_argument("--edges", metavar="PATH", help="edge list: CSV, Parquet or Delta, file or folder")
    source.add_argument("--split", metavar="ID", help="training part of a split of this warehouse")
    source.add_argument("--neighbourhoods", metavar="ID", help="neighbourhoods by jobs/neighbourhoods.py")
    add_graph_flags(flags)
    _add_model_flags(flags)
    _add_nearest_flags(flags)
    _add_run_flags(flags)
    return flags


def add_graph_flags(flags: cli.Parser) -> None:
    """Add the flags for reading edges."""
    graph = flags.add_argument_group("reading the graph")
    graph.add_argument(
        "--format", choices=["csv", "parquet", "delta"], help="format of --edges (default: by its name)"
    )
    graph.add_argument("--columns", default="", help="NAME=COLUMN,... e.g. src=user,dst=item,weight=rating")
    graph.add_argument(
        "--sides", help="for a bipartite graph: name of the side of src, name of the side of dst"
    )
    graph.add_argument("--weighted", action="store_true", help="read the weights of edges")
    graph.add_argument(
        "--lists", action="store_true", help="each row is a node with its neighbours as arrays"
    )
    graph.add_argument("--undirected", action="store_true", help="send messages in both directions")
    graph.add_argument("--ids", choices=["auto", "numeric", "text"], help="type of the ids (default: auto)")
    graph.add_argument("--node-table", action="append", default=[], metavar="[SIDE=]PATH",
                       help="nodes of the graph, also those without edges")  # fmt: skip
    graph.add_argument("--drop-bad-rows", action="store_true", help="leave NULL ids and bad weights out")
    graph.add_argument("--drop-duplicates", action="store_true", help="keep one edge per pair")
    graph.add_argument(
        "--drop-self-loops", action="store_true", help="leave out edges from a node to itself"
    )
    graph.add_argument("--blocks", type=int, help="blocks of a side (default: 4 million edges each)")


def _add_model_flags(flags: cli.Parser) -> None:
    """Add the flags of the model."""
    model = flags.add_argument_group("the model")
    model.add_argument(
        "--model",
        metavar="FILE",
        help="YAML file of layers; see docs/how_to/graph_embeddings.md",
    )
    model.add_argument("--name", help="name of the model in the tables")
    model.add_argument("--features", help="table (id, vector), or degrees, constant, hashed:DIMS")
    model.add_argument("--features-side", help="side that has the features (default: the second side)")
    model.add_argument("--missing", choices=["error", "zero"], help="what nodes without features get")
    model.add_argument("--mode", choices=["projected", "bipartite"], help="bipartite: pins, boards, pins")
    model.add_argument("--form", choices=["sage", "convolve"], help="form of all layers")
    model.add_argument("--aggregator", choices=AGGREGATORS, help="aggregator of all layers")
    model.add_argument("--widths", type=widths, help="dimensions after each layer, e.g. 128,64")
    model.add_argument("--hidden", type=int, help="dimensions of messages, where they are projected")
    model.add_argument("--weights", metavar="FILE", help="safetensors (default: random ones by --seed)")
    model.add_argument("--seed", type=int, help="seed of random weights, hashed features, LSTM order")
    model.add_argument("--wire", choices=["float16", "float32"], help="type of stored vectors")


def _add_nearest_flags(flags: cli.Parser) -> None:
    """Add the flags of the table of nearest nodes."""
    near = flags.add_argument_group("nearest nodes, when all vectors exist; see docs/how_to/retrieval.md")
    near.add_argument("--nearest", type=cli.parse_count, metavar="K", help="nodes of a list")
    near.add_argument("--nearest-index", metavar="KIND[:SETTING=VALUE,...]",
                      help="flat (exact, the default), ivf, hnsw or lsh, e.g. ivf:probes=16")  # fmt: skip
    near.add_argument("--nearest-similarity", choices=["cosine", "dot"], help="default: cosine")
    near.add_argument("--nearest-side", metavar="SIDE", help="lists for this side alone (default: all)")


def _add_run_flags(flags: cli.Parser) -> None:
    """Add the flags for running the job."""
    running = flags.add_argument_group("running")
    cli.add_engine(running)
    running.add_argument("--plan", choices=["auto", "G", "R", "S"], help="G gather, R replicate, S scatter")
    running.add_argument("--batch", type=int, help="nodes that a task works on at once")
    running.add_argument("--output", choices=["embeddings", "vectors"], help="table of the last layer")
    running.add_argument("--nodes", help="embed only these ids ([SIDE=]ID,ID or @FILE), to standard output")
    running.add_argument(
        "--previous", metavar="MODEL_ID", help="an earlier night: compute changes, report the drift"
    )
    running.add_argument("--gate", action="append", default=[], type=gate, metavar="[SIDE:]FACT:below=X",
                         help="end with 3 where the drift since --previous is out of bounds, "
                         "e.g. drift_cosine_p10:below=0.9; or above=X")  # fmt: skip
    running.add_argument(
        "--explain",
        action="store_true",
        help="print the costs and stop; graph and features are built unless they exist, to be counted",
    )
    running.add_argument("--dry-run", action="store_true", help="check flags and files' names, stop")
    running.add_argument("--journal", help="JSON-lines log (default: WAREHOUSE/logs/embed-ID.jsonl)")


def gate(text: str) -> Gate:
    """Parse [SIDE:]FACT:below=X to a gate of a benchmark file."""
    *named, bound = text.split(":")
    kind, _, number = bound.partition("=")
    part, fact = ([None, *named])[-2:] if named else (None, "")
    if fact not in DRIFT:
        raise argparse.ArgumentTypeError(f"'{text}': no fact '{fact}'; {nearest(str(fact), DRIFT)}")
    try:
        return Gate.model_validate({"fact": fact, "part": part, kind: float(number)})
    except ValueError:
        message = f"'{text}' is not like drift_cosine_p10:below=0.9"
        raise argparse.ArgumentTypeError(message) from None


def widths(text: str) -> tuple[int, ...]:
    """Parse the widths of layers such as 128,64."""
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = (0,)
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of widths like 128,64")
    return numbers


def main(args: argparse.Namespace) -> int:
    """Check the flags, build the graph, explain the costs or compute embeddings."""
    # Imported here, so that --help and wrong flags are answered before anything is loaded.
    from recbench_spark.commands.actions import embed  # noqa: PLC0415

    return embed.run_embedding(args)
