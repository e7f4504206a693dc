"""Splits by this machine's processes: the same tables as by Spark, faults, and the choice of the runner."""

from __future__ import annotations

import io
import math
import random
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from recbench_spark.commands import split as job
from recbench_spark.config import Benchmark, make_benchmark, parse
from recbench_spark.engine import local
from recbench_spark.errors import ConfigError, DataError, EmptyPartError, FallbackToSpark
from recbench_spark.night import runners
from recbench_spark.night.runners import choose_runner
from recbench_spark.night.split import identify_split, prepare_split
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import SPLITS as TABLE
from recbench_spark.schemas import USER_BLOCKS
from recbench_spark.splits import item_counts
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.file_tables import TaskParts
from recbench_spark.storage.store import Store
from tools.compare_warehouses import main as compare

SPLITS: dict[str, dict[str, Any]] = {
    "last": {"protocol": "TO_LS", "valid": True},
    "ratio": {"protocol": "RO_RS", "ratio": [0.6, 0.2, 0.2]},
    "instants": {"order": "temporal", "group": "global", "ratio": [0.6, 0.2, 0.2]},
    "period": {"holdout": "period", "length": "2d", "valid": True},
    "folds": {"holdout": "folds", "folds": 4, "fold": 1},
    "users": {"protocol": "RO_RS", "held_out": {"of": "users", "test": 0.3}},
    "items": {"protocol": "TO_RS", "held_out": {"of": "items", "test": 0.3}},
    "repeats": {"protocol": "TO_LS", "repeats": "keep"},
}
SLICES = [{"key": "popularity", "of": "popularity"}, {"key": "cold", "of": "cold_user"}]


def write_log(folder: Path, seed: int, *, text: bool = False, **columns: Any) -> str:
    draw = random.Random(seed)
    users = [draw.randrange(40) for _ in range(900)]
    items = [min(draw.randrange(60), draw.randrange(60)) for _ in range(900)]
    made: dict[str, Any] = {
        "user_id": [f"ü{x}" for x in users] if text else users,
        "item_id": [f"i{x}" for x in items] if text else items,
        "rating": [float(draw.randrange(1, 6)) for _ in range(900)],
        "event_time": [1_600_000_000 + draw.randrange(20) * 43_000 for _ in range(900)],
    }
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table({**made, **columns}), folder / "log.parquet", row_group_size=100)
    return str(folder / "log.parquet")


def make(path: str, split: dict[str, Any], **dataset: Any) -> Benchmark:
    document = {
        "name": "drawn",
        "dataset": {"name": "log", "reader": "parquet", "path": path, "duplicates": "keep_last", **dataset},
        "split": split,
        "evaluation": {"slices": SLICES, "metrics": ["ndcg"], "k": [5]},
        "models": [{"name": "popular", "kind": "popular"}],
    }
    return make_benchmark(document, [], "test")


def split_log(store: Any, benchmark: Benchmark) -> str:
    split_id, _ = identify_split(store, benchmark)
    prepare_split(store, benchmark, split_id, Journal(io.StringIO()))
    return split_id


@pytest.mark.parametrize("name", SPLITS)
def test_tables_of_both_runners_are_the_same(spark, tmp_path: Path, monkeypatch, name: str) -> None:
    """One process in memory, two processes with files between them, and Spark."""
    seed = sorted(SPLITS).index(name)
    benchmark = make(write_log(tmp_path / "log", seed, text=bool(seed % 2)), SPLITS[name])
    places = [tmp_path / place for place in ("one", "two", "spark")]
    split_log(ArrowStore(str(places[0])), benchmark)
    monkeypatch.setattr(local, "SENT_BYTES", 0)
    monkeypatch.setattr(local, "ROWS_PER_TASK", 100)
    split_log(ArrowStore(str(places[1]), workers=2), benchmark)
    split_log(Store(spark, str(places[2])), benchmark)
    assert [compare([str(places[n]), str(places[2])]) for n in (0, 1)] == [0, 0]


