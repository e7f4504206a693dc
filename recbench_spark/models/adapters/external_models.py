"""Other systems' models from files: vectors, scores or lists.

They need no Spark.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import ClassVar, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.config import EmbeddingsModel, ListsModel, ScoresModel
from recbench_spark.core.arrays import Ints
from recbench_spark.core.checks import Check
from recbench_spark.core.ids import NEARLY_ALL, IdOverlap
from recbench_spark.errors import ConfigError, DataError
from recbench_spark.metrics import ranking_counts
from recbench_spark.models.adapters.model_adapter import (
    ModelAdapter,
    RidgeAdapter,
    SimilarityAdapter,
    Trained,
)
from recbench_spark.models.adapters.split_data import SplitData
from recbench_spark.ranking.given import read_questions
from recbench_spark.ranking.inputs import GivenRows, RankingInput, ScoredModel
from recbench_spark.ranking.known_items import KnownItems, share_rows
from recbench_spark.ranking.part_users import close_items
from recbench_spark.ranking.sources import DotSource
from recbench_spark.schemas import ID_NAMES, IDS, QUERY_ID, USER_BLOCKS, require_names
from recbench_spark.sources import input_rows
from recbench_spark.sources.column_names import ColumnNames
from recbench_spark.sources.dealt_ids import check_common_ids
from recbench_spark.sources.input_rows import CheckedInput
from recbench_spark.sources.input_rules import VALUE_TYPES, refuse_different_widths
from recbench_spark.storage.blocks import Engine, Rows, Side, Sides, deal_sides
from recbench_spark.storage.packed_blocks import unpack_blocks
from recbench_spark.storage.scratch import keep_rows
from recbench_spark.storage.shared_arrays import flatten_lists

Settings = TypeVar("Settings", ListsModel, ScoresModel)

STORED = "string"
"""Type of ids in the warehouse, for messages."""


def check_known_ids(
    data: SplitData, rows: CheckedInput, name: str, known: Rows, what: tuple[str, str], *, must: bool = True
) -> list[Check]:
    """Check that another system's ids match the evaluation's.

    Args:
        data: the split.
        rows: the other system's rows.
        name: user_id or item_id.
        known: rows with the evaluation's ids.
        what: names of both in messages.
        must: true if it is an error when no id is common.

    Raises:
        DataError: the ids have nothing in common.
    """
    sides = ((rows.rows, name), (known, name))
    return check_common_ids(data.store.engine, sides, (*what, rows.kinds[name][1], STORED), must=must)


class EmbeddingsAdapter(SimilarityAdapter[EmbeddingsModel], RidgeAdapter[EmbeddingsModel]):
    """Ranks by another system's vectors; users may have none."""

    runs_local: ClassVar[bool] = True
    learns: ClassVar[bool] = False

    def load(self, data: SplitData) -> Trained:
        """Read, check, and let tasks write item vectors to scratch."""
        return _keep_vectors(data, *self._open_sides(data))

    def _open_sides(self, data: SplitData) -> tuple[CheckedInput | None, CheckedInput]:
        engine, settings = data.store.engine, self.settings
        names = ColumnNames(settings.columns or {})
        items = open_vectors(engine, settings.items, "item", names)
        if settings.users is None:
            return None, items
        users = open_vectors(engine, settings.users, "user", names)
        refuse_different_widths([users.dims, items.dims], (settings.users, settings.items))
        return users, items

    def ranked(self, users: Rows, data: SplitData) -> tuple[RankingInput, list[Check]]:
        """Return the scored model; see `ModelAdapter.ranked`.

        Ids which do not match the night's are refused.
        """
        what = f"model {self.settings.name}"
        own, items = self._open_sides(data)
        trained = _keep_vectors(data, own, items)
        checks = []
        if own is None and not data.folds_users:
            raise ConfigError(
                f"{what}: item vectors alone rank no user who has training rows",
                "users: a path, or split.held_out: {of: users}",
            )
        if own is not None:
            checks = check_known_ids(data, own, "user_id", users, (what, "truth"))
        checks += check_known_ids(
            data, items, "item_id", data.open_items(), (what, "catalogue"), must=own is None
        )
        source = self.open_source(trained, data)
        return ScoredModel(source, self.rank_users(trained, source, data)), checks


