"""Learning curves on Spark: held-out users cross one shuffle, and each task measures all models.

A user's row has all items and ratings in order. Prefixes, their vectors and their rankings are made in the
task (`metrics.curve_batches`), and never cross a shuffle. The driver gets one row per point of a curve.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from recbench_spark.config import Bootstrap, HeldOut
from recbench_spark.engine.sessions import SparkEngine
from recbench_spark.engine.versions import change_groups, count_shuffle_tasks
from recbench_spark.evaluation.batch_schemas import USER_VALUES, to_ddl
from recbench_spark.evaluation.batched.task_devices import choose_device
from recbench_spark.evaluation.metrics import curve_batches, curve_rankings
from recbench_spark.evaluation.metrics.curve_batches import (
    CURVE_COUNTS,
    CURVE_KEY,
    CURVE_MEANS,
    CURVE_ROWS,
    CURVE_TOTALS,
    CURVE_USERS,
    CurveMember,
    CurvePlan,
)
from recbench_spark.evaluation.metrics.curve_rankings import CURVE_RANKED
from recbench_spark.kernels.streams import Batches
from recbench_spark.randomness import uniform

ROW_BYTES = 64
"""Estimated bytes of a row of a user in a task, with Spark's copy of it."""

TASK_BYTES = 1 << 27
"""Bytes of users that a task should hold: an eighth of a GiB."""

BATCH_USERS = 4096
"""Users whose values are made at once: 8 bytes for each metric, cut-off and point."""


HELD_OUT_ROWS = ("given", "test", "valid")
"""Labels of rows of held-out users in the table `splits`."""


@dataclass(frozen=True)
class HeldOutUsers:
    """Held-out users of some parts.

    Attributes:
        names: the parts, `test` or `valid` or both.
        shares: of all users for test and validation.
        seed: of the split; a hash of the user decides the part, as in the split.
        tasks: number of partitions.
    """

    names: tuple[str, ...]
    shares: HeldOut
    seed: int
    tasks: int

    @property
    def user_part(self) -> Column:
        """The part of a user, NULL for users of training."""
        place, test = uniform("user_id", seed=self.seed), self.shares.test
        return F.when(place < test, "test").when(place < test + self.shares.valid, "valid")


def select_curve_users(
    splits: DataFrame, items: DataFrame, parts: HeldOutUsers, plan: CurvePlan
) -> DataFrame:
    """Select the held-out users with all their rows, given and tested ones alike: rows of `CURVE_USERS`.

    Shuffles the rows of held-out users once by user, and the catalogue (or these rows) by item before.

    Args:
        splits: rows of the table `splits` of one split.
        items: rows of the table `items`.
        parts: the held-out users, and the number of partitions.
        plan: points and order.
    """
    rows = splits.where(F.col("part").isin(*HELD_OUT_ROWS)).withColumn("part", parts.user_part)
    catalogue = items.select("item_id", "item_index", (F.col("n_train") == 0).alias("untrained"))
    # A key of hashes is needed for hashes alone, and a time for times alone: both cost 8 bytes a row.
    key = F.xxhash64("item_id") if plan.draws else F.lit(0).cast("long")
    first = F.lit(0).cast("long") if plan.draws else F.col("event_time")
    entry = F.struct(first.alias("time"), "item_index", "rating", key.alias("item_key"), "untrained")
    known = (
        rows.where(F.col("part").isin(list(parts.names)))
        .join(catalogue, "item_id")
        .select("user_id", "part", entry.alias("row"))
    )
    grouped = (
        known.repartition(parts.tasks, "user_id")
        .groupBy("user_id", "part")
        .agg(F.sort_array(F.collect_list("row")).alias("rows"))
    )
    last = plan.request.rule.given[-1]
    times = F.array_distinct(F.slice("rows.time", 1, last))
    columns = {
        "user_key": F.xxhash64("user_id"),
        "items": F.col("rows.item_index"),
        "ratings": F.col("rows.rating"),
        "item_keys": F.col("rows.item_key") if plan.draws else F.array().cast("array<bigint>"),
        "untrained": F.col("rows.untrained"),
        "equal_times": F.lit(False) if plan.draws or last == 1 else F.size(times) == 1,
    }
    return grouped.select("user_id", "part", *(value.alias(name) for name, value in columns.items()))


