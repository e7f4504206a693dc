"""Models of other systems, as their files give them: vectors, scores or lists."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from pyspark.sql import DataFrame

from recbench_spark.checks import Check
from recbench_spark.config import EmbeddingsModel, ListsModel, ScoresModel
from recbench_spark.data.external_inputs import (
    check_common_ids,
    read_embeddings,
    read_item_embeddings,
    read_scored_rows,
)
from recbench_spark.definitions import Definition
from recbench_spark.errors import ConfigError
from recbench_spark.evaluation import checks
from recbench_spark.evaluation.ranking.inputs import GivenRows, RankingInput, ScoredModel
from recbench_spark.evaluation.ranking.sources import DotSource
from recbench_spark.evaluation.ranking_counts import gap_checks, refuse_duplicates
from recbench_spark.models.fold_in_settings import FoldInSettings, make_ridge_fold_in, require_fold_in
from recbench_spark.storage.frame_blocks import FrameRows
from recbench_spark.training.model_adapter import ModelAdapter, SplitData, Trained

Rows = TypeVar("Rows", ListsModel, ScoresModel)


# -------------------------------------------------------------------- checks of external inputs


@dataclass(frozen=True)
class ExpectedIds:
    """Ids that the ids of another system must match.

    Attributes:
        users: rows of `select_part_users`.
        items: item_id.
        name: words for these items in errors.
        must: true if it is an error that no item matches.
    """

    users: DataFrame
    items: DataFrame
    name: str = "catalogue"
    must: bool = True


def overlap_checks(users: DataFrame, items: DataFrame, known: ExpectedIds, what: str) -> list[Check]:
    """Check that external users and items are those of the evaluation (`check_common_ids`).

    Args:
        users: has user_id.
        items: has item_id.
        known: ids of the evaluation.
        what: name of the external input in errors.

    Raises:
        DataError: the ids have nothing in common.
    """
    results = check_common_ids(users, known.users, "user_id", (what, "truth"))
    return results + check_common_ids(items, known.items, "item_id", (what, known.name), must=known.must)


def row_checks(
    rows: DataFrame,
    users: DataFrame,
    items: DataFrame,
    definition: Definition,
    *,
    train: DataFrame | None = None,
) -> list[Check]:
    """Count the rows of external lists or scores that cannot be evaluated.

    Args:
        rows: user_id, item_id of the lists or scores.
        users: rows of `select_part_users`.
        items: item_id of the known items, each once.
        definition: says how duplicates are treated.
        train: user_id, item_id that lists should not recommend again; None: no check of these.

    Raises:
        DataError: duplicates, if the definition says that they are an error.
    """
    results = checks.list_checks(rows, users, items)
    results += gap_checks(checks.count_gaps(rows), definition)
    if definition.duplicates == "error":
        refuse_duplicates(results)
    return results if train is None else [*results, checks.count_training_items_in_lists(rows, train)]


# ------------------------------------------------------------------------------------- adapters


class EmbeddingsAdapter(ModelAdapter[EmbeddingsModel]):
    """Adapter of vectors of users and items, or of items alone, from another system."""

    learns: ClassVar[bool] = False
    folds_prefixes: ClassVar[bool] = True

    def load(self, data: SplitData) -> Trained:
        """Read the tables and check them."""
        if self.settings.users is None:
            return Trained(
                None, read_item_embeddings(data.spark, self.settings.items, self.settings.columns)
            )
        users, items = read_embeddings(
            data.spark, self.settings.users, self.settings.items, self.settings.columns
        )
        return Trained(users, items)

    def check_prefixes(self) -> None:
        """Check that the file says how users are folded in. Raises ConfigError."""
        require_fold_in(self.settings.name, self.settings.fold_in)

    def make_fold_in(self, data: SplitData) -> FoldInSettings:
        """Return the ridge regression that the file describes."""
        return make_ridge_fold_in(
            require_fold_in(self.settings.name, self.settings.fold_in), data.threshold
        )

    def source(self, trained: Trained, data: SplitData) -> DotSource:
        """Return the item vectors, with the similarity that the settings name."""
        vectors = super().source(trained, data)
        assert isinstance(vectors, DotSource)
        return replace(vectors, kind=self.settings.similarity)

    def ranked(self, users: DataFrame, data: SplitData) -> tuple[RankingInput, list[Check]]:
        """Return the scored model (see `ModelAdapter.ranked`); refuse ids that do not match the night's
        ids."""
        trained, what = self.load(data), f"model {self.settings.name}"
        assert trained.items is not None
        if trained.users is None:
            results = check_common_ids(trained.items, data.items, "item_id", (what, "catalogue"))
            self._require_given_rows(data)
            source = self.open_source(trained, data)
            return ScoredModel(source, self.rank_users(trained, source, data)), results
        known = ExpectedIds(users, data.items)
        results = overlap_checks(trained.users, trained.items, known, what)
        return ScoredModel(self.open_source(trained, data), FrameRows(trained.users)), results

    def _require_given_rows(self, data: SplitData) -> None:
        """Raise ConfigError if users have training rows: nothing gives these users a vector."""
        if not data.folds_users:
            raise ConfigError(
                f"model {self.settings.name}: item vectors alone rank no user who has training rows",
                "users: a path, or split.held_out: {of: users}",
            )


class _ExternalRowsAdapter(ModelAdapter[Rows]):
    """Adapter of a table with one row per user and item; items without a row are not ranked."""

    brings_candidates: ClassVar[bool] = True
    learns: ClassVar[bool] = False

    @property
    def masks(self) -> bool:
        """True if training items are removed before ranking."""
        return True

    def ranked(self, users: DataFrame, data: SplitData) -> tuple[RankingInput, list[Check]]:
        """Return the given rows and their checks; see `ModelAdapter.ranked`."""
        kind = self.settings.kind
        rows = read_scored_rows(data.spark, self.settings.path, kind, self.settings.columns)
        results = overlap_checks(rows, rows, ExpectedIds(users, data.items), kind)
        recommends_again = self.lists and not self.masks and not data.asks_repeats
        train = data.train_rows if recommends_again else None
        results += row_checks(rows, users, data.items, data.definition, train=train)
        values = tuple(name for name in ("rank", "score") if name in rows.columns)
        return GivenRows(FrameRows(rows), values, data.known_items, self.masks), results


class ScoresAdapter(_ExternalRowsAdapter[ScoresModel]):
    """Adapter of scores, which are ranked without the training items."""


class ListsAdapter(_ExternalRowsAdapter[ListsModel]):
    """Adapter of ranked lists, which are left unchanged or lose their training items."""

    lists: ClassVar[bool] = True

    @property
    def masks(self) -> bool:
        """True if training items are removed from the lists."""
        return self.settings.training_items == "drop"
