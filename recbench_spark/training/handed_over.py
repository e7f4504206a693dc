"""Models of other systems, as they lie: vectors, scores or lists."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, TypeVar

from pyspark.sql import DataFrame

from recbench_spark.checks import Check
from recbench_spark.config import EmbeddingsModel, ListsModel, ScoresModel
from recbench_spark.data.handed_over import meet, read_embeddings, read_scored_rows
from recbench_spark.evaluation import checks
from recbench_spark.evaluation.ranking import rank
from recbench_spark.evaluation.ranking.sources import DotSource
from recbench_spark.training.behaviour import Behaviour, SplitData, Trained

Rows = TypeVar("Rows", ListsModel, ScoresModel)


class Embeddings(Behaviour[EmbeddingsModel]):
    """Vectors of users and items."""

    learns: ClassVar[bool] = False

    def load(self, data: SplitData) -> Trained:
        """Both tables, checked."""
        users, items = read_embeddings(data.spark, self.settings.users, self.settings.items)
        return Trained(users, items)

    def source(self, trained: Trained, data: SplitData) -> DotSource:
        """The vectors of the items, with the similarity that the settings name."""
        assert trained.items is not None
        meet(trained.items, data.items, "item_id", (f"model {self.settings.name}", "catalogue"))
        found = super().source(trained, data)
        assert isinstance(found, DotSource)
        return replace(found, kind=self.settings.similarity)

    def rank(
        self, users: DataFrame, data: SplitData, request: rank.Request
    ) -> tuple[DataFrame, list[Check]]:
        """See `Behaviour`; users whose ids do not meet the truth's are refused."""
        vectors = self.load(data).users
        assert vectors is not None
        found = meet(vectors, users, "user_id", (f"model {self.settings.name}", "truth"))
        rankings, further = super().rank(users, data, request)
        return rankings, [*found, *further]


class _HandedOver(Behaviour[Rows]):
    """A table of rows a user and item; items that it leaves out are not ranked."""

    brings_candidates: ClassVar[bool] = True
    learns: ClassVar[bool] = False
    masks: ClassVar[bool]

    def rank(
        self, users: DataFrame, data: SplitData, request: rank.Request
    ) -> tuple[DataFrame, list[Check]]:
        """See `Behaviour`."""
        rows: DataFrame = read_scored_rows(data.spark, self.settings.path, self.settings.kind)
        found = meet(rows, users, "user_id", (self.settings.kind, "truth"))
        found += meet(rows, data.items, "item_id", (self.settings.kind, "catalogue"))
        found += [*checks.list_checks(rows, users, data.items), *self.further_checks(rows, data)]
        lists = rank.as_lists(rows, data.items)
        return rank.rank_given(users, lists, request, mask=self.masks), found

    def further_checks(self, rows: DataFrame, data: SplitData) -> list[Check]:
        """What only one of both kinds is asked."""
        return []


class Scores(_HandedOver[ScoresModel]):
    """Scores, ranked after the training items are taken out."""

    masks: ClassVar[bool] = True


class Lists(_HandedOver[ListsModel]):
    """Ranked lists, left as they are."""

    masks: ClassVar[bool] = False
    lists: ClassVar[bool] = True

    def further_checks(self, rows: DataFrame, data: SplitData) -> list[Check]:
        """Training items in lists."""
        return [checks.training_items_in_lists(rows, data.train_rows)]
