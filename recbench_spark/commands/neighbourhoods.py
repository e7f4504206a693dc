"""Find the neighbours of every node by short random walks.

    recbench neighbourhoods --warehouse DIR --edges edges.csv --undirected
    recbench neighbourhoods --warehouse DIR --edges likes.parquet --columns src=user,dst=item \\
        --sides user,item --top 50 --walks 200 --hops 5 --restart 0.5
    recbench neighbourhoods --warehouse DIR --split SPLIT_ID
    recbench embed --warehouse DIR --neighbourhoods ID --aggregator importance ...

The result is the table `neighbourhoods` (node, neighbours, weights, visits), for `recbench embed` and for
training. Walks go over a mapped adjacency where it fits into half of a host's memory, else by an
equi-join on (node, position); the choice is printed, and the rows are the same bit for bit. Exit codes:
0 fine, 1 failed, 2 wrong usage or configuration.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from recbench_spark import cli
from recbench_spark.commands.graph_flags import (
    add_graph_flags,
    add_warehouse,
    drop_missing,
    make_graph_document,
)
from recbench_spark.config import parse
from recbench_spark.core.inputs import pin_inputs
from recbench_spark.errors import OK, ConfigError

if __name__ != "flags":
    from recbench_spark.commands.embed import check_graph_source, choose_graph_runner, require_folder
    from recbench_spark.commands.runners import run_job
    from recbench_spark.commands.warehouses import require_partition
    from recbench_spark.graphs.neighbourhoods import ensure_neighbourhoods, make_walks
    from recbench_spark.graphs.settings import NeighbourhoodSettings
    from recbench_spark.graphs.stored_graphs import files_folder, split_source
    from recbench_spark.query.command_lines import command_line, query_command
    from recbench_spark.runtime.journal import Journal
    from recbench_spark.schemas import SPLITS
    from recbench_spark.storage.file_tables import FileTables


def parser() -> cli.Parser:
    """Make the command's parser."""
    flags = cli.Parser(__doc__ or "")
    add_warehouse(flags)
    source = flags.add_argument_group("the graph").add_mutually_exclusive_group(required=True)
    cli.add_flags(source, "edges", "split")
    add_graph_flags(flags)
    walks = flags.add_argument_group("the walks")
    add = walks.add_argument
    add("--side", help="side whose nodes get neighbours (default: the second)")
    add("--top", type=int, metavar="T", help="neighbours kept (default: 50)")
    add("--walks", type=int, help="walks from each node (default: 200)")
    add("--hops", type=int, help="hops of a walk (default: 5); two edges if bipartite")
    add("--restart", type=float, help="probability of it before a hop (default: 0.5)")
    add("--seed", type=int, help="seed of all draws (default: 42)")
    running = flags.add_argument_group("running")
    cli.add_flags(running, "engine")
    running.add_argument("--way", choices=["auto", "local", "join"], help="map the adjacency, or join")
    cli.add_flags(running, "dry-run")
    return flags


FLAG_KEYS = ("side", "walks", "hops", "restart", "top", "seed", "way", "blocks")


@pin_inputs()
def main(args: argparse.Namespace) -> int:
    """Check the flags, choose a runner, and walk."""
    require_folder(args.warehouse)
    keys = {"edges": "splits", "sides": ("user", "item")} if args.split else make_graph_document(args)
    settings = read_settings(args, keys)
    if args.split:
        require_partition(args.warehouse, SPLITS, args.split, "--split")
    else:
        check_graph_source(settings.graph)
    if args.dry_run:
        print(f"walks      {make_walks(settings)}\ngraph      {args.edges or args.split}")
        return OK
    journal = Journal()
    chosen = choose_graph_runner(args, None if args.split else settings.graph)
    work = partial(walk_graph, args=args, settings=settings, journal=journal)
    return run_job("neighbourhoods", args, chosen, work, journal=journal)


def walk_graph(
    store: FileTables, args: argparse.Namespace, settings: NeighbourhoodSettings, journal: Journal
) -> int:
    """Build the graph, run the walks, print the result's place."""
    files_folder(store)
    if args.split:
        source = split_source(store, args.split).model_dump(exclude_defaults=True)
        settings = read_settings(args, source)
    journal.write_log(store, "neighbourhoods")
    name = ensure_neighbourhoods(store, settings, journal)
    print(f"neighbourhoods {name}: table neighbourhoods in {store.root}")
    query = f"SELECT * FROM neighbourhoods WHERE neighbourhood_id = '{name}' LIMIT 10"
    print(f"  {query_command(store.root, query)}")
    words = ("--warehouse", store.root, "--neighbourhoods", name)
    print(f"  {command_line('embed', *words)} ...")
    return OK


def read_settings(args: argparse.Namespace, source: dict[str, Any]) -> NeighbourhoodSettings:
    """Return the walks' settings from the flags.

    Raises:
        ConfigError: a value out of range, named by its flag.
    """
    if args.split and args.sides:
        raise ConfigError("--split has sides of its own", "leave --sides out")
    keys = drop_missing({name: getattr(args, name) for name in FLAG_KEYS})
    return parse(NeighbourhoodSettings, {**keys, "graph": drop_missing(source)}, "flags")
