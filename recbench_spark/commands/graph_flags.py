"""Define the flags for graphs in `embed` and `neighbourhoods`."""

from __future__ import annotations

import argparse
from typing import Any

from recbench_spark import cli
from recbench_spark.errors import ConfigError


def add_warehouse(flags: cli.Parser) -> None:
    """Add `--warehouse` for commands whose tasks write files."""
    text = "folder of the tables that driver and workers see, or s3://BUCKET/FOLDER"
    cli.add_flags(flags, "warehouse", help=text)


def add_graph_flags(flags: cli.Parser) -> None:
    """Add the flags for reading edges."""
    graph = flags.add_argument_group("reading the graph")
    add = graph.add_argument
    add("--format", choices=["csv", "parquet", "delta"], help="format of --edges (default: by its name)")
    add("--columns", default="", help="NAME=COLUMN,... e.g. src=user,dst=item,weight=rating")
    add("--sides", help="for a bipartite graph: name of the side of src, name of the side of dst")
    add("--weighted", action="store_true", help="read the weights of edges")
    add("--lists", action="store_true", help="each row is a node with its neighbours as arrays")
    add("--undirected", action="store_true", help="send messages in both directions")
    add("--ids", choices=["auto", "numeric", "text"], help="type of the ids (default: auto)")
    add("--node-table", **cli.MANY, metavar="[SIDE=]PATH", help="nodes of the graph, also without edges")
    add("--drop-bad-rows", action="store_true", help="leave NULL ids and bad weights out")
    add("--drop-duplicates", action="store_true", help="keep one edge per pair")
    add("--drop-self-loops", action="store_true", help="leave out edges from a node to itself")
    add("--blocks", type=int, help="blocks of a side (default: 4 million edges each)")


def make_graph_document(args: argparse.Namespace) -> dict[str, Any]:
    """Return the flags from `add_graph_flags` as `GraphSource` keys.

    A flag which is not set becomes None.
    """
    columns = cli.parse_columns(args.columns, "src=user,dst=item")
    return {
        "edges": args.edges,
        "format": args.format,
        "columns": columns,
        "lists": args.lists or None,
        "weighted": args.weighted or bool({"weight", "weights"} & set(columns)) or None,
        "directed": False if args.undirected else None,
        "sides": args.sides and tuple(args.sides.split(",")),
        "ids": args.ids,
        "nodes": parse_node_tables(args.node_table, args.sides),
        "bad_rows": "drop" if args.drop_bad_rows else None,
        "duplicates": "drop" if args.drop_duplicates else None,
        "self_loops": "drop" if args.drop_self_loops else None,
    }


def drop_missing(keys: dict[str, Any]) -> dict[str, Any]:
    """Return the keys which have a value."""
    return {key: value for key, value in keys.items() if value not in (None, {}, ())}


def parse_node_tables(texts: list[str], sides: str | None) -> dict[str, str]:
    """Parse [SIDE=]PATH texts to a path for each side."""
    paths = {}
    for text in texts:
        side, equals, path = text.partition("=")
        if not equals and sides:
            raise ConfigError(
                f"--node-table {text}: the side is missing", f"--node-table SIDE={text}, SIDE of {sides}"
            )
        side, path = (side, path) if equals else ("node", text)
        if side in paths:
            raise ConfigError(f"--node-table: two tables of side {side}", "give one table per side")
        paths[side] = path
    return paths
