"""Call of each kernel for indexes, to compile it."""

from __future__ import annotations

import numpy as np

from recbench_spark.core.compiling import readonly
from recbench_spark.ranking.kernels.products import make_pairing, make_products
from recbench_spark.retrieval.kernels.candidates import ItemSets, measure_recall, rank_candidates
from recbench_spark.retrieval.kernels.projections import make_projections, make_tokens
from recbench_spark.retrieval.kernels.weak_and import (
    make_postings,
    make_threshold,
    match_by_counting,
    match_by_pivots,
)


def warm() -> None:
    """Search four items for two users, and measure the recall.

    Postings are fresh, as in a build, and then as readers map them.
    """
    vectors_id = np.eye(4, 3, dtype=np.float32)
    tokens = make_tokens(vectors_id, make_projections(3, bands=2, bits=1, seed=1))
    made, threshold = make_postings(tokens, np.zeros(4, np.bool_), 4), make_threshold(1.0, 2)
    mapped = made._replace(
        **{name: readonly(getattr(made, name)) for name in made._fields if name != "cut"}
    )
    for postings in (made, mapped):
        for match in (match_by_counting, match_by_pivots):
            matches = match(tokens[:2], postings, threshold, 4)
    masked = ItemSets(np.zeros(3, np.int64), np.empty(0, np.int32))
    pairing = make_pairing(make_products(vectors_id), vectors_id[:2])
    lists = rank_candidates(pairing, ItemSets(matches.offsets_u, matches.items_c), masked, 1)
    measure_recall(lists.scores_uk, lists.scores_uk, 1)
