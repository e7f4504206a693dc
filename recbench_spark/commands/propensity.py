"""Estimate exposure propensities of items from a split or log.

    recbench propensity --warehouse DIR --split SPLIT_ID
    recbench propensity --warehouse DIR --log ratings.parquet --columns user_id=user,item_id=movie
    recbench propensity --warehouse DIR --log COAT_FOLDER --reader coat --method naive_bayes

Methods: power_law (n^((alpha+1)/2)), power_above_xmin (n^alpha above xmin), steck (n^(alpha/(alpha+1))),
relative_frequency, naive_bayes (by rating; needs a random sample, the part of --sample),
logistic_regression (on --item-features and --user-features: an id and numbers), given (a table item_id,
propensity). Fitted to the training part; --part all takes every row. Written to the tables
propensities, rating_propensities, cell_propensities and power_laws.
"""

from __future__ import annotations

import argparse
from functools import partial

from recbench_spark import cli
from recbench_spark.config import Dataset, Propensities, digest, parse
from recbench_spark.core.inputs import pin_inputs
from recbench_spark.errors import OK, ConfigError, DataError, nearest

if __name__ != "flags":
    import pyarrow.compute as pc

    from recbench_spark.analyses.exposure.kernels.power_law import PowerLaw
    from recbench_spark.analyses.exposure.kernels.propensities import POWERS
    from recbench_spark.analyses.exposure.night_propensity import (
        ExposureLog,
        method_name,
        write_propensities,
    )
    from recbench_spark.commands.dry_runs import REQUIRED_COLUMNS, check_log
    from recbench_spark.commands.logs import log_settings
    from recbench_spark.commands.runners import run_job
    from recbench_spark.commands.table_descriptions import describe_table
    from recbench_spark.commands.warehouses import check_warehouse, require_partition
    from recbench_spark.night import code_provenance
    from recbench_spark.night.run_keys import uses_file_names
    from recbench_spark.night.runners import choose_job_runner
    from recbench_spark.night.split import open_any_log
    from recbench_spark.runtime.journal import Journal
    from recbench_spark.schemas import ITEMS, POWER_LAWS, PROPENSITIES, RATING_PROPENSITIES, SPLITS
    from recbench_spark.sources.log_checks import PARTS
    from recbench_spark.sources.opened_logs import choose_identity, fill_columns
    from recbench_spark.splits.labelled_rows import open_labelled
    from recbench_spark.splits.rules import estimate_rows
    from recbench_spark.storage.file_tables import FileTables

METHODS = (
    *("power_law", "power_above_xmin", "steck", "relative_frequency"),
    *("naive_bayes", "logistic_regression", "given"),
)


def parser() -> cli.Parser:
    """Make the command's parser."""
    flags = cli.Parser(__doc__ or "")
    add = flags.add_argument
    source = flags.add_mutually_exclusive_group(required=True)
    source.add_argument("--split", metavar="ID", help="a split_id of the warehouse")
    cli.add_flags(source, "log")
    cli.add_flags(flags, "warehouse", "columns")
    add("--reader", default="", help="with --log: csv, parquet, delta, coat ...")
    add("--part", default="train", help="rows fitted to: train (with given), or all")
    add("--sample", default="open_loop", help="part drawn at random, for naive_bayes")
    add("--method", choices=METHODS, default="power_law", help="estimator of propensities")
    add("--law", choices=["approximate", "exact"], default="approximate", help="fit of alpha")
    add("--scale", choices=["as_is", "largest", "interactions"], default="as_is",
        help="largest: the largest is 1; interactions: they sum to the rows of a mean user")  # fmt: skip
    cli.add_flags(flags, "floor")
    add("--item-features", metavar="PATH", help="table item_id, numbers ...")
    add("--user-features", metavar="PATH", help="table user_id, numbers ...")
    add("--rate", type=float, default=0.1, help="share of the cells outside the log that is fitted to")
    add("--cells", action="store_true", help="with logistic_regression: also for every user and item")
    add("--given", metavar="PATH", help="table item_id, propensity, for --method given")
    add("--goodness", type=int, default=0, metavar="N", help="simulated laws behind the goodness of fit")
    cli.add_flags(flags, "engine", "dry-run")
    return flags


MAX_LAWS = 100_000
"""Most simulated laws for the goodness of fit."""


@pin_inputs()
def main(args: argparse.Namespace) -> int:
    """Check the flags, count rows, fit propensities, write and print."""
    settings, dataset = read_settings(args)
    if args.split:
        require_partition(args.warehouse, SPLITS, args.split, "--split")
    if args.dry_run:
        check_warehouse(args.warehouse)
        tables = check_tables(settings)
        print("".join(f"{line}\n" for line in [*(check_log(dataset) if dataset else []), *tables]), end="")
        print(f"propensities {settings.name} of {args.split or args.log}, part {args.part}")
        return OK
    count = partial(count_rows, dataset)
    chosen = choose_job_runner(args.engine, args.warehouse, count, (PROPENSITIES, POWER_LAWS))
    return run_job(
        f"propensities {settings.name}", args, chosen, partial(write_and_print, args, settings, dataset)
    )


