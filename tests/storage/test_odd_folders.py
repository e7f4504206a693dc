"""Delta tables and files in folders of odd names, read and written without a JVM."""

from __future__ import annotations

import os
import re
import shutil
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyarrow import fs
from pyarrow.dataset import FileSystemDataset

from recbench_spark.errors import StoreError
from recbench_spark.graphs.edges import open_rows
from recbench_spark.graphs.vectors import PREFIX, list_committed
from recbench_spark.night.report import _pandas_command
from recbench_spark.schemas import CHECKS, RUNS
from recbench_spark.sources import arrow_files
from recbench_spark.sources.delta_snapshots import read_snapshot
from recbench_spark.storage import delta_files
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.delta_tables import count_rows, list_files, open_for_write, read_dataset
from recbench_spark.storage.objects import read_bytes, write_bytes
from recbench_spark.storage.shared_arrays import SharedRows
from recbench_spark.storage.table_upkeep import vacuum_files

NAMES = (
    "plain", "a b", "é日本", "e\u0301", "100%20x", "50% off", "%2F", "a+b", "it's", "#h", "q?x", "[x]",
    "{a,b}", "*", "x;y", "a,b", "a=b", "-dash", "a:b", "a&b", '"q"', "`id`", "~", "^c", "a|b", "<x>",
    "a\\b", "$HOME", "a@b", "tab\tx", "new\nline", "_hidden", ".hidden", "trail ", "\u00a0", "a" * 200,
    "a b é %20 #1 [x] 'q' +& `b`",
)  # fmt: skip

ROWS = pa.table({"src": ["a", "b"], "dst": ["c", "d"], "day": ["1 %20", "2"]})


