"""Exposure propensities of items, from a split of the warehouse or from any log.

    python jobs/propensity.py --warehouse DIR --split SPLIT_ID
    python jobs/propensity.py --warehouse DIR --log ratings.parquet --columns user_id=user,item_id=movie
    python jobs/propensity.py --warehouse DIR --log COAT_FOLDER --reader coat --method naive_bayes

Methods: power_law (n^((alpha+1)/2)), power_above_xmin (n^alpha above xmin), steck (n^(alpha/(alpha+1))),
relative_frequency, naive_bayes (by rating; needs a random sample, the part of --sample),
logistic_regression (on --item-features and --user-features: an id and numbers), given (a table item_id,
propensity). Fitted to the training part; --part all takes every row. Written to the tables
propensities, rating_propensities, cell_propensities and power_laws.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from recbench_spark import cli
from recbench_spark.config import Dataset, Propensities, digest, parse
from recbench_spark.data.identity import identity
from recbench_spark.data.readers import read_log
from recbench_spark.errors import OK, ConfigError, DataError
from recbench_spark.journal import Journal
from recbench_spark.kernels.estimators.power_law import PowerLaw
from recbench_spark.schemas import ITEMS, PROPENSITIES, RATING_PROPENSITIES, SPLITS
from recbench_spark.session import get_session
from recbench_spark.steps import revising
from recbench_spark.steps.propensity import Exposed, write_propensities
from recbench_spark.steps.splitting import of_split
from recbench_spark.store import Store

MOST_LAWS = 100_000
"""Simulated laws behind the goodness of fit."""

METHODS = (
    *("power_law", "power_above_xmin", "steck", "relative_frequency"),
    *("naive_bayes", "logistic_regression", "given"),
)


def parser() -> cli.Parser:
    """The flags of this job."""
    flags = cli.Parser(__doc__ or "")
    given = flags.add_mutually_exclusive_group(required=True)
    given.add_argument("--split", metavar="ID", help="a split_id of the warehouse")
    given.add_argument("--log", metavar="PATH", help="interactions: CSV, Parquet or Delta, file or folder")
    flags.add_argument("--warehouse", required=True, help="directory or catalog.schema of the tables")
    flags.add_argument("--columns", default="", help="with --log: ours=theirs,... e.g. user_id=userId")
    flags.add_argument("--reader", default="", help="with --log: csv, parquet, delta, coat ...")
    flags.add_argument("--part", default="train", help="rows fitted to: train (with given), or all")
    flags.add_argument("--sample", default="open_loop", help="part drawn at random, for naive_bayes")
    flags.add_argument("--method", choices=METHODS, default="power_law", help="what propensities are")
    flags.add_argument(
        "--law", choices=["approximate", "exact"], default="approximate", help="how alpha is found"
    )
    flags.add_argument(
        "--scale", choices=["as_is", "largest", "interactions"], default="as_is",
        help="largest: the largest is 1; interactions: they sum to the rows of a mean user",
    )  # fmt: skip
    flags.add_argument("--floor", type=float, help="raise smaller propensities to it, lower others to 1")
    flags.add_argument("--item-features", metavar="PATH", help="table item_id, numbers ...")
    flags.add_argument("--user-features", metavar="PATH", help="table user_id, numbers ...")
    flags.add_argument(
        "--rate", type=float, default=0.1, help="share of the cells outside the log that is fitted to"
    )
    flags.add_argument(
        "--cells", action="store_true", help="with logistic_regression: also for every user and item"
    )
    flags.add_argument("--given", metavar="PATH", help="table item_id, propensity, for --method given")
    flags.add_argument(
        "--goodness", type=int, default=0, metavar="N", help="simulated laws behind the goodness of fit"
    )
    flags.add_argument("--dry-run", action="store_true", help="check the flags and say what would be done")
    return flags


def main(args: argparse.Namespace) -> int:
    """Check the flags, count, fit, write, tell."""
    asked, dataset = settings(args)
    if args.dry_run:
        print(f"propensities {asked.name} of {args.split or args.log}, part {args.part}")
        return OK
    journal = Journal()
    journal.say(f"propensities {asked.name}: starting Spark")
    store = Store(get_session("recbench-spark propensity"), args.warehouse)
    if store.folder:
        journal.write_to(store.folder / "logs" / "propensity.jsonl")
    exposed = of_log(store, dataset, args) if dataset else of_warehouse(store, args)
    with journal.stage("propensities", "count and fit", split_id=exposed.split_id):
        law = write_propensities(exposed, asked, args.goodness, cells=args.cells)
    print_propensities(exposed, asked, law)
    return OK


def settings(args: argparse.Namespace) -> tuple[Propensities, Dataset | None]:
    """What is asked for, after the flags have been checked against each other."""
    if not 0 <= args.goodness <= MOST_LAWS:
        raise ConfigError(f"--goodness {args.goodness}: from 0 to {MOST_LAWS}", "2500 give two digits")
    if args.cells and args.method != "logistic_regression":
        raise ConfigError("--cells goes with --method logistic_regression", "others know items alone")
    named = {"method": args.method, "law": args.law, "scale": args.scale, "floor": args.floor}
    tables = {"path": args.given, "item_features": args.item_features, "user_features": args.user_features}
    asked = parse(Propensities, {**named, **tables, "rate": args.rate}, "flags")
    if args.split:
        if args.columns or args.reader:
            raise ConfigError("--columns and --reader go with --log")
        return asked, None
    pairs = [pair.partition("=") for pair in args.columns.split(",") if pair]
    if not all(ours and theirs for ours, _, theirs in pairs):
        raise ConfigError(f"--columns {args.columns}: expected ours=theirs,...", "e.g. user_id=userId")
    document = {
        "name": re.sub(r"[^A-Za-z0-9_.-]", "_", Path(args.log).name.lstrip("._-"))[:64] or "log",
        "reader": args.reader or reader_of(args.log),
        "path": args.log,
        "columns": {ours: theirs for ours, _, theirs in pairs},
    }
    return asked, parse(Dataset, document, "flags")


def reader_of(path: str) -> str:
    """The reader meant by a path's name."""
    if Path(path, "_delta_log").is_dir():
        return "delta"
    return "csv" if path.removesuffix(".gz").endswith((".csv", ".tsv")) else "parquet"


