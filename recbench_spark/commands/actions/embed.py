"""Compute embeddings of the nodes of a graph: the work of `jobs/embed.py`."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from recbench_spark import cli
from recbench_spark.commands.runners import run_job
from recbench_spark.commands.warehouses import check_journal_path, require_partition
from recbench_spark.config import parse
from recbench_spark.core.inputs import pin_inputs
from recbench_spark.engine.choices import EngineChoice
from recbench_spark.errors import OK, ConfigError, DataError, nearest
from recbench_spark.graphs.build import NodeFinder, read_ids
from recbench_spark.graphs.build_inputs import count_edges, open_inputs
from recbench_spark.graphs.edge_values import to_id_array
from recbench_spark.graphs.estimates import estimate_passes, explain_costs, fit_rates
from recbench_spark.graphs.folders import FOLDER, Graph
from recbench_spark.graphs.incremental_run import check_previous_model, plan_refresh, report_drift
from recbench_spark.graphs.kernels.ids import MOST_NODES, hash_node_ids
from recbench_spark.graphs.model_inputs import (
    MODELS,
    PreparedGraphModel,
    describe_files,
    prepare_model,
    read_layers,
)
from recbench_spark.graphs.neighbourhoods import neighbourhood_source
from recbench_spark.graphs.nodes import embed_nodes
from recbench_spark.graphs.pipeline import embed, open_model_work
from recbench_spark.graphs.settings import GraphModel, GraphSource, load_model, merge_documents
from recbench_spark.graphs.stored_graphs import files_folder, split_source
from recbench_spark.models.adapters.nearest_nodes import check_nearest, ensure_nearest_nodes
from recbench_spark.night.gates import gate_checks, gate_error
from recbench_spark.night.runners import NIGHT_TABLES, choose_job_runner
from recbench_spark.query.command_lines import query_command
from recbench_spark.retrieval.settings import NearestNodes
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import NEIGHBOURHOODS, SPLITS
from recbench_spark.sources.paths import check_path
from recbench_spark.storage.arrow_store import ArrowStore, may_have_files, needs_no_java
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.storage.made_folders import hold_private_folder
from recbench_spark.storage.objects import list_folders, require_storage
from recbench_spark.storage.uris import is_remote, join_uri

GENERATED_FEATURES = ("degrees", "constant", "hashed")

MAX_SEARCHED_IDS = 20_000
"""Most ids among which a similar id is looked for, for a hint."""


EXPLAINED = (
    "--explain: builds the graph and its features unless they exist, counts on them, and runs no layer"
)


@pin_inputs()
def run_embedding(args: argparse.Namespace) -> int:
    """Check the flags, choose a runner, and embed the graph."""
    if args.gate and not args.previous:
        raise ConfigError("--gate holds the drift since a night before", "--previous MODEL_ID")
    in_warehouse = args.split or args.neighbourhoods
    if not (args.edges or in_warehouse or args.model):
        hint = "--edges PATH, --split ID, --neighbourhoods ID, or graph.edges in --model FILE"
        raise ConfigError("no graph is given", hint)
    require_folder(args.warehouse)
    check_journal_path(args.journal, "--journal")
    check_names(args)
    near = make_nearest_settings(args)
    settings = None if in_warehouse else make_settings(args, make_document(args))
    check_settings(settings, near)
    if args.dry_run:
        print(describe_run(args, settings) + describe_nearest(near))
        return OK
    journal = Journal()
    chosen = choose_graph_runner(args, None if settings is None else settings.graph)
    work = partial(embed_graph, args=args, settings=settings, near=near, journal=journal)
    return run_job("embed", args, chosen, work, journal=journal)


def choose_graph_runner(args: argparse.Namespace, source: GraphSource | None) -> tuple[EngineChoice, int]:
    """Choose the runner by the edges of a graph; without a source by a table of the warehouse.

    Raises:
        ConfigError: `--engine local`, and only Spark can do this.
    """

    def count() -> int:
        if source is not None:
            return count_edges(source)
        store = ArrowStore(args.warehouse, read_only=True)
        if args.split:
            return store.count_rows(SPLITS, "split_id", args.split)
        return count_edges(neighbourhood_source(store, args.neighbourhoods))

    return choose_job_runner(args.engine, args.warehouse, count, NIGHT_TABLES)


def embed_graph(
    store: FileTables,
    args: argparse.Namespace,
    *,
    settings: GraphModel | None,
    near: NearestNodes | None,
    journal: Journal,
) -> int:
    """Build the graph, explain the costs or compute embeddings, and print the result."""
    files_folder(store)
    check_previous(store.root, args.previous)
    settings = settings or read_source(args, store)
    if args.previous:
        check_previous_model(store, settings, args.previous)
    if args.explain:
        journal.say(EXPLAINED)
    prepared = prepare_model(store, settings, journal)
    journal.write_log(store, f"embed-{prepared.model.model_id}", args.journal)
    if args.nodes:
        return print_nodes(prepared, args.nodes)
    return compute_embeddings(args, store, prepared, journal, near)


def read_source(args: argparse.Namespace, store: FileTables) -> GraphModel:
    """Return the model of the flags over a split, or over neighbourhoods, of the warehouse."""
    name = args.neighbourhoods
    named = split_source(store, args.split) if args.split else neighbourhood_source(store, name)
    source = named.model_dump(exclude_defaults=True)
    return make_settings(args, merge_documents(make_document(args), {"graph": source}))


def check_names(args: argparse.Namespace) -> None:
    """Check, before Spark starts, that the warehouse has the named rows, and that the file of ids exists.

    Raises:
        ConfigError: no such split, neighbourhoods or earlier model. MissingError: no such file.
    """
    if args.split:
        require_partition(args.warehouse, SPLITS, args.split, "--split")
    if args.neighbourhoods:
        require_partition(args.warehouse, NEIGHBOURHOODS, args.neighbourhoods, "--neighbourhoods")
    if needs_no_java(args.warehouse):
        check_previous(args.warehouse, args.previous)
    if args.nodes:
        parse_ids(args.nodes)


def check_previous(root: str, previous: str | None) -> None:
    """Refuse the name of an earlier model that a warehouse does not have.

    Raises:
        ConfigError: there is no such model; the hint names the nearest one.
    """
    known = list_folders(join_uri(root, FOLDER, MODELS)) if previous else []
    if previous and previous not in known:
        raise ConfigError(f"--previous {previous}: no such model in {root}", nearest(previous, known))


def check_settings(settings: GraphModel | None, near: NearestNodes | None) -> None:
    """Check, before Spark starts, the known graph, features and weights, and the lists' index."""
    if settings is not None:
        check_graph_source(settings.graph)
        read_layers(settings)
    if near is not None:
        check_nearest(near, None if settings is None else settings.graph.sides)


