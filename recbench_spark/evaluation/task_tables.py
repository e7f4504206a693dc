"""A task's tables, with all rows of its users.

They give what checks and catalogue need, rows of `USERS`, and ranks. One process is the only task in a
local evaluation. Its tables count once what several passes need; a Spark task counts it in each pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.config import CandidateDraw
from recbench_spark.core.arrays import Ints
from recbench_spark.core.ids import CANONICAL_INTEGER
from recbench_spark.core.streams import Batches
from recbench_spark.evaluation.ground_truth import (
    NO_PAIRS,
    CatalogueItems,
    InteractionPairs,
    build_user_table,
    count_common_pairs,
    distinct_pairs,
    repeat_pairs,
)
from recbench_spark.metrics.listed import ItemLookup
from recbench_spark.metrics.predictions import BATCH_USERS
from recbench_spark.metrics.ranking_counts import count_gaps, count_pairs
from recbench_spark.ranking.candidates import CandidateRule, add_candidates
from recbench_spark.ranking.drawn_batches import draw_batches
from recbench_spark.ranking.given import add_lists, name_questions, rank_batches
from recbench_spark.ranking.request import RankingRequest, add_profiles, choose_ranked_schema
from recbench_spark.ranking.scored import score_batches
from recbench_spark.ranking.sources import DotSource
from recbench_spark.schemas import ID_NAMES, QUERY_ID
from recbench_spark.sources.arrow_rows import combine_column, distinct_ids, find_indices
from recbench_spark.splits.popularity import label_popularity
from recbench_spark.storage.blocks import Sides
from recbench_spark.storage.packed_blocks import unpack_blocks
from recbench_spark.storage.shared_arrays import bound_lists

LISTED, TRAIN, TRUTH, CANDIDATES, ITEM_VECTORS, FEATURES, USER_GROUPS = range(7)
"""Tables: lists or scores, or user vectors; training; truth; given candidates; item vectors; features;
groups of users."""

SIDES = ("listed", "train", "truth", "candidates", "features")
"""Columns counting an id's rows."""


@dataclass(frozen=True)
class TaskCatalogue:
    """The catalogue for tasks, with bounds between popularity classes.

    lookup: look-up by id; bounds: training counts where torso and head begin, None without training rows.
    """

    lookup: ItemLookup
    bounds: tuple[int, int] | None


@dataclass(frozen=True)
class CandidateDraws:
    """Mode and settings by which candidates are drawn.

    A function opens the running sum of weights.
    """

    mode: str
    settings: CandidateDraw
    n_items: int
    open_running: Callable[[], Ints]


