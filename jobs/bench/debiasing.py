"""Time exposure corrections over the size of the log.

    python jobs/bench/debiasing.py                              1, 10 and 50 million interactions
    python jobs/bench/debiasing.py --rows 1000000,4000000 --replicates 200

A log with hashed rows and the rankings for its test part (one truth item to five rows, ten per user) are
written as Parquet. The job times propensities, strata and corrected estimates: counting and fitting
(`power_law`), cutting strata, and all estimates without a reward model, at two cut-offs, with bootstrap
intervals. A small run goes first, as a warm-up.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from jobs.bench.harness import add_output_flag, append_rows, time_call
from jobs.bench.randomness import uniform
from recbench_spark import cli
from recbench_spark.analyses.exposure import debiased, exposure
from recbench_spark.analyses.exposure import propensities as fitting
from recbench_spark.analyses.exposure.estimation_plan import STRATIFIED, EstimationPlan
from recbench_spark.analyses.exposure.kernels.exposure import WEIGHTED, EstimatorSettings
from recbench_spark.config import Bootstrap, Propensities, Strata
from recbench_spark.core.definitions import Definition
from recbench_spark.engine.sessions import SparkEngine
from recbench_spark.engine.versions import collect_arrow, make_frame
from recbench_spark.errors import OK
from recbench_spark.metrics import accuracy
from recbench_spark.runtime.session import get_session
from recbench_spark.storage.frame_blocks import FrameRows, reduce_frame

ITEMS, USER_TRUTH_ITEMS, TRUTH_ROWS = 100_000, 10, 5
WARM_UP = 200_000


def parser() -> cli.Parser:
    """Make the flag parser."""
    flags = cli.Parser(__doc__ or "")
    sizes = (10**6, 10**7, 5 * 10**7)
    flags.add_argument("--rows", type=cli.parse_counts, default=sizes, help="interactions, comma-separated")
    flags.add_argument("--replicates", type=cli.parse_count, default=200)
    flags.add_argument("--folder", type=Path, help="where the rows lie; default: a temporary folder")
    add_output_flag(flags)
    return flags


def main(args: argparse.Namespace) -> int:
    """Generate and time each size; a small warm-up runs first."""
    spark = get_session("recbench-spark bench debiasing")
    print("interactions  propensities    strata  estimates  seconds per million rows")
    with tempfile.TemporaryDirectory() as folder:
        for n in [WARM_UP, *args.rows]:
            seconds = measure_size(spark, args.folder or Path(folder), n, args.replicates)
            line = f"{n:12,}  " + "  ".join(f"{s:9.1f}" for s in seconds)
            note = "  (warm-up)" if n == WARM_UP else ""
            print(f"{line}  {sum(seconds) / n * 1e6:.2f}{note}", flush=True)
            if n != WARM_UP:
                row = dict(zip(("propensities", "strata", "estimates"), seconds, strict=True))
                append_rows(args.output, [{"benchmark": "debiasing", "rows": n, **row}])
    return OK


def measure_size(spark: SparkSession, folder: Path, n: int, replicates: int) -> list[float]:
    """Time propensities, strata and estimates on n rows."""
    rows = store_once(make_log(spark, n), folder / f"log-{n}")
    seconds, items = time_call(lambda: _fit(rows))
    table = collect_arrow(items)
    chances = exposure.item_chances(table, table)
    cut_seconds, strata = time_call(lambda: exposure.cut_strata(chances, Strata(n=(2,))))
    users = store_once(rankings(spark, n, items), folder / f"rankings-{n}")
    counted = reduce_frame({"weights": exposure.weight_measure(None)}, users)
    weights = exposure.list_weights(counted["weights"])
    metrics = accuracy.MetricPlan(
        ("recall", "ndcg"), (10, 100), Definition(), Bootstrap(replicates=replicates)
    )
    names = (*WEIGHTED, STRATIFIED)
    plan = EstimationPlan(metrics, names, EstimatorSettings(), "power_law", strata, weights, len(table))
    measures = {"estimates": debiased.estimation_measure(plan)}
    return [seconds, cut_seconds, time_call(lambda: reduce_frame(measures, users))[0]]


def _look_up(counts: pa.Table, observed: fitting.Histogram, fitted: fitting.FittedPropensities) -> pa.Table:
    looked = fitting.look_up_propensities(counts, observed, fitted)
    return looked.append_column("n", counts.column("n"))


def _fit(rows: DataFrame) -> DataFrame:
    engine, log = SparkEngine(rows.sparkSession), FrameRows(rows.withColumn("part", F.lit("train")))
    counts = fitting.count_ids(engine, log, "item_id", ())
    users = sum(fitting.count_ids(engine, log, "user_id", ()).each(len))
    shown = fitting.make_histogram(counts, users)
    fitted = fitting.fit_propensities(shown, Propensities())
    tables = counts.each(partial(_look_up, observed=shown, fitted=fitted))
    propensities = make_frame(rows.sparkSession, pa.concat_tables(tables))
    index = F.col("item_id").cast("int").alias("item_index")
    items = propensities.select("item_id", index, F.col("n").alias("n_train"), "propensity").cache()
    items.count()
    return items


def store_once(frame: DataFrame, path: Path) -> DataFrame:
    """Write a frame once, so its generation is not timed."""
    if not path.exists():
        frame.write.parquet(str(path))
    return frame.sparkSession.read.parquet(str(path))


def make_log(spark: SparkSession, n: int) -> DataFrame:
    """Make rows (user_id, item_id) with very unequal item popularity."""
    item = F.floor(F.pow(uniform("id", seed=1), 3.0) * ITEMS)
    user = F.floor(uniform("id", seed=2) * (n // (USER_TRUTH_ITEMS * TRUTH_ROWS)))
    return spark.range(0, n, 1, 16).select(
        user.cast("string").alias("user_id"), item.cast("string").alias("item_id")
    )


def rankings(spark: SparkSession, n: int, items: DataFrame) -> DataFrame:
    """Make rows of `rankings` with propensities like the log's.

    Propensities are drawn from those of the log's items.
    """
    users = n // (USER_TRUTH_ITEMS * TRUTH_ROWS)
    sample = items.orderBy(F.xxhash64("item_index")).select("propensity").limit(1000)
    chances = sample.toPandas().propensity.tolist()
    place = F.array(*(F.lit(float(chance)) for chance in chances))
    each = F.sequence(F.lit(0), F.lit(USER_TRUTH_ITEMS - 1))

    def drawn(seed: int, most: int) -> Any:
        return F.transform(each, lambda j: F.floor(uniform("id", j, seed=seed) * most))

    nothing = F.create_map().cast("map<string,array<string>>")
    return spark.range(0, users, 1, 16).select(
        F.col("id").cast("string").alias("user_id"),
        F.lit("test").alias("part"),
        F.xxhash64("id").alias("user_key"),
        F.transform(each, lambda _: F.lit(1.0)).alias("relevance"),
        drawn(3, 1000).alias("above"),
        F.transform(each, lambda _: F.lit(0).cast("long")).alias("tied"),
        F.transform(each, lambda _: F.lit(0).cast("long")).alias("before"),
        F.lit(ITEMS).cast("long").alias("length"),
        nothing.alias("slices"),
        F.lit(None).cast("string").alias("query_id"),
        F.transform(drawn(4, len(chances)), lambda j: place[j]).alias("propensity"),
    )


if __name__ == "__main__":
    cli.run(main, parser())
