"""Models whose lists come through an index.

Another model gives the vectors, `retrieval` the candidates.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recbench_spark.config import RetrievedModel, digest
from recbench_spark.core.arrays import Bools, Floats, Floats32
from recbench_spark.core.checks import Check
from recbench_spark.errors import ConfigError, StoreError
from recbench_spark.models.adapters.model_adapter import ModelAdapter, SplitData, Trained, make_adapter
from recbench_spark.models.fits.tasks import FIT_FILES
from recbench_spark.ranking.inputs import RankingInput, ScoredModel
from recbench_spark.ranking.kernels.positives import ItemLists, make_positives
from recbench_spark.ranking.kernels.products import Products
from recbench_spark.ranking.kernels.scorers import DotScorer, Scorer, UserBlock
from recbench_spark.ranking.sources import OPEN_MODELS, DotSource, Strings
from recbench_spark.retrieval.interface import IndexReader, count_bytes
from recbench_spark.retrieval.kernels.candidates import ItemSets
from recbench_spark.retrieval.search import IndexLists, choose_users, cut_items, make_builder, search_lists
from recbench_spark.retrieval.settings import AnyIndexSettings
from recbench_spark.storage.leases import make_folder_once
from recbench_spark.storage.made_folders import fill_folder
from recbench_spark.storage.seals import find_damage, write_seal
from recbench_spark.storage.shared_arrays import SharedRows
from recbench_spark.storage.uris import is_remote

SECONDS_FILE, IDS_FILE = "seconds.npy", "items.parquet"
SEARCH_SETTINGS = ("probes", "candidates", "theta", "first_level")
"""Settings of a search: indexes which differ only here share their files."""
REVISION = 1
"""Revision of an index's files. Raise it where the same settings give other files."""


class RetrievedAdapter(ModelAdapter[RetrievedModel]):
    """Ranks lists which an index retrieves for another model.

    That base is fitted under its own name.
    """

    learns: ClassVar[bool] = False
    lists: ClassVar[bool] = True

    def __init__(self, settings: RetrievedModel) -> None:
        super().__init__(settings)
        self.base = make_adapter(settings.base)
        self.runs_local = self.base.runs_local  # type: ignore[misc]

    def load(self, data: SplitData) -> Trained:
        """Read the base."""
        return self.base.load(data)

    def describe(self) -> str:
        """Describe the index in words."""
        index = self.settings.index
        return f"lists of {self.settings.length} items of {self.settings.base.name} through {index.kind}"

    def prepare_ranking(self, users: Any, data: SplitData) -> tuple[RankingInput, list[Check]]:
        """Return the base's vectors, with a source over the index.

        Raises:
            ConfigError: the base's scores are no vector products.
        """
        ranked, checks = self.base.prepare_ranking(users, data)
        if not isinstance(ranked, ScoredModel) or not isinstance(ranked.source, DotSource):
            raise ConfigError(
                f"model {self.settings.name}: the scores of {self.settings.base.name} are no products of "
                f"vectors, so no index holds its items",
                "retrieval.models: models with vectors, such as als or embeddings",
            )
        place = data.store.file_place(FIT_FILES, f"{data.split_id}-index-") or ""
        source = RetrievedSource(ranked.source, self.settings.index, self.settings.length, place)
        return ScoredModel(source, ranked.vectors), checks