def check_graph_source(source: GraphSource) -> None:
    """Check, before Spark starts, that edges and node tables can be read. Only their heads are read.

    Raises:
        MissingError: one is not there. DataError, SchemaError: it is of another format, or lacks a column.
    """
    for path in (source.edges, *source.nodes.values()):
        if "://" not in path:
            check_path(path)
    open_inputs(source)


def compute_embeddings(
    args: argparse.Namespace,
    store: FileTables,
    prepared: PreparedGraphModel,
    journal: Journal,
    near: NearestNodes | None,
) -> int:
    """Print the costs, compute the layers and nearest nodes, report the drift and apply the gates."""
    if args.explain:  # needs no lock, and leaves no files
        with hold_private_folder(prepared.model.folder) as folder:
            model = replace(prepared.model, folder=folder)
            print_costs(args, store, replace(prepared, model=model), journal)
        return OK
    with open_model_work(store, prepared, journal) as working:
        embed(store, print_costs(args, store, working, journal), journal)
    facts = report_drift(store, prepared, args.previous, journal) if args.previous else []
    print_location(store.root, prepared)
    if near is not None:
        print_nearest_location(store.root, ensure_nearest_nodes(store, prepared, near, journal))
    held = [{"part": side, "fact": fact, "value": value} for side, fact, value in facts]
    if (error := gate_error(gate_checks(args.gate, held))) is not None:
        raise error
    return OK


def print_costs(
    args: argparse.Namespace, store: FileTables, prepared: PreparedGraphModel, journal: Journal
) -> PreparedGraphModel:
    """Print the costs of a model. Return it with the vectors that it takes over from an earlier night."""
    cores, rates, sentence = store.engine.cores, fit_rates(store), ""
    if args.previous:
        prepared, sentence = plan_refresh(store, prepared, args.previous, rates, journal)
    expected = estimate_passes(prepared, rates, cores, prepared.settings.plan)
    print(explain_costs(expected, prepared, rates, cores))
    if sentence:
        print(sentence)
    return prepared


def require_folder(warehouse: str) -> None:
    """Refuse a warehouse where tasks cannot write files, or whose storage does not answer.

    A schema of Spark's own catalog is looked at when Spark has started.

    Raises:
        ConfigError: it is another catalog, or on a storage that is read and written by Java alone.
        StoreError: the object storage does not answer, or refuses.
    """
    if not may_have_files(warehouse):
        raise ConfigError(
            f"--warehouse {warehouse} is written by Java, and tasks write the files of a graph themselves",
            "give a folder that the driver and all workers see, or s3://, gs://, abfss://, hdfs://",
        )
    require_storage(warehouse)


