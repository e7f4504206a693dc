"""Truth, training rows and lists of Spark frames, partitioned by user in Arrow blocks.

Spark groups, joins and sorts one row at a time. Here tasks pack the rows into blocks by user; the task that
receives a user's rows counts them, builds the user's row of `USERS`, and ranks the user
(`partition_tasks`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from recbench_spark.adhoc import partition_tasks
from recbench_spark.adhoc.partition_tasks import LISTED, PACKED, TRAIN, TRUTH, TaskCatalogue
from recbench_spark.data.external_inputs import CheckedRows
from recbench_spark.engine.sessions import SparkEngine
from recbench_spark.engine.versions import send_to_tasks, union_rows
from recbench_spark.evaluation.batch_schemas import USERS, to_ddl
from recbench_spark.evaluation.batched.rank import RANKING
from recbench_spark.evaluation.ranking.request import RankingRequest
from recbench_spark.kernels.ids import CANONICAL_INTEGER, IdOverlap
from recbench_spark.runtime.session import narrow_rows
from recbench_spark.schemas import IDS

COUNT_COLUMNS = "item_id STRING, listed BIGINT, train BIGINT, truth BIGINT, sums MAP<STRING, BIGINT>"
"""`partition_tasks.COUNT_SCHEMA` as a DDL string of Spark."""

SIDES = ("listed", "train", "truth")
"""Columns that count an item's rows in lists, training and truth."""


@dataclass(frozen=True)
class PartitionedInputs:
    """Rows partitioned by user. Spark caches them, since they are counted before they are ranked.

    Attributes:
        packed: rows of PACKED.
        values: for each kind of rows, the columns beside the ids.
        extra_items: item_id of other items of the catalogue, each once.
    """

    packed: DataFrame
    values: Mapping[int, tuple[str, ...]]
    extra_items: DataFrame | None = None

    @classmethod
    def partition(
        cls, tables: Mapping[int, CheckedRows], extra_items: DataFrame | None = None
    ) -> PartitionedInputs:
        """Partition the rows in one shuffle of blocks. A task holds about `blocks.ROWS_PER_TASK` rows.

        Args:
            tables: user_id, item_id (text, or whole numbers) and values, by kind of rows.
            extra_items: as in the attributes of the class.
        """
        spark = next(iter(tables.values())).rows.sparkSession
        tasks = SparkEngine(spark).count_tasks(sum(table.n for table in tables.values()))
        values = {LISTED: (), TRAIN: (), TRUTH: ()} | {
            holds: tuple(name for name in table.rows.columns if name not in IDS)
            for holds, table in tables.items()
        }
        blocks = [
            table.rows.mapInArrow(partial(partition_tasks.partition_rows, tasks, holds), PACKED)
            for holds, table in tables.items()
        ]
        packed = union_rows(blocks)
        return cls(send_to_tasks(packed, tasks, F.col("task")).cache(), values, extra_items)

    @cached_property
    def task_counts(self) -> DataFrame:
        """Return the counts of all tasks: rows of COUNT_SCHEMA."""
        return self.packed.mapInArrow(
            partial(partition_tasks.count_rows, self.values), COUNT_COLUMNS
        ).cache()

    @cached_property
    def sums(self) -> Mapping[str, int]:
        """Add up the sums of all tasks over users and pairs; the driver receives one row per task."""
        totals: Counter[str] = Counter()
        # This is the first action on the rows, which pass through Python here.
        with narrow_rows(self.packed.sparkSession):
            rows = self.task_counts.where("sums IS NOT NULL").select("sums").collect()
        for row in rows:
            totals.update(row["sums"])
        return totals

    @cached_property
    def items(self) -> DataFrame:
        """Return each item once: item_id, and its numbers of listed rows, training pairs and truth pairs.

        Shuffles one row per task and item.
        """
        rows = self.task_counts.where("sums IS NULL").select("item_id", *SIDES)
        if self.extra_items is not None:
            more = self.extra_items.select(
                "item_id", *(F.lit(int(side == "listed")).alias(side) for side in SIDES)
            )
            rows = rows.unionByName(more)
        return rows.groupBy("item_id").agg(*(F.sum(side).alias(side) for side in SIDES)).cache()

    @cached_property
    def item_counts(self) -> Row:
        """Count the items of each side and of two sides, and those whose ids are whole numbers."""
        number, sides = F.col("item_id").rlike(CANONICAL_INTEGER), {side: F.col(side) > 0 for side in SIDES}
        sides["known"] = sides["train"] | sides["truth"]
        sides["learned"] = sides["train"] | sides["listed"]
        tests: dict[str, Column] = {
            **sides,
            **{f"{side} numbers": test & number for side, test in sides.items()},
        }
        tests |= {
            "listed known": sides["listed"] & sides["known"],
            "train truth": sides["train"] & sides["truth"],
            "truth listed": sides["truth"] & sides["listed"],
            "truth learned": sides["truth"] & sides["learned"],
        }
        lost = F.coalesce(F.sum(F.when(~sides["known"], F.col("listed"))), F.lit(0)).alias("lost")
        counts = (F.count_if(test).alias(name) for name, test in tests.items())
        (row,) = self.items.agg(F.count("*").alias("items"), lost, *counts).collect()
        return row

    def user_overlap(self, left: str) -> IdOverlap:
        """Return the overlap of the users of the lists, or of training, with those of the truth."""
        sums = self.sums
        numbers = sums[f"{left} numbers"], sums["truth numbers"]
        return IdOverlap((sums[f"{left} users"], sums["truth users"]), sums[f"{left} common"], numbers)

    def item_overlap(self, left: str, right: str) -> IdOverlap:
        """Return the overlap of the items of two sides."""
        counts = self.item_counts
        n, numbers = (counts[left], counts[right]), (counts[f"{left} numbers"], counts[f"{right} numbers"])
        return IdOverlap(n, counts[f"{left} {right}"], numbers)

    def users(self, catalogue: TaskCatalogue) -> DataFrame:
        """Build the rows of `USERS` without a shuffle."""
        return self.packed.mapInArrow(
            partial(partition_tasks.build_users, catalogue, self.values), to_ddl(USERS)
        )

    def rank(self, catalogue: TaskCatalogue, request: RankingRequest, *, mask: bool) -> DataFrame:
        """Rank the users of the truth by their rows, without a shuffle.

        Args:
            catalogue: the catalogue.
            request: definition and length of lists.
            mask: drop a user's training items from the lists.
        """
        return self.packed.mapInArrow(
            partial(partition_tasks.rank_users, catalogue, request, mask, self.values), RANKING
        )

    @property
    def frames_in_cache(self) -> tuple[DataFrame, ...]:
        """Return the frames that Spark caches."""
        return self.items, self.task_counts, self.packed