def open_vectors(engine: Engine, path: str, side: str, names: ColumnNames) -> CheckedInput:
    """Open the user or item vectors (`side`) at a path.

    Raises:
        DataError: vectors cannot be used, or an id has two.
    """
    name = f"{side}_id"
    rows = input_rows.check_vectors(
        input_rows.open_input(engine, path, [name, "vector"], f"{side} embeddings", names), name, path
    )
    input_rows.refuse_twice(engine, rows, name, path)
    return rows


def open_features(data: SplitData, path: str) -> DotSource:
    """Open item vectors at a path, for `diversity`.

    Items without a vector have zeros.

    Raises:
        DataError: vectors cannot be used, or no catalogue item has one.
    """
    what, engine = f"features {path}", data.store.engine
    table = input_rows.open_input(engine, path, ["item_id", "vector"], "features")
    rows = input_rows.check_vectors(table, "item_id", what, biased=False)
    input_rows.refuse_twice(engine, rows, "item_id", what)
    check_known_ids(data, rows, "item_id", data.open_items(), (what, "catalogue"))
    kept = keep_rows(data.store.scratch, rows.rows, rows.names, engine)
    files = share_rows(kept, (), data.store.scratch)
    return DotSource(files, data.n_items, rows.dims, catalogue=data.known_items)


def _keep_vectors(data: SplitData, users: CheckedInput | None, items: CheckedInput) -> Trained:
    kept = keep_rows(data.store.scratch, items.rows, items.names, data.store.engine)
    return Trained(users and users.rows, kept)


class _ExternalRowsAdapter(ModelAdapter[Settings]):
    """Ranks by a table with one row per user and item.

    Items without a row are not ranked.
    """

    runs_local: ClassVar[bool] = True
    reads_grades = False
    brings_candidates: ClassVar[bool] = True
    learns: ClassVar[bool] = False

    @property
    def masks(self) -> bool:
        """True if training items are removed before ranking."""
        return True

    def ranked(self, users: Rows, data: SplitData) -> tuple[RankingInput, list[Check]]:
        """Return the given rows and their checks; see `ModelAdapter.ranked`."""
        kind, rows = self.settings.kind, self._open_rows(data)
        recommends_again = self.lists and not self.masks and not data.asks_repeats
        counts, checks = count_listed_rows(rows, users, data), list[Check]()
        if shares_few_users(counts):
            checks += check_known_ids(data, rows, "user_id", users, (kind, "truth"))
        if counts["unknown"]:
            own = data.open_items()
            checks += check_known_ids(data, rows, "item_id", own, (kind, "catalogue"), must=False)
        lost = counts["lost queries"] if QUERY_ID in rows.names else None
        if lost and lost == counts["queries"]:
            message = f"{kind} and truth have no user's {QUERY_ID} in common"
            raise DataError(message, f"both need {QUERY_ID} in one spelling")
        checks += ranking_counts.row_checks(
            counts["listed"], counts["twice"], counts["unknown"], counts["lost"], lost
        )
        checks += ranking_counts.gap_checks(
            counts["gaps"] if "rank" in rows.names else None, data.definition
        )
        checks = ranking_counts.finish_row_checks(
            checks, data.definition, counts["trained"] if recommends_again else None
        )
        values = tuple(name for name in VALUE_TYPES if name in rows.names)
        return GivenRows(rows.rows, values, data.known_items, self.masks, QUERY_ID in rows.names), checks

    def _open_rows(self, data: SplitData) -> CheckedInput:
        kind, path, engine = self.settings.kind, self.settings.path, data.store.engine
        table = input_rows.open_input(engine, path, IDS, kind, ColumnNames(self.settings.columns or {}))
        by_query = QUERY_ID in table.schema.names
        if by_query and not data.by_query:
            message = f"{kind} {path} has {QUERY_ID} beside user_id, and the split asks for no query"
            raise ConfigError(message, "dataset.query: the log's column with queries, or leave it out")
        types = {name: VALUE_TYPES[name] for name in VALUE_TYPES if name in table.schema.names}
        if kind == "scores" or not types:
            require_names(table.schema.names, ["score"], f"{kind} {path}")
        ids = ID_NAMES if by_query else IDS
        return input_rows.check_input(table, types, f"{kind} {path}", ids=ids)


class ScoresAdapter(_ExternalRowsAdapter[ScoresModel]):
    """Ranks another system's scores, without the training items."""


