"""Evaluate tables of any recommender system, without a config file.

    recbench evaluate --warehouse DIR --model NAME --lists PATH --truth PATH --k 1,3,10
    recbench evaluate ... --scores PATH            --truth PATH --train PATH
    recbench evaluate ... --embeddings USERS ITEMS --truth PATH --train PATH
    recbench evaluate ... --embeddings ITEMS       --pairs PATH
    recbench evaluate ... --embeddings WAREHOUSE --model-id ID --truth PATH --train PATH
    recbench evaluate ... --predictions PATH

Parquet, CSV or Delta. Columns may have the usual names of other libraries; a line tells which were taken.
lists: user_id, item_id, rank (from 1) or score. truth: user_id, item_id
[, relevance]; a user with an empty truth has one row with item NULL. With query_id beside user_id (lists,
scores, candidates, truth) each query is ranked alone. scores: user_id, item_id, score.
embeddings: user_id, vector and item_id, vector[, bias], or a warehouse whose table `embeddings` has the
vectors (of recbench embed, or of a night's model). predictions: user_id, item_id, prediction,
outcome[, weight]. The metrics are printed and written to WAREHOUSE/metrics, WAREHOUSE/user_metrics ...

Tables of this machine up to 2,000,000 rows are evaluated in this process, others by Spark, with the same
numbers and tables: --engine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import Any

from recbench_spark import cli
from recbench_spark.config import DEFAULT_METRICS, Bootstrap, Views
from recbench_spark.core.inputs import pin_inputs
from recbench_spark.errors import OK, ConfigError, FallbackToSpark
from recbench_spark.evaluation.options import (
    KINDS,
    SIMILARITIES,
    EvaluationRequest,
    make_bootstrap,
    table_columns,
)

if __name__ != "flags":
    import pyarrow as pa

    from recbench_spark.commands.warehouses import check_warehouse
    from recbench_spark.core.definitions import Definition, make_definition
    from recbench_spark.engine.choices import require_spark
    from recbench_spark.evaluation import engines
    from recbench_spark.evaluation.evaluation import evaluate
    from recbench_spark.evaluation.many_models import SIDES
    from recbench_spark.evaluation.pairs import evaluate_pairs
    from recbench_spark.evaluation.predictions import WEIGHTED, evaluate_predictions
    from recbench_spark.evaluation.request_checks import LEFT_OUT, check_request
    from recbench_spark.metrics.beyond_accuracy import LIST_METRICS
    from recbench_spark.metrics.kernels.accuracy import METRICS
    from recbench_spark.runtime.journal import Journal
    from recbench_spark.schemas import CHECKS, RANKINGS, RUNS, USER_METRICS
    from recbench_spark.schemas import METRICS as METRIC_TABLE
    from recbench_spark.sources import arrow_files
    from recbench_spark.sources.column_names import ColumnNames
    from recbench_spark.sources.stored_embeddings import choose_sides, find_table
    from recbench_spark.storage.arrow_store import ArrowStore
    from recbench_spark.storage.file_tables import FileTables
    from recbench_spark.storage.local_files import require_columns


def parser() -> cli.Parser:
    """Make the command's parser."""
    flags = cli.Parser(__doc__ or "")
    add = flags.add_argument
    cli.add_flags(flags, "warehouse")
    add("--model", required=True, help="name of the model in the tables")
    outputs = flags.add_argument_group("tables of the system (exactly one)")
    source = outputs.add_mutually_exclusive_group(required=True)
    source.add_argument("--lists", metavar="PATH", help="ranked lists")
    source.add_argument("--scores", metavar="PATH", help="scores of candidates")
    text = "vectors of USERS ITEMS, or with --pairs ITEMS alone, or a WAREHOUSE with a table embeddings"
    source.add_argument("--embeddings", nargs="+", metavar="PATH", help=text)
    source.add_argument("--predictions", metavar="PATH", help="predictions with their outcomes")
    add("--truth", metavar="PATH", help="held-out items (not with --predictions)")
    add("--pairs", metavar="PATH", help="labelled pairs (query_id, item_id): items near an item are ranked")
    add("--train", metavar="PATH", help="training items, which are left out of rankings by scores")
    cli.add_flags(flags, "columns", help="user_id=userId,item_id=movieId; usual names need no flag")
    add("--candidates", metavar="PATH", help="candidates of each user (user_id, item_id)")
    add("--features", metavar="PATH", help="features of items (item_id, vector)")
    add("--item-groups", metavar="PATH", help="groups of items (item_id, a column of labels[, weight])")
    add("--user-groups", metavar="PATH", help="groups of users (user_id, columns of labels)")
    add("--similarity", choices=SIMILARITIES, default=EvaluationRequest.similarity, help="of embeddings")
    _add_metric_flags(flags)
    _add_run_flags(flags)
    return flags


