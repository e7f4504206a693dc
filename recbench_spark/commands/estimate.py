"""Estimate errors over all ratings, or a policy, from biased logs.

    recbench estimate --warehouse DIR --model NAME --matrix PATH --log PATH --propensities PATH
    recbench estimate --warehouse DIR --model NAME --rounds PATH
    recbench estimate ... --model random --rounds OBD/bts --reader open_bandit --uniform 80
    recbench estimate ... --model bts --rounds OBD/random --reader open_bandit --policy-log OBD/bts

Parquet, CSV or Delta. matrix: user_id, item_id, prediction of every cell[, imputed: what a model of
ratings expects there, for DR][, rating: NULL where not known, in place of --log]. log: user_id, item_id,
rating. propensities: propensity by item_id, by user_id and item_id, or by rating (or Coat's
propensities.ascii). MSE and MAE by the naive mean (estimator holdout), IPS, SNIPS and DR, with bootstrap
intervals over users (Schnabel et al., ICML 2016).

rounds: reward, propensity of the logged action, pi_e: the probability that the policy in question takes
it[, q and q_policy: the reward a model expects of that action and of the policy]. In place of pi_e:
--uniform N, --policy PATH (item_id[, position], pi_e), or --policy-log PATH, rounds of that policy whose
shares of items by position estimate it. The policy's value by IPS, clipped IPS, SNIPS and, with q, DM,
DR, switch-DR, DRos. Printed, and written to WAREHOUSE/metrics, checks and runs.
"""

from __future__ import annotations

import argparse
from datetime import UTC, date, datetime
from functools import partial
from operator import itemgetter
from typing import Any

from recbench_spark import cli
from recbench_spark.config import Bootstrap, parse
from recbench_spark.core.inputs import pin_inputs
from recbench_spark.errors import OK, ConfigError, FallbackToSpark

if __name__ != "flags":
    from recbench_spark.analyses.exposure.estimates import (
        Policy,
        estimate_matrix,
        estimate_policy,
        estimate_rounds,
        read_policy,
    )
    from recbench_spark.analyses.exposure.kernels.exposure import EstimatorSettings
    from recbench_spark.commands.runners import run_job
    from recbench_spark.commands.table_descriptions import describe_table
    from recbench_spark.commands.warehouses import check_warehouse
    from recbench_spark.metrics.result import Result
    from recbench_spark.night.runners import choose_job_runner
    from recbench_spark.night.standalone_runs import publish_standalone
    from recbench_spark.schemas import CHECKS, METRICS, RUNS, USER_METRICS
    from recbench_spark.sources import arrow_files
    from recbench_spark.sources.input_rows import InputRows, open_input
    from recbench_spark.sources.opened_logs import choose_identity
    from recbench_spark.sources.readers.published import TextInput, find_propensities, find_rounds
    from recbench_spark.storage.blocks import Engine
    from recbench_spark.storage.file_tables import FileTables


def parser() -> cli.Parser:
    """Make the command's parser."""
    flags = cli.Parser(__doc__ or "")
    add = flags.add_argument
    cli.add_flags(flags, "warehouse")
    add("--model", required=True, help="name of the model or policy in the tables")
    source = flags.add_mutually_exclusive_group(required=True)
    source.add_argument("--matrix", metavar="PATH", help="predictions of all cells")
    source.add_argument("--rounds", metavar="PATH", help="logged rounds")
    matrix = flags.add_argument_group("with --matrix")
    matrix.add_argument("--log", metavar="PATH", help="known ratings (default: the matrix's column rating)")
    matrix.add_argument("--propensities", metavar="PATH", help="chances that a rating became known")
    cli.add_flags(matrix, "floor")
    matrix.add_argument("--bootstrap", type=int, help="replicates behind the intervals (1000)")
    rounds = flags.add_argument_group("with --rounds")
    rounds.add_argument("--reader", choices=["table", "open_bandit"], help="how to read rounds (table)")
    policies = rounds.add_mutually_exclusive_group()
    policies.add_argument("--uniform", type=int, metavar="N", help="a policy that draws one of N items")
    policies.add_argument("--policy", metavar="PATH", help="table item_id[, position], pi_e")
    policies.add_argument("--policy-log", metavar="PATH", help="rounds of the policy in question")
    rounds.add_argument("--clip", type=float, help="largest weight of clipped_ips (100)")
    rounds.add_argument("--switch", type=float, help="largest weight trusted by switch_dr (100)")
    rounds.add_argument("--shrink", type=float, help="lambda of dros (100)")
    add("--level", type=float, default=0.95, help="level of the intervals")
    add("--dataset", help="name under which runs are compared (default: the log's path)")
    cli.add_flags(flags, "suite")
    cli.add_flags(flags, "logical-date", help="the day evaluated (default: today)")
    cli.add_flags(flags, "engine", "dry-run")
    return flags


