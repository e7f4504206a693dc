"""Embed all nodes of a graph, layer by layer.

    recbench embed --warehouse DIR --edges edges.csv
    recbench embed --warehouse DIR --edges likes.parquet --columns src=user,dst=item \\
        --sides user,item --features items.parquet --mode bipartite --form convolve --widths 128,128
    recbench embed --warehouse DIR --neighbourhoods ID --aggregator importance --form convolve
    recbench embed --warehouse DIR --split SPLIT_ID --weights model.safetensors --model model.yaml
    recbench embed ... --explain           what it will cost, with an interval, before any layer runs
    recbench embed ... --nodes 17,42       these nodes alone, the bits of the whole run
    recbench embed ... --nearest 20        also the table of the 20 nearest nodes of every node
    recbench embed ... --nearest 20 --nearest-index ivf:cells=4000,probes=16

Edges: CSV, Parquet or Delta, one row an edge (src, dst[, weight]); a CSV file without names in its first
line has these columns in this order. With --lists one row a node (node, neighbours[, weights]). Features:
a table (id, vector), in text with arrays of JSON, for all nodes of a side. The graph is built once for all
models; an interrupted run continues where it stopped. Exit codes: 0 fine, 1 failed, 2 wrong usage or
configuration, 3 the drift since --previous is outside a --gate (the embeddings are there).
"""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from recbench_spark import cli
from recbench_spark.commands.graph_flags import (
    add_graph_flags,
    add_warehouse,
    drop_missing,
    make_graph_document,
)
from recbench_spark.config import Gate, parse
from recbench_spark.core.inputs import pin_inputs
from recbench_spark.errors import OK, ConfigError, nearest
from recbench_spark.graphs.kernels.forms import AGGREGATORS
from recbench_spark.models.graph import DRIFT

if __name__ != "flags":
    from recbench_spark.commands.node_lists import parse_ids, print_nodes
    from recbench_spark.commands.runners import run_job
    from recbench_spark.commands.warehouses import check_journal_path, require_partition
    from recbench_spark.config.loading import read_yaml
    from recbench_spark.engine.choices import EngineChoice
    from recbench_spark.graphs.build_inputs import count_edges, open_inputs
    from recbench_spark.graphs.estimates import estimate_passes, explain_costs, fit_rates
    from recbench_spark.graphs.folders import FOLDER
    from recbench_spark.graphs.incremental_run import check_previous_model, plan_refresh, report_drift
    from recbench_spark.graphs.model_inputs import (
        MODELS,
        PreparedGraphModel,
        describe_files,
        prepare_model,
        read_layers,
    )
    from recbench_spark.graphs.neighbourhoods import neighbourhood_source
    from recbench_spark.graphs.pipeline import embed, open_model_work
    from recbench_spark.graphs.settings import GraphModel, GraphSource, merge_documents
    from recbench_spark.graphs.stored_graphs import files_folder, split_source
    from recbench_spark.night.gates import gate_checks, gate_error
    from recbench_spark.night.runners import NIGHT_TABLES, choose_job_runner
    from recbench_spark.query.command_lines import query_command
    from recbench_spark.retrieval.nearest_nodes import check_nearest, ensure_nearest_nodes
    from recbench_spark.retrieval.settings import NearestNodes
    from recbench_spark.runtime.journal import Journal
    from recbench_spark.schemas import NEIGHBOURHOODS, SPLITS
    from recbench_spark.sources.paths import check_path
    from recbench_spark.storage.arrow_store import ArrowStore, may_have_files, needs_no_java
    from recbench_spark.storage.file_tables import FileTables
    from recbench_spark.storage.made_folders import hold_private_folder
    from recbench_spark.storage.objects import list_folders, require_storage
    from recbench_spark.storage.uris import is_remote, join_uri


def parser() -> cli.Parser:
    """Make the command's parser."""
    flags = cli.Parser(__doc__ or "")
    add_warehouse(flags)
    source = flags.add_argument_group("the graph").add_mutually_exclusive_group()
    cli.add_flags(source, "edges", "split")
    source.add_argument("--neighbourhoods", metavar="ID", help="neighbourhoods by recbench neighbourhoods")
    add_graph_flags(flags)
    _add_model_flags(flags)
    _add_nearest_flags(flags)
    _add_run_flags(flags)
    return flags


