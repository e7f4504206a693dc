"""Truth, training rows and lists of frames of Spark, dealt out by user in blocks, not rows of Java.

Spark groups, joins and sorts a row at a time; here tasks deal the rows out by user, and whoever holds a
user's rows counts them, makes the user's row of `USERS`, and ranks the user (`dealt_tasks`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial, reduce

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from recbench_spark.adhoc import partition_tasks
from recbench_spark.adhoc.partition_tasks import LISTED, PACKED, TRAIN, TRUTH, TaskCatalogue
from recbench_spark.data.external_inputs import CheckedRows
from recbench_spark.evaluation.batch_schemas import USERS, to_ddl
from recbench_spark.evaluation.ranking.rank import RANKING
from recbench_spark.evaluation.ranking.request import RankingRequest
from recbench_spark.kernels.ids import CANONICAL_INTEGER, IdOverlap
from recbench_spark.runtime.session import narrow_rows
from recbench_spark.schemas import IDS
from recbench_spark.storage.blocks import count_tasks

COUNT_COLUMNS = "item_id STRING, listed BIGINT, train BIGINT, truth BIGINT, sums MAP<STRING, BIGINT>"
"""`dealt_tasks.COUNTED` as Spark wants it told."""

SIDES = ("listed", "train", "truth")
"""What an item may be of, by its column."""


@dataclass(frozen=True)
class PartitionedInputs:
    """Rows by user, those of one in one partition; kept, since they are counted before they are ranked.

    Attributes:
        packed: rows of PACKED.
        values: of what blocks hold, the columns beside the ids.
        further: item_id of items that belong to the catalogue too, each once.
    """

    packed: DataFrame
    values: Mapping[int, tuple[str, ...]]
    extra_items: DataFrame | None = None

    @classmethod
    def of(cls, tables: Mapping[int, CheckedRows], further: DataFrame | None = None) -> PartitionedInputs:
        """Deal the rows out: one shuffle of blocks. A task holds about `blocks.ROWS_PER_TASK` rows.

        Args:
            tables: user_id, item_id (text, or whole numbers), and values, by what they are.
            further: as above.
        """
        spark = next(iter(tables.values())).rows.sparkSession
        tasks = count_tasks(spark, sum(table.n for table in tables.values()))
        values = {LISTED: (), TRAIN: (), TRUTH: ()} | {
            holds: tuple(name for name in table.rows.columns if name not in IDS)
            for holds, table in tables.items()
        }
        blocks = [
            table.rows.mapInArrow(partial(partition_tasks.partition_rows, tasks, holds), PACKED)
            for holds, table in tables.items()
        ]
        packed = reduce(DataFrame.union, blocks)
        return cls(packed.repartitionById(tasks, F.col("task")).cache(), values, further)

    @cached_property
    def task_counts(self) -> DataFrame:
        """Rows of COUNTED."""
        return self.packed.mapInArrow(
            partial(partition_tasks.count_rows, self.values), COUNT_COLUMNS
        ).cache()

    @cached_property
    def sums(self) -> Mapping[str, int]:
        """What tasks counted of users and pairs, added up: the driver gets a row a task."""
        found: Counter[str] = Counter()
        # The first to ask for the rows, which go to Python and back here.
        with narrow_rows(self.packed.sparkSession):
            rows = self.task_counts.where("sums IS NOT NULL").select("sums").collect()
        for row in rows:
            found.update(row["sums"])
        return found

    @cached_property
    def items(self) -> DataFrame:
        """Each item once: item_id; how many rows list it, how many pairs of training and truth have it.

        Shuffles a row a task and item.
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
        """How many items each side and two of them have, how many of these are whole numbers."""
        number, of = F.col("item_id").rlike(CANONICAL_INTEGER), {side: F.col(side) > 0 for side in SIDES}
        of["known"] = of["train"] | of["truth"]
        tests: dict[str, Column] = {**of, **{f"{side} numbers": test & number for side, test in of.items()}}
        tests |= {"listed known": of["listed"] & of["known"], "train truth": of["train"] & of["truth"]}
        lost = F.coalesce(F.sum(F.when(~of["known"], F.col("listed"))), F.lit(0)).alias("lost")
        counts = (F.count_if(test).alias(name) for name, test in tests.items())
        (row,) = self.items.agg(F.count("*").alias("items"), lost, *counts).collect()
        return row

    def user_meeting(self, left: str) -> IdOverlap:
        """Users of the lists, or of training, and those of the truth."""
        of = self.sums
        numbers = of[f"{left} numbers"], of["truth numbers"]
        return IdOverlap((of[f"{left} users"], of["truth users"]), of[f"{left} common"], numbers)

    def item_meeting(self, left: str, right: str) -> IdOverlap:
        """Items of two sides: `listed` and `known` (of training or truth), `train` and `truth`."""
        of = self.item_counts
        n, numbers = (of[left], of[right]), (of[f"{left} numbers"], of[f"{right} numbers"])
        return IdOverlap(n, of[f"{left} {right}"], numbers)

    def users(self, world: TaskCatalogue) -> DataFrame:
        """Rows of `USERS`, no shuffle."""
        return self.packed.mapInArrow(
            partial(partition_tasks.build_users, world, self.values), to_ddl(USERS)
        )

    def ranked(self, world: TaskCatalogue, request: RankingRequest, *, mask: bool) -> DataFrame:
        """Rankings of the users of the truth by their rows; no shuffle.

        Args:
            world: the catalogue.
            request: definition and length of lists.
            mask: drop a user's training items from the lists.
        """
        return self.packed.mapInArrow(
            partial(partition_tasks.rank_users, world, request, mask, self.values), RANKING
        )

    @property
    def kept(self) -> tuple[DataFrame, ...]:
        """What Spark holds of the rows."""
        return self.items, self.task_counts, self.packed
