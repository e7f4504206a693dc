"""Tasks rank by the scores of stored models: batches of users against plain loops, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recbench_spark.core.definitions import Definition
from recbench_spark.errors import DataError
from recbench_spark.models.adapters.rating_models import BlockSource, open_item_file
from recbench_spark.models.fits.tasks import ITEMS, MODEL, FitTask, fit_one
from recbench_spark.models.fits.tasks import USERS as USERS_FILE
from recbench_spark.models.rating.registry import load, make_settings
from recbench_spark.ranking.batch_schemas import USERS
from recbench_spark.ranking.known_items import KnownItems
from recbench_spark.ranking.request import RankingRequest
from recbench_spark.ranking.scored import score_batches
from recbench_spark.storage.shared_arrays import SharedRows
from tests.models.fits.test_tasks import log_files

KINDS: dict[str, dict[str, Any]] = {
    "neumf": {"kind": "neumf", "dims": 3, "layers": [6, 4], "epochs": 2, "rate": 0.05},
    "mlp": {"kind": "mlp", "layers": [6, 4], "epochs": 2, "rate": 0.05, "positives": "relevant"},
    "svdpp": {"kind": "bayesian_mf", "features": "u,i,iu", "dims": 2, "samples": 4, "keep": 2},
    "own": {"kind": "tests.own_model:NearestPlace", "settings": {}},
}
ROWS = [(f"u{u}", str(i), float(1 + (u * i) % 5), None, "test" if (u + i) % 4 == 0 else "train")
        for u in range(20) for i in range(5, 40) if (u * 7 + i * 3) % 5 < 2]  # fmt: skip
ROWS += [("stranger", "5", 4.0, None, "test"), ("u3", "100", 4.0, None, "test")]
"""The user `stranger` and the item 100 have no training row."""
CATALOGUE = [str(i) for i in range(3, 101)]
"""More items than the log has."""


@pytest.fixture(autouse=True)
def _own_host_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "host"))


def open_source(folder: Path, settings: dict[str, Any], threshold: float | None = 4.0) -> BlockSource:
    files = log_files(folder, 3, ROWS)
    task = FitTask(
        "fit", "mine", make_settings(settings).model_dump(), 3, None, ("train",), ("test",),
        threshold=threshold, folder=str(folder / "fits"),
    )  # fmt: skip
    row = fit_one(task, files)
    assert row["status"] == "succeeded", row.get("error")
    n_train = [sum(row[1] == item and row[4] == "train" for row in ROWS) for item in CATALOGUE]
    table = {"item_id": CATALOGUE, "n_train": n_train, "item_index": list(range(len(CATALOGUE)))}
    pq.write_table(pa.table(table), folder / "items.parquet")
    items = SharedRows(f"items-{folder.name}", (str(folder / "items.parquet"),))
    return BlockSource(files, KnownItems(items, len(CATALOGUE)), task)


def make_users() -> list[dict[str, Any]]:
    """Rows of `USERS`: the truth of each user, and the training items that are no candidates."""
    rows = []
    for user in sorted({row[0] for row in ROWS}):
        truth = [row[1] for row in ROWS if row[0] == user and row[4] == "test"]
        masked = [CATALOGUE.index(row[1]) for row in ROWS if row[0] == user and row[4] == "train"]
        places = [CATALOGUE.index(item) for item in truth]
        facts = {"user_id": user, "part": "test", "user_key": len(rows), "slices": {}, "masked": masked}
        rows.append({**facts, "item_ids": truth, "items": places, "relevance": [1.0] * len(truth)})
    return rows


def rank(source: BlockSource, rows: list[dict[str, Any]], size: int) -> list[dict[str, Any]]:
    table = pa.Table.from_pylist(rows, schema=USERS).combine_chunks()
    request = RankingRequest(Definition(), top=5)
    return [
        row
        for batch in score_batches(source, request, iter(table.to_batches(max_chunksize=size)))
        for row in batch.to_pylist()
    ]


@pytest.mark.full
@pytest.mark.parametrize("name", KINDS)
def test_ranks_follow_from_the_stored_model_and_no_batch_changes_them(tmp_path: Path, name: str) -> None:
    source, rows = open_source(tmp_path, KINDS[name]), make_users()
    learnt = [row for row in ROWS if row[4] == "train" and (name != "mlp" or row[2] >= 4)]
    known_users, known_items = {row[0] for row in learnt}, {row[1] for row in learnt}
    trained = [row for row in ROWS if row[4] == "train"]
    ids = sorted({row[0] for row in trained}), sorted({row[1] for row in trained}, key=int)
    model: Any = load(source.task.place(MODEL))
    seen = np.array([place for place, item in enumerate(ids[1]) if item in known_items])
    whole = rank(source, rows, 1000)
    for row, result in zip(rows, whole, strict=True):
        if row["user_id"] not in known_users:
            assert set(result["above"]) == {-1} and result["length"] == 0
            continue
        scores = model.score(np.array([ids[0].index(row["user_id"])]), seen)[0]
        by_item = {ids[1][place]: score for place, score in zip(seen, scores, strict=True)}
        masked = {CATALOGUE[place] for place in row["masked"]}
        candidates = {item: score for item, score in by_item.items() if item not in masked}
        assert result["length"] == len(candidates)
        best = sorted(candidates, key=lambda item: (-candidates[item], int(item)))[:5]
        assert result["top_items"] == best
        for item, above in zip(row["item_ids"], result["above"], strict=True):
            wanted = sum(score > by_item[item] for score in candidates.values()) if item in by_item else -1
            assert above == wanted
    assert any(above > 0 for result in whole for above in result["above"])
    for size in (1, 3):
        assert rank(source, rows, size) == whole
    assert rank(source, rows[::-1], 4) == whole[::-1]


def test_vectors_of_a_fit_are_read_from_its_own_file(tmp_path: Path) -> None:
    """With the schema that Spark gets, and with the items of the catalogue that training knows."""
    settings = {"kind": "wmf", "dims": 3, "epochs": 2}
    blocks = open_source(tmp_path, settings)
    place = blocks.task.place(ITEMS)
    source = open_item_file(place, "first", blocks.catalogue)
    assert source.rows.key != open_item_file(place, "second", blocks.catalogue).rows.key
    scorer: Any = source.scorer()
    file = pq.read_table(place).to_pylist()
    assert {row["item_id"] for row in file} == {row[1] for row in ROWS if row[4] == "train"}
    for row in file:
        index = CATALOGUE.index(row["item_id"])
        assert scorer.scored_i[index] and scorer.products.vectors_id[index].tolist() == row["vector"]
    assert scorer.scored_i.sum() == len(file) and source.dims == 3
    for name, file_name in (("item_id", ITEMS), ("user_id", USERS_FILE)):
        stored = pq.read_schema(blocks.task.place(file_name))
        kinds = dict(zip(stored.names, stored.types, strict=True))
        vector = kinds.pop("vector")
        assert kinds == {name: pa.string(), "bias": pa.float64()} and vector.value_type == pa.float32()


def test_a_fit_whose_file_is_gone_is_named(tmp_path: Path) -> None:
    source = open_source(tmp_path, KINDS["mlp"])
    Path(source.task.place(MODEL)).unlink()
    with pytest.raises(DataError, match=r"model.npz is not there"):
        rank(source, make_users(), 10)
