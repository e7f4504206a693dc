"""Embeddings of all nodes of a graph after some layers, computed layer by layer: no vector twice.

    python jobs/embed.py --warehouse DIR --edges edges.csv
    python jobs/embed.py --warehouse DIR --edges likes.parquet --columns src=user,dst=item \\
        --sides user,item --features items.parquet --mode bipartite --form convolve --widths 128,128
    python jobs/embed.py --warehouse DIR --split SPLIT_ID --weights model.safetensors --model model.yaml
    python jobs/embed.py ... --explain           what it will cost, with an interval, before any layer runs
    python jobs/embed.py ... --nodes 17,42       these nodes alone, the bits of the whole run

Edges: CSV, Parquet or Delta, one row an edge (src, dst[, weight]); a CSV file without names in its first
line has these columns in this order. With --lists one row a node (node, neighbours[, weights]). Features:
Parquet or Delta (id, vector), for all nodes of a side. The graph is laid out once and serves every model; a
run that was killed goes on where it stopped. Exit codes: 0 fine, 1 failed, 2 wrong usage or configuration.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

from recbench_spark import cli
from recbench_spark.config import parse
from recbench_spark.errors import OK, ConfigError, DataError
from recbench_spark.graph.layout import Finder
from recbench_spark.graph.nodes import embed_nodes
from recbench_spark.graph_config import GraphModel, load_model, merged
from recbench_spark.journal import Journal
from recbench_spark.kernels.graph.aggregate import AGGREGATORS
from recbench_spark.kernels.graph.ids import MOST_NODES, hashes_of
from recbench_spark.session import get_session
from recbench_spark.steps.embedding import (
    Prepared,
    embed,
    estimates,
    explain,
    prepare,
    rates_of,
    split_source,
)
from recbench_spark.steps.refreshing import refreshed, tell_drift
from recbench_spark.store import Store

MADE_FEATURES = ("degrees", "constant", "hashed")


def parser() -> cli.Parser:
    """The flags of this job."""
    found = cli.Parser(__doc__ or "")
    found.add_argument(
        "--warehouse", required=True, help="folder of the tables, seen by driver and workers"
    )
    given = found.add_argument_group("the graph").add_mutually_exclusive_group()
    given.add_argument("--edges", metavar="PATH", help="edge list: CSV, Parquet or Delta, file or folder")
    given.add_argument("--split", metavar="ID", help="training part of a split of this warehouse")
    _add_reading(found)
    _add_model(found)
    _add_running(found)
    return found


def _add_reading(found: cli.Parser) -> None:
    """How the edges are read."""
    graph = found.add_argument_group("how it is read")
    graph.add_argument(
        "--format", choices=["csv", "parquet", "delta"], help="of --edges (default: by name)"
    )
    graph.add_argument("--columns", default="", help="ours=theirs,... e.g. src=user,dst=item,weight=rating")
    graph.add_argument("--sides", help="a bipartite graph: name of src's side, name of dst's side")
    graph.add_argument("--weighted", action="store_true", help="edges have weights")
    graph.add_argument("--lists", action="store_true", help="a row is a node with its neighbours as arrays")
    graph.add_argument("--undirected", action="store_true", help="messages go both ways")
    graph.add_argument("--ids", choices=["auto", "numeric", "text"], help="what ids are (default: auto)")
    graph.add_argument("--node-table", action="append", default=[], metavar="[SIDE=]PATH",
                       help="nodes that belong to the graph though they may have no edge")  # fmt: skip
    graph.add_argument("--drop-bad-rows", action="store_true", help="leave NULL ids and bad weights out")
    graph.add_argument("--drop-duplicates", action="store_true", help="one edge a pair")
    graph.add_argument("--drop-self-loops", action="store_true", help="no edge from a node to itself")
    graph.add_argument("--blocks", type=int, help="blocks of a side (default: 4 million edges each)")


def _add_model(found: cli.Parser) -> None:
    """What is computed."""
    model = found.add_argument_group("the model")
    model.add_argument("--model", metavar="FILE", help="YAML with layers, features ...; see docs/graph.md")
    model.add_argument("--name", help="of the model in the tables")
    model.add_argument("--features", help="table (id, vector), or degrees, constant, hashed:DIMS")
    model.add_argument("--features-side", help="whose features these are (default: the second side)")
    model.add_argument("--missing", choices=["error", "zero"], help="nodes without features")
    model.add_argument("--mode", choices=["projected", "bipartite"], help="bipartite: pins, boards, pins")
    model.add_argument("--form", choices=["sage", "convolve"], help="of all layers")
    model.add_argument("--aggregator", choices=AGGREGATORS, help="of all layers")
    model.add_argument("--widths", type=widths, help="dimensions after each layer, e.g. 128,64")
    model.add_argument("--hidden", type=int, help="dimensions of messages, where they are projected")
    model.add_argument("--weights", metavar="FILE", help="safetensors (default: random ones by --seed)")
    model.add_argument("--seed", type=int, help="of random weights, hashed features, the LSTM's order")
    model.add_argument("--wire", choices=["float16", "float32"], help="of stored vectors")


def _add_running(found: cli.Parser) -> None:
    """How it is run, or only told."""
    running = found.add_argument_group("running")
    running.add_argument("--plan", choices=["auto", "G", "R", "S"], help="G gather, R replicate, S scatter")
    running.add_argument("--batch", type=int, help="nodes that a task works on at once")
    running.add_argument("--output", choices=["embeddings", "vectors"], help="table of the last layer")
    running.add_argument(
        "--nodes", help="embed these ids alone ([SIDE=]ID,ID or @FILE), to standard output"
    )
    running.add_argument(
        "--previous", metavar="MODEL_ID", help="an earlier night: compute what has changed; tell the drift"
    )
    running.add_argument("--explain", action="store_true", help="lay the graph out, say the cost, stop")
    running.add_argument("--dry-run", action="store_true", help="check flags and files' names, stop")
    running.add_argument("--journal", help="JSON-lines log (default: WAREHOUSE/logs/embed-ID.jsonl)")


def widths(text: str) -> tuple[int, ...]:
    """128,64 as numbers."""
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = (0,)
    if min(found) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of widths like 128,64")
    return found


def main(args: argparse.Namespace) -> int:
    """Check the flags, lay out, explain or embed, tell."""
    if not (args.edges or args.split or args.model):
        raise ConfigError("no graph is named", "--edges PATH, --split ID, or graph.edges in --model FILE")
    settings = None if args.split else asked_for(args, document(args))
    if args.dry_run:
        print(told(args, settings))
        return OK
    journal = Journal()
    journal.say("embed: starting Spark")
    store = Store(get_session("recbench-spark embed"), args.warehouse)
    if settings is None:
        source = split_source(store, args.split).model_dump(exclude_defaults=True)
        settings = asked_for(args, merged(document(args), {"graph": source}))
    prepared = prepare(store, settings, journal)
    if args.journal or store.folder:
        name = f"embed-{prepared.model.model_id}.jsonl"
        journal.write_to(args.journal or (store.folder or Path()) / "logs" / name)
    if args.nodes:
        return print_nodes(prepared, args.nodes)
    cores, rates = store.spark.sparkContext.defaultParallelism, rates_of(store)
    if args.previous:
        prepared, sentence = refreshed(store, prepared, args.previous, rates, journal)
    expected = estimates(prepared, rates, cores, settings.plan)
    print(explain(expected, prepared, rates, cores))
    if args.previous:
        print(sentence)
    if args.explain:
        return OK
    embed(store, prepared, journal)
    if args.previous:
        tell_drift(store, prepared, args.previous, journal)
    tell(store, prepared)
    return OK


def document(args: argparse.Namespace) -> dict[str, Any]:
    """The flags as keys of a model file; flags that were not given are not there."""
    graph = {
        "edges": args.edges,
        "format": args.format,
        "columns": columns(args.columns),
        "lists": args.lists or None,
        "weighted": args.weighted or bool({"weight", "weights"} & set(columns(args.columns))) or None,
        "directed": False if args.undirected else None,
        "sides": args.sides and tuple(args.sides.split(",")),
        "ids": args.ids,
        "nodes": node_tables(args.node_table, args.sides),
        "bad_rows": "drop" if args.drop_bad_rows else None,
        "duplicates": "drop" if args.drop_duplicates else None,
        "self_loops": "drop" if args.drop_self_loops else None,
    }
    features = {**made_or_read(args.features), "side": args.features_side, "missing": args.missing}
    found = {
        "name": args.name,
        "graph": given(graph),
        "features": given(features),
        "layers": layers(args),
        "mode": args.mode,
        "weights": args.weights,
        "seed": args.seed,
        "wire": args.wire,
        "plan": args.plan,
        "blocks": args.blocks,
        "batch": args.batch,
        "output": args.output,
    }
    return given(found)


def given(keys: dict[str, Any]) -> dict[str, Any]:
    """Keys that have a value."""
    return {key: value for key, value in keys.items() if value not in (None, {}, ())}


def columns(text: str) -> dict[str, str]:
    """ours=theirs,... as a mapping."""
    pairs = [pair.partition("=") for pair in text.split(",") if pair]
    if any(not (ours and equals and theirs) for ours, equals, theirs in pairs):
        raise ConfigError(f"--columns {text}: expected ours=theirs,...", "e.g. src=user,dst=item")
    return {ours: theirs for ours, _, theirs in pairs}


def node_tables(given_tables: list[str], sides: str | None) -> dict[str, str]:
    """[SIDE=]PATH,... as a mapping."""
    found = {}
    for text in given_tables:
        side, equals, path = text.partition("=")
        if not equals and sides:
            raise ConfigError(f"--node-table {text}: whose?", f"--node-table SIDE={text}, SIDE of {sides}")
        found[side if equals else "node"] = path if equals else text
    return found


def made_or_read(text: str | None) -> dict[str, Any]:
    """What --features means."""
    if text is None:
        return {}
    kind, _, dims = text.partition(":")
    if kind in MADE_FEATURES and not Path(text).exists():
        if dims and not dims.isdigit():
            raise ConfigError(f"--features {text}: '{dims}' is no number", "e.g. hashed:64")
        return {"kind": kind, **({"dims": int(dims)} if dims else {})}
    return {"kind": "table", "path": text}


def layers(args: argparse.Namespace) -> tuple[dict[str, Any], ...] | None:
    """All layers alike, where any flag says what they are."""
    alike = given({"form": args.form, "aggregator": args.aggregator, "hidden": args.hidden})
    if not alike and not args.widths:
        return None
    return tuple({**alike, "width": width} for width in args.widths or (64, 64))


def asked_for(args: argparse.Namespace, keys: dict[str, Any]) -> GraphModel:
    """The model that flags, and the file where there is one, ask for."""
    if args.model:
        return load_model(args.model, keys)
    return parse(GraphModel, keys, "flags")


def told(args: argparse.Namespace, settings: GraphModel | None) -> str:
    """What would be done, before Spark is started."""
    if settings is None:
        return f"graph      training part of split {args.split}\nwarehouse  {args.warehouse}"
    kinds = ", ".join(f"{one.form} {one.aggregator} {one.width}" for one in settings.layers)
    features = settings.features.path or settings.features.kind
    return (
        f"graph      {settings.graph.edges} ({', '.join(settings.graph.sides)})\n"
        f"features   {features}\nlayers     {kinds}; mode {settings.mode}, wire {settings.wire}\n"
        f"weights    {settings.weights or f'random, seed {settings.seed}'}\nwarehouse  {args.warehouse}"
    )


def print_nodes(prepared: Prepared, text: str) -> int:
    """Some nodes' embeddings as CSV: side, id, numbers."""
    graph = prepared.graph
    side, _, listed = text.rpartition("=")
    if listed.startswith("@"):
        listed = Path(listed[1:]).read_text(encoding="utf-8").replace("\n", ",")
    names = list(dict.fromkeys(name.strip() for name in listed.split(",") if name.strip()))
    if side and side not in graph.sides:
        raise ConfigError(f"--nodes: no side {side}", f"sides are {', '.join(graph.sides)}")
    place = graph.sides.index(side) if side else len(graph.sides) - 1
    dense = np.array(dense_ids(prepared, names, place))
    order = np.argsort(dense, kind="stable")
    vectors = embed_nodes(graph, prepared.model, dense[order].astype(np.int64))
    for name, vector in sorted(
        zip(np.array(names)[order], vectors, strict=True), key=lambda row: names.index(row[0])
    ):
        print(f"{graph.sides[place]},{name}," + ",".join(repr(float(x)) for x in vector))
    return OK