def make_document(args: argparse.Namespace) -> dict[str, Any]:
    """Return the flags as keys of a model file. Flags that are not set have no key."""
    graph = make_graph_document(args)
    features = {**parse_features(args.features), "side": args.features_side, "missing": args.missing}
    document = {
        "name": args.name,
        "graph": drop_missing(graph),
        "features": drop_missing(features),
        "layers": make_layers(args),
        "mode": args.mode,
        "weights": args.weights,
        "seed": args.seed,
        "wire": args.wire,
        "plan": args.plan,
        "blocks": args.blocks,
        "batch": args.batch,
        "output": args.output,
    }
    return drop_missing(document)


def make_nearest_settings(args: argparse.Namespace) -> NearestNodes | None:
    """Return the settings of nearest nodes, or None without --nearest.

    Raises:
        ConfigError: a flag of the lists without --nearest, or a setting that the index does not have.
    """
    more = drop_missing({"similarity": args.nearest_similarity, "side": args.nearest_side})
    if args.nearest is None:
        if more or args.nearest_index:
            raise ConfigError("lists of nearest nodes have no length", "--nearest K")
        return None
    if args.nodes:
        raise ConfigError("--nearest is for all nodes, and --nodes prints some", "give one of them")
    if args.nearest_index:
        kind, _, text = args.nearest_index.partition(":")
        usual = {"always": 0.0} if kind == "lsh" and args.nearest_similarity != "dot" else {}
        given = cli.parse_columns(text, "ivf:probes=16,cells=4000", "--nearest-index")
        more["index"] = {"name": kind, "kind": kind, **usual, **given}
    return parse(NearestNodes, {"count": args.nearest, **more}, "--nearest")


def make_graph_document(args: argparse.Namespace) -> dict[str, Any]:
    """Return the flags of `add_graph_flags` as keys of `GraphSource`; None for flags that are not set."""
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
    """Return the keys that have a value."""
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


def parse_features(text: str | None) -> dict[str, Any]:
    """Parse --features to keys of the section `features`."""
    if text is None:
        return {}
    if is_remote(text):
        return {"kind": "table", "path": text}
    kind, _, dims = text.partition(":")
    if kind in GENERATED_FEATURES and not Path(text).exists():
        if dims and not dims.isdigit():
            raise ConfigError(f"--features {text}: '{dims}' is not a number", "e.g. hashed:64")
        return {"kind": kind, **({"dims": int(dims)} if dims else {})}
    if kind.isidentifier() and not Path(text).exists():  # meant as a word
        raise ConfigError(f"--features: no table at {text}", nearest(kind, GENERATED_FEATURES))
    return {"kind": "table", "path": text}


def make_layers(args: argparse.Namespace) -> tuple[dict[str, Any], ...] | None:
    """Return layers with equal settings, or None if no flag describes them."""
    alike = drop_missing({"form": args.form, "aggregator": args.aggregator, "hidden": args.hidden})
    if not alike and not args.widths:
        return None
    return tuple({**alike, "width": width} for width in args.widths or (64, 64))


def make_settings(args: argparse.Namespace, keys: dict[str, Any]) -> GraphModel:
    """Return the model of the flags and, if there is one, of the model file."""
    if args.model:
        return load_model(args.model, keys)
    return parse(GraphModel, keys, "flags")


def describe_run(args: argparse.Namespace, settings: GraphModel | None) -> str:
    """Describe what would be done, without Spark."""
    if settings is None:
        named = f"training part of split {args.split}" if args.split else f"lists {args.neighbourhoods}"
        return f"graph      {named}\nwarehouse  {args.warehouse}"
    kinds = ", ".join(f"{one.form} {one.aggregator} {one.width}" for one in settings.layers)
    features = settings.features.path or settings.features.kind
    return (
        f"graph      {settings.graph.edges} ({', '.join(settings.graph.sides)})\n"
        f"features   {features}\nlayers     {kinds}; mode {settings.mode}, wire {settings.wire}\n"
        f"weights    {settings.weights or f'random, seed {settings.seed}'}\nwarehouse  {args.warehouse}\n"
        f"checked    {describe_files(settings)}"
    )


def describe_nearest(near: NearestNodes | None) -> str:
    """Return a line on the lists of nearest nodes; an empty text without lists."""
    if near is None:
        return ""
    return f"\nnearest    {near.count} of each node through {near.index.kind}, {near.similarity}"


