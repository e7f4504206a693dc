"""Fold-in of models that read a history: the vector of each prefix is a forward pass of its items."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from recbench_spark.models.adapters.sequence_models import CHECKPOINT, FittedNetwork, HistoryFoldIn
from recbench_spark.models.networks.fitting import fit
from recbench_spark.models.networks.sequence_networks import TokenWindows, make_sequences
from recbench_spark.models.networks.sequence_tasks import SequenceTask
from recbench_spark.models.settings import make_model
from recbench_spark.storage.host_files import digest_content
from recbench_spark.storage.shared_arrays import SharedRows

ITEMS, MEMORY = 12, 4
UNKNOWN = 10
"""An item of no history."""
KINDS: dict[str, dict[str, Any]] = {"sasrec": {"blocks": 1}, "gru4rec": {}, "memn2n": {"hops": 2}}
HISTORIES = ([3, 1, 4, 1, 5, 9, 2, 6], [11], [2, 7, 0], [8, 3], [])
RATINGS = ([5, 2, 4, 4, 5, 3, 4, 5], [5], [1, 4, 5], [1, 2], [])
"""The fourth user likes nothing, and the last one has no rows."""


@pytest.fixture(params=KINDS)
def fold_in(request: pytest.FixtureRequest, tmp_path: Path) -> HistoryFoldIn:
    """A network after an epoch, as tasks get it; rows of 4 and more are read."""
    more = {"dims": 4, "memory": MEMORY, "epochs": 1, "rate": 0.05, "dropout": 0.2, **KINDS[request.param]}
    settings: Any = make_model({"name": "m", "kind": request.param, **more}, "models")
    lists = [[(user + n) % ITEMS for n in range(6)] for user in range(8)]
    task = SequenceTask(make_sequences(lists, ITEMS), settings)
    fit(task, settings.plan(), tmp_path / "checkpoints", lambda _: None)
    place = tmp_path / CHECKPOINT
    size, digest = place.stat().st_size, digest_content(place)
    return HistoryFoldIn(FittedNetwork(settings, ITEMS, str(place), size, digest), 4.0)


def fold(fold_in: HistoryFoldIn, histories: Any, ratings: Any, unknown: tuple[int, ...] = ()) -> Any:
    none: Any = np.empty(0)
    known_i = ~np.isin(np.arange(ITEMS), unknown)
    folder = fold_in.make_folder(none, none, known_i)
    offsets = np.concatenate([[0], np.cumsum([len(own) for own in histories])])
    return folder.fold(
        offsets, np.concatenate(histories).astype(np.int64), np.concatenate(ratings).astype(np.float64)
    )


def read_plainly(fold_in: HistoryFoldIn, items: list[int]) -> Any:
    """One padded window of the newest items, read by the network itself."""
    module: Any = fold_in.network.open()
    length = MEMORY + (fold_in.network.settings.kind == "memn2n")
    newest = items[-length:]
    token = torch.tensor([[item + 1 for item in newest] + [0, 0]])
    with torch.no_grad():
        return module.read_last(TokenWindows(token, torch.tensor([len(newest)])))[0].numpy()


def test_each_prefix_is_a_forward_pass_of_its_liked_items(fold_in: HistoryFoldIn) -> None:
    folded, row = fold(fold_in, HISTORIES, RATINGS), 0
    assert folded.vectors_pd.dtype == np.float32
    for items, ratings in zip(HISTORIES, RATINGS, strict=True):
        for end in range(1, len(items) + 1):
            liked = [item for item, rating in zip(items[:end], ratings, strict=False) if rating >= 4]
            assert folded.known_p[row] == bool(liked)
            expected = read_plainly(fold_in, liked) if liked else np.zeros(4)
            np.testing.assert_allclose(folded.vectors_pd[row], expected, rtol=0, atol=1e-6)
            row += 1


def test_other_users_and_order_of_users_change_no_bit(fold_in: HistoryFoldIn) -> None:
    together = fold(fold_in, HISTORIES, RATINGS).vectors_pd
    apart = [fold(fold_in, [h], [r]).vectors_pd for h, r in zip(HISTORIES, RATINGS, strict=True)]
    assert np.array_equal(together, np.concatenate(apart))
    assert not np.array_equal(together[0], together[2]), "what is read changes the vector"


def test_items_outside_the_catalogue_change_no_vector(fold_in: HistoryFoldIn) -> None:
    folded = fold(fold_in, [[-1, 3, -1, 5]], [[5, 5, 5, 5]])
    assert folded.known_p.tolist() == [False, True, True, True]
    assert np.array_equal(folded.vectors_pd[1], folded.vectors_pd[2])
    assert np.array_equal(folded.vectors_pd[3], fold(fold_in, [[3, 5]], [[5, 5]]).vectors_pd[1])


def test_an_item_that_training_does_not_know_changes_no_bit(fold_in: HistoryFoldIn) -> None:
    without = fold(fold_in, HISTORIES, RATINGS, unknown=(UNKNOWN,))
    longer = [[*own, UNKNOWN] for own in HISTORIES]
    folded = fold(fold_in, longer, [[*own, 5] for own in RATINGS], unknown=(UNKNOWN,))
    ends = np.cumsum([len(own) for own in longer]) - 1
    rest = np.setdiff1d(np.arange(ends[-1] + 1), ends)
    assert np.array_equal(folded.vectors_pd[rest], without.vectors_pd)
    assert np.array_equal(folded.known_p[rest], without.known_p)
    for own, end in zip(HISTORIES, ends, strict=True):
        before = folded.vectors_pd[end - 1] if own else 0
        assert np.array_equal(folded.vectors_pd[end], np.zeros(4) + before)
    alone = fold(fold_in, [[5]], [[5]], unknown=(5,))
    assert alone.known_p.tolist() == [False] and not alone.vectors_pd.any()


def test_places_in_the_network_are_those_of_trained_items(fold_in: HistoryFoldIn, tmp_path: Path) -> None:
    """Item 0 of the catalogue is new, so item i has the place i - 1 in the network."""
    rows = pa.table({"item_index": np.arange(1, ITEMS + 1), "place": np.arange(ITEMS)})
    pq.write_table(rows, tmp_path / "places.parquet")
    shared = SharedRows(tmp_path.name, (str(tmp_path / "places.parquet"),))
    moved = dataclasses.replace(fold_in, places=shared)
    none: Any = np.empty(0)
    folder = moved.make_folder(none, none, np.arange(ITEMS + 1) > 0)
    folded = folder.fold(np.array([0, 3]), np.array([4, 0, 6]), np.full(3, 5.0))
    expected = fold(fold_in, [[3, 5]], [[5, 5]]).vectors_pd
    assert np.array_equal(folded.vectors_pd, expected[[0, 0, 1]])


def test_the_settings_travel_to_tasks(fold_in: HistoryFoldIn) -> None:
    sent = pickle.loads(pickle.dumps(fold_in))
    assert sent == fold_in and hash(sent) == hash(fold_in)
    assert np.array_equal(
        fold(sent, HISTORIES, RATINGS).vectors_pd, fold(fold_in, HISTORIES, RATINGS).vectors_pd
    )