@dataclass(frozen=True)
class RetrievedSource:
    """Lets tasks search a vector model's index; see `ranking.sources.Source`.

    The first task in need builds the index from the mapped vectors, and the others wait; it holds one
    partition's items twice.

    Attributes:
        base: the model which scores.
        settings: settings of the index.
        length: items in a list.
        place: start of the paths or URIs of index folders; empty: each host builds a folder of its own.
    """

    base: DotSource
    settings: AnyIndexSettings
    length: int
    place: str = ""

    wants_history: ClassVar[bool] = False

    @property
    def dims(self) -> int:
        """Length of the users' vectors."""
        return self.base.dims

    @property
    def rows(self) -> SharedRows:
        """Rows of the items; their size counts when models are grouped."""
        return self.base.rows

    def scorer(self) -> Scorer:
        """Return the model behind the index, opened once per worker."""
        return _open_scorer(self)

    def item_ids(self) -> Strings:
        """Return the item ids, as in `Source`."""
        return self.base.item_ids()

    def open_parts(self, products: Products) -> list[OpenPart]:
        """Return each partition's index; the first worker builds them.

        Raises:
            StoreError: a file of an index is missing or cut short.
        """
        parts = []
        for part in range(self.settings.index_parts):
            folder = self._make_folder(products, part)
            seconds = float(np.load(folder / SECONDS_FILE))
            parts.append(OpenPart(make_builder(self.settings).read(folder), seconds, count_bytes(folder)))
        return parts

    def _make_folder(self, products: Products, part: int) -> Path:
        """Return a partition's folder.

        The folder's name hashes vectors, settings and revision.
        """
        build = partial(_build_part, self, products, part)
        settings = self.settings.model_dump(exclude={"name", *SEARCH_SETTINGS})
        name = digest(self.base.rows.key, self.base.kind, settings, REVISION, part, length=32)
        target = f"{self.place}{name}"
        if not self.place or is_remote(self.place):
            rows = SharedRows(f"index-{name}", self.base.rows.files)
            fill = partial(fill_folder, target, build=build) if self.place else build
            return rows.folder(lambda _, folder: fill(folder))
        folder = Path(target)
        make_folder_once(folder, build, report=lambda _: None)
        damage = find_damage(folder)
        if damage:
            raise StoreError(damage, f"remove {folder}: the next run makes it again")
        return folder


class OpenPart(NamedTuple):
    """One partition's index, with build seconds and file bytes."""

    reader: IndexReader
    seconds: float
    bytes: int


def _build_part(source: RetrievedSource, products: Products, part: int, folder: Path) -> None:
    """Write a partition's files, its rows' original ids, and a seal."""
    started = time.perf_counter()
    items = cut_items(products, source.settings.index_parts, part)
    make_builder(source.settings).build(items, folder)
    np.save(folder / SECONDS_FILE, np.array(time.perf_counter() - started))
    ids = pa.array(source.item_ids()[items.items_n], pa.binary()).cast(pa.string())
    pq.write_table(pa.table({"item_index": items.items_n, "item_id": ids}), folder / IDS_FILE)
    write_seal(folder)


@lru_cache(maxsize=OPEN_MODELS)
def _open_scorer(source: RetrievedSource) -> RetrievedScorer:
    base = source.base.scorer()
    assert isinstance(base, DotScorer)
    return RetrievedScorer(base, source.open_parts(base.products), source.length)


class RetrievedScorer:
    """Scores and ranks only the candidates in a user's list.

    `products` is None for callers which would rank the whole catalogue by tiles.
    """

    products = None

    def __init__(self, base: DotScorer, parts: list[OpenPart], length: int) -> None:
        self.base, self.parts, self.length = base, parts, length
        self.readers = [part.reader for part in parts]

    @property
    def scored_i(self) -> Bools:
        """Items the model can score."""
        return self.base.scored_i

    def score_rows(self, users: UserBlock, start: int, stop: int) -> Floats:
        """Return the base's scores."""
        return self.base.score_rows(users, start, stop)

    def score_listed(self, users: UserBlock, listed: ItemLists) -> Floats:
        """Return the base's scores."""
        return self.base.score_listed(users, listed)

    def retrieve(self, users: UserBlock, masked: ItemLists) -> IndexLists:
        """Return a user block's lists, without masked items."""
        return self._search(users.vectors(self.base.products.dims), self._sort_items(masked))

    def list_candidates(self, users: UserBlock, masked: ItemLists, known_u: Bools) -> ItemLists:
        """Return the items in a user block's lists.

        Unknown users have none.
        """
        rows = np.flatnonzero(known_u)
        vectors_ud = users.vectors(self.base.products.dims)[rows]
        hidden = choose_users(self._sort_items(masked), rows)
        items_uk = np.full((len(known_u), self.length), -1)
        items_uk[rows] = self._search(vectors_ud, hidden).items_uk
        listed = items_uk >= 0
        return ItemLists(np.concatenate([[0], np.cumsum(listed.sum(axis=1))]), items_uk[listed])

    def _search(self, vectors_ud: Floats32, masked: ItemSets) -> IndexLists:
        return search_lists(self.readers, self.base.products, vectors_ud, masked, self.length)

    def _sort_items(self, lists: ItemLists) -> ItemSets:
        """Return each user's known items, ascending."""
        everything = np.ones(len(self.scored_i), np.bool_)
        rows = make_positives(everything, lists, ItemLists.empty(lists.users))
        return ItemSets(rows.slot_offsets, rows.slot_items.astype(np.int32))