def _add_run_flags(flags: cli.Parser) -> None:
    """Add flags for the run's name, engine and dry run."""
    add = flags.add_argument
    add("--model-id", metavar="ID", help="with --embeddings WAREHOUSE: the model, where it has several")
    add("--dataset", help="name under which runs are compared (default: the truth's path)")
    cli.add_flags(flags, "suite")
    cli.add_flags(flags, "logical-date", help="the day evaluated (default: today)")
    cli.add_flags(flags, "engine", "dry-run")


def _add_metric_flags(flags: cli.Parser) -> None:
    """Add the flags for metrics and definitions."""
    add = flags.add_argument
    add("--k", type=cli.parse_cutoffs, default=EvaluationRequest.k, help="cut-offs, e.g. 1,3,10")
    default = ",".join(DEFAULT_METRICS)
    families = "; family:NAME is all metrics of accuracy, coverage, popularity, diversity, ..."
    add("--metrics", help=f"comma-separated, such as ndcg@10; default {default}{families}")
    add("--curve", action="store_true", help="keep every cut-off from 1 to the largest k")
    add("--cut", action="store_true", help="rank only up to the largest k: faster, no uncut values")
    add("--preset", help="definition of another library, e.g. recbole, rectools, mllib")
    cli.add_flags(flags, "set", metavar="definition.AXIS=VALUE", help="one axis")
    add("--quantiles", type=int, default=Views.quantiles, help="bins of equal mass of predictions")
    text = "TPR, FPR ... of predictions from these values on"
    add("--thresholds", type=cli.parse_numbers, default=Views.thresholds, help=text)
    add("--fpr", type=cli.parse_numbers, default=Views.fpr, help="rates of the partial AUC: 0,0.1")
    text = "share of negatives in the training of predicted probabilities, which are recalibrated: 0.05"
    add("--negatives-kept", type=float, default=Views.negatives_kept, help=text)
    add("--slice", metavar="COLUMN", help="numbers of predictions also for each value of a column")
    add("--bootstrap", type=int, default=Bootstrap().replicates, help="replicates of intervals (0: none)")


MAX_QUANTILES = 10_000
"""Most bins for predictions.

Each bin adds rows to `metrics`, and every task receives the bin edges.
"""


@pin_inputs()
def main(args: argparse.Namespace) -> int:
    """Check the flags, choose an engine, evaluate, write and print."""
    kind = next(name for name in KINDS if getattr(args, name))
    _take_stored_vectors(args)
    definition = check_flags(args, kind)
    choice = engines.choose_engine(
        args.engine,
        list(input_paths(args).values()),
        _side_paths(args),
        (args.warehouse, (USER_METRICS, METRIC_TABLE, RANKINGS, CHECKS, RUNS)),
        truth=args.truth,
    )
    if args.dry_run:
        check_headers(args)
        storage = check_warehouse(args.warehouse)
        against = args.truth or args.pairs or "their outcomes"
        print(f"{kind} of model {args.model} against {against}: {definition.describe()}")
        print("\n".join([choice.describe(), *storage]))
        return OK
    journal, started = Journal(), datetime.now(UTC)
    journal.say(f"model {args.model}: evaluate {kind}; {choice.describe()}")
    run = {**_identify_run(args, kind, definition), "started_at": started}
    if choice.engine == "local":
        try:
            return _evaluate_locally(args, kind, run)
        except FallbackToSpark as error:
            journal.say(require_spark(args.engine, error).describe())
    return _evaluate_on_spark(args, kind, run)


def _evaluate_locally(args: argparse.Namespace, kind: str, run: dict[str, Any]) -> int:
    """Evaluate without Java."""
    store = ArrowStore(args.warehouse)
    run["inputs"] = {name: arrow_files.identity(path) for name, path in input_paths(args).items()}
    result = evaluate_tables(args, kind, arrow_files.read_table)
    _publish(store, result, run)
    return OK


