"""Revisions: whole numbers for code whose results can change.

Each part of the code with labels, ids or numbers has one. Whoever changes a number raises the revision of
the part that computes it, and adds a line. The revision enters the hash of everything which depends on that
part. So results of older code in a warehouse are not reused ("already made", "nothing to do") and not mixed
with new ones: they stay under their old name.

| names                        | enter                                                         |
|------------------------------|---------------------------------------------------------------|
| splits, ids, worlds, READERS | `split_id`, and through it `model_id` and `run_key`           |
| graphs                       | `graph_id`, and through it the `model_id` of embeddings       |
| a kind of model              | `model_id` and `run_key`                                      |
| rankings ... propensities    | `run_key`, of the runs that have such numbers                 |
| comparisons ... paradoxes    | `comparison_id`, `change_id`, `paradox_id`                    |

A name missing here has revision 1, and revision 1 changes no hash. So a new name, or a new setting with a
default, makes no older result invalid.
"""

from __future__ import annotations

from collections.abc import Mapping

FIRST = 1
"""Revision of everything unchanged since version 0.1.0."""

REVISIONS: dict[str, int] = {
    # --- parts of a split
    # 2: rows with the same time are sorted by id as in rankings: as numbers where all ids are whole
    #    numbers, else by bytes; before, always by bytes.
    # 3: rows are labelled before duplicates are dropped, inside each part; a held-out pair that training
    #    knows is not asked. Among equal or missing times a hash keeps a row; before, the highest rating.
    #    A period in days or weeks without `start` ends with the day or week of the newest row, and its days
    #    begin at local midnight; before, it ended with that row (`anchor: last_event`).
    "splits": 3,
    # Logs with `dataset.events`.
    # 2: items whose events are no targets stand outside `closed_items`; before, in a part of `held_out`.
    "events": 2,
    # 2: whole floats and decimals become integers; text files are decoded strictly.
    # 3: empty texts, and blanks alone, are missing ids in all formats; before, an empty text was an
    #    id in Parquet, Delta, JSON and frames, and blanks were everywhere.
    "ids": 3,
    # 2: the open loop shows all pairs outside training; before, no pair that the loop had shown.
    "worlds": 2,
    # 2: `valid.txt` becomes the part valid; before, it was left out.
    "lightgcn": 2,
    # 2: each file has its own header line; partition folders' names give ids and values as written.
    # 3: a time in text is no time where it names its zone by a short name (BST), which Java takes for
    #    another place.
    "csv": 3,
    # 2: objects whose id, rating or time is an object or an array are bad lines, and so are Python's single
    #    quotes; before, such values were ids by their text. Times in texts as in csv.
    "json": 2,
    # 2: times in texts as in csv.
    "delta": 2,
    # 2: columns in only some files are read, also floats beside whole numbers; partitions as in csv.
    # 3: times in texts as in csv.
    "parquet": 3,
    # --- parts of a graph
    # 2: ids follow the rule of `ids`; those of a text file stay as written (`007` is not 7).
    # 3: empty texts are missing ids, as in `ids`.
    "graphs": 3,
    # --- embeddings of a graph's nodes
    # 2: infinite or NaN sums and vectors are refused; a vector whose length is beyond float32 gets
    #    length 1, before 0.
    "graph": 2,
    # --- models trained here
    # 2: our own solver for MLlib's objective, as one task; the former kind is `mllib_als`, whose last bits
    #    depend on the number of cores. Predicted ratings are clipped to `dataset.scale`.
    "als": 2,
    # 2: cosines equal as fractions are equal numbers, and equal cosines sum to equal scores.
    # 3: a user whose items have no neighbours gets no list; before, all items by id.
    "item_knn": 3,
    # 2: Adam uses torch's fused kernel, and LightGCN sums by the project's kernel: rounding differs.
    "descent": 2,
    # 2: fitting adds sums over neighbours edge by edge, independent of torch's threads.
    # 3: a share of the items has no neighbours in a minibatch (`neighbour_dropout`).
    # 4: `neighbour_dropout` is 0 by default: no item loses its neighbours unless the settings say so.
    "graphsage": 4,
    # 2: as graphsage.
    # 3: as graphsage.
    "pinsage": 3,
    # 2: users and items without training rows have no vector, so such users get no list and such items are
    #    in none; before, their vectors were zeros.
    "implicit_als": 2,
    # 2: as implicit_als.
    "logistic_mf": 2,
    # 2: as implicit_als, for als_wr, nsvd1 and sgd_mf; their predictions did not change.
    "rating_vectors": 2,
    # 2: table sizes, first random numbers, drawn negatives and the items' order come from training
    #    rows alone, and items without one are in no list; before, items (in models of ratings also users)
    #    of held-out rows took part, and `popular` and `means` listed such items. An RBM predicts the mean
    #    of all ratings for them.
    "trained_items": 2,
    # 2: SASRec, GRU4Rec and MemN2N leave items without relevant training rows out of the histories that
    #    they read; before, they read the first random vectors of these.
    "histories": 2,
    # --- the numbers of a run
    "rankings": 1,
    # 2: overflowing gains, infinite relevance and ranks from 2^53 on are refused.
    # 3: `negative_grades=worst`: best and worst DCG are equal if only rounding differs (1, before 0).
    # 4: fewer users than 6 (at 95 %) have no interval of width 0.
    "metrics": 4,
    # 2: corrected values use the definition's own formula; a definition without one gives none.
    # 3: before, a user's last bit depended on other users in the batch.
    "sampled": 3,
    # Runs whose threshold float32 or float16 rounds down, such as .7.
    # 2: a grade equal to the threshold in float32 or float16 reaches it; before, it was below.
    "thresholds": 2,
    # Lists from another system.
    # 2: a given rank is a place (`gaps=keep`); before, items moved up into gaps and for repeated rows.
    "lists": 2,
    # 2: squared errors, logarithms and weights have a relative error of 1e-12, log-loss has one clip;
    #    before, they had steps of 2^-40.
    "values": 2,
    # 2: labelled pairs' hit rates and scaled MRR are exact sums; before, the sum's order was open.
    "pairs": 2,
    "exposure": 1,
    # 2: a single user's MANDCG has no interval; before, one without length.
    # 3: sequence models leave out items unknown to training; ridges that count items, count those
    #    known to the model.
    "learning_curves": 3,
    # Vectors for users held out from training, by the learning curves' fold-in.
    # 2: where the ridge counts items (mf_bpr, lightgcn, embeddings), it counts those known to the model,
    #    and not the whole catalogue.
    "fold_in": 2,
    # 2: implicit_als, als_wr, sgd_mf, mf_bpr and lightgcn fold these users in by their given rows; before,
    #    they gave them no list.
    "held_out_users": 2,
    # 2: power laws are fitted only to tails with a minimum size.
    "propensities": 2,
    # 2: Newton's steps to the largest likelihood, over exact sums; before, MLlib's, which ended near it.
    "logistic_regression": 2,
    # --- comparisons of runs
    # 2: the signed-rank test enumerates small samples with ties and zeros.
    # 3: fewer users than can show a difference (6 at 95 %) have no verdict, and no interval of width 0.
    "comparisons": 3,
    "changes": 1,
    # 2: fewer users than 6 (at 95 %) have no interval of width 0, and no certain disagreement.
    "paradoxes": 2,
    # --- replays of auctions
    # 2: revenue is in the unit of bids; before, it was too large by the largest bid.
    # 3: the logged model's check does without minimum and shrinkage; other numbers are the same.
    # 4: `multi_slot_yield` counts what other metrics count of these pairs: the reference rate where their
    #    own is unknown or shrunken (before, 0), and in replicates the shift of the curve.
    "replays": 4,
}
"""The present revisions; one comment per revision, the newest last."""


SHARED = frozenset(
    {"splits", "ids", "candidates", "propensities", "rankings", "metrics", "sampled", "exposure", "values"}
)
"""Code behind all models' numbers, by name."""


def select_revisions(*names: str) -> dict[str, int]:
    """Return the revisions of these names, except first revisions.

    >>> select_revisions("rankings", "a kind of model that never changed")
    {}
    """
    return {name: REVISIONS[name] for name in names if REVISIONS.get(name, FIRST) != FIRST}


def describe_changes(before: Mapping[str, int], after: Mapping[str, int]) -> tuple[str, ...]:
    """Describe the differences between two sets of revisions.

    A missing name has the first revision.

    >>> describe_changes({"splits": 2}, {"splits": 3, "item_knn": 2})
    ('item_knn 1 -> 2', 'splits 2 -> 3')
    """
    names = sorted({*before, *after})
    pairs = ((name, before.get(name, FIRST), after.get(name, FIRST)) for name in names)
    return tuple(f"{name} {old} -> {new}" for name, old, new in pairs if old != new)
