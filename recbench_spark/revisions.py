"""Revisions of what is computed: a whole number for each thing whose labels, ids or numbers can change.

Whoever changes a number raises the revision of what it comes of and adds a line. The revision enters the
hash of all that follows from it, so that what older code left in a warehouse is neither taken for the same
("made before", "nothing to do") nor mixed with what is new: it stays, under the name it had.

| names                        | enter                                                         |
|------------------------------|---------------------------------------------------------------|
| splits, ids, worlds, READERS | `split_id`, and through it `model_id` and `run_key`           |
| graphs                       | `graph_id`, and through it the `model_id` of embeddings       |
| a kind of model              | `model_id` and `run_key`                                      |
| rankings ... propensities    | `run_key`, of the runs that have such numbers                 |
| comparisons ... paradoxes    | `comparison_id`, `change_id`, `paradox_id`                    |

A name that is not listed is at revision 1, and one at revision 1 changes no hash: neither a new name nor a
new setting with a default makes anything old.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

FIRST = 1
"""Revision of all that has not changed since version 0.1.0."""

REVISIONS: dict[str, int] = {
    # --- what a split is made of
    # 2: rows of one instant in the order of ids as rankings have it: as numbers where all are whole
    #    numbers, else by bytes; before, always by bytes.
    "splits": 2,
    # 2: whole floats and decimals are their integers; text files are decoded strictly.
    "ids": 2,
    # 2: the open loop shows all pairs outside training; before, none that the loop had consumed.
    "worlds": 2,
    # 2: `valid.txt` is the part valid; before, it was left out.
    "lightgcn": 2,
    # 2: each file by its own line of names; names of partition folders are ids and values as written.
    "csv": 2,
    # 2: columns that only some files have are read, floats beside whole numbers; partitions as csv's.
    "parquet": 2,
    # --- what a graph is made of
    # 2: ids by the rule of ids; those of a text file are as written (`007` is not 7).
    "graphs": 2,
    # --- embeddings of a graph's nodes
    # 2: sums and vectors that are infinite or NaN are refused; a vector whose length is beyond float32 gets
    #    length 1, before 0.
    "graph": 2,
    # --- models trained here
    # 2: cosines equal as fractions are equal numbers, and sums of equal cosines equal scores.
    # 3: users of whose history no item has neighbours get no list; before, all items by id.
    "item_knn": 3,
    # 2: Adam's steps by torch's fused kernel, sums over LightGCN's graph by the project's: other roundings.
    "descent": 2,
    # 2: sums over neighbours are added edge by edge while fitting, whatever torch and its threads do.
    # 3: a share of the items has no neighbours in a minibatch (`neighbour_dropout`).
    # 4: `neighbour_dropout` is 0 by default: no item loses its neighbours unless the settings say so.
    "graphsage": 4,
    # 2: as graphsage's.
    # 3: as graphsage's.
    "pinsage": 3,
    # 2: users and items without training rows have no vector, thus no list and no place in one; before,
    #    zeros.
    "implicit_als": 2,
    # 2: as implicit_als's.
    "logistic_mf": 2,
    # 2: as implicit_als's, of als_wr, nsvd1 and sgd_mf; what these predict did not change.
    "rating_vectors": 2,
    # --- the numbers of a run
    "rankings": 1,
    # 2: gains that overflow, infinite relevance and ranks from 2^53 on are refused.
    # 3: `negative_grades=worst`: best and worst DCG that differ by rounding alone are equal (1, before 0).
    "metrics": 3,
    # 2: corrected values by the definition's own formula; those without one are not given.
    # 3: a user's last bit hung on who else was in the batch.
    "sampled": 3,
    # 2: squared errors, logarithms and weights to a relative 1e-12, one clip of log-loss; before, in steps
    #    of 2^-40.
    "values": 2,
    # 2: hit rates and scaled MRR of labelled pairs are exact sums; before, sums in whatever order.
    "pairs": 2,
    "exposure": 1,
    # 2: power laws are fitted to a smallest tail.
    "propensities": 2,
    # --- what runs are held against one another by
    # 2: the signed-rank test enumerates small samples with ties and zeros.
    "comparisons": 2,
    "changes": 1,
    "paradoxes": 1,
}
"""What changed: a comment a revision, the newest last."""


def select_revisions(*names: str) -> dict[str, int]:
    """The revisions of these names, those at the first one left out.

    >>> of("rankings", "a kind of model that never changed")
    {}
    """
    return {name: REVISIONS[name] for name in names if REVISIONS.get(name, FIRST) != FIRST}


def describe_changes(before: Mapping[str, int], after: Mapping[str, int]) -> tuple[str, ...]:
    """What differs, in words; a name that one of them has not is at the first revision there.

    >>> changed({"splits": 2}, {"splits": 3, "item_knn": 2})
    ('item_knn 1 -> 2', 'splits 2 -> 3')
    """
    pairs = ((name, before.get(name, FIRST), after.get(name, FIRST)) for name in _all_names(before, after))
    return tuple(f"{name} {one} -> {two}" for name, one, two in pairs if one != two)


def _all_names(*known: Iterable[str]) -> list[str]:
    return sorted({name for names in known for name in names})
