"""Rankings by a scoring model, on Arrow batches without Spark."""

from __future__ import annotations

import sys

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recbench_spark.core.arrays import Bools
from recbench_spark.core.streams import Batches
from recbench_spark.ranking.batches import build_ranking_batch, read_item_lists
from recbench_spark.ranking.kernels.counting import CountingSettings
from recbench_spark.ranking.kernels.moments import NO_MOMENTS
from recbench_spark.ranking.kernels.positives import ItemLists, RankCounts
from recbench_spark.ranking.kernels.scorers import WHOLE_ROWS, Scorer, UserBlock, count_listed, count_ranks
from recbench_spark.ranking.request import USER_CANDIDATES, RankingRequest, refuse_hashed_ties
from recbench_spark.ranking.sources import Source, ids_to_lists
from recbench_spark.storage.shared_arrays import flatten_lists

LITTLE = 1 << 24
"""Most multiplications to do without torch: they take .1 s in float64, and loading torch takes over 3 s."""


def score_batches(
    source: Source, request: RankingRequest, batches: Batches, *, device: str = "cpu"
) -> Batches:
    """Rank users by scores, with one tile in memory.

    Args:
        source: the model.
        request: definition, list length, largest rank to count.
        batches: users, rows of `USERS`; with `history` and `vector` where the source needs them, with
            `candidates` where users have their own.
        device: torch device, NUMPY_TILES or WHOLE_ROWS; for "cpu", WHOLE_ROWS where it is faster.

    Yields:
        Rows of `RANKED_USERS`.
    """
    scorer = source.scorer()
    item_ids = source.item_ids() if request.top else None
    for batch in batches:
        counts = _count_ranks(scorer, user_block(batch, source), request, device, batch)
        top = None
        if item_ids is not None and counts.top_items_uk is not None:
            top = ids_to_lists(item_ids, counts.top_items_uk)
        yield _ranking_rows(batch, counts, top)


def _count_ranks(
    scorer: Scorer, users: UserBlock, request: RankingRequest, device: str, batch: pa.RecordBatch
) -> RankCounts:
    truth, masked = read_item_lists(batch, "items"), read_item_lists(batch, "masked")
    mode = request.definition.candidates
    refuse_hashed_ties(request.definition, "a model that scores")
    if mode in USER_CANDIDATES:
        listed = truth if mode == "rated" else read_item_lists(batch, "candidates")
        counts = count_listed(scorer, users, truth, listed, top_k=request.top)
    else:
        no_items = ItemLists.empty(masked.users)
        excluded = masked if mode == "unseen" else no_items
        retrieve = getattr(scorer, "list_candidates", None)
        if retrieve is not None:
            known_u = _find_known_users(scorer, users, batch)
            listed = retrieve(users, excluded, known_u)
            counts = count_listed(scorer, users, truth, listed, top_k=request.top)
            return drop_unknown_users(known_u, truth, counts)
        settings = CountingSettings(top_k=request.top, cutoff=request.cutoff)
        chosen_device = WHOLE_ROWS if device == "cpu" and is_little(scorer, truth.users) else device
        as_of = NO_MOMENTS if request.moments is None else request.moments.open().at(batch)
        counts = count_ranks(
            scorer, users, truth, excluded, device=chosen_device, settings=settings, as_of=as_of
        )
    return drop_unknown_users(_find_known_users(scorer, users, batch), truth, counts)


def is_little(scorer: Scorer, users: int) -> bool:
    """Tell whether all products take less time than loading torch.

    The ranks are the same bits.
    """
    if scorer.products is None or "torch" in sys.modules:
        return False
    return users * len(scorer.scored_i) * max(scorer.products.dims, 1) <= LITTLE


def user_block(batch: pa.RecordBatch, source: Source) -> UserBlock:
    """Collect what scorers may need from a batch of users.

    A source with `find_users` numbers them.
    """
    vectors = None
    if "vector" in batch.schema.names:
        vectors = _vector_matrix(batch.column("vector"), source.dims)
    keys = batch.column("user_key").to_numpy()
    histories = read_item_lists(batch, "history") if "history" in batch.schema.names else None
    find_users = getattr(source, "find_users", None)
    rows_u = None if find_users is None else find_users(batch.column("user_id"))
    return UserBlock(keys, vectors, histories, rows_u)


def _vector_matrix(column: pa.ListArray, dims: int) -> npt.NDArray[np.float32]:
    """Return vectors as rows of the model's width.

    Users without a vector get zeros.
    """
    offsets, values = flatten_lists(column)
    has_vector = np.diff(offsets) > 0
    vectors = np.zeros((len(has_vector), dims), np.float32)
    vectors[has_vector] = values.reshape(int(has_vector.sum()), dims)
    return vectors


def _find_known_users(scorer: Scorer, users: UserBlock, batch: pa.RecordBatch) -> Bools:
    """Mark the users whom the model knows, (u,).

    The model's vectors tell, or the scorer's method `knows`.
    """
    known_u = np.ones(batch.num_rows, np.bool_)
    if "vector" in batch.schema.names:
        known_u = batch.column("vector").is_valid().to_numpy(zero_copy_only=False)
    return keep_known_users(scorer, users, known_u)


def keep_known_users(scorer: Scorer, users: UserBlock, known_u: Bools) -> Bools:
    """Keep users whom the scorer's method `knows` marks, (u,).

    A scorer without this method keeps all.
    """
    knows = getattr(scorer, "knows", None)
    return known_u if knows is None else known_u & knows(users)


def drop_unknown_users(known_u: Bools, truth: ItemLists, counts: RankCounts) -> RankCounts:
    """Remove unknown users' ranks and lists."""
    if known_u.all():
        return counts
    known_p = np.repeat(known_u, np.diff(truth.offsets_u))
    top = counts.top_items_uk
    return RankCounts(
        np.where(known_p, counts.above_p, -1),
        np.where(known_p, counts.tied_p, 0),
        np.where(known_p, counts.before_p, 0),
        np.where(known_u, counts.candidates_u, 0),
        None if top is None else np.where(known_u[:, None], top, -1),
        counts.top_scores_uk,
    )


def _ranking_rows(batch: pa.RecordBatch, counts: RankCounts, top: pa.Array | None) -> pa.RecordBatch:
    offsets, relevance = flatten_lists(batch.column("relevance"))
    columns = {
        "item_ids": batch.column("item_ids").flatten(),
        "relevance": relevance,
        "above": counts.above_p,
        "tied": counts.tied_p,
        "before": counts.before_p,
    }
    return build_ranking_batch(batch, offsets, columns, counts.candidates_u, top)
