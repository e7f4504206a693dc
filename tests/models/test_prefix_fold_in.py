"""Prefixes folded in: by hand, against one refit for each prefix, against scikit-learn, in any batch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge

from recbench_spark.errors import DataError
from recbench_spark.models.prefix_fold_in import (
    decompose_items,
    fold_in_ials_prefixes,
    fold_in_implicit_prefixes,
    fold_in_prefixes,
    ridge_by_frequency,
    ridge_per_rating,
)
from recbench_spark.models.prefix_vectors import (
    ConfidenceFolder,
    ConfidenceFoldIn,
    PairFolder,
    PairFoldIn,
    PrefixFolder,
    RatingFolder,
    RidgeFoldIn,
)
from tests.one_fold_in import fold_in_explicit, fold_in_implicit

LONGEST = 9


def draw_world(seed: int, dims: int, n_items: int = 12, users: int = 4):  # type: ignore[no-untyped-def]
    """Draw item vectors and histories of up to `LONGEST` items, some of them empty."""
    draw = np.random.default_rng(seed)
    rows = [draw.choice(n_items, draw.integers(0, LONGEST + 1), replace=False) for _ in range(users)]
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    items = np.concatenate(rows).astype(np.int64)
    return draw.normal(size=(n_items, dims)), offsets, items, draw.normal(size=len(items))


def prefixes(offsets):  # type: ignore[no-untyped-def]
    """Yield the row of each prefix with the slice of its rows."""
    for u in range(len(offsets) - 1):
        for end in range(offsets[u] + 1, offsets[u + 1] + 1):
            yield end - 1, slice(offsets[u], end)


def test_one_factor_by_hand() -> None:
    """Items 1 and 2, rated 2 and 3, lambda 1/2: 2 / (1 + 1/2), then (2 + 6) / (1 + 4 + 2 * 1/2)."""
    factors, rows = np.array([[1.0], [2.0]]), (np.array([0, 2]), np.array([0, 1]))
    vectors = fold_in_prefixes(*rows, np.array([2.0, 3.0]), factors, ridge_per_rating(0.5, 2))
    np.testing.assert_allclose(vectors[:, 0], [4 / 3, 8 / 6], rtol=1e-15)
    # alpha 10: c = 11; 11 / (5 + 10 + 1/2), then 33 / (5 + 10 * 5 + 1).
    spectrum = decompose_items(factors)
    vectors = fold_in_implicit_prefixes(
        *rows, np.ones(2), factors, spectrum, ridge_n=ridge_per_rating(0.5, 2), alpha=10.0
    )
    np.testing.assert_allclose(vectors[:, 0], [11 / 15.5, 33 / 56], rtol=1e-15)
    # alpha_0 1/5, nu 1, 2 items: 1 / (1 + 1 + (1 + 2/5) / 2), then 3 / (1 + 5 + (2 + 2/5) / 2).
    ridge_n = ridge_by_frequency(0.5, 2, 2, 0.2, 1.0)
    vectors = fold_in_ials_prefixes(*rows, factors, decompose_items(factors, 0.2), ridge_n)
    np.testing.assert_allclose(vectors[:, 0], [1 / 2.7, 3 / 7.2], rtol=1e-15)


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 4, 8, 16]), st.floats(0.001, 3), st.floats(0, 40))
def test_each_prefix_equals_its_own_refit(seed: int, dims: int, ridge: float, alpha: float) -> None:
    factors, offsets, items, ratings = draw_world(seed, dims)
    ridge_n, spectrum = ridge_per_rating(ridge, LONGEST), decompose_items(factors)
    explicit = fold_in_prefixes(offsets, items, ratings, factors, ridge_n)
    implicit = fold_in_implicit_prefixes(
        offsets, items, ratings, factors, spectrum, ridge_n=ridge_n, alpha=alpha
    )
    for row, history in prefixes(offsets):
        one = (
            np.array([0, history.stop - history.start]),
            items[history],
            ratings[history],
            factors,
            ridge,
        )
        np.testing.assert_allclose(explicit[row], fold_in_explicit(*one)[0], rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(
            implicit[row], fold_in_implicit(*one, alpha=alpha)[0], rtol=1e-10, atol=1e-10
        )


@settings(max_examples=40)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 3, 8, 16]),
    st.floats(0.001, 2),
    st.floats(0.01, 3),
    st.sampled_from([0.0, 0.5, 1.0]),
)
def test_ials_equals_its_equation_with_dense_matrices(
    seed: int, dims: int, ridge: float, weight: float, frequency: float
) -> None:
    factors, offsets, items, _ = draw_world(seed, dims)
    ridge_n = ridge_by_frequency(ridge, LONGEST, len(factors), weight, frequency)
    spectrum = decompose_items(factors, weight)
    vectors = fold_in_ials_prefixes(offsets, items, factors, spectrum, ridge_n)
    for row, history in prefixes(offsets):
        y = factors[items[history]]
        strength = ridge * (len(y) + weight * len(factors)) ** frequency
        left = weight * factors.T @ factors + y.T @ y + strength * np.eye(dims)
        np.testing.assert_allclose(
            vectors[row], np.linalg.solve(left, y.sum(axis=0)), rtol=1e-9, atol=1e-10
        )


@pytest.mark.parametrize("dims", [3, 16])
def test_scikit_learn_agrees(dims: int) -> None:
    factors, offsets, items, ratings = draw_world(7, dims)
    vectors = fold_in_prefixes(offsets, items, ratings, factors, ridge_per_rating(0.3, LONGEST))
    for row, history in prefixes(offsets):
        model = Ridge(alpha=0.3 * (history.stop - history.start), fit_intercept=False)
        model.fit(factors[items[history]], ratings[history])
        np.testing.assert_allclose(vectors[row], model.coef_, rtol=1e-9)


def make_folders(factors):  # type: ignore[no-untyped-def]
    """Make one folder of each class; training does not know item 0."""
    known_i = np.arange(len(factors)) > 0
    factors = np.where(known_i[:, None], factors, 0.0)
    biases_i = np.linspace(-1, 1, len(factors))
    return {
        "ratings": RatingFolder(RidgeFoldIn(0.1), factors, known_i),
        "biases": RatingFolder(RidgeFoldIn(0.1, 0.2), factors, known_i, 0.25 + biases_i),
        "confidence": ConfidenceFolder(
            ConfidenceFoldIn(0.1, 5.0), factors, known_i, decompose_items(factors)
        ),
        "pairs": PairFolder(PairFoldIn(0.2, 0.01), factors, known_i, decompose_items(factors, 0.2)),
    }


@pytest.mark.parametrize("kind", ["ratings", "biases", "confidence", "pairs"])
@pytest.mark.parametrize("dims", [2, 16])
def test_no_bit_depends_on_the_batch(kind: str, dims: int) -> None:
    factors, offsets, items, ratings = draw_world(3, dims, users=17)
    folder: PrefixFolder = make_folders(factors)[kind]
    whole = folder.fold(offsets, items, ratings)
    for cuts in (range(0, 18), [0, 5, 17], [0, 16, 17]):
        parts = []
        for first, last in zip(cuts, [*cuts[1:]], strict=False):
            rows = slice(offsets[first], offsets[last])
            parts.append(
                folder.fold(offsets[first : last + 1] - offsets[first], items[rows], ratings[rows])
            )
        assert np.concatenate([part.vectors_pd for part in parts]).tobytes() == whole.vectors_pd.tobytes()
        assert np.concatenate([part.known_p for part in parts]).tolist() == whole.known_p.tolist()


def test_rows_that_a_model_cannot_use_change_no_vector() -> None:
    """Items 0 and -1 are unknown, and for models of pairs a rating of 0 or below is no pair."""
    factors = np.random.default_rng(0).normal(size=(6, 8))
    offsets, items = np.array([0, 5, 5, 7]), np.array([0, 2, -1, 3, 4, -1, 0])
    ratings = np.array([1.0, 1.0, 1.0, -1.0, 1.0, 1.0, 1.0])
    for kind, folder in make_folders(factors).items():
        vectors, known = folder.fold(offsets, items, ratings)
        assert known.tolist() == [False, True, True, True, True, False, False]
        assert not vectors[~known].any()
        assert vectors[1].tobytes() == vectors[2].tobytes()
        assert (vectors[2].tobytes() == vectors[3].tobytes()) == (kind in ("confidence", "pairs"))
        short = np.array([2, 4] if kind in ("confidence", "pairs") else [2, 3, 4])
        kept = ratings[np.isin(items, short)]
        alone = folder.fold(np.array([0, len(short)]), short, kept)
        assert alone.vectors_pd[-1].tobytes() == vectors[4].tobytes()


def test_a_bias_of_the_user_is_solved_with_the_vector() -> None:
    """Two items, mean 1/4: the targets are ratings minus mean and biases, and the last column is 1."""
    factors, ratings = np.array([[9.0], [1.0], [2.0]]), np.array([2.0, 3.0])
    folder = RatingFolder(RidgeFoldIn(0.5, 2.0), factors, np.ones(3, bool), np.array([0.25, 0.75, -0.25]))
    vectors = folder.fold(np.array([0, 2]), np.array([1, 2]), ratings).vectors_pd
    design = np.array([[1.0, 1.0], [2.0, 1.0]])
    targets = ratings - 0.25 - np.array([0.5, -0.5])
    # Two ratings: 2 * 1/2 for the vector and 2 * 2 for the bias.
    expected = np.linalg.solve(design.T @ design + np.diag([1.0, 4.0]), design.T @ targets)
    assert vectors[1, 0] == pytest.approx(expected[0], rel=1e-6)


def test_tables_of_ridges_are_checked() -> None:
    rows = (np.array([0, 2]), np.array([0, 1]), np.ones(2), np.ones((2, 3)))
    with pytest.raises(DataError, match="a history has 2 rows, and ridges are given up to 1"):
        fold_in_prefixes(*rows, ridge_per_rating(0.5, 1))
    with pytest.raises(DataError, match="a ridge of 0 leaves short histories without a solution"):
        fold_in_prefixes(*rows, ridge_per_rating(0.0, 2))
    with pytest.raises(DataError, match="item 2 lies outside the catalogue of 2 items"):
        folder = RatingFolder(RidgeFoldIn(0.1), np.ones((2, 3)), np.ones(2, bool))
        folder.fold(rows[0], np.array([0, 2]), np.ones(2))
