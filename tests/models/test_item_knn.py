"""Item-kNN similarities: by hand as fractions, and against a slow oracle."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from xxhash import xxh64

from recbench_spark.config import ItemKnnModel
from recbench_spark.models.adapters.item_knn import (
    binary_matrix,
    build_matrix,
    count_item_users,
    cut_histories,
    find_neighbours,
    normalise_weights,
)
from recbench_spark.models.nearest_items import SimilarItems, _divide_exactly, cosine_neighbours
from recbench_spark.ranking.kernels.scorers import NeighbourScorer, UserBlock, centring_bias
from tests.ranking.kernels.test_counting import lists

Histories = list[set[int]]


def neighbours(histories: Histories, n_items: int, k: int, block: range | None = None):
    """Rows (item, neighbour, weight) as the model finds them."""
    indptr = np.cumsum([0, *map(len, histories)])
    indices = np.array([item for history in histories for item in sorted(history)], np.int32)
    items_of_u = binary_matrix(indptr, indices, n_items)
    users_of_i = items_of_u.T.tocsr()
    n_i = np.diff(users_of_i.indptr)
    result = cosine_neighbours(users_of_i, items_of_u, n_i, block or range(n_items), k)
    return list(
        zip(result.items.tolist(), result.neighbours.tolist(), result.weights.tolist(), strict=True)
    )


def oracle(histories: Histories, n_items: int, k: int):
    """Ranked by the fractions: of two cosines that are equal, float64 may tell one apart."""
    rows, exact = [], squares(histories, n_items)
    for i in range(n_items):
        others = [j for j in range(n_items) if (i, j) in exact]
        best = sorted(others, key=lambda j: (-exact[i, j], j))[:k]
        rows += [(i, j, math.sqrt(exact[i, j])) for j in best]
    return rows


def test_by_hand() -> None:
    """Users {0, 1}, {0, 1, 2}, {0}: item 0 has 3 users, 1 has 2, 2 has 1."""
    result = neighbours([{0, 1}, {0, 1, 2}, {0}], 3, k=5)
    assert [(i, j) for i, j, _ in result] == [(0, 1), (0, 2), (1, 0), (1, 2), (2, 1), (2, 0)]
    weights = {(i, j): w for i, j, w in result}
    assert weights[0, 1] == weights[1, 0] == pytest.approx(2 / math.sqrt(3 * 2), rel=1e-15)
    assert weights[0, 2] == pytest.approx(1 / math.sqrt(3 * 1), rel=1e-15)
    assert weights[1, 2] == pytest.approx(1 / math.sqrt(2 * 1), rel=1e-15)


def test_equal_similarities_go_to_the_smaller_item() -> None:
    """Item 0 is together with 1, 2 and 3 once each; they are alike, so 1 is kept, then 2."""
    assert [j for i, j, _ in neighbours([{0, 1, 2, 3}], 4, k=2) if i == 0] == [1, 2]
    assert [j for i, j, _ in neighbours([{0, 1, 2, 3}], 4, k=2) if i == 1] == [0, 2]


def squares(histories: Histories, n_items: int) -> dict[tuple[int, int], Fraction]:
    """The squares of all cosines, as fractions."""
    users = [{u for u, history in enumerate(histories) if i in history} for i in range(n_items)]
    pairs = ((i, j) for i in range(n_items) for j in range(n_items) if i != j and users[i] & users[j])
    return {
        (i, j): Fraction(len(users[i] & users[j]) ** 2, len(users[i]) * len(users[j])) for i, j in pairs
    }


def test_cosines_equal_as_fractions_tie() -> None:
    """Item 0 has 13 users; 3 / sqrt(13 18) with item 1 and 1 / sqrt(13 2) with item 2 are 1 / sqrt(26)."""
    assert 3 / math.sqrt(13 * 18) != 1 / math.sqrt(13 * 2)
    users: Histories = [{0, 2}, *({0, 1} for _ in range(3)), *({0} for _ in range(9))]
    users += [*({1} for _ in range(15)), {2}]
    assert squares(users, 3)[0, 1] == squares(users, 3)[0, 2] == Fraction(1, 26)
    result = {(i, j): weight for i, j, weight in neighbours(users, 3, k=2)}
    assert result[0, 1] == result[0, 2]
    assert [j for i, j, _ in neighbours(users, 3, k=1) if i == 0] == [1]


@settings(max_examples=60)
@given(st.lists(st.sets(st.integers(0, 7)), min_size=20, max_size=60))
def test_weights_are_in_the_order_of_the_fractions(histories: Histories) -> None:
    """Larger, smaller and equal exactly where the fractions are: no pair is separated by an ulp."""
    wanted = squares(histories, 8)
    result = {(i, j): weight for i, j, weight in neighbours(histories, 8, k=8)}
    assert result.keys() == wanted.keys()
    ordered = sorted(wanted, key=lambda pair: wanted[pair])
    for one, two in itertools.pairwise(ordered):
        assert (wanted[one] == wanted[two]) == (result[one] == result[two]) and result[one] <= result[two]


def test_fractions_of_numbers_beyond_float64() -> None:
    """Reduced before they are divided: n_i n_j can exceed 2^53, and c^2 with it."""
    above = np.array([3, 3 * 94_906_267**2, 6], np.int64)
    below = np.array([7, 7 * 94_906_267**2, 14], np.int64)
    assert set(_divide_exactly(above, below).tolist()) == {3 / 7}


@pytest.mark.full
def test_more_users_than_float32_can_count() -> None:
    """Two items of 2^24 + 1 users each, all the same."""
    n = 2**24 + 1
    items_of_u = binary_matrix(np.arange(0, 2 * n + 1, 2), np.tile(np.array([0, 1], np.int32), n), 2)
    result = cosine_neighbours(items_of_u.T.tocsr(), items_of_u, np.array([n, n]), range(2), 1)
    assert result.weights.tolist() == [1.0, 1.0]


def test_nothing_comes_of_nothing() -> None:
    assert neighbours([], 3, k=2) == []
    assert neighbours([{0}, {1}], 3, k=2) == []


@given(
    st.lists(st.sets(st.integers(0, 8)), max_size=12),
    st.integers(1, 9),
    st.integers(1, 9),
)
@example([*[{0}] * 6, {0, 1}, {0, 1}, {0, 1, 2}], 1, 1)  # 3 / sqrt(27) and 1 / sqrt(3)
def test_equals_the_oracle_whatever_the_blocks(histories: Histories, k: int, step: int) -> None:
    wanted = oracle(histories, 9, k)
    blocks = (range(start, min(start + step, 9)) for start in range(0, 9, step))
    result = [row for block in blocks for row in neighbours(histories, 9, k, block)]
    assert [row[:2] for row in result] == [row[:2] for row in wanted]
    assert [row[2] for row in result] == pytest.approx([row[2] for row in wanted], rel=1e-15)


# ------------------------------------------------------------------------------------ centred scores


def test_weights_scaled_to_one_by_hand() -> None:
    """Item 0: 1/2 and 1/4 become 2/3 and 1/3; item 2: a single weight becomes 1."""
    result = normalise_weights(
        SimilarItems(np.array([0, 0, 2]), np.array([1, 2, 0]), np.array([0.5, 0.25, 0.1]))
    )
    assert result.weights.tolist() == pytest.approx([2 / 3, 1 / 3, 1], rel=1e-15)
    nothing = np.zeros(0, np.int64)
    assert normalise_weights(SimilarItems(nothing, nothing, np.zeros(0))).weights.tolist() == []


def compute_centred(histories: Histories, n_items: int, k: int) -> list[list[float]]:
    """mean_i + sum_j s_ij (r_uj - mean_j), term by term."""
    mean = [sum(i in history for history in histories) / len(histories) for i in range(n_items)]
    rows = oracle(histories, n_items, k)
    sums = {i: sum(w for item, _, w in rows if item == i) for i, _, _ in rows}
    return [
        [
            mean[i] + sum(w / sums[i] * ((j in history) - mean[j]) for item, j, w in rows if item == i)
            for i in range(n_items)
        ]
        for history in histories
    ]


@settings(max_examples=40)
@given(st.lists(st.sets(st.integers(0, 7)), min_size=1, max_size=9), st.integers(1, 8))
def test_centred_scores_equal_the_oracle(histories: Histories, k: int) -> None:
    n_items = 8
    rows = neighbours(histories, n_items, k)
    items, others, weights = (np.array(column) for column in zip(*rows, strict=True)) if rows else [[]] * 3
    result = normalise_weights(
        SimilarItems(*np.array([items, others], np.int64), np.array(weights, np.float64))
    )
    order = np.lexsort((result.items, result.neighbours))
    offsets = np.searchsorted(result.neighbours[order], np.arange(n_items + 1))
    mean = np.array([sum(i in history for history in histories) / len(histories) for i in range(n_items)])
    entries = offsets, result.items[order], result.weights[order]
    scorer = NeighbourScorer(*entries, centring_bias(mean, *entries))
    block = UserBlock(np.arange(len(histories)), histories=lists([sorted(h) for h in histories]))
    scores_ui = scorer.score_rows(block, 0, len(histories))
    assert scores_ui == pytest.approx(np.array(compute_centred(histories, n_items, k)), abs=1e-12)


# ------------------------------------------------------------------------------------ labelled rows

ITEMS = [f"i{n}" for n in range(9)]
Row = tuple[str, str, float, str]
ROWS = st.lists(
    st.tuples(
        st.sampled_from(["u", "v", "\u00fc", ""]),
        st.sampled_from([*ITEMS, "elsewhere"]),
        st.sampled_from([0.0, 1.0, 2.0]),
        st.sampled_from(["train", "train", "test", "given"]),
    ),
    max_size=40,
)


def find(ids: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    index = [ITEMS.index(text) if text in ITEMS else -1 for text in ids.to_pylist()]
    return np.array(index, np.int64), np.zeros(len(index), np.int64)


def make_table(rows: list[Row], encoded: bool) -> pa.Table:
    """Labelled rows; as a file gives them, ids are dictionaries, of a piece each, that name more ids."""
    kinds = {"user_id": pa.string(), "item_id": pa.string(), "rating": pa.float64(), "part": pa.string()}
    columns = [pa.array([row[n] for row in rows], kind) for n, kind in enumerate(kinds.values())]
    table = pa.table(columns, names=list(kinds))
    if not encoded:
        return table
    more = pa.table({"user_id": ["z"], "item_id": ["i0"], "rating": [2.0], "part": ["train"]})
    pieces = []
    for start in range(0, len(rows), 7):
        piece = pa.concat_tables([more, table.slice(start, 7)]).combine_chunks()
        for n, name in enumerate(kinds):
            if name != "rating":
                piece = piece.set_column(n, name, piece.column(n).combine_chunks().dictionary_encode())
        pieces.append(piece.slice(1))
    return pa.concat_tables(pieces) if pieces else table


def list_relevant(rows: list[Row], threshold: float | None) -> list[tuple[str, str]]:
    least = 0.5 if threshold is None else threshold
    return [(user, item) for user, item, rating, part in rows if part == "train" and rating >= least]


def slow_histories(rows: list[Row], threshold: float | None, longest: int) -> list[list[int]]:
    """Sorted by a signed hash of the pair, by another library, then cut."""
    keys = defaultdict(list)
    for user, item in list_relevant(rows, threshold):
        key = xxh64(item.encode(), seed=xxh64(user.encode(), seed=42).intdigest()).intdigest()
        if item in ITEMS:
            keys[user].append((key - 2**64 * (key >= 2**63), ITEMS.index(item)))
    return sorted(sorted(i for _, i in sorted(history)[:longest]) for history in keys.values())


@given(ROWS, st.sampled_from([None, 1.0, 2.0]), st.integers(1, 5), st.booleans())
def test_histories_are_cut_by_the_hash_of_a_pair(rows, threshold, longest, encoded) -> None:
    result = cut_histories(make_table(rows, encoded), find, threshold, longest)
    assert result.schema.field("items").type == pa.list_(pa.int32())
    assert sorted(result.column("items").to_pylist()) == slow_histories(rows, threshold, longest)


@given(ROWS, st.sampled_from([None, 2.0]), st.booleans())
def test_users_of_items_are_counted_once(rows, threshold, encoded) -> None:
    pairs = set(list_relevant(rows, threshold))
    expected = {item: sum(i == item for _, i in pairs) for _, item in pairs}
    result = count_item_users(make_table(rows, encoded), threshold)
    counts = dict(zip(*(column.to_pylist() for column in result.columns), strict=True))
    assert counts == {**expected, None: len({user for user, _ in pairs})}


@settings(max_examples=40)
@given(ROWS, st.integers(1, 9), st.integers(1, 9), st.sampled_from(["sum", "centred_mean"]))
def test_named_neighbours_of_labelled_rows(rows, k, step, scores) -> None:
    model = ItemKnnModel(name="m", kind="item_knn", neighbours=k, scores=scores)
    rows = list({row[:2]: row for row in rows}.values())  # a pair once
    histories = cut_histories(make_table(rows, False), find, None, 100).column("items").combine_chunks()
    matrix = build_matrix(histories, 9)
    blocks = [range(start, min(start + step, 9)) for start in range(0, 9, step)]
    named = [find_neighbours(matrix, np.array(ITEMS, "S"), block, model) for block in blocks]
    result = {tuple(row.values())[:2]: row["weight"] for one in named for row in one.to_pylist()}
    wanted = {(ITEMS[i], ITEMS[j]): w for i, j, w in oracle([*map(set, histories.to_pylist())], 9, k)}
    if scores == "centred_mean":
        sums = {item: sum(w for (i, _), w in wanted.items() if i == item) for item in ITEMS}
        wanted = {(i, j): w / sums[i] for (i, j), w in wanted.items()}
    assert list(result) == list(wanted) and result == pytest.approx(wanted, rel=1e-14)
