"""Estimate metrics or policy values from biased logs: the work of `jobs/estimate.py`."""

from __future__ import annotations

import argparse
from datetime import UTC, date, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from recbench_spark.commands.runners import run_job
from recbench_spark.commands.table_descriptions import describe_table
from recbench_spark.commands.warehouses import check_warehouse
from recbench_spark.config import NAME, Bootstrap, parse
from recbench_spark.data.identity import identity
from recbench_spark.data.readers.bandit_feedback import read_rounds
from recbench_spark.data.readers.published import read_propensities
from recbench_spark.data.readers.tables import read_table
from recbench_spark.engine.versions import collect_arrow
from recbench_spark.errors import OK, ConfigError, FallbackToSpark
from recbench_spark.evaluation.result import Result
from recbench_spark.inputs import pin_inputs
from recbench_spark.kernels.estimators.exposure import EstimatorSettings
from recbench_spark.nightly.estimates import (
    estimate_frequencies,
    estimate_matrix,
    estimate_rounds,
    join_policy,
)
from recbench_spark.nightly.runners import choose_job_runner
from recbench_spark.nightly.standalone_runs import publish_standalone
from recbench_spark.schemas import CHECKS, METRICS, RUNS
from recbench_spark.storage.arrow_store import require_session

if TYPE_CHECKING:
    from recbench_spark.storage.arrow_store import AnyStore
    from recbench_spark.storage.store import Store

MAX_WEIGHT = 100.0
MAX_ITEMS = 10**9
"""Most items among which a uniform policy chooses; as in a graph."""

MATRIX_DEFAULTS: dict[str, Any] = {"log": None, "propensities": None, "floor": None, "bootstrap": 1000}
ROUNDS_DEFAULTS: dict[str, Any] = {
    "reader": "table", "uniform": None, "policy": None, "policy_log": None,
    "clip": MAX_WEIGHT, "switch": MAX_WEIGHT, "shrink": MAX_WEIGHT,
}  # fmt: skip
"""Flags of one kind of input, with their defaults."""


@pin_inputs()
def run(args: argparse.Namespace) -> int:
    """Check the flags, read the tables, estimate, write and print the results."""
    args = fill_defaults(args)
    check_flags(args)
    if args.dry_run:
        check_warehouse(args.warehouse)
        print("\n".join([f"model {args.model}: {describe_estimate(args)}", *check_tables(args)]))
        return OK
    chosen = choose_job_runner(args.engine, args.warehouse, need_spark, (RUNS, METRICS, CHECKS))
    name = f"model {args.model}: {describe_estimate(args)}"
    return run_job(name, args, chosen, partial(publish_estimate, args))


def need_spark() -> int:
    """Raise FallbackToSpark: tables of cells and rounds are frames."""
    raise FallbackToSpark("cells and rounds are joined by Spark")


def publish_estimate(args: argparse.Namespace, opened: AnyStore) -> int:
    """Read the tables, estimate, write and print the results."""
    started, store = datetime.now(UTC), require_session(opened, "cells and rounds")
    run = {**identify_run(store.spark, args), "started_at": started}
    result = run_matrix(store.spark, args) if args.matrix else run_rounds(store.spark, args)
    run_id = publish_standalone(store, result, run)
    print_estimates(store, run_id)
    result.release()
    return OK


