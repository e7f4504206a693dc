"""A night trains the same bits on any items of held-out rows; `models/fits` tries the learners."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from recbench_spark.models.adapters.item_knn import SIMILARITIES
from recbench_spark.models.adapters.model_adapter import make_adapter
from recbench_spark.models.fits.tasks import FIT_FILES, MODEL
from recbench_spark.models.settings import MODELS, LearntItems, list_kinds, model_class
from recbench_spark.storage.store import Store
from tests.models.adapters.test_unknown import OTHERS
from tests.nights import Ran, run, small
from tests.rows import read_rows

LEARNERS = {
    "als",
    "als_wr",
    "bayesian_mf",
    "gmf",
    "implicit_als",
    "logistic_mf",
    "mlp",
    "neumf",
    "nsvd1",
    "sgd_mf",
    "wmf",
}
"""Kinds that one task fits and that rank: `tests/models/fits/test_held_out_ids.py` tries each of them."""

ONE_LEARNER = {"implicit_als": {"dims": 3, "sweeps": 2}, "mlp": {"layers": [4, 2], "epochs": 1}}
SETTINGS: dict[str, dict[str, Any]] = {**OTHERS, **ONE_LEARNER, "means": {}, "popular": {}}
"""Kinds that are fitted here."""

NOT_FITTED = {
    "embeddings": "vectors of another system",
    "lists": "lists of another system",
    "published": "figures alone",
    "random": "a hash of user and item",
    "retrieved": "an index over another model of the file",
    "scores": "scores of another system",
    "switch": "two other models of the file",
    "truth": "the generated world's own factors",
}
TASKS_ALONE = {"cornac": "an extra; a learner", "item_neighbours": "ranks nothing", "rbm": "ranks nothing"}

Rows = list[tuple[str, str, float, str]]


def make_rows(items: list[str], renamed: dict[str, str]) -> Rows:
    """Users like items of their parity; of the held-out items some are new."""
    draw, rows = np.random.default_rng(1), Rows()
    for user in range(30):
        own = [str(item) for item in draw.permutation(10)[:8] * 2 + user % 2]
        rows += [(f"u{user:02}", item, 5.0 if n else 1.0, "train") for n, item in enumerate(own[:6])]
        rows += [(f"u{user:02}", item, 5.0, "valid") for item in own[6:7]]
        rows += [(f"u{user:02}", item, 5.0, "test") for item in own[7:]]
        more = [items[(user + n) % len(items)] for n in range(2)] if items else []
        rows += [(f"u{user:02}", renamed.get(item, item), 5.0, part) for item in more for part in ("test",)]
    return rows


WORLDS: dict[str, Rows] = {
    "no new item": make_rows([], {}),
    "new items": make_rows(["100", "-1", "101"], {}),
    "other names in another order": make_rows(["101", "100"], {"100": "zzz", "101": "+"}),
}


@dataclass(frozen=True)
class Nights:
    """One night of each world, in a warehouse of its own."""

    by_world: dict[str, Ran]


def write_world(place: Path, rows: Rows, format: str) -> dict[str, Any]:
    names = ("user_id", "item_id", "rating", "part")
    table = pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))
    table = table.append_column("event_time", pa.array(range(len(rows))))
    if format == "csv":
        pyarrow.csv.write_csv(table, place)
    else:
        pq.write_table(table, place)
    columns = {name: name for name in (*names, "event_time")}
    return {"name": "log", "reader": format, "path": str(place), "columns": columns}


def run_world(spark: Any, folder: Path, rows: Rows, format: str, models: list[dict[str, Any]]) -> Ran:
    folder.mkdir(parents=True)
    evaluation = {
        "metrics": ["ndcg"], "k": [5], "definition": {"threshold": 4}, "bootstrap": {"replicates": 10},
    }  # fmt: skip
    dataset = write_world(folder / f"log.{format}", rows, format)
    requests = small(models=models, dataset=dataset, split={"protocol": "given"}, evaluation=evaluation)
    return run(Store(spark, str(folder / "w")), requests)


@pytest.fixture(scope="module")
def nights(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Nights:
    """All kinds that are fitted, on logs that differ in held-out rows alone."""
    place = tmp_path_factory.mktemp("held_out")
    models = [{"name": kind, "kind": kind, **settings} for kind, settings in SETTINGS.items()]
    return Nights(
        {name: run_world(spark, place / name, rows, "csv", models) for name, rows in WORLDS.items()}
    )


def read_trained(night: Ran, kind: str) -> dict[str, Any]:
    """Rows of vectors and similarities by id, and the arrays of a learner."""
    (settings,) = (model for model in night.benchmark.models if model.name == kind)
    adapter, data = make_adapter(settings), night.night.data
    trained = adapter.load(data)
    sides = {
        "users": (trained.users, ("user_id", "vector", "bias")),
        "items": (trained.items, ("item_id", "vector", "bias")),
        "similar": (trained.similarities, SIMILARITIES),
    }
    rows: dict[str, Any] = {
        name: sorted(map(repr, read_rows(side, columns)))
        for name, (side, columns) in sides.items()
        if side is not None
    }
    file = Path(data.store.files_root, FIT_FILES, data.key(settings), MODEL)
    if not file.exists():
        return rows
    with np.load(file) as arrays:
        return rows | {name: arrays[name].tobytes() for name in arrays.files}


def read_places(night: Ran, kind: str) -> dict[tuple[str, str], int]:
    """The place of each held-out pair that all logs have, by user and item."""
    run_id = night.outcome.run_ids[kind]
    rows = DeltaTable(night.store.folder / "rankings").to_pandas(partitions=[("run_id", "=", run_id)])
    common = {(user, item) for user, item, _, part in WORLDS["no new item"] if part == "test"}
    places = {
        (row.user_id, item): place
        for row in rows[rows["part"] == "test"].itertuples()
        for item, place in zip(row.item_ids, row.above, strict=True)
    }
    return {pair: place for pair, place in places.items() if pair in common}


@pytest.mark.slow  # four nights of all kinds: minutes
@pytest.mark.parametrize("kind", SETTINGS)
def test_items_of_held_out_rows_change_no_bit_of_what_is_trained(kind: str, nights: Nights) -> None:
    before, *others = (read_trained(night, kind) for night in nights.by_world.values())
    assert any(before.values())
    for name, after in zip(list(WORLDS)[1:], others, strict=True):
        assert [key for key in before if before[key] != after[key]] == [], name


@pytest.mark.slow  # four nights of all kinds: minutes
@pytest.mark.parametrize("kind", SETTINGS)
def test_new_items_take_no_place_of_others(kind: str, nights: Nights) -> None:
    before, after = (read_places(nights.by_world[name], kind) for name in list(WORLDS)[:2])
    assert before == after and len(before) == 30


def test_every_kind_is_decided() -> None:
    """A new kind is tried here, or beside the learners, or stands here with a reason."""
    ours = {kind for kind in list_kinds() if MODELS[kind].__module__.startswith("recbench_spark.")}
    assert ours == {*SETTINGS, *LEARNERS, *NOT_FITTED, *TASKS_ALONE}


def test_kinds_with_tables_of_items_say_which() -> None:
    by_rows = {"graph", "graphsage", "item_knn", "means", "pinsage", "popular"}
    for kind in {*SETTINGS, *LEARNERS, *TASKS_ALONE} - by_rows:
        assert issubclass(model_class(kind), LearntItems), kind