def write_labels(folder: Path) -> list[dict[str, Any]]:
    """Tables with labels of each type; some users and items have none. Returns the slices."""
    draw, users = random.Random(2), [*range(30), 99]
    moments = [datetime(2020, 1, 1, 10), datetime(2020, 1, 1, 10, 0, 0, 500_000), None]
    values: dict[str, pa.Array] = {
        "double": pa.array([draw.choice([1.0, 2.5, 1e10, 1e-4, -0.0, None, math.inf]) for _ in users]),
        "float": pa.array([draw.choice([0.1, 3e8, None]) for _ in users], pa.float32()),
        "whole": pa.array([draw.choice([1, 2, None]) for _ in users]),
        "flag": pa.array([draw.choice([True, False]) for _ in users]),
        "time": pa.array([draw.choice(moments) for _ in users], pa.timestamp("us", "UTC")),
        "text": pa.array([draw.choice(["a", "b ", "ü", None]) for _ in users]),
    }
    pq.write_table(pa.table({"user_id": users, **values}), folder / "users.parquet", row_group_size=9)
    lines = [f"{item},{draw.choice(['x y', '', '2.0'])}" for item in range(50)]
    (folder / "items.csv").write_text("\n".join(["item_id,genre", *lines]))
    cuts = [{"key": name, "of": "users", "path": str(folder / "users.parquet")} for name in values]
    return [*cuts, {"key": "kind", "column": "genre", "of": "items", "path": str(folder / "items.csv")}]


def test_labels_of_tables_are_the_same(spark, tmp_path: Path) -> None:
    """Spelled as Spark's casts spell them."""
    document = make(write_log(tmp_path / "log", 8), SPLITS["last"]).model_dump(mode="json")
    document["evaluation"]["slices"] = write_labels(tmp_path)
    benchmark = parse(Benchmark, document, "test")
    for store in (ArrowStore(str(tmp_path / "one")), Store(spark, str(tmp_path / "spark"))):
        split_log(store, benchmark)
    assert compare([str(tmp_path / "one"), str(tmp_path / "spark")]) == 0
    rows = ArrowStore(str(tmp_path / "one")).rows(USER_BLOCKS)
    truth = [dict(part["slices"]) for row in rows for _, part in row["held_out"].items()]
    spelled = {key: {label for one in truth for label in one[key]} for key in truth[0]}
    users = spark.read.parquet(str(tmp_path / "users.parquet"))
    for key in ("double", "float", "whole", "flag", "time", "text"):
        texts = {row[0] for row in users.select(users[key].cast("string")).collect()}
        assert spelled[key] - {None} <= texts and len(spelled[key] - {None}) > 1, key
    assert spelled["kind"] == {"x y", "2.0", None}


def test_a_table_that_has_an_id_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "users.csv").write_text("user_id,age\n1,7\n1,8\n")
    document = make(write_log(tmp_path / "log", 8), SPLITS["last"]).model_dump(mode="json")
    document["evaluation"]["slices"] = [{"key": "age", "of": "users", "path": str(tmp_path / "users.csv")}]
    with pytest.raises(DataError, match=r"slice age: .*users.csv has a user_id twice"):
        split_log(ArrowStore(str(tmp_path / "w")), parse(Benchmark, document, "test"))


def test_a_split_that_is_there_is_not_made_again(tmp_path: Path) -> None:
    benchmark, store = make(write_log(tmp_path / "log", 1), SPLITS["last"]), ArrowStore(str(tmp_path / "w"))
    first = split_log(store, benchmark)
    versions = [path.name for path in (tmp_path / "w" / "splits" / "_delta_log").glob("*.json")]
    assert split_log(store, benchmark) == first
    assert versions == [path.name for path in (tmp_path / "w" / "splits" / "_delta_log").glob("*.json")]


@pytest.mark.parametrize("step", ["count_catalogue", "make_user_blocks", "build_manifest"])
def test_a_split_that_ended_half_way_is_completed(tmp_path: Path, monkeypatch, step: str) -> None:
    benchmark = make(write_log(tmp_path / "log", 2), SPLITS["ratio"])

    def end(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"recbench_spark.night.split.{step}", end)
        with pytest.raises(KeyboardInterrupt):
            split_log(ArrowStore(str(tmp_path / "w")), benchmark)
    for place in ("w", "whole"):
        split_log(ArrowStore(str(tmp_path / place)), benchmark)
    assert compare([str(tmp_path / "w"), str(tmp_path / "whole")]) == 0


