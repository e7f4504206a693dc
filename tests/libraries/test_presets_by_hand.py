"""Presets of 2026 by hand, as fractions: hits at ranks 1, 3 and 7, where log2(rank + 1) is 1, 2, 3."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest

from recbench_spark import evaluate
from recbench_spark.core.definitions import make_definition
from recbench_spark.errors import ConfigError
from recbench_spark.metrics.kernels.accuracy import measure
from recbench_spark.ranking.kernels.hashed_ties import hash_pairs
from recbench_spark.ranking.kernels.lists import HeldOutItems, InputLists, rank_lists
from recbench_spark.ranking.request import refuse_hashed_ties
from tests import oracles

LIST = {item: 1.0 - item / 10 for item in range(1, 9)}
"""Eight items; item i has rank i."""
SPREAD = {1: 1.0, 3: 2.0, 7: 1.0}
"""Grades of the relevant items."""


def value(preset: str, name: str, k: int, users: Any, **axes: Any) -> float:
    definition = make_definition(preset, axes)
    values = measure(oracles.make_rankings(users), [name], [k], definition)[name][:, 0]
    return float(values[~np.isnan(values)].mean())


@pytest.mark.parametrize(
    ("preset", "name", "k", "expected"),
    [
        # Average precision over the hits alone: (1/1 + 2/3) / 2 at 3, and of all three at 7.
        ("torchmetrics", "map", 3, Fraction(1, 2) * (1 + Fraction(2, 3))),
        ("torchmetrics", "map", 7, Fraction(1, 3) * (1 + Fraction(2, 3) + Fraction(3, 7))),
        ("torchmetrics", "precision", 7, Fraction(3, 7)),
        ("torchmetrics", "recall", 3, Fraction(2, 3)),
        # WarpRec divides by min(k, relevant).
        ("warprec", "map", 3, Fraction(1, 3) * (1 + Fraction(2, 3))),
        ("warprec", "mrr", 3, Fraction(1)),
        ("warprec", "f1", 3, Fraction(2, 3)),
        # implicit: hits / min(k, relevant).
        ("implicit", "precision", 7, Fraction(1)),
        ("implicit", "map", 7, Fraction(1, 3) * (1 + Fraction(2, 3) + Fraction(3, 7))),
        # LensKit: by the list's eight items, and by min(k, relevant).
        ("lenskit", "precision", 20, Fraction(3, 8)),
        ("lenskit", "recall", 2, Fraction(1, 2)),
        # MLflow: by the list's eight items; the ideal list has no more places than the list.
        ("mlflow", "precision", 20, Fraction(3, 8)),
        ("mlflow", "recall", 3, Fraction(2, 3)),
    ],
)
def test_one_user(preset: str, name: str, k: int, expected: Fraction) -> None:
    assert value(preset, name, k, [(LIST, SPREAD)]) == pytest.approx(float(expected), rel=1e-14)


def test_gains_of_ndcg() -> None:
    """DCG at 7, with grades 1, 2, 1 at ranks 1, 3, 7: discounts 1, 1/2, 1/3; the ideal is 2, 1, 1 first."""
    log3 = np.log2(3)
    linear, ideal = 1 + Fraction(2, 2) + Fraction(1, 3), 2 + 1 / log3 + Fraction(1, 2)
    for preset in ("sklearn", "torchmetrics"):
        assert value(preset, "ndcg", 7, [(LIST, SPREAD)]) == pytest.approx(float(linear) / ideal)
    # 2^(r + 1) - 1 is 3 and 7.
    above, best = 3 + Fraction(7, 2) + Fraction(3, 3), 7 + 3 / log3 + Fraction(3, 2)
    assert value("warprec", "ndcg", 7, [(LIST, SPREAD)]) == pytest.approx(float(above) / best)
    # LensKit has no discount at rank 2: 1 + 2 / log2(3) + 1 / log2(7), over 2 + 1 + 1 / log2(3).
    lenskit = (1 + 2 / log3 + 1 / np.log2(7)) / (2 + 1 + 1 / log3)
    for preset in ("lenskit", "lenskit==2025.8.1"):
        assert value(preset, "ndcg", 7, [(LIST, SPREAD)], gain="linear") == pytest.approx(lenskit)


def test_mlflow_cuts_the_ideal_list_at_the_length_of_the_list() -> None:
    """Its issue 24541: one hit alone, of five relevant items, is 1 in NDCG@5; the defaults say .339."""
    five = dict.fromkeys(range(1, 6), 1.0)
    assert value("mlflow", "ndcg", 5, [({1: 1.0}, five)]) == 1.0
    ideal = sum(1 / np.log2(rank + 1) for rank in range(1, 6))
    assert value("recbench", "ndcg", 5, [({1: 1.0}, five)]) == pytest.approx(1 / ideal, rel=1e-14)
    # Two items, a hit at rank 2: the ideal list has two places; graded 2^r - 1 in the best order.
    two = [({9: 1.0, 1: 0.5}, {1: 1.0, 2: 3.0, 3: 2.0})]
    log3 = np.log2(3)
    assert value("mlflow", "ndcg", 5, two) == pytest.approx((1 / log3) / (1 + 1 / log3), rel=1e-14)
    graded = value("mlflow", "ndcg", 5, two, gain="exponential")
    assert graded == pytest.approx((1 / log3) / (7 + 3 / log3), rel=1e-14)
    assert value("mlflow", "ndcg", 1, two) == 0.0


def test_lenskit_clips_grades_below_zero_and_an_ideal_of_zero_gives_zero() -> None:
    users = [({1: 0.9, 2: 0.8}, {1: -1.0, 2: 3.0}), ({1: 0.9}, {1: -2.0, 3: -1.0})]
    assert value("lenskit", "ndcg", 2, users, gain="linear") == float(Fraction(1, 2) * (Fraction(3, 3) + 0))
    # Since 2026 a user without truth is left out.
    users = [({1: 0.9}, {1: 1.0}), ({1: 0.9}, {})]
    assert [value(name, "mrr", 2, users) for name in ("lenskit", "lenskit==2025.8.1")] == [1, 1 / 2]


def test_torchmetrics_averages_ties_in_ndcg_alone() -> None:
    """Items 1 and 2 tie, and 2 is relevant: its DCG is the mean of 1 and 1 / log2(3); its MRR 1 / 2."""
    users = [({1: 0.5, 2: 0.5, 3: 0.1}, {2: 1.0})]
    assert value("torchmetrics", "ndcg", 2, users) == pytest.approx((1 + 1 / np.log2(3)) / 2, rel=1e-14)
    assert value("sklearn", "ndcg", 2, users) == pytest.approx((1 + 1 / np.log2(3)) / 2, rel=1e-14)
    assert value("torchmetrics", "mrr", 2, users) == 1 / 2
    assert value("torchmetrics", "map", 2, users) == 1 / 2


def test_average_precision_by_hits_over_the_orders_of_a_cut_tie() -> None:
    """Rank 1 is relevant; of three tied items two are relevant and k = 2 shows one: it is with chance 2/3.

    Then the mean precision is (1 + 2/2) / 2 = 1, and else 1/1: 1 in both. With k = 3 the tie shows two:
    both relevant (1/3): 1; relevant first (1/3): (1 + 1) / 2; relevant second (1/3): (1 + 2/3) / 2.
    """
    users = [({1: 0.9, 2: 0.5, 3: 0.5, 4: 0.5}, {1: 1.0, 2: 1.0, 3: 1.0})]
    axes = {"ap_by": "hits", "ties": "expected"}
    assert value("recbench", "map", 2, users, **axes) == pytest.approx(1.0, rel=1e-14)
    expected = Fraction(1, 3) * (1 + 1 + Fraction(5, 6))
    assert value("recbench", "map", 3, users, **axes) == pytest.approx(float(expected), rel=1e-13)


# ------------------------------------------------------------------------------------- hashed ties


def slow_key(seed: int, user: int, item: int) -> int:
    """The hash in plain whole numbers."""

    def mix(x: int) -> int:
        x = ((x ^ x >> 16) * 0x85EBCA6B) % 2**32
        x = ((x ^ x >> 13) * 0xC2B2AE35) % 2**32
        return x ^ x >> 16

    folded = (seed ^ seed >> 32) % 2**32
    left = mix(mix((user * 0x9E3779B1) % 2**32 ^ folded))
    return mix(left ^ mix((item * 0x9E3779B1 + 1) % 2**32)) >> 2


@pytest.mark.parametrize("seed", [0, 42, 2**31, 2**40 + 7, 2**63 - 1])
def test_the_hash_in_plain_numbers(seed: int) -> None:
    users, items = np.array([0, 1, 7, 2**31, -5]), np.array([0, 3, 99_999, 2**33 + 1])
    keys = hash_pairs(seed, users[:, None], items)
    assert keys.tolist() == [[slow_key(seed, int(u), int(i)) for i in items] for u in users]


def test_the_hash_orders_ties_and_nothing_else() -> None:
    """Each user has six items of two scores; a tie goes to the larger key, above and below stay."""
    users, items = 50, 6
    scores = np.tile([0.5, 0.5, 0.5, 0.5, 0.9, 0.1], users)
    keys, offsets = np.tile(np.arange(items), users), np.arange(users + 1) * items
    lists, truth = InputLists(offsets, keys, score=scores), HeldOutItems(offsets, keys, np.ones(len(keys)))
    ranked = rank_lists(lists, truth, make_definition("warprec", {"tie_seed": 3}), top=items)
    for user in range(users):
        order = sorted(range(4), key=lambda item, user=user: -slow_key(3, user, item))
        assert ranked.top.keys[user * items :][:items].tolist() == [4, *order, 5]
        before = ranked.rankings.before[user * items :][:items]
        assert before.tolist() == [order.index(0), order.index(1), order.index(2), order.index(3), 0, 0]
    assert len({tuple(row) for row in ranked.top.keys.reshape(users, items).tolist()}) > 15


def test_a_call_hashes_whole_ids_and_the_places_of_items() -> None:
    """Six items have one score for all 40 users; item ids are 100 to 105, so their places are 0 to 5."""
    users, relevant = np.arange(40), np.arange(40) % 6
    truth = pd.DataFrame({"user_id": users, "item_id": relevant + 100})
    scores = pd.DataFrame({"user_id": np.repeat(users, 6), "item_id": np.tile(range(100, 106), 40)})
    result = evaluate(truth, scores=scores.assign(score=0.5), k=6, metrics="mrr", preset="warprec")
    keys = [[slow_key(42, user, item) for item in range(6)] for user in range(40)]
    ranks = [1 + sum(key > row[item] for key in row) for row, item in zip(keys, relevant, strict=True)]
    expected = sum(Fraction(1, rank) for rank in ranks) / 40
    assert len(set(ranks)) == 6
    mrr = result.metrics.to_pandas().set_index("k")["value"]
    assert mrr[6] == pytest.approx(float(expected), rel=1e-14)


def test_hashed_ties_are_for_lists_and_scores() -> None:
    with pytest.raises(ConfigError, match=r"embeddings: definition\.ties is 'hashed'"):
        refuse_hashed_ties(make_definition("warprec"), "embeddings")
