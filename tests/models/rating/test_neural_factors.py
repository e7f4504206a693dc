"""MLP and NeuMF against plain loops in float64 and against cornac, and the invariants of their scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from recbench_spark.errors import ConfigError, DivergedError
from recbench_spark.models.rating.adam_factors import PairSampler
from recbench_spark.models.rating.interface import UNSEEN, Ratings, ScoringModel, check_ratings
from recbench_spark.models.rating.neural_factors import (
    MlpSettings,
    Network,
    NetworkModel,
    NeumfSettings,
    descend,
    fit_network,
    make_network_model,
    start_network,
)
from recbench_spark.models.rating.registry import fit, learns_relevant, load, make_settings, save
from tests.models.rating.test_adam_factors import PlainAdam, make_log

SETTINGS = [
    MlpSettings(layers=(6, 5, 4), epochs=3, batch=5),
    MlpSettings(layers=(4, 3), epochs=2, batch=100, negatives=1, regulariser=0.1, init_sd=0.3, rate=0.02),
    NeumfSettings(dims=3, layers=(6, 5, 4, 2), epochs=3, batch=5, init_sd=0.2),
    NeumfSettings(dims=2, layers=(2, 3), epochs=2, batch=7, regulariser=0.2, init_sd=0.3, rate=0.02),
]


def to_plain(network: Network) -> list[Any]:
    """All tables in float64: with two factors, or none; two vectors; weights and constants; output."""
    return [table.detach().numpy().astype(float) for table in network.list_tables()]


def plain_example(tables: list[Any], products: bool, u: int, i: int) -> tuple[float, list[Any]]:
    """The score of one pair, and what each layer gave."""
    factors, rest = (tables[:2], tables[2:]) if products else ([], tables)
    inputs = [np.concatenate([rest[0][u], rest[1][i]])]
    layers = rest[2:-2]
    for weights, constants in zip(layers[::2], layers[1::2], strict=True):
        inputs.append(np.maximum(weights @ inputs[-1] + constants, 0))
    last = np.concatenate([factors[0][u] * factors[1][i], inputs[-1]]) if products else inputs[-1]
    return float(rest[-2] @ last + rest[-1][0]), [*inputs, last]


def add_gradients(
    tables: list[Any], grads: list[Any], products: bool, pair: tuple[int, int], slope: float, reg: float
) -> None:
    """Add the gradients of one example, by the chain rule from the output to the vectors."""
    u, i = pair
    _, values = plain_example(tables, products, u, i)
    inputs, last = values[:-1], values[-1]
    first = 2 if products else 0
    dims = tables[0].shape[1] if products else 0
    half = tables[first].shape[1]
    grads[-1] += slope
    grads[-2] += slope * last
    back = slope * tables[-2]
    if products:
        grads[0][u] += back[:dims] * tables[1][i] + reg * tables[0][u]
        grads[1][i] += back[:dims] * tables[0][u] + reg * tables[1][i]
    back = back[dims:]
    for layer in reversed(range(len(inputs) - 1)):
        back = back * (inputs[layer + 1] > 0)
        at = first + 2 + 2 * layer
        grads[at] += np.outer(back, inputs[layer])
        grads[at + 1] += back
        back = tables[at].T @ back
    grads[first][u] += back[:half] + reg * tables[first][u]
    grads[first + 1][i] += back[half:] + reg * tables[first + 1][i]


def plain_fit(train: Ratings, settings: Any, seed: int) -> list[Any]:
    tables = to_plain(start_network(train, settings, seed))
    adam, products = PlainAdam(tables, settings.rate), isinstance(settings, NeumfSettings)
    sampler = PairSampler(train, settings.batch, settings.negatives, seed)
    for epoch in range(settings.epochs):
        for users, items, labels in sampler.draw_batches(epoch):
            grads = [np.zeros_like(table) for table in tables]
            for u, i, label in zip(users, items, labels, strict=True):
                score, _ = plain_example(tables, products, u, i)
                slope = (1 / (1 + np.exp(-score)) - label) / len(users)
                add_gradients(tables, grads, products, (u, i), slope, settings.regulariser)
            adam.step(grads)
    return tables


@pytest.mark.parametrize("settings", SETTINGS)
def test_scores_equal_those_of_a_plain_loop(settings: Any) -> None:
    train = make_log()
    model: Any = fit_network(train, settings, 5).model
    tables, products = plain_fit(train, settings, 5), isinstance(settings, NeumfSettings)
    users, items = np.unique(train.users_r), np.unique(train.items_r)
    wanted = [[plain_example(tables, products, u, i)[0] for i in items] for u in users]
    np.testing.assert_allclose(model.score(users, items) + tables[-1][0], wanted, atol=2e-6)
    start, moved = to_plain(start_network(train, settings, 5)), tables
    assert all(np.abs(a - b).max() > 1e-4 for a, b in zip(start, moved, strict=True)), (
        "or nothing is learnt"
    )


def forward(model: NetworkModel, u: int, i: int) -> float:
    """The written order of every sum, number by number."""
    pairs = zip(model.first_uh[u].tolist(), model.first_ih[i].tolist(), strict=True)
    x = [max(a + b, 0.0) for a, b in pairs]
    weights, at = model.weights.tolist(), 0
    for after in model.widths_l[1:].tolist():
        y = []
        for j in range(after):
            total = weights[at + after * len(x) + j]
            for k, value in enumerate(x):
                total += weights[at + j * len(x) + k] * value
            y.append(max(total, 0.0))
        at += after * (len(x) + 1)
        x = y
    total = 0.0
    for p, q in zip(model.p_ud[u].tolist(), model.q_id[i].tolist(), strict=True):
        total += p * q
    for k, value in enumerate(x):
        total += weights[at + k] * value
    return total


@pytest.mark.full
@pytest.mark.parametrize("settings", SETTINGS)
def test_every_bit_of_a_score_follows_from_its_pair_alone(settings: Any) -> None:
    """Blocks of one user, of all users and of other items, and watched pairs: the same bits each time."""
    train = make_log(3, 30, 400)
    model: Any = fit_network(train, settings, 5).model
    assert isinstance(model, ScoringModel)
    users, items = np.arange(train.n_users), np.arange(train.n_items)
    whole = model.score(users, items)
    assert whole[4, 7] == forward(model, 4, 7) and whole[11, 333] == forward(model, 11, 333)
    alone = np.concatenate([model.score(users[u : u + 1], items) for u in users])
    every_third = model.score(users, items[5:150:3])
    pairs = model.predict(np.repeat(users, len(items)), np.tile(items, len(users)))
    assert np.array_equal(whole, alone) and np.array_equal(whole[:, 5:150:3], every_third)
    assert np.array_equal(whole.ravel(), pairs)


@pytest.mark.parametrize("kind", ["mlp", "neumf"])
def test_row_order_and_threads_change_no_bit(kind: str, tmp_path: Any) -> None:
    train, settings = make_log(), make_settings({"kind": kind, "layers": [6, 4], "epochs": 3})
    one: Any = fit(train, settings, 3).model
    shuffled = train.rows(np.random.default_rng(0).permutation(len(train)))
    stored: Any = load(save(one, tmp_path / "model.npz"))
    users, items = np.arange(train.n_users), np.arange(train.n_items)
    for model in (fit(shuffled, settings, 3, threads=2).model, stored):
        assert np.array_equal(one.score(users, items), model.score(users, items))  # type: ignore[attr-defined]
    assert not np.array_equal(one.first_uh, fit(train, settings, 4).model.first_uh)  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["mlp", "neumf"])
def test_users_and_items_without_pairs_have_zero_vectors(kind: str) -> None:
    train = make_log()
    model: Any = fit(train, make_settings({"kind": kind, "epochs": 1}), 3).model
    for table in (model.p_ud[-1], model.first_uh[-1], model.q_id[-1], model.first_ih[-1]):
        assert not table.any()
    unseen, last = np.array([UNSEEN]), np.array([train.n_users - 1])
    assert model.predict(unseen, unseen) == model.predict(last, np.array([train.n_items - 1]))


@pytest.mark.parametrize("kind", ["mlp", "neumf"])
def test_two_tastes_are_learnt(kind: str) -> None:
    """Half of the users rate the first ten items, half the others: unrated pairs follow the taste."""
    random = np.random.default_rng(2)
    same_taste = np.arange(40)[:, None] % 2 == np.arange(20)[None, :] // 10
    users, items = np.nonzero(same_taste & (random.random((40, 20)) < 0.7))
    train = check_ratings(users, items, np.full(len(users), 5.0), (1, 5), n_users=40, n_items=20)
    document = {"kind": kind, "layers": [16, 8, 4], "epochs": 60, "rate": 0.02, "batch": 64}
    model: Any = fit(train, make_settings(document), 1).model
    scores = model.score(np.arange(40), np.arange(20))
    rated = np.zeros((40, 20), bool)
    rated[users, items] = True
    above = scores[same_taste & ~rated][:, None] > scores[~same_taste][None, :]
    assert above.mean() == pytest.approx(0.9, abs=0.1)


def test_published_settings_are_the_defaults() -> None:
    settings = NeumfSettings()
    assert (settings.epochs, settings.batch, settings.negatives, settings.rate) == (20, 256, 4, 0.001)
    assert settings.layers == MlpSettings().layers == (64, 32, 16, 8) and settings.regulariser == 0
    assert not learns_relevant(settings.model_dump()), "every rated pair is a positive"


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"kind": "mlp", "layers": [7, 4]}, r"layers(.|\n)*7 is not even"),
        ({"kind": "mlp", "layers": [8]}, "layers"),
        ({"kind": "mlp", "layers": [8, 0]}, "layers"),
        ({"kind": "mlp", "dims": 8}, "dims"),
        ({"kind": "neumf", "dims": 0}, "dims"),
    ],
)
def test_sizes_that_a_model_does_not_take_are_refused_by_name(document: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_settings(document)


def test_a_fit_that_leaves_all_finite_numbers_is_an_error() -> None:
    with pytest.raises(DivergedError, match="mlp diverged"):
        fit_network(make_log(), MlpSettings(epochs=1, init_sd=1e38, rate=1000), 1)


def test_neumf_of_size_8_is_that_of_cornac_from_the_same_start_and_batches() -> None:
    """Cornac draws start and batches; its scores are sigmoids of ours with the constant."""
    pytest.importorskip("cornac", reason="the extra `zoo` is not installed")
    import torch
    from cornac.data import Dataset
    from cornac.models import NeuMF
    from cornac.models.ncf.backend_pt import NeuMF as CornacNetwork

    train = make_log(4, 12, 15)
    train = check_ratings(train.users_r, train.items_r, train.ratings_r, (1, 5))
    settings = NeumfSettings(dims=8, layers=(16, 12, 8), epochs=3, batch=16)

    def make_data() -> Any:
        columns = (train.users_r.tolist(), train.items_r.tolist(), train.ratings_r.tolist())
        return Dataset.build(list(zip(*columns, strict=True)), seed=5)

    data = make_data()
    theirs = NeuMF(
        num_factors=8, layers=[16, 12, 8], num_epochs=3, batch_size=16, num_neg=4, lr=0.001,
        backend="pytorch", verbose=False, seed=5,
    ).fit(data)  # fmt: skip
    torch.manual_seed(5)
    start = CornacNetwork(data.num_users, data.num_items, 8, [16, 12, 8])
    layers = [part for layer in start.mlp.mlp_model if hasattr(layer, "weight")
              for part in (layer.weight, layer.bias)]  # fmt: skip
    network = Network(
        [start.gmf.user_embedding.weight, start.gmf.item_embedding.weight],
        [start.mlp.user_embedding.weight, start.mlp.item_embedding.weight],
        layers, torch.nn.Parameter(start.logit.weight[0].detach()), start.logit.bias,
    )  # fmt: skip
    again = make_data()
    batches = [
        (users.astype(np.int64), items.astype(np.int64), labels.astype(np.float32))
        for _ in range(3)
        for users, items, labels in again.uir_iter(16, shuffle=True, binary=True, num_zeros=4)
    ]
    descend(network, iter(batches), settings)
    renamed = check_ratings(*data.uir_tuple, (1, 5))
    scores = make_network_model(network, renamed).score(
        np.arange(data.num_users), np.arange(data.num_items)
    )
    ours = 1 / (1 + np.exp(-(scores + network.constant.item())))
    for user in range(data.num_users):
        np.testing.assert_allclose(ours[user], theirs.score(user), atol=1e-6)
