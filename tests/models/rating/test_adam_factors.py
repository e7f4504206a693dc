"""WMF and GMF against plain loops in float64, and the invariants of both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from recbench_spark.errors import ConfigError
from recbench_spark.models.rating.adam_factors import (
    PairSampler,
    WmfSettings,
    cut_batches,
    draw_xavier,
    fit_wmf,
    group_pairs,
)
from recbench_spark.models.rating.interface import Ratings, check_ratings
from recbench_spark.models.rating.neural_factors import GmfSettings, fit_gmf, start_network
from recbench_spark.models.rating.registry import fit, learns_relevant, load, make_settings, save

USERS, ITEMS = 7, 9


def make_log(seed: int = 1, n_users: int = USERS, n_items: int = ITEMS) -> Ratings:
    """A third of all pairs; the last user and the last item have none."""
    random = np.random.default_rng(seed)
    users, items = np.nonzero(random.random((n_users - 1, n_items - 1)) < 0.35)
    ratings = random.integers(1, 6, len(users)).astype(float)
    return check_ratings(users, items, ratings, (1, 5), n_users=n_users, n_items=n_items)


class PlainAdam:
    """Adam as its paper writes it (Kingma and Ba 2015, algorithm 1), number by number."""

    def __init__(self, tables: list[Any], rate: float) -> None:
        self.tables, self.rate, self.step_number = tables, rate, 0
        self.first = [np.zeros_like(table) for table in tables]
        self.second = [np.zeros_like(table) for table in tables]

    def step(self, gradients: list[Any]) -> None:
        self.step_number += 1
        t = self.step_number
        for n, gradient in enumerate(gradients):
            self.first[n] = 0.9 * self.first[n] + 0.1 * gradient
            self.second[n] = 0.999 * self.second[n] + 0.001 * gradient**2
            mean, square = self.first[n] / (1 - 0.9**t), self.second[n] / (1 - 0.999**t)
            self.tables[n] -= self.rate * mean / (np.sqrt(square) + 1e-8)


def plain_wmf(train: Ratings, settings: WmfSettings, seed: int) -> tuple[Any, Any]:
    """Gradients of every pair of a batch, one after the other."""
    p = draw_xavier(train.n_users, settings.dims, seed, 0).astype(float)
    q = draw_xavier(train.n_items, settings.dims, seed, 1).astype(float)
    rated = {(u, i): r for u, i, r in zip(train.users_r, train.items_r, train.ratings_r, strict=True)}
    adam = PlainAdam([p, q], settings.rate)
    for epoch in range(settings.epochs):
        for batch in cut_batches(train.n_items, settings.batch_items, seed, epoch):
            gp, gq = settings.user_regulariser * p, np.zeros_like(q)
            for i in batch:
                gq[i] += settings.item_regulariser * q[i]
                for u in range(train.n_users):
                    weight = settings.observed_weight if (u, i) in rated else settings.unobserved_weight
                    goal = rated.get((u, i), 0.0)
                    if settings.target == "one":
                        goal = float((u, i) in rated)
                    error = 2 * weight * (p[u] @ q[i] - goal)
                    gp[u] += error * q[i]
                    gq[i] += error * p[u]
            adam.step([np.clip(g, -settings.clip, settings.clip) for g in (gp, gq)])
    return p, q


def plain_gmf(train: Ratings, settings: GmfSettings, seed: int) -> tuple[Any, Any]:
    """Gradients of every example of a batch, one after the other."""
    network = start_network(train, settings, seed)
    tables = [table.detach().numpy().astype(float) for table in network.list_tables()]
    adam = PlainAdam(tables, settings.rate)
    sampler = PairSampler(train, settings.batch, settings.negatives, seed)
    for epoch in range(settings.epochs):
        for users, items, labels in sampler.draw_batches(epoch):
            gp, gq, gh, gc = (np.zeros_like(table) for table in tables)
            p, q, h, c = tables
            for u, i, label in zip(users, items, labels, strict=True):
                error = 1 / (1 + np.exp(-((p[u] * q[i]) @ h + c[0]))) - label
                gp[u] += error * h * q[i] / len(users) + settings.regulariser * p[u]
                gq[i] += error * h * p[u] / len(users) + settings.regulariser * q[i]
                gh += error * p[u] * q[i] / len(users)
                gc += error / len(users)
            adam.step([gp, gq, gh, gc])
    return tables[0] * tables[2], tables[1]


def without_rows(train: Ratings, p: Any, q: Any) -> tuple[Any, Any]:
    """Zeros for users and items that have no rated pair."""
    for table, keys in ((p, train.users_r), (q, train.items_r)):
        table[np.setdiff1d(np.arange(len(table)), keys)] = 0
    return p, q


@pytest.mark.parametrize(
    "settings",
    [
        WmfSettings(dims=3, epochs=4, batch_items=4),
        WmfSettings(
            dims=2, epochs=3, batch_items=100, target="one", observed_weight=2, clip=0.5, rate=0.05
        ),
        WmfSettings(dims=3, epochs=3, batch_items=1, unobserved_weight=0, user_regulariser=1),
    ],
)
def test_wmf_equals_a_plain_loop(settings: WmfSettings) -> None:
    train = make_log()
    model: Any = fit_wmf(train, settings, 5).model
    wanted = without_rows(train, *plain_wmf(train, settings, 5))
    np.testing.assert_allclose(model.p_ud, wanted[0], atol=2e-6)
    np.testing.assert_allclose(model.q_id, wanted[1], atol=2e-6)


@pytest.mark.parametrize(
    "settings",
    [
        GmfSettings(dims=3, epochs=4, batch=5),
        GmfSettings(dims=2, epochs=3, batch=100, negatives=1, regulariser=0.1, init_sd=0.3, rate=0.02),
    ],
)
def test_gmf_equals_a_plain_loop(settings: GmfSettings) -> None:
    train = make_log()
    model: Any = fit_gmf(train, settings, 5).model
    wanted = without_rows(train, *plain_gmf(train, settings, 5))
    np.testing.assert_allclose(model.p_ud, wanted[0], atol=2e-6)
    np.testing.assert_allclose(model.q_id, wanted[1], atol=2e-6)


@pytest.mark.parametrize("kind", ["wmf", "gmf"])
def test_row_order_and_threads_change_no_bit(kind: str, tmp_path: Any) -> None:
    train, settings = make_log(), make_settings({"kind": kind, "dims": 4, "epochs": 3})
    one: Any = fit(train, settings, 3).model
    shuffled = train.rows(np.random.default_rng(0).permutation(len(train)))
    other: Any = fit(shuffled, settings, 3, threads=2).model
    stored: Any = load(save(one, tmp_path / "model.npz"))
    for model in (other, stored):
        assert np.array_equal(one.p_ud, model.p_ud) and np.array_equal(one.q_id, model.q_id)
    assert not np.array_equal(one.p_ud, fit(train, settings, 4).model.p_ud)  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["wmf", "gmf"])
def test_two_tastes_are_learnt(kind: str) -> None:
    """Half of the users rate the first ten items, half the others: unrated pairs follow the taste.

    GMF draws the unrated items of a user's taste as negatives too, so that it tells them apart on average.
    """
    random = np.random.default_rng(2)
    same_taste = np.arange(40)[:, None] % 2 == np.arange(20)[None, :] // 10
    users, items = np.nonzero(same_taste & (random.random((40, 20)) < 0.7))
    train = check_ratings(users, items, np.full(len(users), 5.0), (1, 5), n_users=40, n_items=20)
    model: Any = fit(train, make_settings({"kind": kind, "dims": 8, "epochs": 60, "rate": 0.02}), 1).model
    scores = model.p_ud @ model.q_id.T
    rated = np.zeros((40, 20), bool)
    rated[users, items] = True
    above = scores[same_taste & ~rated][:, None] > scores[~same_taste][None, :]
    assert above.mean() == (1.0 if kind == "wmf" else pytest.approx(0.9, abs=0.1))


def test_negatives_are_never_rated_and_each_pair_is_once_an_example() -> None:
    train = make_log()
    rated = set(zip(train.users_r.tolist(), train.items_r.tolist(), strict=True))
    for epoch in range(3):
        drawn = [
            (u, i, label)
            for users, items, labels in PairSampler(train, 6, 4, 8).draw_batches(epoch)
            for u, i, label in zip(users.tolist(), items.tolist(), labels.tolist(), strict=True)
        ]
        assert sorted((u, i) for u, i, label in drawn if label) == sorted(rated)
        negatives = [(u, i) for u, i, label in drawn if not label]
        assert len(negatives) == 4 * len(rated) and not set(negatives) & rated


def test_pairs_are_grouped_whatever_their_order() -> None:
    pairs = group_pairs(np.array([2, 0, 2]), np.array([1, 4, 0]), np.array([5.0, 6.0, 7.0]), 4)
    assert pairs.start_a.tolist() == [0, 1, 1, 3, 3]
    assert pairs.other_r.tolist() == [4, 0, 1] and pairs.target_r.tolist() == [6, 7, 5]


def test_all_rated_pairs_are_learnt_from_unless_the_file_says_relevant() -> None:
    assert not learns_relevant({"kind": "wmf", "positives": "all"})
    assert learns_relevant({"kind": "gmf", "positives": "relevant"}) and learns_relevant(
        {"kind": "implicit_als"}
    )
    assert not learns_relevant({"kind": "sgd_mf"})


@pytest.mark.parametrize(
    ("document", "key"),
    [
        ({"kind": "wmf", "dims": 0}, "dims"),
        ({"kind": "wmf", "clip": 0}, "clip"),
        ({"kind": "gmf", "negatives": 0}, "negatives"),
        ({"kind": "gmf", "batch_items": 3}, "batch_items"),
    ],
)
def test_settings_that_mean_nothing_are_refused_by_name(document: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        make_settings(document)