MAX_WEIGHT = 100.0
MAX_ITEMS = 10**9
"""Most items under a uniform policy, as in a graph."""

MATRIX_DEFAULTS: dict[str, Any] = {"log": None, "propensities": None, "floor": None, "bootstrap": 1000}
ROUNDS_DEFAULTS: dict[str, Any] = {
    "reader": "table", "uniform": None, "policy": None, "policy_log": None,
    "clip": MAX_WEIGHT, "switch": MAX_WEIGHT, "shrink": MAX_WEIGHT,
}  # fmt: skip
"""Flags for one kind of input, with their defaults."""


@pin_inputs()
def main(args: argparse.Namespace) -> int:
    """Check flags, read tables, estimate, write and print the results."""
    args = fill_defaults(args)
    check_flags(args)
    name = f"model {args.model}: {describe_estimate(args)}"
    if args.dry_run:
        check_warehouse(args.warehouse)
        print("\n".join([name, *check_tables(args)]))
    tables = (RUNS, METRICS, CHECKS, USER_METRICS)
    chosen = choose_job_runner(args.engine, args.warehouse, partial(count_rows, args), tables)
    if args.dry_run:
        print(chosen[0].describe())
        return OK
    return run_job(name, args, chosen, partial(publish_estimate, args))


def count_rows(args: argparse.Namespace) -> int:
    """Return roughly how many rows the tables have.

    Raises:
        FallbackToSpark: Spark must read a table.
    """
    return sum(_count_table(args, path) for path in list_paths(args).values())


def _count_table(args: argparse.Namespace, path: str) -> int:
    if (text := _find_text(args, path)) is not None:
        return text.raw.n
    n = arrow_files.estimate_rows(path)
    if args.engine == "auto" and (large := arrow_files.count_large_text(path)):
        raise FallbackToSpark(f"{large:,} bytes of text, which one process would hold several times")
    return n


def list_paths(args: argparse.Namespace) -> dict[str, str]:
    """Return the tables named by the flags."""
    names = ("matrix", "log", "propensities", "rounds", "policy", "policy_log")
    return {name: path for name in names if (path := getattr(args, name))}


def publish_estimate(args: argparse.Namespace, store: FileTables) -> int:
    """Read the tables, estimate, write and print the results."""
    run = {**identify_run(store, args), "started_at": datetime.now(UTC)}
    result = run_matrix(store.engine, args) if args.matrix else run_rounds(store.engine, args)
    print_estimates(store, publish_standalone(store, result, run))
    return OK


