"""Evaluate what any system hands over, without a config file.

    python jobs/evaluate.py --warehouse DIR --model NAME --lists PATH --truth PATH --k 1,3,10
    python jobs/evaluate.py ... --scores PATH            --truth PATH --train PATH
    python jobs/evaluate.py ... --embeddings USERS ITEMS --truth PATH --train PATH
    python jobs/evaluate.py ... --embeddings ITEMS       --pairs PATH
    python jobs/evaluate.py ... --predictions PATH

Parquet, CSV or Delta. lists: user_id, item_id, rank (from 1) or score. truth: user_id, item_id
[, relevance]; a user with an empty truth has one row with item NULL. scores: user_id, item_id, score.
embeddings: user_id, vector and item_id, vector[, bias]. predictions: user_id, item_id, prediction,
outcome. The metrics are printed and written to WAREHOUSE/metrics, WAREHOUSE/user_metrics ...
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from recbench_spark import cli
from recbench_spark.config import DEFAULT_METRICS, NAME, Bootstrap, parse
from recbench_spark.data.identity import identity
from recbench_spark.data.readers import read_table
from recbench_spark.definitions import Definition, make_definition
from recbench_spark.errors import OK, ConfigError
from recbench_spark.evaluation.metrics.accuracy import MetricPlan
from recbench_spark.evaluation.metrics.beyond_accuracy import LIST_METRICS
from recbench_spark.evaluation.metrics.predictions import Views
from recbench_spark.evaluation.result import Result
from recbench_spark.evaluator.evaluate import (
    check_candidates,
    check_needs,
    evaluate,
    evaluate_predictions,
)
from recbench_spark.evaluator.pairs import evaluate_pairs
from recbench_spark.journal import Journal
from recbench_spark.kernels.metrics.accuracy import METRICS
from recbench_spark.session import get_session
from recbench_spark.sharing import drop_scratch
from recbench_spark.steps.results import publish_standalone
from recbench_spark.store import Store

MOST_QUANTILES = 10_000
"""Bins of predictions: each is rows of `metrics`, and its edges travel with every task."""

KINDS = ("lists", "scores", "embeddings", "predictions")


def parser() -> cli.Parser:
    """The flags of this job."""
    flags = cli.Parser(__doc__ or "")
    flags.add_argument("--warehouse", required=True, help="directory or catalog.schema of the tables")
    flags.add_argument("--model", required=True, help="name of the model in the tables")
    given = flags.add_argument_group(
        "what the system hands over (exactly one)"
    ).add_mutually_exclusive_group(required=True)
    given.add_argument("--lists", metavar="PATH", help="ranked lists")
    given.add_argument("--scores", metavar="PATH", help="scores of candidates")
    given.add_argument(
        "--embeddings",
        nargs="+",
        metavar="PATH",
        help="vectors of USERS ITEMS, or with --pairs ITEMS alone",
    )
    given.add_argument("--predictions", metavar="PATH", help="predictions with their outcomes")
    flags.add_argument("--truth", metavar="PATH", help="held-out items (not with --predictions)")
    flags.add_argument(
        "--pairs", metavar="PATH", help="labelled pairs (query_id, item_id): items near an item are ranked"
    )
    flags.add_argument("--train", metavar="PATH", help="training items: not ranked where we score")
    flags.add_argument("--candidates", metavar="PATH", help="candidates of each user (user_id, item_id)")
    flags.add_argument("--features", metavar="PATH", help="what items are like (item_id, vector)")
    flags.add_argument("--similarity", choices=["dot", "cosine"], default="dot", help="of embeddings")
    _add_measures(flags)
    flags.add_argument("--dataset", help="name under which runs are compared (default: the truth's path)")
    flags.add_argument("--suite", default="standalone", help="name under which runs are compared")
    flags.add_argument(
        "--logical-date", type=cli.day, default=None, help="the day evaluated (default: today)"
    )
    flags.add_argument("--dry-run", action="store_true", help="check the flags and say what would be done")
    return flags


def _add_measures(flags: cli.Parser) -> None:
    """The flags that say what is measured, and how."""
    flags.add_argument("--k", type=cli.cutoffs, default=(1, 3, 5, 10, 20), help="cut-offs, e.g. 1,3,10")
    flags.add_argument("--metrics", help=f"comma-separated; default {','.join(DEFAULT_METRICS)}")
    flags.add_argument("--curve", action="store_true", help="keep every cut-off from 1 to the largest k")
    flags.add_argument(
        "--cut", action="store_true", help="rank only up to the largest k: faster, no uncut values"
    )
    flags.add_argument("--preset", help="definition of another library, e.g. recbole, rectools, mllib")
    flags.add_argument(
        "--set", action="append", default=[], metavar="definition.AXIS=VALUE", help="one axis"
    )
    flags.add_argument(
        "--quantiles", type=int, default=10, help="bins of equal mass in which predictions are looked at"
    )
    flags.add_argument(
        "--thresholds", type=cli.numbers, default=(0.5,), help="TPR, FPR ... of predictions from here on"
    )
    flags.add_argument(
        "--fpr", type=cli.numbers, default=(0.0, 0.1), help="false-positive rates of the partial AUC: 0,0.1"
    )
    flags.add_argument(
        "--bootstrap", type=int, default=1000, help="replicates behind the intervals (0: none)"
    )


def main(args: argparse.Namespace) -> int:
    """Check the flags, read, evaluate, write, print."""
    kind = next(name for name in KINDS if getattr(args, name))
    definition = checked(args, kind)
    if args.dry_run:
        against = args.truth or args.pairs or "their outcomes"
        print(f"{kind} of model {args.model} against {against}: {definition.describe()}")
        return OK
    journal, started = Journal(), datetime.now(UTC)
    journal.say(f"model {args.model}: evaluate {kind}")
    store = Store(get_session(f"recbench-spark evaluate {args.model}"), args.warehouse)
    try:
        result = evaluated(store, args, kind)
        run = {**identify(store.spark, args, kind, definition), "started_at": started}
        run_id = publish_standalone(store, result, run)
        show(store, run_id)
        result.release()
    finally:
        drop_scratch(store.spark, store.scratch)
    return OK


def checked(args: argparse.Namespace, kind: str) -> Definition:
    """The definition asked for, after the flags have been checked against each other."""
    for name in (args.model, args.suite):
        if not NAME.fullmatch(name):
            raise ConfigError(f"'{name}' is not a usable name", "letters, digits, dot, dash, underscore")
    _refuse_unused(args, kind)
    _check_sides(args)
    if not args.predictions and not args.truth and not args.pairs:
        raise ConfigError("--truth is missing", "a table of user_id, item_id[, relevance]")
    bootstrap(args)
    definition = make_definition(args.preset, cli.axes(args.set))
    views(args)
    if kind == "predictions":
        return definition
    plan = MetricPlan.checked(wanted_metrics(args, kind), cutoffs(args), definition, uncut=not args.cut)
    check_needs(plan.metrics, bool(args.train), bool(args.features))
    check_candidates(definition, kind == "embeddings", bool(args.candidates), bool(args.train))
    return definition


def _check_sides(args: argparse.Namespace) -> None:
    """Two tables of vectors, or with labelled pairs the one of items and nothing else."""
    given, wanted = len(args.embeddings or ()), 1 if args.pairs else 2
    if args.pairs and not args.embeddings:
        raise ConfigError("--pairs is for embeddings", "--embeddings ITEMS --pairs PAIRS")
    if args.embeddings and given != wanted:
        raise ConfigError(f"--embeddings: {given} tables", "USERS ITEMS; with --pairs ITEMS alone")
    more = (args.truth, args.train, args.candidates, args.metrics, args.set, args.preset)
    if args.pairs and any(more):
        raise ConfigError("--pairs has hit rates and scaled MRR alone", "without --truth, --train ...")


def _refuse_unused(args: argparse.Namespace, kind: str) -> None:
    """A flag that would do nothing is a mistake, not a wish."""
    ranked = {"--truth": args.truth, "--train": args.train, "--metrics": args.metrics, "--set": args.set,
              "--preset": args.preset, "--curve": args.curve, "--cut": args.cut}  # fmt: skip
    unused = [flag for flag, given in ranked.items() if given and kind == "predictions"]
    if unused:
        raise ConfigError(
            f"{unused[0]} is not used with --predictions", "it is for lists, scores, embeddings"
        )


def evaluated(store: Store, args: argparse.Namespace, kind: str) -> Result:
    """Read the tables and evaluate them."""
    spark = store.spark
    if kind == "predictions":
        rows = read(spark, args.predictions, ("user_id", "item_id"), kind)
        return evaluate_predictions(rows, bootstrap(args), views(args))
    if args.pairs:
        items = read(spark, args.embeddings[0], ("item_id", "vector"), "items")
        pairs = read(spark, args.pairs, ("query_id", "item_id"), "pairs")
        return evaluate_pairs(
            items, pairs, k=cutoffs(args), similarity=args.similarity, scratch=store.scratch
        )
    pair = ("user_id", "item_id")
    features = read(spark, args.features, ("item_id", "vector"), "features") if args.features else None
    optional: dict[str, Any] = {
        name: read(spark, getattr(args, name), pair, name) if getattr(args, name) else None
        for name in ("train", "candidates", "lists", "scores")
    }
    return evaluate(
        read(spark, args.truth, pair, "truth"),
        **optional,
        features=features,
        features_name=Path(args.features).stem if args.features else "",
        embeddings=embeddings(spark, args.embeddings),
        k=cutoffs(args),
        metrics=wanted_metrics(args, kind),
        preset=args.preset,
        definition=cli.axes(args.set),
        similarity=args.similarity,
        bootstrap=bootstrap(args),
        uncut=not args.cut,
        scratch=store.scratch,
    )


def bootstrap(args: argparse.Namespace) -> Bootstrap:
    """What is resampled."""
    return parse(Bootstrap, {"replicates": args.bootstrap}, f"--bootstrap {args.bootstrap}")


def cutoffs(args: argparse.Namespace) -> tuple[int, ...]:
    """The cut-offs, or all up to the largest."""
    return cli.curve(args.k) if args.curve else tuple(args.k)


def views(args: argparse.Namespace) -> Views:
    """Where predictions are looked at."""
    if len(args.fpr) != 2:
        raise ConfigError(f"--fpr: {len(args.fpr)} numbers, expected two", "e.g. --fpr 0,0.1")
    if args.quantiles > MOST_QUANTILES:
        raise ConfigError(f"--quantiles {args.quantiles}: at most {MOST_QUANTILES}", "10 or 100 are usual")
    return Views(args.quantiles, args.thresholds, args.fpr)


def read(spark: SparkSession, path: str, columns: Sequence[str], what: str) -> DataFrame:
    """A table by its path."""
    return read_table(spark, path, columns, what)


def embeddings(spark: SparkSession, paths: Sequence[str] | None) -> tuple[DataFrame, DataFrame] | None:
    """The two sides of a model of vectors."""
    if not paths:
        return None
    users, items = paths
    return read(spark, users, ("user_id", "vector"), "users"), read(
        spark, items, ("item_id", "vector"), "items"
    )


def wanted_metrics(args: argparse.Namespace, kind: str) -> tuple[str, ...]:
    """The metrics named, or the usual ones; lists have no AUC unless it is asked for."""
    if args.metrics is not None:
        return cli.names(args.metrics, "--metrics")
    return tuple(name for name in DEFAULT_METRICS if kind != "lists" or name != "auc")


def identify(
    spark: SparkSession, args: argparse.Namespace, kind: str, definition: Definition
) -> dict[str, Any]:
    """What the row of `runs` says of this evaluation."""
    paths = {name: getattr(args, name) for name in ("train", "candidates", "features", *KINDS)}
    paths = {"truth": args.truth or args.pairs, **paths}
    flat = {
        f"{name}{n or ''}": path
        for name, given in paths.items()
        for n, path in enumerate(given if isinstance(given, list) else [given])
        if path
    }
    return {
        "suite": args.suite,
        "logical_date": args.logical_date or date.today(),
        "model": args.model,
        "model_kind": kind,
        "dataset": args.dataset or args.truth or args.pairs or args.predictions,
        "settings": {
            "k": args.k,
            "preset": args.preset,
            "definition": definition.model_dump(),
            "paths": flat,
        },
        "inputs": {name: identity(spark, path) for name, path in flat.items()},
    }


def show(store: Store, run_id: str) -> None:
    """The overall metrics and what the checks found."""
    kept = "slice_key IS NULL OR slice_key IN ('fpr', 'threshold')"
    numbers = store.of_run("metrics", run_id).where(kept)
    numbers = numbers.withColumn("metric", F.concat_ws(" ", "metric", "slice_key", "slice_value"))
    shown = numbers.orderBy("metric", "k").select(
        "metric", "k", "value", "stderr", "ci_low", "ci_high", "n", "definition"
    )
    rows = shown.toArrow().to_pandas().astype({"k": "Int64"}).astype({"k": str})
    print(rows.replace({"k": {"<NA>": ""}}).to_string(index=False, na_rep=""))
    for check in store.of_run("checks", run_id).where("NOT passed").collect():
        print(f"warning: {check.check}: {check.observed:g} ({check.detail})")
    print(f"run {run_id} in {store.root}; known metrics: {', '.join((*METRICS, *LIST_METRICS))}")