def _add_model_flags(flags: cli.Parser) -> None:
    """Add the model's flags."""
    model = flags.add_argument_group("the model")
    add = model.add_argument
    add("--model", metavar="FILE", help="YAML file of layers; see docs/how_to/graph_embeddings.md")
    add("--name", help="name of the model in the tables")
    add("--features", help="table (id, vector), or degrees, constant, hashed:DIMS")
    add("--features-side", help="side that has the features (default: the second side)")
    add("--missing", choices=["error", "zero"], help="what nodes without features get")
    add("--mode", choices=["projected", "bipartite"], help="bipartite: pins, boards, pins")
    add("--form", choices=["sage", "convolve"], help="form of all layers")
    add("--aggregator", choices=AGGREGATORS, help="aggregator of all layers")
    add("--widths", type=cli.parse_counts, help="dimensions after each layer, e.g. 128,64")
    add("--hidden", type=int, help="dimensions of messages, where they are projected")
    add("--weights", metavar="FILE", help="safetensors (default: random ones by --seed)")
    add("--seed", type=int, help="seed of random weights, hashed features, LSTM order")
    add("--wire", choices=["float16", "float32"], help="type of stored vectors")


def _add_nearest_flags(flags: cli.Parser) -> None:
    """Add the flags for the table with nearest nodes."""
    near = flags.add_argument_group("nearest nodes, when all vectors exist; see docs/how_to/retrieval.md")
    add = near.add_argument
    add("--nearest", type=cli.parse_count, metavar="K", help="nodes of a list")
    add("--nearest-index", metavar="KIND[:SETTING=VALUE,...]",
        help="flat (exact, the default), ivf, hnsw or lsh, e.g. ivf:probes=16")  # fmt: skip
    add("--nearest-similarity", choices=["cosine", "dot"], help="default: cosine")
    add("--nearest-side", metavar="SIDE", help="lists for this side alone (default: all)")


def _add_run_flags(flags: cli.Parser) -> None:
    """Add the flags for running the job."""
    running = flags.add_argument_group("running")
    add = running.add_argument
    cli.add_flags(running, "engine")
    add("--plan", choices=["auto", "G", "R", "S"], help="G gather, R replicate, S scatter")
    add("--batch", type=int, help="nodes that a task works on at once")
    add("--output", choices=["embeddings", "vectors"], help="table of the last layer")
    add("--nodes", help="embed only these ids ([SIDE=]ID,ID or @FILE), to standard output")
    add("--previous", metavar="MODEL_ID", help="an earlier night: compute changes, report the drift")
    add("--gate", **cli.MANY, type=gate, metavar="[SIDE:]FACT:below=X",
        help="end with 3 where drift is out of bounds: drift_cosine_p10:below=0.9, or above=X")  # fmt: skip
    add("--explain", action="store_true", help="print the costs and stop; graph and features are built")
    cli.add_flags(running, "dry-run", "journal")


def gate(text: str) -> Gate:
    """Parse [SIDE:]FACT:below=X to a gate in a benchmark file."""
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


GENERATED_FEATURES = ("degrees", "constant", "hashed")


EXPLAINED = (
    "--explain: builds the graph and its features unless they exist, counts on them, and runs no layer"
)


@pin_inputs()
def main(args: argparse.Namespace) -> int:
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
    """Choose the runner by a graph's number of edges.

    If no source is given, a table in the warehouse has the edges.

    Raises:
        ConfigError: `--engine local` for a job which only Spark can do.
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
    """Build the graph, explain costs or embed, print the result."""
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
    """Return the flags' model, with its graph from the warehouse.

    The graph is a split or neighbourhoods.
    """
    name = args.neighbourhoods
    named = split_source(store, args.split) if args.split else neighbourhood_source(store, name)
    source = named.model_dump(exclude_defaults=True)
    return make_settings(args, merge_documents(make_document(args), {"graph": source}))


def check_names(args: argparse.Namespace) -> None:
    """Before Spark starts, check warehouse names and the id file.

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
    """Refuse an earlier model which the warehouse does not have.

    Raises:
        ConfigError: the warehouse has no such model; the hint names the nearest one.
    """
    known = list_folders(join_uri(root, FOLDER, MODELS)) if previous else []
    if previous and previous not in known:
        raise ConfigError(f"--previous {previous}: no such model in {root}", nearest(previous, known))