@pytest.fixture(params=NAMES, ids=[repr(name)[:30] for name in NAMES])
def folder(request, tmp_path) -> Path:
    place = tmp_path / request.param
    place.mkdir()
    return place


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table under a plain name."""
    place = tmp_path_factory.mktemp("plain") / "source"
    write_deltalake(place, ROWS, partition_by=["day"])
    return place


def put_table(folder: Path, source: Path) -> str:
    """Copy a table to an odd name, which `deltalake` itself may not know."""
    shutil.copytree(source, folder / "table")
    return str(folder / "table")


def test_rows_without_statistics_are_not_counted(tmp_path, source) -> None:
    """The log of a table may say of no file how many rows it has; then None tells to read them."""
    place = put_table(tmp_path, source)
    assert count_rows(place, {"day": "2"}) == count_rows(place, {"day": "1 %20"}) == 1
    commit = Path(place, "_delta_log", "00000000000000000000.json")
    commit.write_text(re.sub(r'"stats":"(\\.|[^"\\])*"', '"stats":null', commit.read_text()))
    assert count_rows(place, {"day": "2"}) is None


def test_files_of_a_partition_are_where_the_list_says(folder, source) -> None:
    place = put_table(folder, source)
    for day, src in (("1 %20", ["a"]), ("2", ["b"])):
        (file,) = list_files(place, {"day": day})
        assert Path(file).is_relative_to(folder)
        assert pq.read_table(file, partitioning=None).column("src").to_pylist() == src
        assert count_rows(place, {"day": day}) == 1
    assert count_rows(place, {"day": "3"}) == 0
    assert list_files(place, {"day": "3"}) == []
    rows = SharedRows("key", tuple(list_files(place, {"day": "2"}))).dataset().to_table()
    assert rows.column("dst").to_pylist() == ["d"]


def test_readers_open_a_table(folder, source) -> None:
    place = put_table(folder, source)
    assert delta_files.read_rows(place, [("src", "=", "b")]).column("dst").to_pylist() == ["d"]
    assert delta_files.partition_values(place, "day") == ["1 %20", "2"]
    assert delta_files.read_column_values(place, "src") == {"a", "b"}
    assert read_snapshot(place) == read_snapshot(str(source))
    assert arrow_files.open_path(place).table.num_rows == arrow_files.estimate_rows(place) == 2
    edges = open_rows(place, ["src", "dst"], "edges", partitions={"day": "2"})
    assert [Path(piece.file).is_relative_to(folder) for piece in edges.pieces] == [True]
    (rows,) = edges.chunks(edges.pieces)
    assert rows.column("src").to_pylist() == ["b"]


def test_rows_are_appended_once_and_checked(folder) -> None:
    store = ArrowStore(str(folder / "w"))
    row = {"check": "c", "severity": "warning", "passed": True, "run_id": "r"}
    store.append([row], CHECKS)
    store.append([row | {"run_id": "s"}], CHECKS)
    again = ArrowStore(str(folder / "w"))
    assert sorted(check["run_id"] for check in again.rows(CHECKS)) == ["r", "s"]
    place, rows = again.location("checks"), again.read_rows(CHECKS)
    assert delta_files.append_rows(place, rows, "once")
    assert not delta_files.append_rows(place, rows, "once")
    assert delta_files.append_missing(place, rows, ["run_id"]) == 0
    delta_files.replace_rows(place, rows.slice(0, 1), "run_id", str(rows["run_id"][0]))
    assert again.read_rows(CHECKS).num_rows == 3
    names = rows.schema.get_field_index("run_id")
    others = rows.set_column(names, rows.schema.field(names), pa.array(["t", "u"]))
    assert delta_files.append_missing(place, others, ["run_id"]) == 2
    assert again.read_rows(CHECKS).num_rows == 5
    assert {file.name for file in (folder / "w").iterdir()} == {"checks"}
    for file in list_files(place, {}):
        assert Path(file).is_file() and Path(file).is_relative_to(folder / "w" / "checks")


def test_a_row_that_a_constraint_forbids_is_refused(folder) -> None:
    store = ArrowStore(str(folder / "w"))
    store.create(RUNS)
    with pytest.raises(StoreError, match="cannot write"):
        store.append([{"run_id": "r", "status": "nonsense"}], RUNS)
    assert store.read_rows(RUNS).num_rows == 0
    assert [entry.name for entry in (folder / "w" / "runs").iterdir()] == ["_delta_log"]


def test_files_of_tasks_are_committed(folder) -> None:
    place = str(folder / "table")
    write_deltalake(folder.parent / "source", ROWS.slice(0, 0), partition_by=["day"])
    shutil.copytree(folder.parent / "source", place)
    assert delta_files.can_commit(place) and delta_files.can_append(place)
    file = delta_files.write_file(ROWS.slice(1), place, {"day": "2"}, ["src", "dst"])
    delta_files.require_visible(place, [file])
    assert delta_files.commit(place, [file], {"day": "2"}, "first")
    assert delta_files.is_committed(place, "first")
    assert not delta_files.commit(place, [file], {"day": "2"}, "first")
    assert delta_files.read_rows(place).to_pylist() == [{"src": "b", "dst": "d", "day": "2"}]


def test_a_vacuum_removes_old_files_that_no_version_names(folder, source) -> None:
    place = put_table(folder, source)
    kept = list_files(place)
    old, young = Path(place, "day=2", "part-old [1] %20.parquet"), Path(place, "part-young.parquet")
    for file in (old, young):
        file.write_bytes(b"of a killed writer")
    for name in (old, *kept):
        os.utime(name, (0, 0))
    vacuum_files(place, 24)
    assert not old.exists() and young.exists()
    assert sorted(map(str, Path(place).rglob("*.parquet"))) == sorted([str(young), *kept])


def test_blocks_of_vectors_are_found(folder, source) -> None:
    place = put_table(folder, source)
    file = delta_files.write_file(ROWS.slice(1), place, {"day": "2"}, ["src"])
    name = f"day=2/{PREFIX}00003of4-x.parquet"
    Path(place, file.path).rename(Path(place, name))
    delta_files.commit(place, [file._replace(path=name)], {"day": "2"}, "block")
    assert list_committed(place, {"day": "2"}, 4) == {3: str(Path(place, name))}


def test_bytes_are_written_and_read(folder) -> None:
    for place in (f"{folder}/notes/facts.json", f"file://{folder}/notes/facts.json"):
        write_bytes(place, place.encode())
        assert read_bytes(place) == place.encode()
        assert (folder / "notes" / "facts.json").read_bytes() == place.encode()
    assert read_bytes(f"{folder}/notes/none.json") is None


def test_shared_rows_map_their_files(folder, monkeypatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(folder / "local"))
    pq.write_table(pa.table({"x": [1, 2]}), folder / "rows.parquet")
    key = f"odd-folder-{os.getpid()}-{folder.name.encode().hex()[:40]}"
    rows = SharedRows(key, (str(folder / "rows.parquet"),))

    def build(dataset, place) -> None:
        np.save(place / "x.npy", dataset.to_table().column("x").to_numpy())

    assert rows.arrays(build)["x"].tolist() == [1, 2]


def test_writers_at_once_lose_nothing(tmp_path, source) -> None:
    folder = tmp_path / "100%20[x]"
    place = put_table(folder, source)
    with pytest.raises(FileExistsError), open_for_write(place) as late:
        assert delta_files.append_rows(place, ROWS, "other")
        write_deltalake(late, ROWS, mode="append")
    assert delta_files.read_rows(place).num_rows == 4


def test_one_module_opens_tables_and_few_take_paths_from_spark() -> None:
    places = {
        r"\bDeltaTable\(": {"storage/delta_tables.py"},
        r"\.file_uris\(": set(),
        r"\.inputFiles\(\)": {"sources/readers/paths.py"},
        r"\.read\.parquet\(": set(),
        r"\bdelta\.[`{]": {"storage/table_sql.py"},
    }
    package = Path(delta_files.__file__).parents[1]
    texts = {file.relative_to(package).as_posix(): file.read_text() for file in package.rglob("*.py")}
    for pattern, allowed in places.items():
        assert {name for name, text in texts.items() if re.search(pattern, text)} == allowed, pattern


FACTS = {"suite": "s", "dataset": "d", "status": "succeeded", "finished_at": 1, "attempt": 1}
NUMBER = {"run_id": "r", "metric": "ndcg", "estimator": "holdout", "definition": "v1", "k": 10,
          "slice_key": "", "part": "test", "value": 0.625, "ci_low": 0.5, "ci_high": 0.75}  # fmt: skip


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warehouse under a plain name, with one run and its number."""
    place = tmp_path_factory.mktemp("plain") / "results"
    run = {"run_id": "r", "logical_date": "2026-01-01", "model": "als", "split_id": "x", **FACTS}
    for name, row in (("runs", run), ("metrics", NUMBER)):
        rows = pa.table({key: pa.array([value]) for key, value in row.items()})
        if name == "metrics":
            rows = rows.drop_columns("slice_key").append_column("slice_key", pa.array([None], pa.string()))
        write_deltalake(place / name, rows)
    return place


def test_the_line_of_python_that_a_night_prints_reads_the_numbers(folder, results, capsys) -> None:
    shutil.copytree(results, folder / "w")
    names = ("suite", "dataset", "metric", "estimator", "definition")
    chosen = {name: {**FACTS, **NUMBER}[name] for name in names}
    code = _pandas_command(str(folder / "w"), chosen, 10, date(2026, 1, 1))
    exec(code, {})
    printed = capsys.readouterr().out
    assert "als" in printed and "0.625" in printed


@pytest.mark.parametrize("name", ["plain", "odd [1] é"])
def test_arrow_alone_reads_a_folder(tmp_path: Path, name: str) -> None:
    """Threads that read through Python wait for its lock, which a starting scanner holds."""
    write_deltalake(tmp_path / "made", pa.table({"n": [1, 2, 3]}))
    (tmp_path / "made").rename(tmp_path / name)
    opened = read_dataset(tmp_path / name)
    assert opened.to_table().column("n").to_pylist() == [1, 2, 3]
    assert isinstance(opened, FileSystemDataset) and not isinstance(opened.filesystem, fs.PyFileSystem)
