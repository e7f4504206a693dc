"""Models of other systems, as they lie: vectors, scores or lists."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from pyspark.sql import DataFrame

from recbench_spark.checks import Check
from recbench_spark.config import EmbeddingsModel, ListsModel, ScoresModel
from recbench_spark.data.external_inputs import check_common_ids, read_embeddings, read_scored_rows
from recbench_spark.definitions import Definition
from recbench_spark.evaluation import checks
from recbench_spark.evaluation.ranking.rank import GivenRows, RankingInput, ScoredModel
from recbench_spark.evaluation.ranking.sources import DotSource
from recbench_spark.evaluation.ranking_counts import refuse_duplicates
from recbench_spark.training.model_adapter import Behaviour, SplitData, Trained

Rows = TypeVar("Rows", ListsModel, ScoresModel)


# ------------------------------------------------------------------- checks of what is handed over


@dataclass(frozen=True)
class ExpectedIds:
    """What the ids of another system have to meet.

    users: rows of `users_of_parts`. items: item_id, of which `name` says what they are. must: whether it
    is an error that no item is one of these.
    """

    users: DataFrame
    items: DataFrame
    name: str = "catalogue"
    must: bool = True


def overlap_checks(users: DataFrame, items: DataFrame, known: ExpectedIds, what: str) -> list[Check]:
    """Whether the users and the items handed over are those of the evaluation (`data.handed_over.meet`).

    Args:
        users: has user_id.
        items: has item_id.
        known: what they have to meet.
        what: how errors call them.

    Raises:
        DataError: they do not meet.
    """
    found = check_common_ids(users, known.users, "user_id", (what, "truth"))
    return found + check_common_ids(items, known.items, "item_id", (what, known.name), must=known.must)


def row_checks(
    rows: DataFrame,
    users: DataFrame,
    items: DataFrame,
    definition: Definition,
    *,
    train: DataFrame | None = None,
) -> list[Check]:
    """What of given lists or scores cannot count.

    Args:
        rows: user_id, item_id of the lists or scores.
        users: rows of `users_of_parts`.
        items: item_id of the items that are known, each once.
        definition: how duplicates are treated.
        train: user_id, item_id that lists should not recommend again; None: not looked at.

    Raises:
        DataError: duplicates, where the definition says that they are an error.
    """
    found = checks.list_checks(rows, users, items)
    if definition.duplicates == "error":
        refuse_duplicates(found)
    return found if train is None else [*found, checks.count_training_items_in_lists(rows, train)]


# ------------------------------------------------------------------------------------- behaviours


class EmbeddingsAdapter(Behaviour[EmbeddingsModel]):
    """Vectors of users and items."""

    learns: ClassVar[bool] = False

    def load(self, data: SplitData) -> Trained:
        """Both tables, checked."""
        users, items = read_embeddings(data.spark, self.settings.users, self.settings.items)
        return Trained(users, items)

    def source(self, trained: Trained, data: SplitData) -> DotSource:
        """The vectors of the items, with the similarity that the settings name."""
        found = super().source(trained, data)
        assert isinstance(found, DotSource)
        return replace(found, kind=self.settings.similarity)

    def ranked(self, users: DataFrame, data: SplitData) -> tuple[RankingInput, list[Check]]:
        """See `Behaviour`; users and items whose ids do not meet the night's are refused."""
        trained = self.load(data)
        assert trained.users is not None
        assert trained.items is not None
        known = ExpectedIds(users, data.items)
        found = overlap_checks(trained.users, trained.items, known, f"model {self.settings.name}")
        return ScoredModel(self.source(trained, data), trained.users), found


class _ExternalRowsAdapter(Behaviour[Rows]):
    """A table of rows a user and item; items that it leaves out are not ranked."""

    brings_candidates: ClassVar[bool] = True
    learns: ClassVar[bool] = False

    @property
    def masks(self) -> bool:
        """Whether training items are taken out."""
        return True

    def ranked(self, users: DataFrame, data: SplitData) -> tuple[RankingInput, list[Check]]:
        """See `Behaviour`."""
        kind = self.settings.kind
        rows = read_scored_rows(data.spark, self.settings.path, kind)
        found = overlap_checks(rows, rows, ExpectedIds(users, data.items), kind)
        train = data.train_rows if self.lists and not self.masks else None
        found += row_checks(rows, users, data.items, data.definition, train=train)
        return GivenRows(rows, data.items, self.masks), found


class ScoresAdapter(_ExternalRowsAdapter[ScoresModel]):
    """Scores, ranked after the training items are taken out."""


class ListsAdapter(_ExternalRowsAdapter[ListsModel]):
    """Ranked lists, left as they are, or without training items."""

    lists: ClassVar[bool] = True

    @property
    def masks(self) -> bool:
        """Whether training items are taken out."""
        return self.settings.training_items == "drop"