def count_rows(dataset: Dataset | None) -> int:
    """Return a log's approximate number of rows; 0 for splits.

    Raises:
        FallbackToSpark: Spark must read the log.
    """
    return 0 if dataset is None else estimate_rows(dataset)


def write_and_print(
    args: argparse.Namespace, settings: Propensities, dataset: Dataset | None, store: FileTables
) -> int:
    """Fit the propensities, write and print them."""
    journal = Journal()
    journal.write_log(store, "propensity")
    exposed = read_split_rows(store, args) if dataset is None else read_log_rows(store, dataset, args)
    with journal.stage("propensities", "count and fit", split_id=exposed.split_id):
        try:
            law = write_propensities(exposed, settings, args.goodness, cells=args.cells)
        finally:
            store.drop_scratch()
    print_propensities(exposed, settings, law)
    return OK


def read_settings(args: argparse.Namespace) -> tuple[Propensities, Dataset | None]:
    """Check the flags together.

    Returns:
        The settings and, with --log, the data set.
    """
    if not 0 <= args.goodness <= MAX_LAWS:
        raise ConfigError(
            f"--goodness {args.goodness}: from 0 to {MAX_LAWS}", "2500 simulations give two digits"
        )
    if args.goodness and args.method not in POWERS:
        hint = f"it is for {', '.join(POWERS)}"
        raise ConfigError(f"--goodness is not used with --method {args.method}", hint)
    if args.cells and args.method != "logistic_regression":
        raise ConfigError(
            "--cells goes with --method logistic_regression",
            "the other methods have one propensity per item",
        )
    choices = {"method": args.method, "law": args.law, "scale": args.scale, "floor": args.floor}
    tables = {"path": args.given, "item_features": args.item_features, "user_features": args.user_features}
    settings = parse(Propensities, {**choices, **tables, "rate": args.rate}, "flags")
    if args.split:
        if args.columns or args.reader:
            raise ConfigError("--columns and --reader go with --log")
        return settings, None
    for flag, part in (("--part", args.part), ("--sample", args.sample)):
        if part not in (known := ("all", *PARTS)):
            raise ConfigError(f"{flag} {part}: no part of a log is called so", nearest(part, known))
    return settings, parse(Dataset, log_settings(args), "flags")


def check_tables(settings: Propensities) -> list[str]:
    """Return a line for each table with propensities or interactions.

    Propensities are read from the table, or fitted to it.

    Raises:
        MissingError: a table does not exist. SchemaError: a table lacks a column.
    """
    tables = {
        "propensities": settings.path,
        "item features": settings.item_features,
        "user features": settings.user_features,
    }
    return [describe_table(name, path, REQUIRED_COLUMNS[name]) for name, path in tables.items() if path]


def read_log_rows(store: FileTables, dataset: Dataset, args: argparse.Namespace) -> ExposureLog:
    """Read a log's rows.

    A log without parts is training data as a whole.
    """
    settings = dataset.model_dump(exclude={"name", "path"})
    named = uses_file_names(dataset)
    source = choose_identity(store)(str(dataset.path), named=named, options=dataset.options)
    name = digest(settings, source, args.part, args.sample, code_provenance.split_revisions(dataset))
    rows = fill_columns(open_any_log(store, dataset))
    return ExposureLog(store, name, rows, list_parts(args.part), sample=args.sample)


def read_split_rows(store: FileTables, args: argparse.Namespace) -> ExposureLog:
    """Read a split's rows and catalogue.

    The catalogue also has items which were never shown.
    """
    if not store.has(SPLITS, "split_id", args.split):
        known = sorted(store.list_values(SPLITS, "split_id"))
        raise DataError(f"no split {args.split} in {store.root}", f"splits: {', '.join(known) or 'none'}")
    rows, items = open_labelled(store, args.split), store.open_rows(ITEMS, "split_id", [args.split])
    return ExposureLog(store, args.split, rows, list_parts(args.part), items, args.sample)


def list_parts(part: str) -> tuple[str, ...]:
    """Return the parts to fit to; none means all rows."""
    return {"all": (), "train": ("train", "given")}.get(part, (part,))


def print_propensities(exposed: ExposureLog, settings: Propensities, law: PowerLaw | None) -> None:
    """Print the power law, and the smallest and largest propensity."""
    if law:
        print(f"power law: alpha {law.alpha!r} +- {law.error:.6g}, xmin {law.xmin}, {law.tail} of "
              f"{law.items} items in the tail, distance {law.distance:.6g}, {law.method}")  # fmt: skip
        for one in law.against:
            print(f"  beside a {one.name} tail: log-likelihood {one.ratio:+.6g}, z {one.z:+.3g}")
    name = method_name(exposed.store, settings)
    table = RATING_PROPENSITIES if settings.method == "naive_bayes" else PROPENSITIES
    filters = [("split_id", "=", exposed.split_id), ("method", "=", name)]
    value = exposed.store.read_rows(table, filters, ["propensity"]).column("propensity")
    low, high = pc.min_max(value).as_py().values()
    what = "ratings" if settings.method == "naive_bayes" else "items"
    print(f"{len(value)} {what}: propensities {low:g} to {high:g}")
    print(f"split_id {exposed.split_id}, method {name}, in {exposed.store.location(table.name)}")