def fill_defaults(args: argparse.Namespace) -> argparse.Namespace:
    """Return the flags with their defaults. Raises ConfigError for a flag that would have no effect."""
    kind, other = ("matrix", "rounds") if args.matrix else ("rounds", "matrix")
    flags = {"matrix": MATRIX_DEFAULTS, "rounds": ROUNDS_DEFAULTS}
    for name in flags[other]:
        if getattr(args, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')} is not used with --{kind}", "leave it out")
    present = {name: value for name, value in vars(args).items() if value is not None}
    return argparse.Namespace(**{**vars(args), **flags[other], **flags[kind], **present})


def check_flags(args: argparse.Namespace) -> None:
    """Check that the flags agree and that their values make sense. Raises ConfigError."""
    for name in (args.model, args.suite):
        if not NAME.fullmatch(name):
            raise ConfigError(
                f"'{name}' is not a usable name", "use letters, digits, dot, dash and underscore"
            )
    if args.matrix and not args.propensities:
        raise ConfigError("--propensities is missing", "give a table of item_id, propensity, for example")
    if args.rounds and args.reader == "open_bandit" and policy_name(args) == "given":
        raise ConfigError("Open Bandit rounds have no pi_e", "give --uniform N, --policy or --policy-log")
    positive = {
        "--clip": args.clip,
        "--switch": args.switch,
        "--shrink": args.shrink,
        "--uniform": args.uniform,
    }
    for flag, value in positive.items():
        if value is not None and not value > 0:
            raise ConfigError(f"{flag} {value:g}: must be above 0")
    if args.uniform is not None and args.uniform > MAX_ITEMS:
        raise ConfigError(
            f"--uniform {args.uniform}: at most {MAX_ITEMS} items", "give the number of items"
        )
    if args.floor is not None and not 0 < args.floor <= 1:
        raise ConfigError(f"--floor {args.floor:g}: must lie above 0 and at most at 1")
    make_bootstrap(args)


def make_bootstrap(args: argparse.Namespace) -> Bootstrap:
    """Return the settings of the bootstrap: replicates, and the level of the intervals."""
    settings = {"replicates": args.bootstrap, "level": args.level}
    return parse(Bootstrap, settings, f"--bootstrap {args.bootstrap} --level {args.level:g}")


def describe_estimate(args: argparse.Namespace) -> str:
    """Describe what is estimated."""
    if args.matrix:
        known = f"ratings of {args.log or args.matrix}, propensities {args.propensities}"
        return f"mse and mae over the cells of {args.matrix} from {known}"
    return f"value of policy {policy_name(args)} from rounds {args.rounds}"


def check_tables(args: argparse.Namespace) -> list[str]:
    """Return a line for each table that the flags name.

    Raises:
        MissingError: one is not there. SchemaError: it lacks a column.
    """
    own = args.reader == "table"
    logged = ("reward", "propensity") if own else ()
    chosen = () if args.uniform or args.policy or args.policy_log else ("pi_e",)
    columns: dict[str, tuple[str, ...]] = {
        "matrix": ("user_id", "item_id", "prediction", *(() if args.log else ("rating",))),
        "log": ("user_id", "item_id", "rating"),
        "propensities": () if (args.propensities or "").endswith(".ascii") else ("propensity",),
        "rounds": (*logged, *(chosen if own else ())),
        "policy": ("item_id", "pi_e"),
        "policy_log": (*logged, *(("item_id", "position") if own else ())),
    }
    paths = {name: getattr(args, name) for name in columns}
    return [describe_table(n, path, columns[n], rows=bool(columns[n])) for n, path in paths.items() if path]


def policy_name(args: argparse.Namespace) -> str:
    """Return the name of the policy in the definition."""
    if args.uniform:
        return f"uniform_{args.uniform}"
    return "estimated_from_its_log" if args.policy_log else "table" if args.policy else "given"


def run_matrix(spark: SparkSession, args: argparse.Namespace) -> Result:
    """Read a matrix, ratings and propensities, and estimate the errors."""
    matrix = read_table(spark, args.matrix, ["user_id", "item_id", "prediction"], "matrix")
    log = read_table(spark, args.log, ["user_id", "item_id", "rating"], "log") if args.log else None
    if args.propensities.endswith(".ascii"):
        chances = read_propensities(spark, args.propensities)
    else:
        chances = read_table(spark, args.propensities, ["propensity"], "propensities")
    return estimate_matrix(matrix, log, chances, make_bootstrap(args), args.floor)


def run_rounds(spark: SparkSession, args: argparse.Namespace) -> Result:
    """Read rounds and the policy, and estimate its value."""
    rounds = read_checked_rounds(spark, args.rounds, args.reader)
    if args.uniform:
        rounds = rounds.withColumn("pi_e", F.lit(1.0 / args.uniform))
    elif args.policy_log:
        rounds = join_policy(
            rounds, estimate_frequencies(read_checked_rounds(spark, args.policy_log, args.reader))
        )
    elif args.policy:
        rounds = join_policy(rounds, read_table(spark, args.policy, ["item_id", "pi_e"], "policy"))
    settings = EstimatorSettings(args.clip, args.switch, args.shrink)
    return estimate_rounds(rounds, settings, policy_name(args), args.level)


def read_checked_rounds(spark: SparkSession, path: str, reader: str) -> DataFrame:
    """Read rounds as rows with the columns reward and propensity."""
    if reader == "table":
        return read_table(spark, path, [], "rounds")
    rounds = read_rounds(spark, path)
    return rounds.withColumnsRenamed({"click": "reward", "propensity_score": "propensity"})


def identify_run(spark: SparkSession, args: argparse.Namespace) -> dict[str, Any]:
    """Return the columns of this estimate in `runs`. Runs of the same input are comparable."""
    paths = {
        name: getattr(args, name) for name in ("matrix", "log", "propensities", "policy", "policy_log")
    }
    truth = args.rounds or args.log or args.matrix
    names = ("level", "clip", "switch", "shrink") if args.rounds else ("level", "floor", "bootstrap")
    settings = {name: getattr(args, name) for name in names}
    return {
        "suite": args.suite,
        "logical_date": args.logical_date or date.today(),
        "model": args.model,
        "model_kind": "matrix" if args.matrix else "policy",
        "dataset": args.dataset or truth,
        "settings": {**settings, **({"policy": policy_name(args)} if args.rounds else {}), "paths": paths},
        "inputs": {
            "truth": identity(spark, truth),
            **{name: identity(spark, path) for name, path in paths.items() if path},
        },
    }


def print_estimates(store: Store, run_id: str) -> None:
    """Print the estimates and the results of the checks."""
    names = ("metric", "estimator", "value", "stderr", "ci_low", "ci_high", "n", "definition")
    rows = collect_arrow(store.read_run("metrics", run_id).select(*names)).to_pandas()
    print(rows.sort_values(["metric", "estimator"]).to_string(index=False, na_rep=""))
    for check in store.read_run("checks", run_id).orderBy("check").collect():
        mark = "" if check.passed else "warning: "
        print(f"{mark}{check.check}: {check.observed:g} ({check.detail})")
    print(f"run {run_id} in {store.root}")