def of_log(store: Store, dataset: Dataset, args: argparse.Namespace) -> Exposed:
    """The rows of a log; one that does not name parts is training as a whole."""
    settings = dataset.model_dump(exclude={"name", "path"})
    found = identity(store.spark, str(dataset.path))
    name = digest(settings, found, args.part, args.sample, revising.of_split(dataset))
    log = read_log(store.spark, dataset)
    return Exposed(store, name, chosen(log, args.part), None, log.where(F.col("part") == args.sample))


def of_warehouse(store: Store, args: argparse.Namespace) -> Exposed:
    """The rows of a split, whose catalogue also has the items that nobody was shown."""
    rows = of_split(store, SPLITS, args.split)
    if rows.isEmpty():
        known = [row.split_id for row in store.read(SPLITS).select("split_id").distinct().collect()]
        raise DataError(f"no split {args.split} in {store.root}", f"splits: {', '.join(known) or 'none'}")
    sample = rows.where(F.col("part") == args.sample)
    return Exposed(store, args.split, chosen(rows, args.part), of_split(store, ITEMS, args.split), sample)


def chosen(rows: DataFrame, part: str) -> DataFrame:
    """The rows fitted to."""
    if part == "all":
        return rows
    wanted = ("train", "given") if part == "train" else (part,)
    unnamed = F.col("part").isNull() & F.lit(part == "train")
    return rows.where(F.col("part").isin(*wanted) | unnamed)


def print_propensities(exposed: Exposed, settings: Propensities, law: PowerLaw | None) -> None:
    """The law, and the ends of the propensities."""
    if law:
        print(f"power law: alpha {law.alpha!r} +- {law.error:.6g}, xmin {law.xmin}, {law.tail} of "
              f"{law.items} items in the tail, distance {law.distance:.6g}, {law.method}")  # fmt: skip
        for one in law.against:
            print(f"  beside a {one.name} tail: log-likelihood {one.ratio:+.6g}, z {one.z:+.3g}")
    table = RATING_PROPENSITIES if settings.method == "naive_bayes" else PROPENSITIES
    rows = of_split(exposed.store, table, exposed.split_id).where(F.col("method") == settings.name)
    value = F.col("propensity")
    found = rows.agg(F.count("*").alias("n"), F.min(value).alias("low"), F.max(value).alias("high"))
    (row,) = found.collect()
    what = "ratings" if settings.method == "naive_bayes" else "items"
    print(f"{row.n} {what}: propensities {row.low:g} to {row.high:g}")
    print(f"split_id {exposed.split_id}, method {settings.name}, in {exposed.store.location(table.name)}")