@dataclass(eq=False)
class TaskTables:
    """A task's tables by number.

    Items only named by vectors are in ITEM_VECTORS as `user_id`.
    """

    tables: Mapping[int, pa.Table]
    numeric: bool | None = None

    def column(self, number: int, name: str) -> pa.ChunkedArray:
        """Return an id column; empty where the table is missing."""
        table = self.tables.get(number)
        return pa.chunked_array([], pa.string()) if table is None else table.column(name)

    @cached_property
    def truth_users(self) -> pa.Array:
        """The truth's users."""
        return distinct_ids([self.column(TRUTH, "user_id")])

    @cached_property
    def users(self) -> pa.Array:
        """All users: the truth's come first."""
        more = [self.column(number, "user_id") for number in (TRAIN, LISTED)]
        return distinct_ids([self.truth_users, *more])

    @property
    def has_queries(self) -> bool:
        """Tell whether users have several rankings, by query."""
        return TRUTH in self.tables and QUERY_ID in self.tables[TRUTH].column_names

    def name_rows(self, number: int) -> pa.ChunkedArray | pa.Array:
        """Return each row's user, joined with its query if there are queries."""
        users = self.column(number, "user_id")
        if not (self.has_queries and number in self.tables):
            return users
        texts = (column.cast(pa.string()) for column in (users, self.column(number, QUERY_ID)))
        return name_questions(*map(combine_column, texts)).dictionary_encode()

    @cached_property
    def questions(self) -> pa.Table:
        """Questions: `name`, user_id and, with queries, query_id.

        Rows of one user follow one another.
        """
        if not self.has_queries:
            return pa.table({"name": self.truth_users, "user_id": self.truth_users})
        names = self.name_rows(TRUTH)
        distinct = distinct_ids([names])
        first = pc.index_in(distinct, value_set=names.cast(pa.string()))
        ids = {
            name: self.column(TRUTH, name).cast(pa.string()).take(first) for name in ("user_id", QUERY_ID)
        }
        rows = pa.table({"name": distinct, **ids})
        return rows.sort_by([(name, "ascending") for name in ids]).combine_chunks()

    @cached_property
    def askers(self) -> pa.Array:
        """All users, or users with queries: questions come first."""
        if not self.has_queries:
            return self.users
        listed = [self.name_rows(LISTED)] if self.has_lists else []
        return distinct_ids([self.questions.column("name"), *listed])

    @cached_property
    def owner_q(self) -> Ints:
        """Index of each question's user, (q,)."""
        return find_indices(self.questions.column("user_id"), self.users)

    @cached_property
    def items(self) -> pa.Array:
        """All catalogue items, in tie order where `numeric` is known."""
        columns = [self.column(number, "item_id") for number in (TRUTH, TRAIN)]
        columns.append(self.column(ITEM_VECTORS, "user_id"))
        columns += [self.column(LISTED, "item_id")] if self.has_lists else []
        return order_ids(distinct_ids(columns), self.numeric)

    @property
    def has_lists(self) -> bool:
        """Tell whether the system gives lists or scores."""
        return LISTED in self.tables and "item_id" in self.tables[LISTED].column_names

    @cached_property
    def pairs(self) -> dict[int, tuple[InteractionPairs, int]]:
        """Truth and training pairs, with the number of dropped rows.

        Pairs are indices in `items`, and in `askers` (truth) or `users` (training).
        """
        known = {TRUTH: self.askers, TRAIN: self.users}
        names = {TRUTH: self.name_rows(TRUTH), TRAIN: self.column(TRAIN, "user_id")}
        return {
            number: distinct_pairs(self.tables[number], find_indices(names[number], ids), self.items)
            if number in self.tables
            else (NO_PAIRS, 0)
            for number, ids in known.items()
        }

    @cached_property
    def row_indices(self) -> tuple[Ints, Ints]:
        """Index in `askers` and in `items` for each list or score row."""
        columns = ((self.name_rows(LISTED), self.askers), (self.column(LISTED, "item_id"), self.items))
        asker_r, item_r = (find_indices(column, known) for column, known in columns)
        return asker_r, item_r

    def order_items(self, index_i: Ints) -> TaskTables:
        """Return these tables with items in a catalogue's order."""
        if (np.diff(index_i) > 0).all():
            return self
        other = TaskTables(self.tables, self.numeric)
        other.items = self.items.take(pa.array(np.argsort(index_i)))
        return other


def order_ids(ids: pa.Array, numeric: bool | None) -> pa.Array:
    """Order ids as numbers, or as UTF-8.

    `numeric` None: the ids' form decides.
    """
    if numeric is None:
        numeric = are_numbers(ids)
    return ids.take(pc.array_sort_indices(ids.cast(pa.int64()) if numeric else ids))


def are_numbers(ids: pa.Array) -> bool:
    """Tell whether ids are the only spelling of whole numbers."""
    return bool(pc.all(pc.match_substring_regex(ids, CANONICAL_INTEGER), min_count=0).as_py())


def open_tables(sides: Sides, columns: Mapping[int, pa.Schema], numeric: bool | None) -> TaskTables:
    """Open a task's blocks; tables without rows here are empty."""
    return TaskTables({n: _open_table(sides.pop(n, []), schema) for n, schema in columns.items()}, numeric)


def _open_table(blocks: list[pa.Buffer], schema: pa.Schema) -> pa.Table:
    rows = unpack_blocks(blocks)
    if rows is None:
        return schema.empty_table()
    return pa.table(
        [
            rows.column(name).combine_chunks().dictionary_encode()
            if name in ID_NAMES
            else rows.column(name)
            for name in schema.names
        ],
        schema.names,
    )


# ----------------------------------------------------------------------------------------- counting


