"""Everything a model may know about a night's split.

It comes as rows on any runner, and as Spark frames. Factor and sequence models learn from users' relevant
items in time order; tasks cut these histories from labelled rows, whole by user, without Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.config import WorldSettings, digest
from recbench_spark.core import revisions
from recbench_spark.core.arrays import Bools
from recbench_spark.core.definitions import Definition
from recbench_spark.core.ids import CANONICAL_INTEGER, encode_texts
from recbench_spark.engine.versions import is_frame
from recbench_spark.errors import DataError
from recbench_spark.models.fits.logs import SharedRatingLog, mean_rating, share_log
from recbench_spark.models.rating.interface import Scale
from recbench_spark.models.settings import ModelConfig
from recbench_spark.ranking.kernels.rankings import mark_relevant
from recbench_spark.ranking.known_items import KnownItems, share_items
from recbench_spark.ranking.predict import Predictor, predict_rows
from recbench_spark.ranking.sources import Source
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import ITEMS, RUNS, SPLITS, Table
from recbench_spark.splits.labelled_rows import open_by_user, open_labelled
from recbench_spark.splits.labels import HISTORY, VALID
from recbench_spark.storage.arrow_store import require_session
from recbench_spark.storage.blocks import StoredRows, TaskRows
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.storage.leases import Lease
from recbench_spark.storage.packed_blocks import Change
from recbench_spark.storage.scratch import scratch_folder, share_results
from recbench_spark.storage.shared_arrays import SharedRows

if TYPE_CHECKING:
    from recbench_spark.models.adapters.frames import Frame, SparkSession
    from recbench_spark.storage.store import Store


MAX_EARLIER_SPLITS = 30
"""Most splits from earlier nights a model may read."""


@dataclass(frozen=True)
class SplitData:
    """Everything a model may read in a night.

    Members which return a frame raise `FallbackToSpark` on a runner without Spark.

    Attributes:
        definition: the metric definition.
        world: settings of the generated world, for models which know its truth.
        folds_users: true if users were held out from training and some of their rows are given.
        suite, logical_date: the night's, if there is one.
        journal: takes progress lines from fits with several stages.
        scale: `dataset.scale`, to which rating models clip their predictions.
        lease: lease of the fit, if the warehouse is a folder; its work folder belongs to this run alone.
        asks_repeats: true if trained items are asked again.
        by_query: true if each query of a user is asked (`dataset.query`).
        typed_ids: true if ids are ordered by the type of their column, and not by their values.
    """

    store: FileTables
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
    by_query: bool = False
    typed_ids: bool = False

    @property
    def threshold(self) -> float | None:
        """Lowest rating of a relevant row; None: every rating above 0."""
        return self.definition.threshold

    # ------------------------------------------------------------------------- on any runner

    def open_items(self) -> StoredRows:
        """Return the catalogue's rows."""
        return self.store.open_rows(ITEMS, "split_id", [self.split_id])

    @cached_property
    def n_items(self) -> int:
        """Number of items in the catalogue."""
        return self.store.count_rows(ITEMS, "split_id", self.split_id)

    @cached_property
    def known_items(self) -> KnownItems:
        """The catalogue, ready for id look-ups in tasks."""
        return KnownItems(share_items(self.store, self.split_id), self.n_items)

    @cached_property
    def training_catalogue(self) -> KnownItems:
        """Items with training rows, ready for id look-ups in tasks.

        Item numbers depend on no other row.
        """
        facts = self.open_items().each(("item_id", "n_train"), _find_trained)
        size, whole = sum(n for n, _ in facts), all(whole for _, whole in facts)
        if size == self.n_items:
            return self.known_items
        numeric = True if whole and not self.typed_ids else None
        rows = self.known_items.rows
        named = SharedRows(f"{rows.key}-trained-{'numbers' if numeric else 'index'}", rows.files)
        return KnownItems(named, size, numeric, trained=True)

    def choose_items(self, settings: ModelConfig) -> KnownItems:
        """Return the items a fit has vectors for.

        The setting `items` decides.
        """
        return self.known_items if settings.counts_catalogue else self.training_catalogue

    def open_by_user(self, columns: Sequence[str], change: Change, names: tuple[str, ...]) -> TaskRows:
        """Let tasks change users' labelled rows, as in `splits.labelled_rows`."""
        rows = open_labelled(self.store, self.split_id)
        return open_by_user(rows, columns, change, names, self._count_tasks)

    def predict(self, users: Any, predictor: Predictor, known: Any) -> TaskRows:
        """Let tasks predict users' truth items, as `predict.predict_rows`.

        `users`: rows, or a frame.
        """
        users, known = (self.frames.FrameRows(rows) if is_frame(rows) else rows for rows in (users, known))
        return predict_rows(self.store.engine, users, predictor, known, self._count_tasks())

    def _count_tasks(self) -> int:
        return self.store.engine.count_tasks(self.store.count_rows(SPLITS, "split_id", self.split_id))

    @cached_property
    def rating_log(self) -> SharedRatingLog:
        """The labelled rows as fits and rankings map them.

        Raises:
            DataError: a rating outside `dataset.scale`.
        """
        return share_log(open_labelled(self.store, self.split_id), self.scale, self.store.scratch)

    @cached_property
    def mean_rating(self) -> float:
        """Mean rating in the training part."""
        return mean_rating(open_labelled(self.store, self.split_id))

    @cached_property
    def sources(self) -> dict[str, Source]:
        """Open sources by model key, shared with learning curves."""
        return {}

    def earlier_splits(self, model: str) -> list[str]:
        """Return the earlier splits where a model succeeded, newest first.

        Only splits with the same suite and dataset count.
        """
        same = {"suite": self.suite, "dataset": self.dataset, "model": model, "status": "succeeded"}
        if self.logical_date is None:
            return []
        filters: list[tuple[str, str, Any]] = [(column, "=", value) for column, value in same.items()]
        filters.append(("logical_date", "<", self.logical_date))
        newest = dict[str, date]()
        for row in self.store.rows(RUNS, filters, ["split_id", "logical_date"]):
            newest[row["split_id"]] = max(row["logical_date"], newest.get(row["split_id"], date.min))
        order = sorted(newest, key=lambda split: (-newest[split].toordinal(), split))
        return order[:MAX_EARLIER_SPLITS]

    def scratch_folder(self) -> str:
        """Make a new folder all executors can read.

        The folder is removed at the end of the night.
        """
        return scratch_folder(self.store.scratch)

    def key(self, settings: ModelConfig) -> str:
        """Return a trained model's key.

        The key is the split's id with a hash over all else the model depends on, except its name.
        """
        others = {"name", "provenance", *settings.unkeyed, *settings.unfitted}
        others |= set() if settings.fitted_by_version else {"version"}
        fields = settings.model_dump(exclude=others)
        revised = revisions.select_revisions(settings.kind, *settings.revised)
        return f"{self.split_id}-{digest(fields, self.threshold, revised)}"

    # ------------------------------------------------------------------------- frames of Spark

    @property
    def spark_store(self) -> Store:
        """The warehouse with Spark."""
        return require_session(self.store, "a model that reads frames")

    @property
    def frames(self) -> Any:
        """The module `models.adapters.frames`."""
        _ = self.spark_store
        from recbench_spark.models.adapters import frames  # noqa: PLC0415

        return frames

    @property
    def spark(self) -> SparkSession:
        """The Spark session."""
        return self.spark_store.spark

    def table(self, table: Table) -> Frame:
        """Return the split's rows in a table."""
        return self.spark_store.read_partition(table, "split_id", self.split_id)

    @property
    def items(self) -> Frame:
        """The catalogue of items."""
        return self.table(ITEMS)

    @property
    def train_rows(self) -> Frame:
        """Training rows: user_id, item_id, rating."""
        return self._read_part("train")

    @property
    def given_rows(self) -> Frame:
        """Given rows of users without training rows."""
        return self._read_part("given")

    def _read_part(self, part: str) -> Frame:
        rows: Frame = self.frames.read_parts(self.table(SPLITS), part)
        return rows.select("user_id", "item_id", "rating")