def print_nodes(prepared: PreparedGraphModel, text: str) -> int:
    """Print the embeddings of some nodes as CSV: side, id, numbers."""
    graph = prepared.graph
    side, names = find_nodes(text, graph)
    dense = np.array(find_dense_ids(prepared, names, side))
    order = np.argsort(dense, kind="stable")
    vectors = embed_nodes(graph, prepared.model, dense[order].astype(np.int64))
    for name, vector in zip(names, vectors[np.argsort(order)], strict=True):
        print(f"{graph.sides[side]},{name}," + ",".join(repr(float(x)) for x in vector))
    return OK


def find_nodes(text: str, graph: Graph) -> tuple[int, list[str]]:
    """Return the side and the ids of [SIDE=]ID,ID or [SIDE=]@FILE, a file with one id per line."""
    side = text.rpartition("=")[0]
    if side and side not in graph.sides:
        raise ConfigError(f"--nodes: no side {side}", nearest(side, graph.sides))
    return graph.sides.index(side) if side else len(graph.sides) - 1, parse_ids(text)


def parse_ids(text: str) -> list[str]:
    """Return the different ids of [SIDE=]ID,ID or [SIDE=]@FILE. Raises ConfigError if there is none."""
    listed = text.rpartition("=")[2]
    names = read_lines(listed[1:]) if listed.startswith("@") else listed.split(",")
    ids = list(dict.fromkeys(name.strip() for name in names if name.strip()))
    if not ids:
        raise ConfigError(f"--nodes {text}: no id", "[SIDE=]ID,ID or [SIDE=]@FILE with one id per line")
    return ids


def read_lines(path: str) -> list[str]:
    """Return the lines of a file of ids.

    Raises:
        MissingError: no such file. ConfigError: a folder, or a file that is no text.
    """
    check_path(path)
    try:
        text = Path(path).read_bytes().decode("utf-8")
    except OSError as error:
        raise ConfigError(
            f"--nodes @{path}: {error.strerror}", "give a text file with one id per line"
        ) from None
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise ConfigError(
            f"--nodes @{path}: the file is not UTF-8 text",
            "give a text file with one id per line; export the ids of a Parquet or compressed file first",
        )
    return text.removeprefix("\ufeff").splitlines()


def find_dense_ids(prepared: PreparedGraphModel, names: list[str], side: int) -> list[int]:
    """Return the dense ids of raw ones. Raises DataError for nodes that are not of this side."""
    import pyarrow as pa  # noqa: PLC0415

    graph = prepared.graph
    ids = to_id_array(pa.array(names), graph.numeric[side], f"--nodes of side {graph.sides[side]}")
    places = NodeFinder(graph)(hash_node_ids(ids, graph.seed), side)
    unknown = [name for name, place in zip(names, places, strict=True) if place >= MOST_NODES]
    if unknown:
        listed = ", ".join(unknown[:5])
        message = f"{len(unknown)} of {len(names)} nodes are not of side {graph.sides[side]}: {listed}"
        hint = f"{nearest(unknown[0], sample_ids(graph, side))}; a node without edges comes by --node-table"
        raise DataError(message, hint)
    return [int(place) for place in places]


def sample_ids(graph: Graph, side: int) -> list[str]:
    """Return up to `MAX_SEARCHED_IDS` ids of a side, for a hint with a similar id."""
    ids: list[str] = []
    for block in graph.side_blocks(side):
        ids += [str(name) for name in read_ids(graph, block)[:MAX_SEARCHED_IDS].to_pylist()]
        if len(ids) >= MAX_SEARCHED_IDS:
            break
    return ids[:MAX_SEARCHED_IDS]


def print_location(root: str, prepared: PreparedGraphModel) -> None:
    """Print the table of the embeddings, a query for it, and how to measure vectors of users and items."""
    name, table = prepared.model.model_id, "embeddings"
    if prepared.model.embeddings is None:
        table = "graph_vectors"
    query = f"SELECT * FROM {table} WHERE model_id = '{name}' LIMIT 10"
    print(f"model {name}: table {table} in {root}; ask in SQL:")
    print(f"  {query_command(root, query)}")
    if table == "embeddings" and {"user", "item"} <= set(prepared.graph.sides):
        place = shlex.quote(root)
        flags = (
            f"--warehouse {place} --model {prepared.settings.name} --embeddings {place} --model-id {name}"
        )
        print(f"measure it:\n  recbench evaluate {flags} --truth TEST --train TRAIN")


def print_nearest_location(root: str, name: str) -> None:
    """Print the table of nearest nodes and a query for it."""
    query = f"SELECT * FROM nearest_nodes WHERE nearest_id = '{name}' LIMIT 10"
    print(f"nearest nodes {name}: table nearest_nodes in {root}; ask in SQL:")
    print(f"  {query_command(root, query)}")
