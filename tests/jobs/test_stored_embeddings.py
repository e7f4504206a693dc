"""A model of a warehouse is an input: its rows of `embeddings`, by the table's log, in both engines."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from recbench_spark import cli
from recbench_spark.commands import evaluate as job
from recbench_spark.commands import nightly
from recbench_spark.core.strict_settings import parse
from recbench_spark.errors import ConfigError
from recbench_spark.models.settings import EmbeddingsModel
from recbench_spark.sources import arrow_files
from recbench_spark.storage.table_scans import find_partition

DIMS = 4


def run(*words: object) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.run(job.main, job.parser(), [*map(str, words)])
    return int(ended.value.code or 0)


def write_model(folder: Path, model_id: str, seed: int, sides: tuple[str, str] = ("user", "item")) -> None:
    """Add a model to the table `embeddings`, and write the same vectors beside it as Parquet."""
    rng = np.random.default_rng(seed)
    for side, name, n in (*zip(sides, ("user", "item"), (20, 30), strict=True),):
        ids, vectors = list(map(str, range(n))), list(rng.standard_normal((n, DIMS)).astype(np.float32))
        rows = {
            "model_id": [model_id] * n,
            "side": [side] * n,
            "id": ids,
            "vector": vectors,
            "bias": [0.0] * n,
        }
        write_deltalake(
            folder / "w" / "embeddings", pa.table(rows), mode="append", partition_by=["model_id", "side"]
        )
        pq.write_table(
            pa.table({f"{name}_id": ids, "vector": vectors}), folder / f"{model_id}-{name}.parquet"
        )


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("stored"), np.random.default_rng(4)
    for name, n in (("truth", 60), ("train", 80)):
        pairs = {
            "user_id": rng.integers(0, 20, n).astype(str),
            "item_id": rng.integers(0, 30, n).astype(str),
        }
        pq.write_table(
            pa.table(pairs).group_by(["user_id", "item_id"]).aggregate([]), folder / f"{name}.parquet"
        )
    pairs = {"query_id": ["1", "2", "3"], "item_id": ["4", "5", "6"]}
    pq.write_table(pa.table(pairs), folder / "pairs.parquet")
    write_model(folder, "one", 1)
    write_model(folder, "two", 2)
    stray = folder / "w" / "embeddings" / "model_id=one" / "side=user" / "stray.parquet"
    stray.write_bytes(next(stray.parent.glob("*.parquet")).read_bytes())  # no version of the table names it
    return folder


def read_metrics(warehouse: Path) -> dict[str, str]:
    rows = DeltaTable(warehouse / "metrics").to_pandas()
    return {
        f"{row.metric}@{row.k} {row.slice_key}={row.slice_value}": repr(row.value)
        for row in rows.itertuples()
    }


def evaluate(files: Path, place: Path, *tables: object, engine: str = "local") -> int:
    more = ("--bootstrap", 0, "--k", "1,3", "--metrics", "ndcg,recall", "--engine", engine)
    flags = ("--warehouse", place, "--model", "m", "--truth", files / "truth.parquet", *more)
    return run(*flags, "--train", files / "train.parquet", "--embeddings", *tables)


@pytest.mark.parametrize("engine", ["local", pytest.param("spark", marks=pytest.mark.spark)])
@pytest.mark.parametrize("place", ["w", "w/embeddings"])
def test_a_model_of_a_warehouse_has_the_numbers_of_its_vectors(
    place, engine, files, tmp_path, request
) -> None:
    if engine == "spark":
        request.getfixturevalue("spark")
    for model in ("one", "two"):
        sides = [files / f"{model}-{side}.parquet" for side in ("user", "item")]
        assert evaluate(files, tmp_path / model, *sides) == 0
        given = (files / place, "--model-id", model)
        assert evaluate(files, tmp_path / f"{model}-stored", *given, engine=engine) == 0
        assert read_metrics(tmp_path / model) == read_metrics(tmp_path / f"{model}-stored")
    assert read_metrics(tmp_path / "one") != read_metrics(tmp_path / "two")


def test_one_model_needs_no_name_and_pairs_need_items_alone(files, tmp_path) -> None:
    write_model(tmp_path, "only", 3)
    assert evaluate(files, tmp_path / "a", tmp_path / "w") == 0
    flags = ("--model", "m", "--pairs", files / "pairs.parquet", "--k", "1,3", "--bootstrap", 0)
    assert run("--warehouse", tmp_path / "b", *flags, "--embeddings", tmp_path / "w") == 0
    assert run("--warehouse", tmp_path / "c", *flags, "--embeddings", tmp_path / "only-item.parquet") == 0
    assert read_metrics(tmp_path / "b") == read_metrics(tmp_path / "c")
    rows = pq.read_table(tmp_path / "only-item.parquet")
    nodes = {"model_id": ["m"] * 30, "side": ["node"] * 30, "id": rows["item_id"], "vector": rows["vector"]}
    write_deltalake(tmp_path / "graph" / "embeddings", pa.table(nodes), partition_by=["model_id", "side"])
    assert run("--warehouse", tmp_path / "d", *flags, "--embeddings", tmp_path / "graph") == 0
    assert read_metrics(tmp_path / "d") == read_metrics(tmp_path / "c"), "of a graph with one side"


def test_what_a_warehouse_does_not_have_is_said(files, tmp_path, capsys) -> None:
    assert evaluate(files, tmp_path / "a", files / "w") == 2
    error = capsys.readouterr().err
    assert "w/embeddings has vectors of 2 models" in error and "--model-id ID, of one, two" in error
    assert evaluate(files, tmp_path / "a", files / "w", "--model-id", "on") == 2
    assert "--model-id on: no such model in" in (error := capsys.readouterr().err) and "'one'" in error
    write_model(tmp_path, "pins", 3, ("board", "pin"))
    assert evaluate(files, tmp_path / "a", tmp_path / "w") == 2
    error = capsys.readouterr().err
    assert "has vectors of board and pin, none of user and item" in error and "--sides user,item" in error
    assert evaluate(files, tmp_path / "a", files / "one-user.parquet") == 2
    error = capsys.readouterr().err
    assert "--embeddings has one table, and two are needed: users and items" in error
    assert "--embeddings WAREHOUSE [--model-id ID]" in error
    two = (files / "one-user.parquet", files / "one-item.parquet", "--model-id", "one")
    assert evaluate(files, tmp_path / "a", *two) == 2
    assert "--model-id names a model of a warehouse" in capsys.readouterr().err


def test_a_partition_has_the_rows_of_the_log_and_an_identity_of_its_own(files, tmp_path) -> None:
    place = str(files / "w" / "embeddings" / "model_id=one" / "side=user")
    assert find_partition(place) == (str(files / "w" / "embeddings"), {"model_id": "one", "side": "user"})
    assert find_partition(str(files / "w" / "embeddings")) is None and find_partition(str(tmp_path)) is None
    assert arrow_files.estimate_rows(place) == 20, "not the stray file"
    before = arrow_files.identity(place)
    write_model(files, "three", 5)
    assert arrow_files.identity(place) == before, "another model is another partition"
    assert arrow_files.identity(place.replace("=one", "=two")) != before


def test_a_night_names_a_model_of_a_warehouse() -> None:
    keys = {"name": "m", "kind": "embeddings", "warehouse": "w", "model_id": "a1"}
    model = parse(EmbeddingsModel, keys, "models")
    assert model.users == "w/embeddings/model_id=a1/side=user"
    assert model.items == "w/embeddings/model_id=a1/side=item"
    plain = {"name": "m", "kind": "embeddings", "users": model.users, "items": model.items}
    assert parse(EmbeddingsModel, plain, "models").model_dump() == model.model_dump()
    for wrong in ({"model_id": None}, {"warehouse": None}, {"items": "i"}):
        with pytest.raises(ConfigError, match="warehouse and model_id belong together"):
            parse(EmbeddingsModel, {**keys, **wrong}, "models")


def test_a_dry_run_looks_at_the_rows_of_the_model(files, tmp_path, capsys) -> None:
    log = {
        "user_id": ["1", "1", "2"],
        "item_id": ["3", "4", "3"],
        "event_time": [10**9, 10**9 + 1, 10**9 + 2],
    }
    pq.write_table(pa.table(log), tmp_path / "log.parquet")
    document = {
        "name": "stored",
        "dataset": {"name": "log", "reader": "parquet", "path": str(tmp_path / "log.parquet")},
        "models": [{"name": "m", "kind": "embeddings", "warehouse": str(files / "w"), "model_id": "one"}],
    }
    (tmp_path / "night.yaml").write_text(json.dumps(document))
    flags = ["--config", str(tmp_path / "night.yaml"), "--warehouse", str(tmp_path / "n"), "--dry-run"]
    with pytest.raises(SystemExit) as ended:
        cli.run(nightly.main, nightly.parser(), [*flags, "--logical-date", "2026-01-01"])
    printed = capsys.readouterr()
    assert not ended.value.code, printed.err
    assert "model_id=one/side=user: 20 rows" in printed.out and f"{DIMS} dimensions" in printed.out
