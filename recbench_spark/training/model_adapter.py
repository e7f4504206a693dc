"""The interface of all models: fit, save, rank, predict, and fold users in.

The registry names the adapter of each class of settings (`config.models.ModelConfig`); nothing else in
the package knows kinds of models by name. Adapters know tables and, through `Source`, the scorers that
workers open.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import Any, ClassVar, Generic, NamedTuple, NoReturn, TypeVar, cast

import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recbench_spark import revisions
from recbench_spark.checks import Check
from recbench_spark.config import WorldSettings, digest
from recbench_spark.config.models import ModelConfig
from recbench_spark.data.external_inputs import count_dimensions
from recbench_spark.definitions import Definition
from recbench_spark.engine.versions import union_rows
from recbench_spark.errors import ConfigError
from recbench_spark.evaluation.ranking.inputs import RankingInput, ScoredModel
from recbench_spark.evaluation.ranking.known_items import KnownItems
from recbench_spark.evaluation.ranking.predict import mean_rating, predict_scored
from recbench_spark.evaluation.ranking.prefix_scorers import PrefixScorer
from recbench_spark.evaluation.ranking.relevant_rows import is_relevant
from recbench_spark.evaluation.ranking.source_rows import share_items, vector_rows
from recbench_spark.evaluation.ranking.sources import DotSource, Source
from recbench_spark.indexing import add_dense_index
from recbench_spark.kernels.ids import CANONICAL_INTEGER
from recbench_spark.models.fold_in_settings import FoldInSettings
from recbench_spark.models.rating.interface import Scale
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import EMBEDDINGS, EXPLANATIONS, ITEMS, RUNS, SIMILARITIES, SPLITS, Table
from recbench_spark.storage.delta_tables import read_dataset
from recbench_spark.storage.frame_blocks import FrameBlocks, as_rows, open_files, shuffle_blocks
from recbench_spark.storage.leases import Lease
from recbench_spark.storage.packed_blocks import Change, are_whole
from recbench_spark.storage.scratch import scratch_folder
from recbench_spark.storage.shared_arrays import SharedRows
from recbench_spark.storage.shared_rows import load_parquet, share_rows
from recbench_spark.storage.store import Store
from recbench_spark.training.fits.logs import SharedRatingLog, share_log
from recbench_spark.training.given_rows import fold_given_rows
from recbench_spark.training.registry import import_adapter

Settings = TypeVar("Settings", bound=ModelConfig)


MAX_EARLIER_SPLITS = 30
"""Largest number of splits of earlier nights that a model may read."""


class ItemTable(NamedTuple):
    """Items that a model learns about.

    Attributes:
        rows: item_id, and item_index, which is dense and in the order of ids.
        size: their number.
    """

    rows: DataFrame
    size: int


@dataclass(frozen=True)
class SplitData:
    """Everything that a model may know of a night: the tables of the split, and the metric definition.

    world: settings of the generated world, for models that know its truth. folds_users: true if users
    were held out from training and some of their rows are given. suite, logical_date: of the night, if
    there is one. journal: takes progress lines of fits with several stages. scale: `dataset.scale`, to
    which rating models clip their predictions. lease: of the model's fit, if the warehouse is a folder;
    its work folder belongs to this run alone. asks_repeats: true if trained items are asked again.
    typed_ids: true if ids are ordered by the type of their column, and not by their values.
    """

    store: Store
    split_id: str
    definition: Definition
    world: WorldSettings
    folds_users: bool = False
    suite: str = ""
    dataset: str = ""
    logical_date: date | None = None
    journal: Journal | None = None
    scale: Scale | None = None
    lease: Lease | None = None
    asks_repeats: bool = False
    typed_ids: bool = False

    @property
    def threshold(self) -> float | None:
        """Lowest rating of a relevant row; None: every rating above 0 is relevant."""
        return self.definition.threshold

    @property
    def spark(self) -> SparkSession:
        """The Spark session."""
        return self.store.spark

    def table(self, table: Table) -> DataFrame:
        """Return the rows of a table that belong to the split."""
        return self.store.read_partition(table, "split_id", self.split_id)

    @property
    def items(self) -> DataFrame:
        """The catalogue of items."""
        return self.table(ITEMS)

    @cached_property
    def n_items(self) -> int:
        """Number of items in the catalogue."""
        return int(self.items.count())

    @cached_property
    def training_items(self) -> ItemTable:
        """Items with training rows, numbered without a look at any other row."""
        known = self.items.where("n_train > 0")
        size = known.count()
        if size == self.n_items:
            return ItemTable(self.items, size)
        whole = not self.typed_ids and known.where(~F.col("item_id").rlike(CANONICAL_INTEGER)).isEmpty()
        order = F.col("item_id").cast("long") if whole else F.col("item_index")
        placed = known.select("item_id", "n_train", order.alias("place"))
        numbered = add_dense_index(placed, F.col("place"), "item_index").drop("place")
        # Written, because the frame outlives the cache of the model that asks first.
        written = share_rows(self.store.scratch, numbered)
        return ItemTable(load_parquet(self.spark, *written.files), size)

    def choose_items(self, settings: ModelConfig) -> ItemTable:
        """Return the items that a fit has vectors for, by its setting `items`."""
        if settings.counts_catalogue:
            return ItemTable(self.items, self.n_items)
        return self.training_items

    @cached_property
    def known_items(self) -> KnownItems:
        """The catalogue in the form in which tasks look up ids."""
        return KnownItems(share_items(self.store, self.split_id), self.n_items)

    @cached_property
    def training_catalogue(self) -> KnownItems:
        """`training_items` in the form in which tasks look up ids."""
        rows, size = self.training_items
        is_whole = size == self.n_items
        return self.known_items if is_whole else KnownItems(share_rows(self.store.scratch, rows), size)

    def open_by_user(self, columns: Sequence[str], change: Change, schema: T.StructType) -> FrameBlocks:
        """Let tasks change the labelled rows of some users each; they open files that are whole by user.

        Other files (items are held out, or files were compacted) are shuffled once by user.
        """
        files = self.store.list_partition_files(SPLITS, {"split_id": self.split_id}, max_bytes=math.inf)
        if are_whole(files, "user_id"):
            return open_files(self.spark, files, columns, change, schema)
        tasks = self.store.engine.count_tasks(self.store.count_rows(SPLITS, "split_id", self.split_id))
        packed = shuffle_blocks(self.table(SPLITS).select(*columns), F.xxhash64("user_id"), tasks)
        return FrameBlocks(packed, change, tuple(schema.names), schema=schema)

    @cached_property
    def rating_log(self) -> SharedRatingLog:
        """The labelled rows as tasks of fits and of rankings map them; written when it is first used.

        Raises:
            DataError: a rating outside `dataset.scale`.
        """
        return share_log(self.table(SPLITS), self.scale, self.store.scratch)

    @cached_property
    def sources(self) -> dict[str, Source]:
        """Sources that are open, by key of the model: a ranking and a learning curve share one copy."""
        return {}

    @property
    def train_rows(self) -> DataFrame:
        """Rows of the training part: user_id, item_id, rating."""
        return self._part("train")

    @cached_property
    def mean_rating(self) -> float:
        """Mean rating of the training part."""
        return mean_rating(self.train_rows)

    @property
    def test_rows(self) -> DataFrame:
        """Rows of the part `test`, for progress lines alone: fits must not learn or choose from them."""
        return self._part("test")

    @property
    def given_rows(self) -> DataFrame:
        """Rows that are given of users without training rows."""
        return self._part("given")

    def read_times(self, *parts: str) -> DataFrame:
        """Return relevant rows of some parts with their times: user_id, item_id, event_time."""
        rows = keep_relevant(self.table(SPLITS).where(F.col("part").isin(*parts)), self.threshold)
        return rows.select("user_id", "item_id", "event_time")

    def _part(self, part: str) -> DataFrame:
        rows = self.table(SPLITS).where(F.col("part") == part)
        return rows.select("user_id", "item_id", "rating")

    def earlier_splits(self, model: str) -> list[str]:
        """Return the splits of earlier nights on which a model succeeded, newest first.

        Only splits of the same suite and dataset count.
        """
        rows = self.store.read(RUNS).where(
            (F.col("suite") == self.suite)
            & (F.col("dataset") == self.dataset)
            & (F.col("model") == model)
            & (F.col("status") == "succeeded")
            & (F.col("logical_date") < F.lit(self.logical_date))
        )
        newest = rows.groupBy("split_id").agg(F.max("logical_date").alias("day"))
        return [
            row.split_id
            for row in newest.orderBy(F.desc("day"), "split_id").limit(MAX_EARLIER_SPLITS).collect()
        ]

    def scratch_folder(self) -> str:
        """Make a new folder that all executors can read; it is removed at the end of the night."""
        return scratch_folder(self.store.scratch)

    def key(self, settings: ModelConfig) -> str:
        """Return the split's id with a hash of all else that a trained model depends on, except its
        name."""
        others = {"name", "provenance", *settings.unkeyed, *settings.unfitted}
        others |= set() if settings.fitted_by_version else {"version"}
        fields = settings.model_dump(exclude=others)
        revised = revisions.select_revisions(settings.kind, *settings.revised)
        return f"{self.split_id}-{digest(fields, self.threshold, revised)}"


@dataclass(frozen=True)
class Trained:
    """A trained model as tables; None for a side that the model does not have.

    users, items: user_id (item_id), vector, bias. similarities: item_id, neighbour_id, weight.
    explanations: rows of the table `explanations` without the model's name; `load` does not read them.
    """

    users: DataFrame | None = None
    items: DataFrame | None = None
    similarities: DataFrame | None = None
    explanations: DataFrame | None = None


class ModelAdapter(Generic[Settings]):
    """Adapter between a night and models of one kind; subclasses override what differs.

    `learns`: there is something to fit and to store. `brings_candidates`: the model's own tables decide
    which items are ranked, so no candidates are added. `lists`: the model gives lists, which leave out
    items that are not near the top. `leased`: one run at a time fits the model; an adapter that guards
    its own files sets False. `needs_folder`: the fit maps files of the model, so the warehouse must be a
    folder. `needs_files`: tasks write and map files of the model, so the warehouse must be a folder or an
    object storage. `keeps_checkpoints`: a killed fit goes on, so on object storage the fit gets a lease, a
    folder on the driver's host and copies of its checkpoints. `folds_prefixes`: users can be ranked after
    each of their rows, for learning curves.

    The engine calls `is_saved`, `describe` and `prepare_ranking`. Each calls a member with an older name
    (`saved`, `told`, `ranked`), which models of other packages may define instead.
    """

    learns: ClassVar[bool] = True
    leased: ClassVar[bool] = True
    needs_folder: ClassVar[bool] = False
    needs_files: ClassVar[bool] = False
    keeps_checkpoints: ClassVar[bool] = False
    brings_candidates: ClassVar[bool] = False
    lists: ClassVar[bool] = False
    folds_prefixes: ClassVar[bool] = False

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    # -------------------------------------------------------------------------- fit, save, load

    def fit(self, data: SplitData) -> Trained | None:
        """Learn from the training rows; return None if the adapter itself learns nothing."""
        return None

    def fold_in(self, trained: Trained, data: SplitData) -> DataFrame | None:
        """Return user_id, vector, bias of users without training rows, from `data.given_rows`."""
        return None

    def key(self, data: SplitData) -> str:
        """Return the name of the trained model: the split's id and a hash of all else it depends on."""
        return data.key(self.settings)

    def save(self, trained: Trained, data: SplitData) -> None:
        """Append the model to the tables of trained models, one commit per table, once per key."""
        key = self.key(data)
        if trained.explanations is not None:
            rows = trained.explanations.withColumn("model_id", F.lit(key))
            data.store.append(rows, EXPLANATIONS, once=key)
        sides = [
            frame.withColumnRenamed(f"{side}_id", "id").withColumn("side", F.lit(side))
            for side, frame in (("user", trained.users), ("item", trained.items))
            if frame is not None
        ]
        if sides:
            rows = union_rows(sides, by_name=True).withColumn("model_id", F.lit(key))
            data.store.append(rows, EMBEDDINGS, once=key)
        if trained.similarities is not None:
            rows = trained.similarities.withColumn("model_id", F.lit(key))
            data.store.append(rows, SIMILARITIES, once=key)

    def is_saved(self, data: SplitData) -> bool:
        """Return true if the model was trained on this split before; calls `saved`, the older name."""
        return self.saved(data)

    def saved(self, data: SplitData) -> bool:
        """Return true if the model was trained on this split before."""
        return any(data.store.has(one, "model_id", self.key(data)) for one in (EMBEDDINGS, SIMILARITIES))

    def load(self, data: SplitData) -> Trained:
        """Read the model from the tables of trained models, or from external inputs."""
        key = self.key(data)
        rows = data.store.read_partition(EMBEDDINGS, "model_id", key)
        users, items = (
            rows.where(F.col("side") == side).select(F.col("id").alias(f"{side}_id"), "vector", "bias")
            for side in ("user", "item")
        )
        similarities = data.store.read_partition(SIMILARITIES, "model_id", key)
        return Trained(users, items, similarities)

    def facts(self, data: SplitData) -> list[dict[str, Any]]:
        """Return facts that the night measured on the model: part, fact (of `settings.facts`), value."""
        return []

    def describe(self) -> str | None:
        """Describe the model for `--dry-run`, and check its files; calls `told`, the older name."""
        return self.told()

    def told(self) -> str | None:
        """Describe the model for `--dry-run` after a look at its files; None: the name says it all."""
        return None

    # -------------------------------------------------------------------------- rank, predict

    def source(self, trained: Trained, data: SplitData) -> Source:
        """Return the source from which workers score blocks of users: the item vectors by default."""
        assert trained.items is not None
        if type(self).load is ModelAdapter.load and (stored := self._source_from_table(data)):
            return stored
        return self.share_vectors(trained.items, data)

    def share_vectors(self, items: DataFrame, data: SplitData) -> DotSource:
        """Write the catalogue with the vectors of these items where workers map it; return the source."""
        dims = count_dimensions(items, f"model {self.settings.name}")
        shared = share_rows(data.store.scratch, vector_rows(data.items, items))
        return DotSource(shared, data.n_items, dims)

    def _source_from_table(self, data: SplitData) -> DotSource | None:
        """Return the item vectors as workers read them from the table itself, or None if they cannot."""
        key = data.key(self.settings)
        files = data.store.list_partition_files(EMBEDDINGS, {"model_id": key, "side": "item"})
        if not files:
            return None
        # The digest is of the files: another warehouse may hold other vectors under the same key.
        rows = SharedRows(digest(files, length=32), tuple(files))
        lengths = self._read_lengths(data, key)
        if len(lengths) != 1:  # none, NULL or several lengths: the general path reports the error
            return None
        return DotSource(rows, data.n_items, lengths.pop(), catalogue=data.known_items)

    def _read_lengths(self, data: SplitData, key: str) -> set[Any]:
        """Return the lengths of the item vectors, None among them for NULL.

        The table itself is read: on object storage `load` has fetched its small files, and they are kept.
        """
        own = (ds.field("model_id") == key) & (ds.field("side") == "item")
        table = read_dataset(data.store.location(EMBEDDINGS.name))
        batches = table.to_batches(columns=["vector"], filter=own)
        return {n for batch in batches for n in batch.column(0).value_lengths().unique().to_pylist()}

    def open_source(self, trained: Trained, data: SplitData) -> Source:
        """Return the source of the model; it is made once for all that is done with this split."""
        key = self.key(data)
        if key not in data.sources:
            data.sources[key] = self.source(trained, data)
        return data.sources[key]

    def users(self, trained: Trained, source: Source) -> DataFrame | None:
        """Return user_id, vector of the users, if the source needs vectors."""
        return trained.users if getattr(source, "dims", 0) else None

    def prepare_ranking(self, users: DataFrame, data: SplitData) -> tuple[RankingInput, list[Check]]:
        """Return input of the ranking and checks of it; calls `ranked`, the older name."""
        return self.ranked(users, data)

    def ranked(self, users: DataFrame, data: SplitData) -> tuple[RankingInput, list[Check]]:
        """Return the input of `batched.rank`, and checks that count unusable rows of the model.

        Args:
            users: rows of `select_part_users`.
            data: the split.
        """
        trained = self.load(data)
        source = self.open_source(trained, data)
        return ScoredModel(source, as_rows(self.rank_users(trained, source, data))), []

    def rank_users(self, trained: Trained, source: Source, data: SplitData) -> DataFrame | None:
        """Return user_id, vector of the users of training, and of those folded in by their given rows."""
        known = self.users(trained, source)
        if not (data.folds_users and self.settings.folds_given_rows):
            return known
        folded = fold_given_rows(data.given_rows, data.items, self.make_prefix_scorer(trained, data))
        return folded if known is None else known.select("user_id", "vector").unionByName(folded)

    def predict_products(self, users: DataFrame, data: SplitData) -> DataFrame:
        """Predict by vectors, also those of users held out, as `predict`; unknown pairs get the mean."""
        trained = self.load(data)
        source = self.open_source(trained, data)
        vectors = self.rank_users(trained, source, data)
        assert vectors is not None
        known = users.join(vectors.select("user_id", "vector"), "user_id", "left")
        return predict_scored(known, source, data.mean_rating)

    def check_ranking(self) -> None:
        """Check, before Spark starts, that the model ranks items.

        Raises:
            ConfigError: it only predicts ratings, with these settings or at all.
        """

    # -------------------------------------------------------------------------- learning curves

    def check_prefixes(self) -> None:
        """Check, before Spark starts, that the model has learning curves.

        Raises:
            ConfigError: the kind of the model cannot rank users after each of their rows, or not with
                these settings.
        """
        if not self.folds_prefixes:
            self.refuse_prefixes()

    def refuse_prefixes(self) -> NoReturn:
        """Raise ConfigError: users of this kind of model cannot be folded in."""
        raise ConfigError(
            f"model {self.settings.name}: kind '{self.settings.kind}' cannot fold users in, so it has "
            "no learning curve",
            "leave the model out of a file with evaluation.learning_curve",
        )

    def make_fold_in(self, data: SplitData) -> FoldInSettings | None:
        """Return how prefixes are folded in; None for a model that scores by history or by item alone."""
        return None

    def make_prefix_scorer(self, trained: Trained, data: SplitData) -> PrefixScorer:
        """Return the model as tasks of learning curves see it; `check_prefixes` has passed.

        Args:
            trained: the model, as `load` reads it.
            data: the split.
        """
        return PrefixScorer(self.open_source(trained, data), self.make_fold_in(data))

    def predict(self, users: DataFrame, data: SplitData) -> DataFrame:
        """Predict ratings of pairs of users and items.

        Args:
            users: rows of `select_part_users`: one row a user with `items` and `relevance`.
            data: the split.

        Returns:
            user_id, user_key, prediction, outcome (arrays); unknown: pairs that the model does not know.

        Raises:
            ConfigError: a model that does not predict ratings.
        """
        raise ConfigError(
            f"model {self.settings.name}: kind '{self.settings.kind}' does not predict ratings",
            "evaluation.task: ranking, or a model such as means or als with implicit: false",
        )


Behaviour = ModelAdapter
"""The older name, by which models of other packages know the class."""


def make_adapter(settings: ModelConfig) -> ModelAdapter[ModelConfig]:
    """Import the adapter class of a model's settings and return an adapter with these settings."""
    return cast("ModelAdapter[ModelConfig]", import_adapter(settings)(settings))


def keep_relevant(frame: DataFrame, threshold: float | None) -> DataFrame:
    """Keep rows whose rating is at least the threshold (None: above 0)."""
    return frame.where(is_relevant(F.col("rating"), threshold))
