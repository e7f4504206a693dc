"""Neighbour, hash and whole-row scorers: scores by hand and in plain Python, ranks by the oracle."""

import math
from fractions import Fraction

import numpy as np
import pytest

from recbench_spark.errors import DataError
from recbench_spark.ranking.kernels.counting import CountingSettings
from recbench_spark.ranking.kernels.positives import ItemLists
from recbench_spark.ranking.kernels.scorers import (
    BlockScorer,
    DotScorer,
    HashScorer,
    NeighbourScorer,
    UserBlock,
    count_listed,
    count_ranks,
)
from tests.ranking.kernels.test_counting import lists, oracle_user, same

MASK = 2**64 - 1


def check_against_rows(scorer, block, truth, masked, scores_ui, top_k=6):
    """Ranks and lists follow from the scores, sorted in plain Python."""
    counts = count_ranks(scorer, block, lists(truth), lists(masked), settings=CountingSettings(top_k=top_k))
    expected = []
    for u, row in enumerate(truth):
        scored = np.flatnonzero(scorer.scored_i).tolist()
        candidates = set(scored) - set(masked[u])
        result, best = oracle_user(scores_ui[u], row, candidates, top_k)
        expected += result
        items = counts.top_items_uk[u, : len(best)].tolist()
        assert items == [item for item, _ in best]
        assert counts.top_scores_uk[u, : len(best)].tolist() == [score for _, score in best]
        assert np.all(counts.top_items_uk[u, len(best) :] == -1)
        assert counts.candidates_u[u] == len(candidates)
    columns = counts.above_p, counts.tied_p, counts.before_p
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == expected
    return counts


def random_neighbours(seed, items=40):
    rng = np.random.default_rng(seed)
    rows = [np.sort(rng.permutation(items)[: rng.integers(0, 12)]) for _ in range(items)]
    weights = np.round(rng.random(sum(map(len, rows))), 1)
    csr = lists([row.tolist() for row in rows])
    return csr.offsets_u, csr.items_p, weights


def test_neighbour_scores_by_hand():
    """History 0, 2: item 1 gets 1/2 + 1/4, item 3 gets 1/8; biases 0, 1, 0, 2."""
    offsets = np.array([0, 1, 1, 3, 3])
    scorer = NeighbourScorer(offsets, np.array([1, 1, 3]), np.array([0.5, 0.25, 0.125]))
    biased = NeighbourScorer(
        offsets, np.array([1, 1, 3]), np.array([0.5, 0.25, 0.125]), np.array([0.0, 1.0, 0.0, 2.0])
    )
    block = UserBlock(np.arange(1), histories=lists([[2, 0, 2, -1]]))
    expected = [Fraction(0), Fraction(3, 4), Fraction(0), Fraction(1, 8)]
    assert [Fraction(s) for s in scorer.score_rows(block, 0, 1)[0]] == expected
    expected = [Fraction(0), Fraction(7, 4), Fraction(0), Fraction(17, 8)]
    assert [Fraction(s) for s in biased.score_rows(block, 0, 1)[0]] == expected
    counts = count_ranks(biased, block, lists([[3, 1, 0]]), lists([[0, 2]]))
    assert counts.above_p.tolist() == [0, 1, -1]


@pytest.mark.parametrize("seed", range(4))
def test_neighbour_ranks_against_plain_python(seed):
    rng = np.random.default_rng(seed)
    offsets, items, weights = random_neighbours(seed)
    bias, scored = np.round(rng.standard_normal(40), 1), rng.random(40) > 0.2
    scorer = NeighbourScorer(offsets, items, weights, bias, scored)
    history = [rng.permutation(40)[: rng.integers(0, 9)].tolist() for _ in range(11)]
    scores_ui = np.zeros((11, 40))
    for u, row in enumerate(history):
        of_item = [[] for _ in range(40)]
        for j in row:
            for n in range(offsets[j], offsets[j + 1]):
                of_item[items[n]].append(weights[n])
        scores_ui[u] = list(map(math.fsum, of_item)) + bias
    truth = [rng.integers(-1, 40, 4).tolist() for _ in range(11)]
    block = UserBlock(np.arange(11), histories=lists(history))
    check_against_rows(scorer, block, truth, history, scores_ui)


@pytest.mark.parametrize("seed", range(3))
def test_equal_similarities_in_any_order_give_equal_scores(seed):
    """Items whose neighbours have the same similarities, each in another order: all tie."""
    rng = np.random.default_rng(seed)
    weights = np.sqrt(rng.integers(1, 50, 60) / rng.integers(50, 9000, 60))
    dealt = np.array([rng.permutation(weights) for _ in range(20)])  # (i, j)
    entries = np.arange(0, 60 * 20 + 1, 20), np.tile(np.arange(20), 60), dealt.T.ravel()
    offsets = np.concatenate([entries[0], np.full(0, 0)])
    items = 60
    scorer = NeighbourScorer(offsets[: items + 1], entries[1], entries[2])
    block = UserBlock(np.arange(1), histories=lists([list(range(60))]))
    (scores,) = scorer.score_rows(block, 0, 1)
    assert set(scores[:20].tolist()) == {math.fsum(weights)}
    # Plain sums would tell them apart.
    assert len({sum(row) for row in dealt.tolist()}) > 1