def count_tasks(spark: SparkSession, rows: int) -> int:
    """Return the number of tasks: as many as Spark makes, or more so that each holds few rows."""
    default = count_shuffle_tasks(spark)
    return max(default, -(-rows * ROW_BYTES // TASK_BYTES))


def measure_models(users: DataFrame, plan: CurvePlan, members: Sequence[CurveMember]) -> DataFrame:
    """Measure all models in one pass without a shuffle: rows of the table `curve_values`.

    A task holds its users once, and measures one model after the other. Beside the mapped item side of a
    model it holds the prefixes of some users: their vectors and lists (`learning_curves.BATCH_PAIRS`).

    Args:
        users: result of `select_curve_users`.
        plan: points, metrics, definition, orders.
        members: the models.
    """
    device = choose_device(SparkEngine(users.sparkSession))
    run = partial(_measure_task, plan, tuple(members), device)
    return users.select(*CURVE_USERS.names).mapInArrow(run, to_ddl(CURVE_ROWS))


def rank_models(users: DataFrame, plan: CurvePlan, members: Sequence[CurveMember]) -> DataFrame:
    """Rank the tested items of all models at every point, without a shuffle: rows of `curve_rankings`.

    Memory and arguments as `measure_models`. It ranks once more, because only few files ask for these rows.
    """
    device = choose_device(SparkEngine(users.sparkSession))
    run = partial(_rank_task, plan, tuple(members), device)
    return users.select(*CURVE_USERS.names).mapInArrow(run, to_ddl(CURVE_RANKED))


def _rank_task(
    plan: CurvePlan, members: Sequence[CurveMember], device: Callable[[], str], batches: Batches
) -> Batches:
    return _run_members(partial(curve_rankings.rank_users, plan), members, device, batches)


def _measure_task(
    plan: CurvePlan, members: Sequence[CurveMember], device: Callable[[], str], batches: Batches
) -> Batches:
    return _run_members(partial(curve_batches.measure_users, plan), members, device, batches)


def _run_members(
    run: Callable[..., Batches],
    members: Sequence[CurveMember],
    device: Callable[[], str],
    batches: Batches,
) -> Batches:
    """Hold the users of a task, and run a function for one model after the other."""
    users = [piece for batch in batches for piece in _cut_batch(batch)]
    if not users:
        return
    task_device_name = device()
    for member in members:
        yield from run(member, iter(users), device=task_device_name)


def _cut_batch(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    return [batch.slice(start, BATCH_USERS) for start in range(0, batch.num_rows, BATCH_USERS)]


def count_curve_users(users: DataFrame, plan: CurvePlan) -> DataFrame:
    """Count the users of each part, without a shuffle: rows of `CURVE_COUNTS`, one per task's batch."""
    count = partial(curve_batches.count_users, plan)
    return users.select(*CURVE_USERS.names).mapInArrow(count, to_ddl(CURVE_COUNTS))


def average_points(values: DataFrame) -> DataFrame:
    """Compute MANDCG of each user: rows of `user_metrics` from rows of `curve_values`. No shuffle."""
    ddl = f"{to_ddl(USER_VALUES)}, run_id STRING"
    return values.select(*CURVE_ROWS.names).mapInArrow(curve_batches.average_curves, ddl)


def summarise_curves(values: DataFrame, bootstrap: Bootstrap) -> DataFrame:
    """Compute rows of `CURVE_MEANS` from rows of `curve_values` of any runs.

    Each task adds up its users. One row of cut-offs x points x replicates whole numbers is shuffled per
    task and curve, so nothing grows with the number of users after the first pass.
    """
    totals = values.select(*CURVE_ROWS.names).mapInArrow(
        partial(curve_batches.sum_curves, bootstrap), to_ddl(CURVE_TOTALS)
    )

    # Spark reads the kind of the function from these annotations; a partial does not show them.
    def finish(table: pa.Table) -> pa.Table:
        return curve_batches.finish_curves(bootstrap, table)

    return change_groups(totals, CURVE_KEY, finish, to_ddl(CURVE_MEANS))