def check_settings(settings: GraphModel | None, near: NearestNodes | None) -> None:
    """Check the graph, features, weights and the lists' index.

    Settings which are known before Spark starts are checked here.
    """
    if settings is not None:
        check_graph_source(settings.graph)
        read_layers(settings)
    if near is not None:
        check_nearest(near, None if settings is None else settings.graph.sides)


def check_graph_source(source: GraphSource) -> None:
    """Check that edges and node tables can be read.

    Only the heads are read, before Spark starts.

    Raises:
        MissingError: a table does not exist. DataError, SchemaError: a table has another format, or lacks a
            column.
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
    """Print the costs, then compute the layers and nearest nodes.

    Afterwards, the job reports the drift and applies the gates.
    """
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
    """Print a model's costs.

    Returns:
        The model, with the vectors which it takes over from an earlier night.
    """
    cores, rates, sentence = store.engine.cores, fit_rates(store), ""
    if args.previous:
        prepared, sentence = plan_refresh(store, prepared, args.previous, rates, journal)
    expected = estimate_passes(prepared, rates, cores, prepared.settings.plan)
    print(explain_costs(expected, prepared, rates, cores))
    if sentence:
        print(sentence)
    return prepared


def require_folder(warehouse: str) -> None:
    """Refuse a warehouse whose storage cannot take the tasks' files.

    A storage without an answer is refused too. A schema in Spark's own catalog is checked later, once Spark
    has started.

    Raises:
        ConfigError: the warehouse is another catalog, or on a storage which only Java reads and writes.
        StoreError: the object storage does not answer, or refuses.
    """
    if not may_have_files(warehouse):
        raise ConfigError(
            f"--warehouse {warehouse} is written by Java, and tasks write the files of a graph themselves",
            "give a folder that the driver and all workers see, or s3://, gs://, abfss://, hdfs://",
        )
    require_storage(warehouse)


MODEL_FLAGS = ("name", "mode", "weights", "seed", "wire", "plan", "blocks", "batch", "output")
"""Flags with the names of the model's keys."""


def make_document(args: argparse.Namespace) -> dict[str, Any]:
    """Return the flags as keys for a model file.

    An unset flag has no key.
    """
    graph = make_graph_document(args)
    features = {**parse_features(args.features), "side": args.features_side, "missing": args.missing}
    document = {
        **{name: getattr(args, name) for name in MODEL_FLAGS},
        "graph": drop_missing(graph),
        "features": drop_missing(features),
        "layers": make_layers(args),
    }
    return drop_missing(document)


def make_nearest_settings(args: argparse.Namespace) -> NearestNodes | None:
    """Return the settings for nearest nodes, or None without --nearest.

    Raises:
        ConfigError: a flag for the lists without --nearest, or a setting which the index does not have.
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


def parse_features(text: str | None) -> dict[str, Any]:
    """Parse --features to keys in the section `features`."""
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
    """Return equal layers, or None if no flag describes them."""
    alike = drop_missing({"form": args.form, "aggregator": args.aggregator, "hidden": args.hidden})
    if not alike and not args.widths:
        return None
    return tuple({**alike, "width": width} for width in args.widths or (64, 64))


def make_settings(args: argparse.Namespace, keys: dict[str, Any]) -> GraphModel:
    """Return the model from flags and an optional model file."""
    if args.model:
        document = read_yaml(Path(args.model), "see docs/how_to/graph_embeddings.md")
        return parse(GraphModel, merge_documents(document, keys), args.model)
    return parse(GraphModel, keys, "flags")


def describe_run(args: argparse.Namespace, settings: GraphModel | None) -> str:
    """Describe the planned work, without Spark."""
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
    """Return a line on the nearest-node lists; empty without lists."""
    if near is None:
        return ""
    return f"\nnearest    {near.count} of each node through {near.index.kind}, {near.similarity}"


def print_location(root: str, prepared: PreparedGraphModel) -> None:
    """Print the embeddings' table and a query for it.

    The text also says how to measure vectors for users and items.
    """
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
    """Print the nearest nodes' table and a query for it."""
    query = f"SELECT * FROM nearest_nodes WHERE nearest_id = '{name}' LIMIT 10"
    print(f"nearest nodes {name}: table nearest_nodes in {root}; ask in SQL:")
    print(f"  {query_command(root, query)}")