def test_the_job_starts_no_java(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setattr("recbench_spark.runtime.session.get_session", pytest.fail)
    path = write_log(tmp_path / "log", 3)
    flags = ["--log", path, "--protocol", "TO_LS", "--warehouse", str(tmp_path / "w")]
    assert job.main(job.parser().parse_args([*flags, "--dry-run"])) == 0
    assert "engine local: 900 rows of this machine" in capsys.readouterr().out
    assert job.main(job.parser().parse_args(flags)) == 0
    out = capsys.readouterr()
    assert "engine local: 900 rows" in out.err + out.out and "content_hash" in out.out


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a catalog": (
        {},
        {"reader": "delta", "path": "shop.orders"},
        "shop.orders may be a table of a catalog",
    ),
    "a storage": (
        SPLITS["last"],
        {"reader": "csv", "path": "wasb://c@a/log.csv"},
        "log.csv is on a storage that Spark reads",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_needs_spark_is_said(tmp_path: Path, name: str) -> None:
    split, dataset, why = CASES[name]
    benchmark = make(split=split, **{"path": "", **dataset})
    choice, _ = choose_runner("auto", benchmark, str(tmp_path / "w"))
    assert choice.engine == "spark" and why in choice.why
    with pytest.raises(ConfigError, match=why) as refused:
        choose_runner("local", benchmark, str(tmp_path / "w"))
    assert refused.value.hint == "use --engine spark"


def test_large_logs_and_catalogs_go_to_spark(tmp_path: Path, monkeypatch) -> None:
    benchmark = make(write_log(tmp_path / "log", 5), SPLITS["last"])
    assert choose_runner("auto", benchmark, "catalog.schema")[0].engine == "spark"
    monkeypatch.setattr(runners, "MOST_ROWS", 899)
    choice, _ = choose_runner("auto", benchmark, str(tmp_path / "w"))
    assert choice.describe() == "engine spark: 900 rows, up to 899 are taken without it"
    assert choose_runner("local", benchmark, str(tmp_path / "w"))[0].engine == "local"
    assert choose_runner("spark", benchmark, str(tmp_path / "w"))[0].why == "as requested"


def test_a_bad_value_leaves_no_rows_and_tasks_number_a_large_catalogue(tmp_path: Path, monkeypatch) -> None:
    ratings = [1.0] * 899 + [float("nan")]
    benchmark = make(write_log(tmp_path / "log", 6, rating=ratings), SPLITS["last"])
    store = ArrowStore(str(tmp_path / "w"))
    with pytest.raises(DataError, match=r"1 rows whose 'rating' is not a finite number, e\.g\. 'NaN'"):
        split_log(store, benchmark)
    assert not store.exists("splits") or not store.read_rows(TABLE).num_rows
    benchmark = make(write_log(tmp_path / "log", 6), SPLITS["last"])
    split_log(ArrowStore(str(tmp_path / "v")), benchmark)
    monkeypatch.setattr(item_counts, "MOST_ITEMS", 5)
    split_log(ArrowStore(str(tmp_path / "w")), benchmark)
    assert compare([str(tmp_path / "v"), str(tmp_path / "w")]) == 0


def test_an_empty_part_is_refused_by_its_sizes(tmp_path: Path) -> None:
    times = [1_600_000_000] * 900
    benchmark = make(write_log(tmp_path / "log", 7, event_time=times), SPLITS["instants"])
    with pytest.raises(EmptyPartError, match="no training rows"):
        split_log(ArrowStore(str(tmp_path / "w")), benchmark)


def test_tasks_add_no_rows_beside_rules_of_a_team(tmp_path: Path) -> None:
    store = ArrowStore(str(tmp_path))
    store.create(TABLE)
    table = DeltaTable(store.location(TABLE.name))
    table.alter.add_constraint({"rated": "rating >= 0"})
    with pytest.raises(FallbackToSpark, match="table splits of the warehouse has rules"):
        store.append(TaskParts([]), TABLE, "once")
