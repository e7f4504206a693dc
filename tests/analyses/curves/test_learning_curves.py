"""Values along learning curves: against a refit and a slow ranking of each prefix, in any batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from recbench_spark.analyses.curves import learning_curves
from recbench_spark.analyses.curves.learning_curves import CurveRequest, CurveUsers, measure_prefixes
from recbench_spark.core.definitions import Definition
from recbench_spark.errors import ConfigError
from recbench_spark.metrics.kernels.learning_curves import average_draws
from recbench_spark.models.prefix_vectors import RatingFolder, RidgeFoldIn
from recbench_spark.ranking.kernels.scorers import DotScorer, HashScorer, NeighbourScorer
from recbench_spark.splits.kernels.prefixes import PrefixRule, order_by_hash
from tests import oracles
from tests.one_fold_in import fold_in_explicit

ITEMS, DIMS, RIDGE = 14, 5, 0.2
STARS = Definition(gain="linear", negative_grades="signed", grade_origin=3.0, ties="expected")
RULES = [
    PrefixRule((1, 2, 3)),
    PrefixRule((1, 3), test="rest"),
    PrefixRule((1, 2, 5), test="rest", minimum=2, users="as_long_as"),
    PrefixRule((1, 2, 5), minimum=2, users="as_long_as"),
]


def draw_users(seed: int, users: int = 17) -> CurveUsers:
    """Draw histories of 0 to 9 items with stars, in a random order."""
    draw = np.random.default_rng(seed)
    rows = [draw.choice(ITEMS, draw.integers(0, 10), replace=False) for _ in range(users)]
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    items = np.concatenate(rows).astype(np.int64)
    keys = draw.integers(-(2**62), 2**62, users)
    return CurveUsers(keys, offsets, items, draw.integers(1, 6, len(items)).astype(np.float64))


def make_model(seed: int) -> tuple[DotScorer, RatingFolder]:
    """Make item vectors; training does not know item 0, which is never ranked."""
    vectors = np.random.default_rng(seed).normal(size=(ITEMS, DIMS)).astype(np.float32)
    known_i = np.arange(ITEMS) > 0
    return DotScorer(vectors, None, known_i), RatingFolder(
        RidgeFoldIn(RIDGE), vectors.astype(np.float64), known_i
    )


def refit_scores(scorer: DotScorer, items, ratings):  # type: ignore[no-untyped-def]
    """Return {item: score} after these rows, from one ridge regression; empty without a known item."""
    used = items > 0
    if not used.any():
        return {}
    vectors = np.asarray(scorer.products.vectors_id, np.float64)
    rows = (np.array([0, used.sum()]), items[used], ratings[used], vectors, RIDGE)
    x = fold_in_explicit(*rows)[0].astype(np.float32).astype(np.float64)
    return {i: float(sum(a * b for a, b in zip(x, vectors[i], strict=True))) for i in range(1, ITEMS)}


def slow_value(scorer, users, u, point, last, request):  # type: ignore[no-untyped-def]
    """Refit, rank and measure one prefix of one user."""
    rows = slice(users.offsets[u], users.offsets[u + 1])
    items, ratings = users.items_p[rows], users.ratings_p[rows]
    hidden = last if request.rule.test == "common" else point
    truth = dict(zip(items[hidden:].tolist(), ratings[hidden:].tolist(), strict=True))
    scores = refit_scores(scorer, items[:point], ratings[:point])
    rated = request.definition.candidates == "rated"
    allowed = set(truth) if rated else set(range(ITEMS)) - set(items[:hidden].tolist())
    listed = {item: score for item, score in scores.items() if item in allowed}
    return oracles.value("ndcg", listed, truth, request.ks[0], request.definition)


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("candidates", ["unseen", "rated"])
def test_every_point_equals_a_refit_of_its_prefix(rule: PrefixRule, candidates: str) -> None:
    (scorer, folder), users = make_model(1), draw_users(2)
    definition = STARS.model_copy(update={"candidates": candidates})
    request = CurveRequest(rule, ("ndcg",), (4,), definition)
    values = measure_prefixes(scorer, folder, users, request)["ndcg"][:, :, 0]
    stood = 0
    for u, length in enumerate(np.diff(users.offsets).tolist()):
        points = [point for point in rule.given if point <= length - rule.minimum]
        if rule.users == "fixed" and len(points) < len(rule.given):
            points = []
        for at, point in enumerate(rule.given):
            if point not in points:
                assert np.isnan(values[u, at])
                continue
            expected = slow_value(scorer, users, u, point, points[-1], request)
            np.testing.assert_allclose(values[u, at], expected, rtol=1e-12, atol=1e-12)
            stood += 1
    assert stood > 15


@pytest.mark.parametrize("test", ["common", "rest"])
def test_no_bit_depends_on_partitions_batches_or_the_order_of_rows(
    test: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three draws by hash, under 1, 3 and 17 partitions."""
    (scorer, folder), users = make_model(3), draw_users(4)
    request = CurveRequest(PrefixRule((1, 2, 3), test), ("ndcg", "recall"), (3, 9), STARS)  # type: ignore[arg-type]

    def average_orders(part: CurveUsers) -> bytes:
        orders = [order_by_hash(part.offsets, part.keys_u, part.items_p, draw, 5) for draw in range(3)]
        draws = [measure_prefixes(scorer, folder, part.reorder(order), request) for order in orders]
        values = [average_draws(np.stack([one[name] for one in draws])) for name in request.metrics]
        return np.concatenate(values, axis=2).tobytes()

    whole = average_orders(users)
    for cuts in ([0, 5, 11, 17], range(18)):
        parts = [users.select_users(a, b) for a, b in zip(cuts, [*cuts][1:], strict=False)]
        assert b"".join(average_orders(part) for part in parts) == whole
    backwards = np.concatenate(
        [np.arange(b - 1, a - 1, -1) for a, b in zip(users.offsets, users.offsets[1:], strict=False)]
    )
    assert average_orders(users.reorder(backwards)) == whole
    monkeypatch.setattr(learning_curves, "BATCH_ENTRIES", 40)
    assert average_orders(users) == whole