def _evaluate_on_spark(args: argparse.Namespace, kind: str, run: dict[str, Any]) -> int:
    # Imported here: small tables need none of these modules.
    from recbench_spark.runtime.session import get_session  # noqa: PLC0415
    from recbench_spark.sources.identity import identity  # noqa: PLC0415
    from recbench_spark.sources.input_rows import open_input  # noqa: PLC0415
    from recbench_spark.storage.frame_blocks import drop_scratch  # noqa: PLC0415
    from recbench_spark.storage.store import Store  # noqa: PLC0415

    store = Store(get_session(f"recbench-spark evaluate {args.model}"), args.warehouse)
    read = partial(open_input, store.engine)
    try:
        run["inputs"] = {name: identity(store.spark, path) for name, path in input_paths(args).items()}
        result = evaluate_tables(args, kind, read, store.scratch)
        _publish(store, result, run)
        result.release()
    finally:
        drop_scratch(store.spark, store.scratch)
    return OK


def _publish(store: FileTables, result: Any, run: dict[str, Any]) -> None:
    """Write the result, and print what was written."""
    from recbench_spark.night.standalone_runs import publish_standalone  # noqa: PLC0415

    if any(check.check == WEIGHTED for check in result.checks):
        run["settings"]["weight"] = "column"
    run_id = publish_standalone(store, result, run)
    metrics, checks = (store.read_run(name, run_id) for name in ("metrics", "checks"))
    print_results(metrics, checks, run_id, store.root, run["settings"].get("slice"))


OTHERS = ("train", "candidates", "features", "item_groups", "user_groups")
"""Flags with tables beside the system's and the truth."""


def check_flags(args: argparse.Namespace, kind: str) -> Definition:
    """Check the flags together; return the metrics' definition."""
    for name in (args.model, args.suite):
        cli.check_name(name)
    _refuse_unused(args, kind)
    _check_sides(args)
    if not args.predictions and not args.truth and not args.pairs:
        raise ConfigError("--truth is missing", "give a table of user_id, item_id[, relevance]")
    request = make_request(args, kind)
    read_views(args)
    read_columns(args)
    if kind == "predictions":
        return make_definition(request.preset, request.definition)
    tables = {name: getattr(args, name) for name in (*KINDS[:3], *OTHERS) if name != "user_groups"}
    return check_request(request, **tables).definition


def _take_stored_vectors(args: argparse.Namespace) -> None:
    """Replace a warehouse in --embeddings by a model's two tables.

    A path to the warehouse's own table is replaced as well.

    Raises:
        ConfigError: the warehouse has no such model, or --model-id is used with other tables.
    """
    place = args.embeddings[0] if len(args.embeddings or ()) == 1 else None
    table = None if place is None else find_table(place)
    if table is not None:
        args.embeddings = choose_sides(table, args.model_id, ("item",) if args.pairs else ("user", "item"))
    elif args.model_id:
        hint = "--embeddings WAREHOUSE --model-id ID"
        raise ConfigError(f"--model-id names a model of a warehouse, and {place or 'none'} is given", hint)


def _check_sides(args: argparse.Namespace) -> None:
    """Check the number of tables in --embeddings.

    Users and items are two tables; with --pairs, only the items' table is allowed.
    """
    count, expected = len(args.embeddings or ()), 1 if args.pairs else 2
    if args.pairs and not args.embeddings:
        raise ConfigError("--pairs is for embeddings", "--embeddings ITEMS --pairs PAIRS")
    if args.embeddings and count != expected:
        given = "one table, and" if count == 1 else f"{count} tables, and"
        needed = "one is needed with --pairs: items" if args.pairs else "two are needed: users and items"
        hint = "--embeddings USERS ITEMS; --embeddings ITEMS --pairs PAIRS; or, of a warehouse with a table"
        hint += " embeddings, --embeddings WAREHOUSE [--model-id ID]"
        raise ConfigError(f"--embeddings has {given} {needed}", hint)
    excluded = (args.truth, args.train, args.candidates, args.metrics, args.set, args.preset)
    if args.pairs and any(excluded):
        raise ConfigError("--pairs has hit rates and scaled MRR alone", "without --truth, --train ...")