def _find_trained(tables: Iterable[pa.Table]) -> tuple[int, bool]:
    """Count trained items; true if all their ids are integers."""
    n, whole = 0, True
    for table in tables:
        ids = table.filter(pc.greater(table.column("n_train"), 0)).column("item_id")
        n += len(ids)
        whole = whole and pc.all(pc.match_substring_regex(ids, CANONICAL_INTEGER), min_count=0).as_py()
    return n, whole


COLUMNS = ("user_id", "item_id", "rating", "event_time", "part")
"""Columns of the labelled rows."""

CUT = ("user_id", "items", "tied", "still")
"""Columns of histories."""


@dataclass(frozen=True)
class HistoryRule:
    """Decides which rows belong to a history, and cuts histories.

    Attributes:
        known: items with an index; others are left out.
        threshold: lowest rating of a relevant row; None: every rating above 0 is relevant.
        parts: parts whose rows count.
        learnt_i: (i,) items to keep; None: all.
    """

    known: KnownItems
    threshold: float | None
    parts: tuple[str, ...] = ("train",)
    learnt_i: Bools | None = None

    def cut(self, rows: pa.Table) -> pa.Table:
        """Return each user's items, oldest first.

        Items at one time are in the order of their index, so the order is a function of the rows.

        Args:
            rows: all labelled rows of some users (COLUMNS).

        Returns:
            user_id, items (indices); tied: several items share the user's last time; still: the user has
            several items, all at one time.
        """
        kept = rows.filter(_select(rows, self.threshold, self.parts))
        users, items = (encode_texts(kept.column(name)) for name in COLUMNS[:2])
        index_x = self.known.find(items.dictionary)[0]
        if self.learnt_i is not None:
            index_x = np.where(self.learnt_i[index_x], index_x, -1)
        user_r, item_r = users.indices.to_numpy(), index_x[items.indices.to_numpy()]
        time_r = kept.column("event_time").fill_null(0).to_numpy()
        order = np.lexsort((item_r, time_r, user_r))
        order = order[item_r[order] >= 0]
        numbers, start_u = np.unique(user_r[order], return_index=True)
        bounds, time_o = np.append(start_u, len(order)), time_r[order]
        end_u = bounds[1:]
        has_several = end_u - start_u > 1
        last_u = time_o[end_u - 1]
        columns = [
            users.dictionary.take(pa.array(numbers)),
            pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), pa.array(item_r[order], pa.int32())),
            pa.array(has_several & (time_o[end_u - 2] == last_u)),
            pa.array(has_several & (time_o[start_u] == last_u)),
        ]
        return pa.table(columns, list(CUT))