def dense_ids(prepared: Prepared, names: list[str], side: int) -> list[int]:
    """Dense ids of raw ones."""
    import pyarrow as pa  # noqa: PLC0415

    graph = prepared.graph
    try:
        ids = pa.array([int(name) for name in names] if graph.numeric[side] else names)
    except ValueError as error:
        raise ConfigError(
            f"--nodes: {error}", f"ids of side {graph.sides[side]} are whole numbers"
        ) from None
    found = Finder(graph)(hashes_of(ids, graph.seed), side)
    lost = [name for name, place in zip(names, found, strict=True) if place >= MOST_NODES]
    if lost:
        raise DataError(
            f"{len(lost)} of {len(names)} nodes are not in the graph: {', '.join(lost[:5])}",
            "a node without edges belongs to it by --node-table",
        )
    return [int(place) for place in found]


def tell(store: Store, prepared: Prepared) -> None:
    """Where the embeddings are."""
    name, table = prepared.model.model_id, "embeddings"
    if prepared.model.embeddings is None:
        table = "graph_vectors"
    query = f"SELECT * FROM {table} WHERE model_id = '{name}' LIMIT 10"
    print(f"model {name}: table {table} in {store.root}; ask in SQL:")
    print(f'  {sys.executable} jobs/query.py --warehouse {store.root} "{query}"')