def splitmix64(state):
    """The generator's published steps, in Python integers."""
    z = (state + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def hash_score(user, item, seed):
    state = splitmix64(splitmix64(splitmix64(seed & MASK) ^ (user & MASK)) ^ (item & MASK))
    return (state >> 11) * 2.0**-53


def test_splitmix64_is_the_published_one():
    """First outputs of the reference implementation (Vigna) for the seed 1234567."""
    golden, state, outputs = 0x9E3779B97F4A7C15, 1234567, []
    for _ in range(3):
        outputs.append(splitmix64(state))
        state = (state + golden) & MASK
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@pytest.mark.parametrize("seed", [0, 7, -3, 2**63 + 5])
def test_hash_scores_against_python_integers(seed):
    users, items = np.array([5, -1, 2**62]), np.array([0, 1, -9, 2**63 - 1, 17])
    scorer, block = HashScorer(items, seed), UserBlock(users)
    scores_ui = [[hash_score(u, i, seed) for i in items.tolist()] for u in users.tolist()]
    assert scorer.score_rows(block, 0, 3).tolist() == scores_ui
    check_against_rows(scorer, block, [[0, 4], [2], [-1, 3]], [[1], [], [0]], scores_ui)


def test_the_random_model_is_uniform_and_differs_by_user_and_seed():
    block = UserBlock(np.arange(200))
    scores_ui = HashScorer(np.arange(500), 1).score_rows(block, 0, 200)
    assert abs(scores_ui.mean() - 0.5) < 5 * (1 / 12 / scores_ui.size) ** 0.5
    assert abs(np.corrcoef(scores_ui[0], scores_ui[1])[0, 1]) < 5 / 500**0.5
    other = HashScorer(np.arange(500), 2).score_rows(block, 0, 200)
    assert abs(np.corrcoef(scores_ui.ravel(), other.ravel())[0, 1]) < 5 / scores_ui.size**0.5


def test_rows_do_not_depend_on_the_block(monkeypatch):
    offsets, items, weights = random_neighbours(3)
    scorer = NeighbourScorer(offsets, items, weights)
    rng = np.random.default_rng(3)
    history = [rng.permutation(40)[:6].tolist() for _ in range(9)]
    truth = [rng.permutation(40)[:3].tolist() for _ in range(9)]
    block, requests = UserBlock(np.arange(9), histories=lists(history)), CountingSettings(top_k=7)
    arguments = scorer, block, lists(truth), lists(history)
    whole = count_ranks(*arguments, settings=requests)
    listed = count_listed(scorer, block, lists(truth), lists(history), top_k=3)
    monkeypatch.setattr("recbench_spark.ranking.kernels.scorers._ROW_CELLS", 80)
    same(whole, count_ranks(*arguments, settings=requests))
    same(listed, count_listed(scorer, block, lists(truth), lists(history), top_k=3))


def test_products_and_whole_rows_are_one_definition():
    """The same model read both ways: counted by tiles, and through its own float64 rows."""
    rng = np.random.default_rng(4)
    vectors, items = rng.integers(-3, 4, (8, 5)), rng.integers(-3, 4, (60, 5))
    bias = rng.integers(-2, 3, 60) / 4
    scorer = DotScorer(items.astype("f4"), bias, rng.random(60) > 0.1)
    block = UserBlock(np.arange(8), vectors.astype("f4"))
    truth = [rng.integers(-1, 60, 5).tolist() for _ in range(8)]
    masked = [rng.permutation(60)[:9].tolist() for _ in range(8)]
    scores_ui = vectors @ items.T + bias  # small integers and quarters: exact in any order
    check_against_rows(scorer, block, truth, masked, scores_ui)
    rows_ui = scorer.score_rows(block, 0, 8)
    np.testing.assert_array_equal(rows_ui[:, scorer.scored_i], scores_ui[:, scorer.scored_i])
    assert np.isnan(rows_ui[:, ~scorer.scored_i]).all()


def test_popularity_is_a_bias_without_dimensions():
    """Counts 3, 1, 3, 0: item 2 has one item level and before it, item 1 two above."""
    scorer = DotScorer(np.zeros((4, 0), "f4"), np.array([3.0, 1.0, 3.0, 0.0]))
    counts = count_ranks(scorer, UserBlock(np.arange(2)), lists([[2, 1], [3]]), lists([[], [0, 1, 2]]))
    assert counts.above_p.tolist() == [0, 2, 0]
    assert counts.tied_p.tolist() == [1, 0, 0]
    assert counts.before_p.tolist() == [1, 0, 0]
    assert counts.candidates_u.tolist() == [4, 1]


def test_given_candidates_of_a_row_scorer():
    scorer, block = HashScorer(np.arange(30), 5), UserBlock(np.arange(3))
    candidates = [[4, 2, 9, 2], [], [29, 0]]
    counts = count_listed(scorer, block, lists([[9, 1], [3], [0]]), lists(candidates), top_k=2)
    expected = []
    for u, truth in enumerate([[9, 1], [3], [0]]):
        scores = {i: hash_score(u, i, 5) for i in candidates[u]}
        expected += [sum(s > scores[p] for s in scores.values()) if p in scores else -1 for p in truth]
        best = sorted(scores, key=scores.get, reverse=True)[:2]
        assert counts.top_items_uk[u, : len(best)].tolist() == best
    assert counts.above_p.tolist() == expected
    assert counts.candidates_u.tolist() == [3, 0, 2]


def test_what_a_model_needs_is_named():
    scorer = NeighbourScorer(np.array([0, 1]), np.array([0]), np.array([1.0]))
    none = ItemLists.empty(1)
    with pytest.raises(DataError, match=r"needs the users' histories[\s\S]*UserBlock\(histories"):
        count_ranks(scorer, UserBlock(np.arange(1)), none, none)
    with pytest.raises(DataError, match="needs the users' vectors"):
        count_ranks(DotScorer(np.ones((1, 2), "f4")), UserBlock(np.arange(1)), none, none)
    with pytest.raises(DataError, match="1 similarities hold NaN"):
        NeighbourScorer(np.array([0, 1]), np.array([0]), np.array([np.nan]))
    huge = NeighbourScorer(np.array([0, 2]), np.array([0, 0]), np.array([1e308, 1e308]))
    block = UserBlock(np.arange(1), histories=lists([[0]]))
    with pytest.raises(DataError, match="1 scores hold NaN or infinite"):
        count_ranks(huge, block, none, none)


def block_world(users=50, items=37):
    """A model of matrix products, whose bits depend on the shape of a block, with ties among its scores."""
    rng = np.random.default_rng(5)
    p_ud, q_id = (
        rng.normal(size=(users, 8)).astype(np.float32),
        rng.normal(size=(items, 8)).astype(np.float32),
    )
    q_id[3::9] = q_id[4]
    rows_i = rng.permutation(items)
    rows_i[[2, 20]] = -1
    return lambda u, i: p_ud[u] @ q_id[i].T, rows_i


def test_block_scorer_ranks_by_the_function_whatever_the_block():
    score, rows_i = block_world()
    scorer, items = BlockScorer(score, rows_i), len(rows_i)
    rng = np.random.default_rng(1)
    truth = [rng.permutation(items)[:4].tolist() for _ in range(50)]
    masked = [rng.permutation(items)[:5].tolist() for _ in range(50)]
    block = UserBlock(np.arange(50), rows_u=np.arange(50))
    scored = np.flatnonzero(rows_i >= 0)
    scores_ui = np.zeros((50, items))
    for u in range(50):
        scores_ui[u, scored] = score(np.array([u]), rows_i[scored])[0]
    counts = check_against_rows(scorer, block, truth, masked, scores_ui)
    for u in (0, 17, 49):
        one = UserBlock(np.arange(1), rows_u=np.array([u]))
        alone = count_ranks(scorer, one, lists([truth[u]]), lists([masked[u]]))
        assert alone.above_p.tolist() == counts.above_p[4 * u : 4 * u + 4].tolist()
    listed = [sorted(set(range(items)) - set(row)) for row in masked]
    listed_counts = count_listed(scorer, block, lists(truth), lists(listed))
    ranked = counts.above_p >= 0
    assert np.array_equal(listed_counts.above_p[ranked], counts.above_p[ranked])
    assert scorer.knows(UserBlock(np.arange(2), rows_u=np.array([-1, 3]))).tolist() == [False, True]
    assert not scorer.score_rows(UserBlock(np.arange(1), rows_u=np.array([-1])), 0, 1).any()


def test_block_scorer_refuses_scores_that_do_not_fit():
    block = UserBlock(np.arange(2), rows_u=np.arange(2))
    for wrong, message in (
        (lambda u, i: np.zeros((len(i), len(u))), r"shape \(3, 1\)"),
        (lambda u, i: np.zeros((1, 3), complex), "type complex128"),
        (lambda u, i: None, r"shape \(\)"),
    ):
        with pytest.raises(DataError, match=message):
            BlockScorer(wrong, np.arange(3)).score_rows(block, 0, 1)
    with pytest.raises(DataError, match="scores"):
        nan = BlockScorer(lambda u, i: np.full((1, 3), np.nan), np.arange(3))
        count_ranks(nan, block, lists([[0], [1]]), lists([[], []]))
    with pytest.raises(DataError, match="rows"):
        BlockScorer(lambda u, i: np.zeros((1, 3)), np.arange(3)).knows(UserBlock(np.arange(1)))