def read_histories(data: SplitData, rule: HistoryRule) -> pa.Table:
    """Return all users' histories in the order of user ids.

    Tasks write them, and this process reads. It holds a user's id and 4 bytes per row.
    """
    cut = data.open_by_user(COLUMNS, rule.cut, CUT)
    return share_results(data.store.scratch, cut).dataset().to_table().sort_by("user_id")


def require_times(data: SplitData, model: str, kind: str) -> Counter[str]:
    """Check that relevant rows have times; count rows by part.

    Raises:
        DataError: a row has none.
    """
    count, counts = partial(_count_parts, threshold=data.threshold), Counter[str]()
    for some in open_labelled(data.store, data.split_id).each(COLUMNS[2:], count):
        counts += some
    untimed = counts.pop(UNTIMED, 0)
    if untimed:
        raise DataError(
            f"model {model}: kind '{kind}' reads histories in the order of time, and "
            f"{untimed:,} of {counts.total():,} rows have no event_time",
            "map dataset.columns.event_time, or use a kind that needs no order",
        )
    return counts


UNTIMED = ""
"""Key for rows without a time."""


def _count_parts(tables: Iterable[pa.Table], threshold: float | None) -> Counter[str]:
    counts = Counter[str]()
    for table in tables:
        kept = table.filter(_select(table, threshold, (*HISTORY, VALID)))
        parts = kept.column("part").cast(pa.string()).value_counts()
        counts.update(dict(zip(*(parts.field(n).to_pylist() for n in (0, 1)), strict=True)))
        counts[UNTIMED] += kept.column("event_time").null_count
    return counts


def _select(rows: pa.Table, threshold: float | None, parts: Sequence[str]) -> pa.Array:
    """Return which rows are relevant and in some parts."""
    is_relevant = pa.array(mark_relevant(rows.column("rating").to_numpy(), threshold))
    texts = rows.column("part").combine_chunks().cast(pa.string())
    return pc.and_(pc.is_in(texts, pa.array(parts, pa.string())), is_relevant)