def count_users(task: TaskTables) -> pa.Table:
    """Return each user once, with the tables that have it.

    The columns are `id` and SIDES; true: the table has the user.
    """
    present = {"listed": LISTED, "train": TRAIN, "truth": TRUTH, "candidates": CANDIDATES}
    ids = {side: distinct_ids([task.column(number, "user_id")]) for side, number in present.items()}
    users = distinct_ids([task.users, ids["candidates"]])
    return pa.table({"id": users, **{one: pc.is_in(users, value_set=own) for one, own in ids.items()}})


def count_items(task: TaskTables) -> pa.Table:
    """Return each item once, with its rows in each table.

    Truth and training count pairs.
    """
    extra = [task.column(FEATURES, "user_id"), task.column(CANDIDATES, "item_id")]
    items = distinct_ids([task.items, *extra])
    n = len(items)
    places = {"train": task.pairs[TRAIN][0].item_r, "truth": task.pairs[TRUTH][0].item_r}
    vectors = find_indices(task.column(ITEM_VECTORS, "user_id"), items)
    places["listed"] = np.concatenate([task.row_indices[1], vectors]) if task.has_lists else vectors
    places |= {"features": find_indices(extra[0], items), "candidates": find_indices(extra[1], items)}
    return pa.table(
        {"id": items, **{side: pa.array(np.bincount(places[side], minlength=n)) for side in SIDES}}
    )


def count_rows(task: TaskTables) -> dict[str, int]:
    """Count rows and pairs for a task's users."""
    (truth, dropped), (train, train_dropped) = task.pairs[TRUTH], task.pairs[TRAIN]
    n = max(len(task.items), 1)
    sums = {"truth dropped": dropped, "train dropped": train_dropped, "truth pairs": len(truth.user_r)}
    of_users = replace(truth, user_r=task.owner_q[truth.user_r])
    sums["truth trained"] = count_common_pairs(of_users, train, n)
    sums["train users"] = int(np.count_nonzero(np.bincount(train.user_r)))
    if task.has_lists:
        user_r, item_r = task.row_indices
        trained_p = train.user_r * n + train.item_r
        if task.has_queries:
            sums |= count_queries(task, user_r)
            owner_r = find_indices(task.column(LISTED, "user_id"), task.users)
            sums |= count_pairs(owner_r * n + item_r, trained_p, user_r * n + item_r)
        else:
            sums |= count_pairs(user_r * n + item_r, trained_p)
        rows = task.tables[LISTED]
        if "rank" in rows.column_names:
            sums["gaps"] = count_gaps(user_r, rows.column("rank").to_numpy())
    return sums


def count_queries(task: TaskTables, asker_r: Ints) -> dict[str, int]:
    """Count listed queries, and those without truth.

    asker_r: index in `askers` for each list or score row.
    """
    listed = np.unique(asker_r)
    return {"queries": len(listed), "lost queries": int((listed >= len(task.questions)).sum())}


# ------------------------------------------------------------------------------ users and their rankings


def build_users(task: TaskTables, catalogue: TaskCatalogue) -> tuple[TaskTables, Ints, pa.Table]:
    """Build the rows of `USERS`.

    The rows are the truth's users, each once or for each query, with their training items as `masked`.

    Returns:
        The tables with items in catalogue order, indices of these items there, and the users.
    """
    task = task.order_items(catalogue.lookup.find(task.items)[0])
    index_i, n_train = catalogue.lookup.find(task.items)
    labels = None if catalogue.bounds is None else label_popularity(n_train, catalogue.bounds)
    items = CatalogueItems(task.items, index_i, labels)
    trained = task.pairs[TRAIN][0]
    if task.has_queries:
        trained = repeat_pairs(trained, task.owner_q)
    users = build_user_table(task.questions, task.pairs[TRUTH][0], trained, items, label_users(task))
    return task, index_i, users


def label_users(task: TaskTables) -> dict[str, pa.Array]:
    """Return each question's groups by slice key, (q,) text; NULL: its user has none."""
    if USER_GROUPS not in task.tables:
        return {}
    rows = task.tables[USER_GROUPS]
    at = find_indices(
        task.questions.column("user_id"), combine_column(rows.column("user_id").cast(pa.string()))
    )
    places = pa.array(at, mask=at < 0)
    names = [name for name in rows.column_names if name != "user_id"]
    return {name: combine_column(rows.column(name)).take(places) for name in names}