def test_the_compiled_path_gives_the_same_bits() -> None:
    (scorer, folder), users = make_model(5), draw_users(6)
    request = CurveRequest(RULES[1], ("ndcg", "mrr"), (3,), STARS, uncut=True)
    plain = measure_prefixes(scorer, folder, users, request)
    tiled = measure_prefixes(scorer, folder, users, replace(request, device="cpu"))
    assert {name: value.tobytes() for name, value in plain.items()} == {
        name: value.tobytes() for name, value in tiled.items()
    }


def test_models_that_score_by_history_or_item_need_no_folder() -> None:
    """After item 1 the neighbour 2 leads; after items 1 and 3, item 4 has the larger sum."""
    offsets, neighbours = np.array([0, 0, 2, 2, 3, 3]), np.array([2, 4, 4])
    scorer = NeighbourScorer(offsets, neighbours, np.array([0.5, 0.25, 0.5]))
    users = CurveUsers(np.array([7]), np.array([0, 4]), np.array([1, 3, 4, 0]), np.array([1.0] * 4))
    rule = PrefixRule((1, 2), test="rest")
    request = CurveRequest(rule, ("mrr",), (3,), Definition())
    values = measure_prefixes(scorer, None, users, request)["mrr"][0, :, 0]
    assert values.tolist() == [1 / 2, 1.0]
    # A user whose given items have no neighbours gets no list, and counts 0.
    silent = replace(users, items_p=np.array([0, 3, 4, 1]))
    assert measure_prefixes(scorer, None, silent, request)["mrr"][0, :, 0].tolist() == [0.0, 1.0]
    # Items that are not relevant are no history.
    liked = replace(request, definition=Definition(threshold=2.0, empty_users="zero"))
    disliked = replace(users, ratings_p=np.array([1.0, 3.0, 3.0, 3.0]))
    assert measure_prefixes(scorer, None, disliked, liked)["mrr"][0, :, 0].tolist() == [0.0, 1.0]
    popular = HashScorer(np.arange(5), 1)
    assert np.isfinite(measure_prefixes(popular, None, users, request)["mrr"][0]).all()


def test_a_prefix_without_a_known_item_is_not_ranked() -> None:
    scorer, folder = make_model(1)
    users = CurveUsers(np.array([1]), np.array([0, 3]), np.array([0, 5, 6]), np.array([5.0, 5.0, 5.0]))
    request = CurveRequest(PrefixRule((1, 2)), ("recall",), (ITEMS,), Definition())
    assert measure_prefixes(scorer, folder, users, request)["recall"][0, :, 0].tolist() == [0.0, 1.0]


@pytest.mark.parametrize("candidates", ["all", "given", "uniform", "popularity"])
def test_candidates_that_prefixes_cannot_have_are_refused(candidates: str) -> None:
    with pytest.raises(ConfigError, match=f"learning curves with candidates '{candidates}'"):
        CurveRequest(RULES[0], ("ndcg",), (4,), Definition(candidates=candidates))  # type: ignore[arg-type]