def _refuse_unused(args: argparse.Namespace, kind: str) -> None:
    """Refuse flags without effect.

    Raises:
        ConfigError: the flag belongs to another kind of input.
    """
    ranking = {
        "--truth": args.truth, "--train": args.train, "--metrics": args.metrics, "--set": args.set,
        "--preset": args.preset, "--curve": args.curve, "--cut": args.cut,
    }  # fmt: skip
    unused = [flag for flag, is_set in ranking.items() if is_set and kind == "predictions"]
    if unused:
        raise ConfigError(
            f"{unused[0]} is not used with --predictions", "it is for lists, scores, embeddings"
        )
    defaults = Views()
    prediction_flags = {
        f"--{name.replace('_', '-')}": getattr(args, name) != value
        for name, value in asdict(defaults).items()
    } | {"--slice": args.slice is not None}
    for flag in [flag for flag, is_set in prediction_flags.items() if is_set and kind != "predictions"]:
        raise ConfigError(f"{flag} is not used with --{kind}", "it is for predictions")
    if args.similarity != "dot" and kind != "embeddings":
        raise ConfigError(f"--similarity is not used with --{kind}", "it is for embeddings")


def make_request(args: argparse.Namespace, kind: str) -> EvaluationRequest:
    """Return the evaluation options in the flags."""
    return EvaluationRequest(
        features_name=Path(args.features).stem if args.features else "",
        k=read_cutoffs(args),
        metrics=select_metrics(args, kind),
        preset=args.preset,
        definition=cli.parse_axes(args.set),
        similarity=args.similarity,
        bootstrap=make_bootstrap(args.bootstrap, f"--bootstrap {args.bootstrap}"),
        uncut=not args.cut,
    )


def read_cutoffs(args: argparse.Namespace) -> tuple[int, ...]:
    """Return the cut-offs; with --curve all from 1 upwards.

    The largest cut-off ends the curve.
    """
    return cli.expand_curve(args.k) if args.curve else tuple(args.k)


def read_columns(args: argparse.Namespace) -> ColumnNames:
    """Return the column names in the flag."""
    return ColumnNames(cli.parse_columns(args.columns, "user_id=userId,item_id=movieId"))


def read_views(args: argparse.Namespace) -> Views:
    """Return the bins, thresholds and false-positive rates for predictions."""
    if len(args.fpr) != 2:
        raise ConfigError(f"--fpr: {len(args.fpr)} numbers, expected two", "e.g. --fpr 0,0.1")
    if args.quantiles > MAX_QUANTILES:
        raise ConfigError(f"--quantiles {args.quantiles}: at most {MAX_QUANTILES}", "10 or 100 are usual")
    return Views(args.quantiles, args.thresholds, args.fpr, args.negatives_kept)


def evaluate_tables(
    args: argparse.Namespace, kind: str, read: Callable[..., Any], scratch: str | None = None
) -> Any:
    """Read the tables and evaluate them.

    Args:
        args: the flags.
        kind: one of KINDS.
        read: returns a table from its path, the needed columns and a name for messages.
        scratch: folder for files which workers map, where Spark runs the workers.
    """
    request, inputs, columns = make_request(args, kind), _name_tables(args), read_columns(args)
    tables = {name: read(path, table_columns(name), name, columns) for name, path in inputs.items()}
    for note in columns.notes:
        print(f"note: {note}", file=sys.stderr)
    if kind == "predictions":
        return evaluate_predictions(
            tables[kind], request.bootstrap, read_views(args), args.slice, scratch=scratch
        )
    if args.pairs:
        return evaluate_pairs(
            tables["items"],
            tables["pairs"],
            k=read_cutoffs(args),
            similarity=request.similarity,
            scratch=scratch,
        )
    sides = tuple(tables.pop(name) for name in SIDES if name in tables)
    return evaluate(**tables, embeddings=sides or None, **vars(request), scratch=scratch)


def _name_tables(args: argparse.Namespace) -> dict[str, str]:
    """Return the tables' paths by name.

    Readers and errors use the same names.
    """
    flags = ("truth", "pairs", "lists", "scores", "predictions", *OTHERS)
    paths = {name: getattr(args, name) for name in flags if getattr(args, name)}
    sides = ("items",) if args.pairs else SIDES
    return {**paths, **dict(zip(sides, args.embeddings or (), strict=bool(args.embeddings)))}