class ListsAdapter(_ExternalRowsAdapter[ListsModel]):
    """Takes another system's ranked lists, with or without training items."""

    lists: ClassVar[bool] = True

    @property
    def masks(self) -> bool:
        """True if training items are removed from the lists."""
        return self.settings.training_items == "drop"


# ------------------------------------------------------------------------- counts of rows


def count_listed_rows(rows: CheckedInput, users: Rows, data: SplitData) -> Counter[str]:
    """Count list or score rows: all, unknown items, gaps, lost.

    `count_pairs` has the first counts. `users`, `tested`: distinct users of the rows and of the truth;
    `lost`: users without truth. One shuffle by user deals the rows beside the users and their training
    items.

    Args:
        rows: user_id, item_id[, query_id][, rank].
        users: user_id of the users with truth, and query_id where rows have it.
        data: the split.
    """
    engine = data.store.engine
    names = tuple(name for name in rows.names if name != "score")
    blocks = data.store.open_rows(USER_BLOCKS, "split_id", [data.split_id])
    sides = [
        Side(0, users, ("user_id", *([QUERY_ID] if QUERY_ID in rows.names else []))),
        Side(1, rows.rows, names),
        Side(2, blocks, ("user_id", "train_items", "closed_items")),
    ]
    dealt = deal_sides(engine, sides, engine.count_tasks(rows.n))
    return sum(dealt.each(partial(_count_listed, known=data.known_items)), Counter[str]())


def shares_few_users(counts: Counter[str]) -> bool:
    """Return whether a check must look at the users' ids."""
    common = counts["users"] - counts["lost"]
    return IdOverlap((counts["users"], counts["tested"]), common, (0, 0)).share < NEARLY_ALL


def _count_listed(sides: Sides, known: KnownItems) -> Counter[str]:
    """Count a task's rows, which are whole by user."""
    truth, rows, blocks = (unpack_blocks(sides.get(number, [])) for number in range(3))
    with_truth = pa.array([], pa.string()) if truth is None else truth.column("user_id").unique()
    if rows is None:
        return Counter(tested=len(with_truth))
    users, items = (rows.column(name).combine_chunks().dictionary_encode() for name in IDS)
    user_r, item_r = (codes.indices.to_numpy().astype(np.int64) for codes in (users, items))
    index_r = known.find(items.dictionary)[0][item_r]
    is_lost = pc.invert(pc.is_in(users.dictionary, value_set=with_truth.cast(users.dictionary.type)))
    width = known.n_items + len(items.dictionary)  # items outside the catalogue come behind it
    listed_r = user_r * width + np.where(index_r < 0, known.n_items + item_r, index_r)
    pairs = np.zeros(0, np.int64) if blocks is None else _list_trained(blocks, users.dictionary, width)
    asker_r = asked_r = None
    if QUERY_ID in rows.column_names:
        askers = read_questions(rows).dictionary_encode()
        asker_r = askers.indices.to_numpy().astype(np.int64)
        asked_r = asker_r * width + listed_r % width
    counts = Counter(ranking_counts.count_pairs(listed_r, pairs, asked_r))
    if asker_r is not None:
        questions = pa.array([], pa.string()) if truth is None else read_questions(truth)
        counts["queries"] = len(askers.dictionary)
        counts["lost queries"] = counts["queries"] - pc.sum(pc.is_in(askers.dictionary, questions)).as_py()
    counts["unknown"] = int((index_r < 0).sum())
    counts.update(users=len(users.dictionary), tested=len(with_truth))
    counts["lost"] = pc.sum(is_lost).as_py() or 0
    if "rank" in rows.column_names:
        counts["gaps"] = ranking_counts.count_gaps(
            user_r if asker_r is None else asker_r, rows.column("rank").to_numpy()
        )
    return counts


def _list_trained(blocks: pa.Table, users: pa.Array, width: int) -> Ints:
    """Return a number for each training pair of some users."""
    offsets, trained_e = flatten_lists(close_items(blocks))
    owner_u = pc.index_in(blocks.column("user_id"), users).fill_null(-1).to_numpy()
    owner_e = np.repeat(owner_u.astype(np.int64), np.diff(offsets))
    pairs: Ints = (owner_e * width + trained_e)[owner_e >= 0]
    return pairs
