"""Items and users of held-out rows alone, and the order of their ids, reach no fit."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from recbench_spark.models.fits import tasks
from recbench_spark.models.rating.registry import ALL_FAMILIES
from recbench_spark.storage.objects import read_bytes
from tests.models.fits.test_tasks import log_files, task

SHORT: dict[str, dict[str, Any]] = {
    "als": {"rank": 3, "iterations": 2},
    "als_wr": {"dims": 3, "sweeps": 2},
    "bayesian_mf": {"features": "u,i,iu", "dims": 3, "samples": 3, "burn_in": 1, "keep": 2},
    "gmf": {"dims": 3, "epochs": 2},
    "implicit_als": {"dims": 3, "sweeps": 2},
    "item_neighbours": {},
    "logistic_mf": {"dims": 3, "epochs": 2},
    "means": {},
    "mlp": {"layers": [4, 2], "epochs": 2},
    "neumf": {"dims": 3, "layers": [4, 2], "epochs": 2},
    "nsvd1": {"dims": 3, "epochs": 2},
    "rbm": {"dims": 3, "epochs": 2},
    "sgd_mf": {"dims": 3, "epochs": 2},
    "tests.own_model:NearestPlace": {},
    "tests.own_model:PureSvd": {},
    "wmf": {"dims": 3, "epochs": 2},
}
"""Settings of a short fit of each learner."""

Log = list[tuple[str, str, float, int, str]]

TRAIN: Log = [
    (str(7 * u), str(3 * i), float(1 + (u * i) % 5), (u + i) * 86_400_000_000, "train")
    for u in range(12)
    for i in range(15)
    if (u + 2 * i) % 3
]
ASKED: Log = [(str(7 * u), str(3 * ((u * 5) % 15)), 3.0, 0, "test") for u in range(12)]
"""Held-out rows of known items, which all logs have."""


def make_asked(item_ids: list[str], user: str = "0") -> Log:
    return [(user, item, 4.0, 0, "test") for item in item_ids]


OTHERS: dict[str, Log] = {
    "no new item": [],
    "new items": make_asked(["1", "8", "100", "-4"]),
    "other names": make_asked(["zzz", "AAA", "1.5", "\u00e4"]),
    "another order": make_asked(["-4", "100", "8", "1"]),
    "a new user": make_asked(["3", "1"], user="!new"),
}


def fit(folder: Path, kind: str, name: str, **changes: Any) -> dict[str, Any]:
    """The files of a fit, and its predictions of the rows that all logs have."""
    (folder / name).mkdir(parents=True)
    files = log_files(folder / name, rows=[*TRAIN, *ASKED, *OTHERS[name]], name=name.replace(" ", "-"))
    document = {"kind": kind, **SHORT[kind]}
    if ":" in kind:
        document = {"kind": kind, "settings": {}}
    one = task(document, train=("train",), watched=("test",), folder=str(folder / name), **changes)
    row = tasks.fit_one(one, files)
    assert row["status"] == "succeeded", row
    content = read_bytes(one.place(tasks.MODEL))
    assert content is not None
    with np.load(io.BytesIO(content)) as arrays:
        out: dict[str, Any] = {key: arrays[key] for key in arrays.files}
    for side in (tasks.USERS, tasks.ITEMS):
        if Path(one.place(side)).exists():
            out[side] = pq.read_table(one.place(side)).to_pylist()
    predicted = pq.read_table(one.place(tasks.PREDICTIONS)).to_pylist()
    out["predicted"] = {
        (row["user_id"], row["item_id"]): row["prediction"]
        for row in predicted
        if (row["user_id"], row["item_id"]) in {row[:2] for row in ASKED}
    }
    return out


def is_same(before: Any, after: Any) -> bool:
    if isinstance(before, np.ndarray):
        return bool(before.dtype == after.dtype and np.array_equal(before, after))
    return bool(before == after)


@pytest.fixture(autouse=True)
def _own_host_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "host"))


def test_each_learner_is_tried() -> None:
    assert {kind for kind in SHORT if ":" not in kind} == set(ALL_FAMILIES)


@pytest.mark.parametrize("kind", SHORT)
def test_items_and_users_of_held_out_rows_change_no_bit(kind: str, tmp_path: Path) -> None:
    before = fit(tmp_path, kind, "no new item")
    for name in list(OTHERS)[1:]:
        after = fit(tmp_path, kind, name)
        assert set(before) == set(after)
        assert [key for key in before if not is_same(before[key], after[key])] == [], name


def test_the_whole_log_is_counted_where_the_settings_say_so(tmp_path: Path) -> None:
    before = fit(tmp_path, "sgd_mf", "no new item", whole=True)
    assert is_same(before["q_id"], fit(tmp_path / "x", "sgd_mf", "no new item")["q_id"])
    after = fit(tmp_path, "sgd_mf", "new items", whole=True)
    assert len(after["q_id"]) == len(before["q_id"]) + 4
    assert not is_same(before[tasks.ITEMS], after[tasks.ITEMS])