def fill_defaults(args: argparse.Namespace) -> argparse.Namespace:
    """Return the flags with their defaults.

    Raises:
        ConfigError: a flag would have no effect.
    """
    kind, other = ("matrix", "rounds") if args.matrix else ("rounds", "matrix")
    flags = {"matrix": MATRIX_DEFAULTS, "rounds": ROUNDS_DEFAULTS}
    for name in flags[other]:
        if getattr(args, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')} is not used with --{kind}", "leave it out")
    present = {name: value for name, value in vars(args).items() if value is not None}
    return argparse.Namespace(**{**vars(args), **flags[other], **flags[kind], **present})


def check_flags(args: argparse.Namespace) -> None:
    """Check that flags agree and their values make sense.

    Raises:
        ConfigError: they do not.
    """
    for name in (args.model, args.suite):
        cli.check_name(name)
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
    """Return the bootstrap's replicates and its interval level."""
    settings = {"replicates": args.bootstrap, "level": args.level}
    return parse(Bootstrap, settings, f"--bootstrap {args.bootstrap} --level {args.level:g}")


def describe_estimate(args: argparse.Namespace) -> str:
    """Describe the planned estimate."""
    if args.matrix:
        known = f"ratings of {args.log or args.matrix}, propensities {args.propensities}"
        return f"mse and mae over the cells of {args.matrix} from {known}"
    return f"value of policy {policy_name(args)} from rounds {args.rounds}"


def check_tables(args: argparse.Namespace) -> list[str]:
    """Return a line for each table named by the flags.

    Raises:
        MissingError: a table does not exist. SchemaError: a table lacks a column.
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
    """Return the policy's name in the definition."""
    if args.uniform:
        return f"uniform_{args.uniform}"
    return "estimated_from_its_log" if args.policy_log else "table" if args.policy else "given"


def run_matrix(engine: Engine, args: argparse.Namespace) -> Result:
    """Estimate errors from a matrix, ratings and propensities."""
    matrix = open_input(engine, args.matrix, ("user_id", "item_id", "prediction"), "matrix")
    log = args.log and open_input(engine, args.log, ("user_id", "item_id", "rating"), "log")
    text = _find_text(args, args.propensities, engine)
    if text is not None:
        chances = text.open(engine)
    else:
        chances = open_input(engine, args.propensities, ("propensity",), "propensities")
    return estimate_matrix(engine, matrix, log, chances, make_bootstrap(args), floor=args.floor)


def run_rounds(engine: Engine, args: argparse.Namespace) -> Result:
    """Read rounds and the policy, and estimate its value."""
    rounds = open_rounds(engine, args, args.rounds)
    policy = Policy()
    if args.uniform:
        policy = Policy(policy_name(args), 1.0 / args.uniform)
    elif args.policy_log:
        policy = estimate_policy(engine, open_rounds(engine, args, args.policy_log))
    elif args.policy:
        policy = read_policy(engine, args.policy)
    settings = EstimatorSettings(args.clip, args.switch, args.shrink)
    return estimate_rounds(engine, rounds, policy, settings, args.level)


def open_rounds(engine: Engine, args: argparse.Namespace, path: str) -> InputRows:
    """Open rounds as rows with columns reward and propensity."""
    text = _find_text(args, path, engine)
    return open_input(engine, path, (), "rounds") if text is None else text.open(engine)


def _find_text(args: argparse.Namespace, path: str, engine: Engine | None = None) -> TextInput | None:
    """Return an input in a published layout; None for tables.

    A published data set defines such a layout.
    """
    if path == args.propensities and path.endswith(".ascii"):
        return find_propensities(path, engine)
    if args.reader == "open_bandit" and path in (args.rounds, args.policy_log):
        return find_rounds(path, engine)
    return None


def identify_run(store: FileTables, args: argparse.Namespace) -> dict[str, Any]:
    """Return this estimate's columns in `runs`.

    Runs with the same input are comparable.
    """
    paths = {
        name: getattr(args, name) for name in ("matrix", "log", "propensities", "policy", "policy_log")
    }
    truth = args.rounds or args.log or args.matrix
    names = ("level", "clip", "switch", "shrink") if args.rounds else ("level", "floor", "bootstrap")
    settings = {name: getattr(args, name) for name in names}
    identify = choose_identity(store)
    return {
        "suite": args.suite,
        "logical_date": args.logical_date or date.today(),
        "model": args.model,
        "model_kind": "matrix" if args.matrix else "policy",
        "dataset": args.dataset or truth,
        "settings": {**settings, **({"policy": policy_name(args)} if args.rounds else {}), "paths": paths},
        "inputs": {
            "truth": identify(truth),
            **{name: identify(path) for name, path in paths.items() if path},
        },
    }


def print_estimates(store: FileTables, run_id: str) -> None:
    """Print the estimates and the checks' results."""
    names = ["metric", "estimator", "value", "stderr", "ci_low", "ci_high", "n", "definition"]
    metrics, checks = (store.read_run(name, run_id) for name in ("metrics", "checks"))
    rows = metrics.select(names).to_pandas().sort_values(["metric", "estimator"])
    print(rows.to_string(index=False, na_rep=""))
    for check in sorted(checks.to_pylist(), key=itemgetter("check")):
        mark = "" if check["passed"] else "warning: "
        print(f"{mark}{check['check']}: {check['observed']:g} ({check['detail']})")
    print(f"run {run_id} in {store.root}")
