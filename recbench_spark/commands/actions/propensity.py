"""Estimate exposure propensities: the work of `jobs/propensity.py`."""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark.commands.dry_runs import REQUIRED_COLUMNS, check_log
from recbench_spark.commands.logs import log_settings
from recbench_spark.commands.table_descriptions import describe_table
from recbench_spark.commands.warehouses import check_warehouse, require_partition
from recbench_spark.config import Dataset, Propensities, digest, parse
from recbench_spark.data.identity import identity
from recbench_spark.data.log_checks import PARTS
from recbench_spark.data.readers.logs import read_log
from recbench_spark.errors import OK, ConfigError, DataError, nearest
from recbench_spark.inputs import pin_inputs
from recbench_spark.kernels.estimators.power_law import PowerLaw
from recbench_spark.kernels.estimators.propensities import POWERS
from recbench_spark.nightly import code_provenance
from recbench_spark.nightly.propensity import ExposureLog, write_propensities
from recbench_spark.nightly.propensity_names import method_name
from recbench_spark.nightly.run_keys import uses_file_names
from recbench_spark.nightly.split_frames import read_split
from recbench_spark.runtime.journal import Journal
from recbench_spark.runtime.session import get_session
from recbench_spark.schemas import ITEMS, PROPENSITIES, RATING_PROPENSITIES, SPLITS
from recbench_spark.storage.store import Store

MAX_LAWS = 100_000
"""Most simulated laws for the goodness of fit."""


@pin_inputs()
def run(args: argparse.Namespace) -> int:
    """Check the flags, count the rows, fit the propensities, write and print them."""
    settings, dataset = read_settings(args)
    if args.split:
        require_partition(args.warehouse, SPLITS, args.split, "--split")
    if args.dry_run:
        check_warehouse(args.warehouse)
        tables = check_tables(settings)
        print("".join(f"{line}\n" for line in [*(check_log(dataset) if dataset else []), *tables]), end="")
        print(f"propensities {settings.name} of {args.split or args.log}, part {args.part}")
        return OK
    journal = Journal()
    journal.say(f"propensities {settings.name}: starting Spark")
    store = Store(get_session("recbench-spark propensity"), args.warehouse)
    if store.is_file_storage:
        journal.write_beside(store.root, "propensity")
    exposed = read_log_rows(store, dataset, args) if dataset else read_split_rows(store, args)
    with journal.stage("propensities", "count and fit", split_id=exposed.split_id):
        law = write_propensities(exposed, settings, args.goodness, cells=args.cells)
    print_propensities(exposed, settings, law)
    return OK


def read_settings(args: argparse.Namespace) -> tuple[Propensities, Dataset | None]:
    """Check the flags against each other; return the settings and, with --log, the data set."""
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
    """Return a line for each table that propensities are read from or fitted to.

    Raises:
        MissingError: one is not there. SchemaError: it lacks a column.
    """
    tables = {
        "propensities": settings.path,
        "item features": settings.item_features,
        "user features": settings.user_features,
    }
    return [describe_table(name, path, REQUIRED_COLUMNS[name]) for name, path in tables.items() if path]


def read_log_rows(store: Store, dataset: Dataset, args: argparse.Namespace) -> ExposureLog:
    """Read the rows of a log. A log without parts is training data as a whole."""
    settings = dataset.model_dump(exclude={"name", "path"})
    named = uses_file_names(dataset)
    source = identity(store.spark, str(dataset.path), named=named, options=dataset.options)
    name = digest(settings, source, args.part, args.sample, code_provenance.split_revisions(dataset))
    log = read_log(store.spark, dataset)
    return ExposureLog(
        store, name, select_part(log, args.part), None, log.where(F.col("part") == args.sample)
    )


def read_split_rows(store: Store, args: argparse.Namespace) -> ExposureLog:
    """Read the rows of a split and its catalogue, which also has items that were never shown."""
    rows = read_split(store, SPLITS, args.split)
    if rows.isEmpty():
        known = [row.split_id for row in store.read(SPLITS).select("split_id").distinct().collect()]
        raise DataError(f"no split {args.split} in {store.root}", f"splits: {', '.join(known) or 'none'}")
    sample = rows.where(F.col("part") == args.sample)
    return ExposureLog(
        store, args.split, select_part(rows, args.part), read_split(store, ITEMS, args.split), sample
    )


def select_part(rows: DataFrame, part: str) -> DataFrame:
    """Return the rows of the part that is fitted to."""
    if part == "all":
        return rows
    wanted = ("train", "given") if part == "train" else (part,)
    unnamed = F.col("part").isNull() & F.lit(part == "train")
    return rows.where(F.col("part").isin(*wanted) | unnamed)


def print_propensities(exposed: ExposureLog, settings: Propensities, law: PowerLaw | None) -> None:
    """Print the power law and the smallest and largest propensity."""
    if law:
        print(f"power law: alpha {law.alpha!r} +- {law.error:.6g}, xmin {law.xmin}, {law.tail} of "
              f"{law.items} items in the tail, distance {law.distance:.6g}, {law.method}")  # fmt: skip
        for one in law.against:
            print(f"  beside a {one.name} tail: log-likelihood {one.ratio:+.6g}, z {one.z:+.3g}")
    name = method_name(exposed.store, settings)
    table = RATING_PROPENSITIES if settings.method == "naive_bayes" else PROPENSITIES
    rows = read_split(exposed.store, table, exposed.split_id).where(F.col("method") == name)
    value = F.col("propensity")
    summary = rows.agg(F.count("*").alias("n"), F.min(value).alias("low"), F.max(value).alias("high"))
    (row,) = summary.collect()
    what = "ratings" if settings.method == "naive_bayes" else "items"
    print(f"{row.n} {what}: propensities {row.low:g} to {row.high:g}")
    print(f"split_id {exposed.split_id}, method {name}, in {exposed.store.location(table.name)}")