def rank_lists(
    task: TaskTables, catalogue: TaskCatalogue, request: RankingRequest, *, mask: bool
) -> pa.Table:
    """Rank the truth's users by lists or scores.

    Makes rows of `RANKED_USERS`. mask: drop a user's training items from the lists.
    """
    users = join_lists(task, catalogue, request, mask=mask)
    return _to_ranked(rank_batches(request, _cut(users)), request)


def join_lists(
    task: TaskTables, catalogue: TaskCatalogue, request: RankingRequest, *, mask: bool
) -> pa.Table:
    """Return the truth's users with their lists or scores.

    `rank_lists` ranks them.
    """
    task, index_i, users = build_users(task, catalogue)
    rows = task.tables[LISTED]
    if request.top:
        rows = rows.set_column(1, "item_id", combine_column(rows.column("item_id")))
    user_r, item_r = task.row_indices
    user_r = np.where(user_r < len(users), user_r, -1)
    keys_r = index_i[item_r] if len(index_i) else item_r
    users = add_profiles(_add_history(users, request), request, scored=False)
    return add_lists(users if mask else users.drop_columns("masked"), user_r, keys_r, rows, request)


def rank_vectors(
    task: TaskTables,
    catalogue: TaskCatalogue,
    request: RankingRequest,
    source: DotSource,
    *,
    device: Callable[[], str],
    draws: CandidateDraws | None,
) -> pa.Table:
    """Rank the truth's users by user and item vectors.

    Makes rows of `RANKED_USERS`.
    """
    task, _, users = build_users(task, catalogue)
    vectors = task.tables[LISTED]
    at = find_indices(users.column("user_id"), combine_column(vectors.column("user_id")))
    column = combine_column(vectors.column("vector")).take(pa.array(at, mask=at < 0))
    if draws is not None:
        rule = CandidateRule(drawn=draws.mode, n_items=draws.n_items)
        users = add_candidates(users, _draw(users, draws), rule)
    elif CANDIDATES in task.tables:
        users = users.append_column("candidates", _group_candidates(task, catalogue.lookup))
    users = add_profiles(_add_history(users, request), request, scored=True).append_column("vector", column)
    return _to_ranked(score_batches(source, request, _cut(users), device=device()), request)


def _add_history(users: pa.Table, request: RankingRequest) -> pa.Table:
    """Add the training items as `history` where they are asked for."""
    return users.append_column("history", users.column("masked")) if request.profiles else users


def count_drawn(
    task: TaskTables, catalogue: TaskCatalogue, draws: CandidateDraws
) -> tuple[int, int, int, int] | None:
    """Count a task's users, and their drawn candidates.

    Drawn candidates have three numbers: fewest, all, and most.
    """
    users = build_users(task, catalogue)[2]
    if not len(users):
        return None
    n_u = pc.list_value_length(_draw(users, draws).column("items")).to_numpy()
    return len(n_u), int(n_u.min()), int(n_u.sum()), int(n_u.max())


def _draw(users: pa.Table, draws: CandidateDraws) -> pa.Table:
    return pa.Table.from_batches(draw_batches(draws.open_running(), draws.settings, _cut(users)))


def _group_candidates(task: TaskTables, lookup: ItemLookup) -> pa.Array:
    rows = task.tables[CANDIDATES]
    user_r = find_indices(task.name_rows(CANDIDATES), combine_column(task.questions.column("name")))
    codes = rows.column("item_id").combine_chunks()
    codes = codes if pa.types.is_dictionary(codes.type) else codes.dictionary_encode()
    item_r = lookup.find(codes.dictionary)[0][codes.indices.to_numpy()]
    in_catalogue = (user_r >= 0) & (item_r >= 0)
    pairs = np.unique(np.stack([user_r[in_catalogue], item_r[in_catalogue]], axis=1), axis=0)
    bounds = bound_lists(pairs[:, 0], len(task.questions))
    return pa.ListArray.from_arrays(bounds, pa.array(pairs[:, 1], pa.int32()))


def _cut(table: pa.Table) -> Batches:
    return iter(table.combine_chunks().to_batches(BATCH_USERS))


def _to_ranked(batches: Batches, request: RankingRequest) -> pa.Table:
    schema = choose_ranked_schema(request)
    return pa.Table.from_batches([batch.cast(schema) for batch in batches], schema)