def _side_paths(args: argparse.Namespace) -> list[str]:
    """Return the two paths whose rows are multiplied together."""
    return [args.pairs or args.embeddings[0], args.embeddings[-1]] if args.embeddings else []


def input_paths(args: argparse.Namespace) -> dict[str, str]:
    """Return the input tables' paths by name."""
    inputs = {name: getattr(args, name) for name in (*OTHERS, *KINDS)}
    inputs = {"truth": args.truth or args.pairs, **inputs}
    return {
        f"{name}{n or ''}": path
        for name, paths in inputs.items()
        for n, path in enumerate(paths if isinstance(paths, list) else [paths])
        if path
    }


def check_headers(args: argparse.Namespace) -> None:
    """Check columns and vector widths.

    Tables which need Spark are skipped.

    Raises:
        SchemaError: a column is missing, or widths differ.
    """
    values = {
        "scores": ("score",),
        "predictions": ("prediction", "outcome", *([args.slice] if args.slice else [])),
    }
    for name, path in _name_tables(args).items():
        with suppress(FallbackToSpark):
            names = read_columns(args).rename_names(arrow_files.read_column_names(path), name)
            where = f"{name} {path}"
            require_columns(names, (*table_columns(name), *values.get(name, ())), where, path)
            if name == "lists" and "rank" not in names:
                require_columns(names, ["score"], where, path)
    if args.embeddings and not args.pairs:
        with suppress(FallbackToSpark):
            arrow_files.read_common_width(*((path, path) for path in args.embeddings))


def select_metrics(args: argparse.Namespace, kind: str) -> tuple[str, ...]:
    """Return the requested metrics, or the defaults.

    Lists have no AUC by default.
    """
    if args.metrics is not None:
        return cli.parse_names(args.metrics, "--metrics")
    return tuple(name for name in DEFAULT_METRICS if kind != "lists" or name != "auc")


def _identify_run(args: argparse.Namespace, kind: str, definition: Definition) -> dict[str, Any]:
    """Return this evaluation's columns in `runs`.

    The inputs' identity is not among them.
    """
    return {
        "suite": args.suite,
        "logical_date": args.logical_date or date.today(),
        "model": args.model,
        "model_kind": kind,
        "dataset": args.dataset or args.truth or args.pairs or args.predictions,
        "settings": {
            "k": args.k,
            "preset": args.preset,
            "definition": definition.to_settings(),
            "paths": input_paths(args),
            **({"slice": args.slice} if args.slice else {}),
            **({"columns": args.columns} if args.columns else {}),
            **_list_moved(args),
        },
    }


def _list_moved(args: argparse.Namespace) -> dict[str, Any]:
    """Return the changed flags which can move a number.

    A flag at its default does not enter the run's key.
    """
    defaults = {
        "metrics": None, "similarity": EvaluationRequest.similarity, "bootstrap": Bootstrap().replicates,
        "curve": False, "cut": False, **asdict(Views()),
    }  # fmt: skip
    return {name: getattr(args, name) for name, value in defaults.items() if getattr(args, name) != value}


def print_results(
    metrics: pa.Table, checks: pa.Table, run_id: str, root: str, slice_by: str | None = None
) -> None:
    """Print overall metrics, a column's slices, and failed checks."""
    numbers = metrics.to_pandas()
    numbers = numbers[numbers.slice_key.isna() | numbers.slice_key.isin(("fpr", "threshold", slice_by))]
    words = numbers[["metric", "slice_key", "slice_value"]].fillna("").agg(" ".join, axis=1)
    numbers = numbers.assign(metric=words.str.strip()).sort_values(["metric", "k"], na_position="first")
    shown = numbers[["metric", "k", "value", "stderr", "ci_low", "ci_high", "n", "definition"]]
    rows = shown.astype({"k": "Int64"}).astype({"k": str})
    print(rows.replace({"k": {"<NA>": ""}}).to_string(index=False, na_rep=""))
    for check in checks.to_pylist():
        if not check["passed"] or check["check"] == LEFT_OUT:
            kind = "note" if check["passed"] else "warning"
            print(f"{kind}: {check['check']}: {check['observed']:g} ({check['detail']})")
    print(f"run {run_id} in {root}; known metrics: {', '.join((*METRICS, *LIST_METRICS))}")
