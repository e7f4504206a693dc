"""Compute neighbourhoods by random walks: the work of `jobs/neighbourhoods.py`."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from recbench_spark.commands.actions.embed import (
    check_graph_source,
    choose_graph_runner,
    drop_missing,
    make_graph_document,
    require_folder,
)
from recbench_spark.commands.runners import run_job
from recbench_spark.commands.warehouses import require_partition
from recbench_spark.config import parse
from recbench_spark.core.inputs import pin_inputs
from recbench_spark.errors import OK, ConfigError
from recbench_spark.graphs.neighbourhoods import ensure_neighbourhoods, make_walks
from recbench_spark.graphs.settings import NeighbourhoodSettings
from recbench_spark.graphs.stored_graphs import files_folder, split_source
from recbench_spark.query.command_lines import command_line, query_command
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import SPLITS
from recbench_spark.storage.file_tables import FileTables

FLAG_KEYS = ("side", "walks", "hops", "restart", "top", "seed", "way", "blocks")


@pin_inputs()
def run(args: argparse.Namespace) -> int:
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
    """Build the graph, run the walks and print where the result is."""
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
    """Return the settings of the walks from the flags.

    Raises:
        ConfigError: a value out of range, named by its flag.
    """
    if args.split and args.sides:
        raise ConfigError("--split has sides of its own", "leave --sides out")
    keys = drop_missing({name: getattr(args, name) for name in FLAG_KEYS})
    return parse(NeighbourhoodSettings, {**keys, "graph": drop_missing(source)}, "flags")
