"""Find the neighbours of every node: the nodes that short random walks with restart visit most.

    python jobs/neighbourhoods.py --warehouse DIR --edges edges.csv --undirected
    python jobs/neighbourhoods.py --warehouse DIR --edges likes.parquet --columns src=user,dst=item \\
        --sides user,item --top 50 --walks 200 --hops 5 --restart 0.5
    python jobs/neighbourhoods.py --warehouse DIR --split SPLIT_ID
    python jobs/embed.py --warehouse DIR --neighbourhoods ID --aggregator importance ...

The result is the table `neighbourhoods` (node, neighbours, weights, visits), for `jobs/embed.py` and for
training. Walks go over a mapped adjacency where it fits into half of a host's memory, else by an
equi-join on (node, position); the choice is printed, and the rows are the same bit for bit. Exit codes:
0 fine, 1 failed, 2 wrong usage or configuration.
"""

from __future__ import annotations

import argparse

from recbench_spark import cli
from recbench_spark.commands.embed import add_graph_flags


def parser() -> cli.Parser:
    """Make the parser of the flags."""
    flags = cli.Parser(__doc__ or "")
    flags.add_argument(
        "--warehouse",
        required=True,
        help="folder of the tables that driver and workers see, or s3://BUCKET/FOLDER",
    )
    source = flags.add_argument_group("the graph").add_mutually_exclusive_group(required=True)
    source.add_argument("--edges", metavar="PATH", help="edge list: CSV, Parquet or Delta, file or folder")
    source.add_argument("--split", metavar="ID", help="training part of a split of this warehouse")
    add_graph_flags(flags)
    walks = flags.add_argument_group("the walks")
    walks.add_argument("--side", help="side whose nodes get neighbours (default: the second)")
    walks.add_argument("--top", type=int, metavar="T", help="neighbours kept (default: 50)")
    walks.add_argument("--walks", type=int, help="walks from each node (default: 200)")
    walks.add_argument("--hops", type=int, help="hops of a walk (default: 5); two edges if bipartite")
    walks.add_argument("--restart", type=float, help="probability of it before a hop (default: 0.5)")
    walks.add_argument("--seed", type=int, help="seed of all draws (default: 42)")
    running = flags.add_argument_group("running")
    cli.add_engine(running)
    running.add_argument(
        "--way", choices=["auto", "local", "join"], help="map the adjacency, or join by position"
    )
    running.add_argument("--dry-run", action="store_true", help="check the flags, stop")
    return flags


def main(args: argparse.Namespace) -> int:
    """Check the flags, build the graph, run the walks and print where the result is."""
    # Imported here, so that --help and wrong flags are answered before anything is loaded.
    from recbench_spark.commands.actions import neighbourhoods  # noqa: PLC0415

    return neighbourhoods.run(args)
