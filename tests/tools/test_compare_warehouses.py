"""The tool that says whether two warehouses hold the same bits, on tables of three rows; no JVM."""

import copy
import math
import re
import shutil
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from recbench_spark.schemas import MANIFESTS, RUNS, TRIALS
from recbench_spark.storage.object_access import delta_options
from recbench_spark.storage.store import Store
from tests.storage.test_missing_rows import trial
from tools.compare_warehouses import main

Rows = list[dict[str, Any]]
Tables = dict[str, Rows]
TYPES = {"vector": pa.list_(pa.float32()), "shares": pa.map_(pa.string(), pa.float64())}


def tables(root: Path, started: str) -> Tables:
    """A night of two models, one run of each, that began at `started`."""
    ids = [f"{started}-20260101-{model}-0123abcd" for model in ("als-8", "pop")]
    moment = datetime.strptime(started, "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
    runs = [
        {
            "run_id": run_id, "suite": "s", "logical_date": date(2026, 1, 1), "model": model, "attempt": 1,
            "config_json": f'{{"path": "{root}/splits"}}', "seconds": moment.second / 7,
            "started_at": moment, "run_key": "key", "code_version": "1",
        }
        for run_id, model in zip(ids, ("als-8", "pop"), strict=True)
    ]  # fmt: skip
    values = zip(ids, (0.1, math.nan), (date(2026, 1, 1), None), strict=True)
    metrics = [{"run_id": i, "detail": f"see {i}.", "value": v, "day": day} for i, v, day in values]
    vectors = [
        {"id": n, "vector": [0.5, 1.0 / (n + 3)], "shares": [("head", 0.25), ("tail", n / 3)]}
        for n in (0, 1, 1)
    ]
    return {"runs": runs, "metrics": metrics, "embeddings": vectors}


def write(root: Path, every: Tables) -> Path:
    for name, rows in every.items():
        columns = {key: pa.array([row[key] for row in rows], TYPES.get(key)) for key in rows[0]}
        write_deltalake(root / name, pa.table(columns))
    return root


Change = Callable[[Tables], object]
Nights = Callable[..., list[str]]


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A night that no test changes."""
    place = tmp_path_factory.mktemp("nights") / "before"
    return write(place, tables(place, "20260102T010000"))


@pytest.fixture
def nights(before: Path, tmp_path: Path) -> Nights:
    """Make folders of two equal nights, an hour apart; one thing is changed in the second."""

    def make(change: Change = lambda tables: None) -> list[str]:
        after = tmp_path / "elsewhere" / "after"
        later = copy.deepcopy(tables(after, "20260102T020005"))
        change(later)
        later["embeddings"].reverse()
        return [str(before), str(write(after, later))]

    return make


def test_two_nights_with_equal_numbers_are_the_same(
    nights: Nights, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(nights()) == 0
    assert re.findall(r"^(\w+) +(\d) rows  (.*)$", capsys.readouterr().out, flags=re.MULTILINE) == [
        ("embeddings", "3", "same"),
        ("metrics", "2", "same"),
        ("runs", "2", "same"),
    ]


def test_pairs_by_run_have_no_order(tmp_path: Path) -> None:
    """The run that began first in one night began last in the other one."""
    for night, hours in (("a", (1, 2)), ("b", (4, 3))):
        every = [tables(tmp_path / night, f"20260102T0{hour}0000") for hour in hours]
        runs = [one["runs"][number] for number, one in enumerate(every)]
        pairs = [(row["run_id"], number / 3) for number, row in enumerate(runs)]
        write(tmp_path / night, {"runs": runs, "changes": [{"shares": sorted(pairs)}]})
    assert main([str(tmp_path / "a"), str(tmp_path / "b")]) == 0


def test_folders_may_have_odd_names_and_what_was_measured_may_differ(tmp_path: Path) -> None:
    places = [tmp_path / "plain", tmp_path / "50%20 [x]"]
    for n, place in enumerate(places):
        every = tables(place, "20260102T010000")
        measured = {"cpu_seconds": 1.0 + n, "peak_bytes": n, "predicted_seconds": 0.5 * n}
        every["runs"] = [row | measured for row in every["runs"]]
        shutil.copytree(write(tmp_path / f"source{n}", every), place)
    assert main([str(place) for place in places]) == 0


def next_float(rows: Rows) -> None:
    rows[0]["value"] = np.nextafter(rows[0]["value"], 1.0)


def next_float_in_array(rows: Rows) -> None:
    rows[2]["vector"][1] = float(np.nextafter(np.float32(rows[2]["vector"][1]), np.float32(1)))


def next_float_in_map(rows: Rows) -> None:
    rows[1]["shares"][1] = ("tail", float(np.nextafter(rows[1]["shares"][1][1], 1.0)))


def another_type(rows: Rows) -> None:
    for row in rows:
        row["value"] = str(row["value"])


@pytest.mark.parametrize(
    ("table", "change", "said"),
    [
        ("metrics", next_float, "1 rows lost, 1 new"),
        ("embeddings", next_float_in_array, "1 rows lost, 1 new"),
        ("embeddings", next_float_in_map, "1 rows lost, 1 new"),
        ("embeddings", lambda rows: rows.pop(), "1 rows lost, 0 new"),
        ("embeddings", lambda rows: rows.append(rows[0]), "0 rows lost, 1 new"),
        ("metrics", lambda rows: rows[1].update(run_id=rows[0]["run_id"]), "1 rows lost, 1 new"),
        ("metrics", lambda rows: rows[1].update(value=None), "1 rows lost, 1 new"),
        ("metrics", another_type, "1 rows lost, 1 new; other columns"),
        ("runs", lambda rows: rows[0].update(run_key="other"), "1 rows lost, 1 new"),
    ],
)
def test_whatever_differs_is_found(
    nights: Nights,
    capsys: pytest.CaptureFixture[str],
    table: str,
    change: Callable[[Rows], object],
    said: str,
) -> None:
    assert main(nights(lambda later: change(later[table]))) == 1
    lines = re.findall(r"^(\w+) .* rows  (.*)$", capsys.readouterr().out, flags=re.MULTILINE)
    assert {name: verdict for name, verdict in lines if verdict != "same"} == {table: said}


NESTED = pa.schema([
    ("number", pa.float64()), ("small", pa.float32()), ("text", pa.string()), ("day", pa.date32()),
    ("list", pa.list_(pa.float64())), ("lists", pa.list_(pa.list_(pa.string()))),
    ("pairs", pa.map_(pa.string(), pa.list_(pa.int64()))),
    ("parts", pa.struct([("b", pa.float64()), ("a", pa.string())])),
])  # fmt: skip


def make_rows() -> Rows:
    numbers = [0.0, -0.0, math.nan, None, 0.1]
    return [
        {
            "number": numbers[n % 5],
            "small": n / 3,
            "text": [None, "", "null"][n % 3],
            "day": date(2026, 1, 1 + n % 9),
            "list": [None, [], [None], numbers][n % 4],
            "lists": [[], [["a", "b"], []], [["a,b"]]][n % 3],
            "pairs": [None, [], [("x", [n]), ("y", None)]][n % 3],
            "parts": [None, {"a": "s", "b": 0.5}][n % 2],
        }
        for n in range(60)
    ]


@pytest.fixture(scope="module")
def rows_in_order(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table that no test changes, and that equals itself."""
    place = str(tmp_path_factory.mktemp("rows") / "a")
    write_deltalake(f"{place}/t", pa.Table.from_pylist(make_rows(), NESTED))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tools.compare_warehouses.ROWS_AT_ONCE", 7)
        assert main([place, place]) == 0
    return place


@pytest.mark.parametrize(
    ("row", "column", "value"),
    [
        (0, "number", -0.0),
        (3, "number", math.nan),
        (1, "small", 1 / 3 + 1e-7),
        (0, "text", ""),
        (2, "text", None),
        (0, "list", []),
        (1, "list", [None]),
        (2, "list", [None, None]),
        (3, "list", [-0.0, 0.0, math.nan, None, 0.1]),
        (0, "lists", [[]]),
        (1, "lists", [["a"], ["b"]]),
        (2, "lists", [["a", "b"]]),
        (0, "pairs", []),
        (2, "pairs", [("x", [2]), ("y", [])]),
        (1, "parts", {"a": "s", "b": None}),
        (0, "parts", {"a": None, "b": None}),
    ],
)
def test_every_value_counts_and_no_order(
    rows_in_order: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    row: int,
    column: str,
    value: Any,
) -> None:
    """Rows lie in several batches, which are slices of longer ones."""
    monkeypatch.setattr("tools.compare_warehouses.ROWS_AT_ONCE", 7)
    later = make_rows()
    later[5]["pairs"].reverse()
    later[row][column] = value
    write_deltalake(tmp_path / "t", pa.Table.from_pylist(later[::-1], NESTED))
    assert main([rows_in_order, str(tmp_path)]) == 1
    assert "1 rows lost, 1 new" in capsys.readouterr().out


def test_a_schema_of_a_catalog_is_compared_by_its_name(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """First tables that lie in a folder, then those that Spark alone reads."""
    schema, folder = "spark_catalog.recbench_compare_test", Store(spark, str(tmp_path / "folder"))
    spark.sql(f"CREATE SCHEMA {schema} LOCATION '{tmp_path / 'schema'}'")
    try:
        for store in (folder, Store(spark, schema)):
            store.append([trial(1), trial(2)], TRIALS)
            store.append([{"split_id": "s", "part": "log", "fact": "rows", "value": 1.0}], MANIFESTS)
        assert main([folder.root, schema]) == 0
        elsewhere = Store(spark, str(tmp_path / "elsewhere"))
        for store in (folder, elsewhere):
            store.create(RUNS)
        spark.sql(f"CREATE TABLE {schema}.runs USING delta LOCATION '{elsewhere.location('runs')}'")
        named = Store(spark, schema)
        assert named.in_catalog and main([folder.root, schema]) == 0
        spark.sql(f"ALTER TABLE {schema}.manifests ADD COLUMNS (extra STRING)")
        capsys.readouterr()
        assert main([folder.root, schema]) == 1
        assert (
            "other columns\n" in (said := capsys.readouterr().out) and "  + column extra string\n" in said
        )
        spark.sql(f"ALTER TABLE delta.`{folder.location('manifests')}` ADD COLUMNS (extra STRING)")
        assert main([folder.root, schema]) == 0
        named.append([trial(3)], TRIALS)
        assert main([folder.root, schema]) == 1
    finally:
        spark.sql(f"DROP SCHEMA {schema} CASCADE")


def test_a_lost_table_is_found_and_named(nights: Nights, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = nights()
    write(Path(after), {"changes": [{"run_id": "x"}]})
    assert (main([after, before]), main([before, after])) == (1, 1)
    assert (
        "changes                          1 rows  1 rows lost, 0 new; other columns"
        in capsys.readouterr().out
    )


def test_another_version_of_the_code_may_be_left_out(nights: Nights) -> None:
    folders = nights(lambda later: later["runs"][0].update(code_version="2", run_key="k"))
    assert main(folders) == 1
    assert main([*folders, "--other-code"]) == 0


def test_a_folder_that_is_no_warehouse_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no table in"):
        main([str(tmp_path), str(tmp_path)])


def test_a_warehouse_in_object_storage_is_compared_by_its_uri(bucket: str, tmp_path: Path) -> None:
    place, hadoop = f"{bucket}/team/w", f"{bucket.replace('s3:', 's3a:')}/team/w"
    before = str(write(tmp_path / "w", tables(tmp_path / "w", "20260102T010000")))
    every = tables(Path("PLACE"), "20260102T020005")
    for row in every["runs"]:  # Hadoop has another name for it
        row["config_json"] = row["config_json"].replace("PLACE", hadoop)
    for name, rows in every.items():
        columns = {key: pa.array([row[key] for row in rows], TYPES.get(key)) for key in rows[0]}
        options = delta_options(place)
        write_deltalake(f"{place}/{name}", pa.table(columns), storage_options=options)
    assert main([before, place]) == 0
    assert main([before, f"{place}/"]) == 0
