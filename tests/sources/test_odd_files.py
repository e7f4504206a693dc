"""Files that a reader can take for something else: each is read as it is, or refused by what it is.

Both engines read each of them: the same rows, or the same sentence.
"""

from __future__ import annotations

import bz2
import gzip
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recbench_spark.config import Dataset
from recbench_spark.engine.local import LocalEngine
from recbench_spark.engine.sessions import SparkEngine
from recbench_spark.errors import FallbackToSpark, RecbenchError
from recbench_spark.graphs.edges import open_rows
from recbench_spark.sources import arrow_files, columnar, input_rows
from recbench_spark.sources.column_names import ColumnNames
from recbench_spark.sources.input_rows import check_input, open_input
from recbench_spark.sources.readers import paths
from recbench_spark.storage.local_files import HEAD_BYTES, parquet_error
from tests.labelled import id_order, open_log

Files = Mapping[str, Any]
"""Name below a folder -> text, bytes, or columns of Parquet."""


def lay(folder: Path, files: Files) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str | bytes):
            raw = content.encode() if isinstance(content, str) else content
            if path.suffix in (".zst", ".lz4"):
                raw = bytes(pa.Codec.detect(path.name).compress(raw))
            path.write_bytes({".gz": gzip.compress, ".bz2": bz2.compress}.get(path.suffix, bytes)(raw))
        else:
            pq.write_table(pa.table(content), path)
    return folder


def half(*rows: list[float]) -> pa.Array:
    return pa.array([np.array(row, np.float16) for row in rows], pa.list_(pa.float16()))


def small(values: list[int]) -> pa.Array:
    return pa.array(values, pa.int32())


# --------------------------------------------------------------------------------------- logs

COUNTED = {"a": 2.0, "b": 3.0}
ANN = {"user_id": ["ann"], "item_id": ["a"]}
BOB = {"user_id": ["bob"], "item_id": ["b"]}

LOGS: dict[str, tuple[Files, str, dict[str, Any], Any]] = {
    # files, path, settings, (user, item, rating) of the rows or the error
    "csv: columns in another order": (
        {"l/a.csv": "user_id,item_id,rating\nann,a,2\n", "l/b.csv": "item_id,rating,user_id\nb,3,bob\n"},
        "l",
        {},
        [("ann", "a", 2.0), ("bob", "b", 3.0)],
    ),
    "csv: names in the first file only": (
        {"l/a.csv": "user_id,item_id,rating\nann,a,2\n", "l/b.csv": "bob,b,3\ncid,c,4\n"},
        "l",
        {},
        "a.csv begins with 'user_id,item_id,rating', b.csv with 'bob,b,3': no name of a column in common",
    ),
    "csv: names in the last file only": (
        {"l/a.csv": "bob,b,3\n", "l/b.csv": "user_id,item_id,rating\nann,a,2\n"},
        "l",
        {},
        "a.csv begins with 'bob,b,3', b.csv with 'user_id,item_id,rating': no name of a column in common",
    ),
    "csv: a rating in later files only": (
        {"l/a.csv": "user_id,item_id\nann,a\n", "l/b.csv": "user_id,item_id,rating\nbob,b,3\n"},
        "l",
        {},
        "1 rows whose 'rating' is not a finite number, e.g. a missing value in a.csv",
    ),
    "csv: Rating beside rating": (
        {"l/a.csv": "user_id,item_id,Rating\nann,a,2\n", "l/b.csv": "user_id,item_id,rating\nbob,b,3\n"},
        "l",
        {},
        "names that differ in case alone",
    ),
    "csv: Rating alone": (
        {"l.csv": "user_id,item_id,Rating\nann,a,2\n"},
        "l.csv",
        {},
        "column Rating is not read: rating is expected",
    ),
    "csv: Rating alone, named": (
        {"l.csv": "user_id,item_id,Rating\nann,a,2\n"},
        "l.csv",
        {"columns": {"rating": "Rating"}},
        [("ann", "a", 2.0)],
    ),
    "csv: an empty file, a mark of byte order, other line ends": (
        {
            "l/a.csv": "",
            "l/b.csv": "\ufeffuser_id,item_id,rating\nann,a,2\n",
            "l/c.csv.gz": "item_id,user_id,rating\r\nb,bob,3\r\n",
        },
        "l",
        {},
        [("ann", "a", 2.0), ("bob", "b", 3.0)],
    ),
    "csv: partition folders of ids": (
        {f"l/user_id={name}/x.csv": "item_id,rating\na,2\n" for name in ("007", "07", "7")},
        "l",
        {},
        [("007", "a", 2.0), ("07", "a", 2.0), ("7", "a", 2.0)],
    ),
    "parquet: partition folders of ids": (
        {f"l/user_id={name}/x.parquet": {"item_id": ["a"], "rating": [2.0]} for name in ("007", "07", "7")},
        "l",
        {"reader": "parquet"},
        [("007", "a", 2.0), ("07", "a", 2.0), ("7", "a", 2.0)],
    ),
    "parquet: a rating in later files only": (
        {"l/a.parquet": ANN, "l/b.parquet": {**BOB, "rating": [3.0]}},
        "l",
        {"reader": "parquet"},
        "1 rows whose 'rating' is not a finite number, e.g. a missing value in a.parquet",
    ),
    "parquet: a time in later files only": (
        {"l/a.parquet": ANN, "l/b.parquet": {**BOB, "event_time": [3]}},
        "l",
        {"reader": "parquet"},
        "1 rows whose 'event_time' is not a time in s, e.g. a missing value in a.parquet",
    ),
    "parquet: Rating beside rating": (
        {"l/a.parquet": {**ANN, "Rating": [2.0]}, "l/b.parquet": {**BOB, "rating": [3.0]}},
        "l",
        {"reader": "parquet"},
        "column Rating in a.parquet and rating in b.parquet differ in case alone",
    ),
    "parquet: Rating and rating in one file": (
        {"l.parquet": {**ANN, "Rating": [2.0], "rating": [3.0]}},
        "l.parquet",
        {"reader": "parquet"},
        "columns Rating and rating differ in case alone",
    ),
    "parquet: Rating alone": (
        {"l.parquet": {**ANN, "Rating": [2.0]}},
        "l.parquet",
        {"reader": "parquet"},
        "column Rating is not read: rating is expected",
    ),
    "parquet: whole numbers, then floats": (
        {
            "l/a.parquet": {"user_id": [7], "item_id": small([1]), "rating": [2]},
            "l/b.parquet": {"user_id": [8.0], "item_id": [2], "rating": [2.5]},
            "l/c.parquet": {"user_id": small([9]), "item_id": [3], "rating": pa.array([1.5], pa.float32())},
        },
        "l",
        {"reader": "parquet"},
        [("7", "1", 2.0), ("8", "2", 2.5), ("9", "3", 1.5)],
    ),
    "parquet: whole numbers that floats do not hold": (
        {
            "l/a.parquet": {"user_id": [2**53 + 1], "item_id": [1]},
            "l/b.parquet": {"user_id": [8.0], "item_id": [2]},
        },
        "l",
        {"reader": "parquet"},
        "1 rows whose 'user_id' is not an id",
    ),
    "parquet: numbers, then texts": (
        {
            "l/a.parquet": {"user_id": [7], "item_id": [1]},
            "l/b.parquet": {"user_id": ["8"], "item_id": [2]},
        },
        "l",
        {"reader": "parquet"},
        "column user_id is of type int64 in a.parquet, string in b.parquet",
    ),
    "parquet: a note of another type, which is not read": (
        {"l/a.parquet": {**ANN, "note": [7]}, "l/b.parquet": {**BOB, "note": ["x"]}},
        "l",
        {"reader": "parquet"},
        [("ann", "a", 1.0), ("bob", "b", 1.0)],
    ),
    "a name that is a pattern of another file": (
        {"r[1].csv": "user_id,item_id,rating\nann,a,2\n", "r1.csv": "user_id,item_id,rating\nbob,b,3\n"},
        "r[1].csv",
        {},
        [("ann", "a", 2.0)],
    ),
    "a folder that is a pattern of others": (
        {"{a,b}*?/x.parquet": {**ANN, "rating": [2.0]}, "a/x.parquet": {**BOB, "rating": [3.0]}},
        "{a,b}*?",
        {"reader": "parquet", "attributes": ("rating",)},
        [("ann", "a", 2.0)],
    ),
    "movielens in a folder that is a pattern": (
        {"m[1]/u.data": "1\t2\t3\t4\n", "m1/u.data": "9\t9\t9\t9\n"},
        "m[1]",
        {"reader": "movielens_100k"},
        [("1", "2", 3.0)],
    ),
    "netflix in a folder that is a pattern": (
        {"n[1]/mv_0000007.txt": "7:\n5,4,2005-01-02\n", "n1/mv_0000007.txt": "7:\n6,1,2005-01-03\n"},
        "n[1]",
        {"reader": "netflix"},
        [("5", "7", 4.0)],
    ),
    "bz2": ({"l.csv.bz2": "user_id,item_id,rating\nann,a,2\n"}, "l.csv.bz2", {}, [("ann", "a", 2.0)]),
    "a folder of tsv": (
        {"l/a.tsv": "user_id\titem_id\trating\nann\ta\t2\n"},
        "l",
        {},
        [("ann", "a", 2.0)],
    ),
    "csv and tsv in one folder": (
        {"l/a.tsv": "user_id\titem_id\nann\ta\n", "l/b.csv": "user_id,item_id\nbob,b\n"},
        "l",
        {},
        "a.tsv and b.csv are of two formats",
    ),
    "delimiter": (
        {"l.csv": "user_id;item_id;rating\nann;a;2\n"},
        "l.csv",
        {"options": {"delimiter": ";"}},
        [("ann", "a", 2.0)],
    ),
    "charset": (
        {"l.csv": "user_id,item_id\nänn,a\n".encode("latin-1")},
        "l.csv",
        {"options": {"charset": "ISO-8859-1"}},
        [("änn", "a", 1.0)],
    ),
    "sep and delimiter": (
        {"l.csv": "user_id;item_id\nann;a\n"},
        "l.csv",
        {"options": {"delimiter": ";", "sep": ","}},
        "one option, with two values",
    ),
    "lines before the names": (
        {"l.csv": "exported on Monday\n\nuser_id,item_id,rating\nann,a,2\n"},
        "l.csv",
        {},
        "line 2 holds these names: remove the lines before it",
    ),
    "another separator": (
        {"l.csv": "user_id;item_id;rating\nann;a;2\n"},
        "l.csv",
        {},
        "fields are separated by ';'",
    ),
    "a hidden name": (
        {"_r.csv": "user_id,item_id\nann,a\n"},
        "_r.csv",
        {},
        "files whose names begin with _ or . are ignored as hidden",
    ),
    "nothing but hidden names": (
        {"l/_r.parquet": ANN},
        "l",
        {"reader": "parquet"},
        "it has no files",
    ),
    "text that is called Parquet": (
        {"l.parquet": "user_id,item_id\nann,a\n"},
        "l.parquet",
        {"reader": "parquet"},
        "cannot be read: it is text, not a Parquet file",
    ),
    "Parquet that is called text": (
        {"l.csv": b"PAR1 and so on"},
        "l.csv",
        {},
        "cannot be read: it is Parquet",
    ),
    "nanoseconds": (
        {
            "l.parquet": {
                **{"user_id": ["ann"] * 3, "item_id": ["a", "b", "c"], "rating": [1, 2, 3]},
                "event_time": pa.array([1_500_000_000_000_001_999, -1, 0], pa.timestamp("ns", "UTC")),
            }
        },
        "l.parquet",
        {"reader": "parquet", "time": True},
        [
            ("ann", "a", 1.0, 1_500_000_000_000_001),
            ("ann", "b", 2.0, -1),
            ("ann", "c", 3.0, 0),
        ],
    ),
    "nanoseconds without a zone, then microseconds": (
        {
            "l/a.parquet": {**ANN, "event_time": pa.array([datetime(1970, 1, 2)], pa.timestamp("ns"))},
            "l/b.parquet": {**BOB, "event_time": pa.array([datetime(1970, 1, 2)], pa.timestamp("us"))},
        },
        "l",
        {"reader": "parquet", "time": True, "time_zone": "+01:00"},
        [("ann", "a", 1.0, 23 * 3_600_000_000), ("bob", "b", 1.0, 23 * 3_600_000_000)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOGS)
def test_logs(spark, tmp_path: Path, name: str) -> None:
    content, path, settings, wanted = LOGS[name]
    timed = settings.get("time", False)
    given = {"reader": "csv", **{key: value for key, value in settings.items() if key != "time"}}
    dataset = Dataset(name="d", path=str(lay(tmp_path, content) / path), **given)
    names = ["user_id", "item_id", "rating", *(["event_time"] if timed else [])]
    if isinstance(wanted, str):
        with pytest.raises(RecbenchError) as error:
            open_log(spark, dataset)
        assert wanted in str(error.value)
        opened = columnar.open_columnar_log(dataset)
        if opened is not None:  # a column that a file lacks is seen when its rows are read
            with pytest.raises(FallbackToSpark, match="a value is missing"):
                list(columnar.read_log([0], columnar.COLUMNS, opened, 1))
    else:
        assert sorted(map(tuple, open_log(spark, dataset).rows.select(*names).collect())) == wanted


def test_names_of_partition_folders_are_numbers_where_all_are(spark, tmp_path: Path) -> None:
    """Whole numbers order ties as numbers, as in earlier versions."""
    plain = {f"a/item_id={n}/x.parquet": {"user_id": ["u"]} for n in (9, 10)}
    padded = {f"b/item_id={n}/x.parquet": {"user_id": ["u"]} for n in ("09", "10")}
    lay(tmp_path, {**plain, **padded})
    for folder, order in (("a", "numeric"), ("b", "bytes")):
        log = open_log(spark, Dataset(name="d", reader="parquet", path=str(tmp_path / folder)))
        assert id_order([log.rows]) == order


def test_days_of_partition_folders_are_times_still(spark, tmp_path: Path) -> None:
    lay(tmp_path, {f"l/event_time=1970-01-0{n}/x.parquet": ANN for n in (1, 2)})
    log = open_log(spark, Dataset(name="d", reader="parquet", path=str(tmp_path / "l")))
    assert sorted(row.event_time for row in log.rows.collect()) == [0, 86_400_000_000]


def test_attributes_of_partition_folders_are_as_written(spark, tmp_path: Path) -> None:
    lay(
        tmp_path, {f"l/day={n}/x.parquet": {"user_id": ["u"], "item_id": [n]} for n in ("01", "1", "a%20b")}
    )
    dataset = Dataset(name="d", reader="parquet", path=str(tmp_path / "l"), attributes=("day",))
    days = {row.item_id: row.attributes["day"] for row in open_log(spark, dataset).rows.collect()}
    assert days == {"01": "01", "1": "1", "a%20b": "a b"}


# ------------------------------------------------------------------------------------- tables

RUN = "q1 Q0 d1 1 9.5 bm25\nq1 Q0 d2 2 9.1 bm25\n"
QRELS = "q1 0 d1 1\nq1 0 d2 0\n"
LIST = "user_id,item_id,score\nann,a,2\n"

TABLES: dict[str, tuple[Files, str, str, Any]] = {
    # files, path, what it is, rows or the error
    "columns in another order": (
        {"t/a.csv": LIST, "t/b.csv": "item_id,score,user_id\nb,3,bob\n"},
        "t",
        "lists",
        [("ann", "a", 2.0), ("bob", "b", 3.0)],
    ),
    "names in the first file only": (
        {"t/a.csv": LIST, "t/b.csv": "bob,b,3\n"},
        "t",
        "lists",
        "a.csv begins with 'user_id,item_id,score', b.csv with 'bob,b,3'",
    ),
    "a score in later files only": (
        {"t/a.parquet": ANN, "t/b.parquet": {**BOB, "score": [3.0]}},
        "t",
        "lists",
        [("ann", "a", None), ("bob", "b", 3.0)],
    ),
    "Score beside score": (
        {"t/a.parquet": {**ANN, "Score": [2.0]}, "t/b.parquet": {**BOB, "score": [3.0]}},
        "t",
        "lists",
        "column Score in a.parquet and score in b.parquet differ in case alone",
    ),
    "Score beside score in one file": (
        {"t.parquet": {**ANN, "Score": [2.0], "score": [3.0]}},
        "t.parquet",
        "lists",
        "columns Score and score differ in case alone",
    ),
    "Relevance alone": (
        {"t.csv": "user_id,item_id,Relevance\nann,a,2\n"},
        "t.csv",
        "truth",
        "column Relevance is not read: relevance is expected",
    ),
    "whole numbers, then floats": (
        {"t/a.parquet": {**ANN, "score": [2]}, "t/b.parquet": {**BOB, "score": [2.5]}},
        "t",
        "lists",
        [("ann", "a", 2.0), ("bob", "b", 2.5)],
    ),
    "whole numbers that floats do not hold": (
        {"t/a.parquet": {**ANN, "score": [2**53 + 1]}, "t/b.parquet": {**BOB, "score": [2.5]}},
        "t",
        "lists",
        "1 rows whose 'score' is not a finite number",
    ),
    "partition folders": (
        {f"t/user_id={n}/x.parquet": {"item_id": ["a"], "score": [1.0]} for n in ("007", "7")},
        "t",
        "lists",
        [("007", "a", 1.0), ("7", "a", 1.0)],
    ),
    "csv in partition folders": (
        {f"t/user_id={n}/x.csv": "item_id,score\na,1\n" for n in ("007", "7")},
        "t",
        "lists",
        [("007", "a", 1.0), ("7", "a", 1.0)],
    ),
    "a pattern, csv": (
        {"t[1].csv": LIST, "t1.csv": "user_id,item_id,score\nbob,b,3\n"},
        "t[1].csv",
        "lists",
        [("ann", "a", 2.0)],
    ),
    "a pattern, parquet": (
        {"t*.parquet": {**ANN, "score": [2.0]}, "t1.parquet": {**BOB, "score": [3.0]}},
        "t*.parquet",
        "lists",
        [("ann", "a", 2.0)],
    ),
    "bz2": ({"t.csv.bz2": LIST}, "t.csv.bz2", "lists", [("ann", "a", 2.0)]),
    "zstd": ({"t.csv.zst": LIST}, "t.csv.zst", "lists", [("ann", "a", 2.0)]),
    "lz4": ({"t.csv.lz4": LIST}, "t.csv.lz4", "lists", [("ann", "a", 2.0)]),
    "zip": ({"t.csv.zip": LIST}, "t.csv.zip", "lists", "files compressed as .zip are not read"),
    "gzip under another name": (
        {"t.csv": gzip.compress(LIST.encode())},
        "t.csv",
        "lists",
        "cannot be read: it is compressed with gzip",
    ),
    "a hidden name": ({"_t.csv": LIST}, "_t.csv", "lists", "are ignored as hidden"),
    "a hidden name, parquet": (
        {".t.parquet": {**ANN, "score": [2.0]}},
        ".t.parquet",
        "lists",
        "are ignored as hidden",
    ),
    "a run of TREC": ({"run.txt": RUN}, "run.txt", "lists", [("q1", "d1", 9.5), ("q1", "d2", 9.1)]),
    "a run of TREC as tsv": ({"run.tsv": RUN}, "run.tsv", "lists", [("q1", "d1", 9.5), ("q1", "d2", 9.1)]),
    "a run of TREC with a short line": (
        {"run.txt": RUN + "q2 Q0 d1"}, "run.txt", "lists", "1 lines that are not 6 fields",
    ),
    "a run of TREC, graded in words": (
        {"run.txt": RUN.replace("9.1", "good")}, "run.txt", "lists", "1 rows whose 'score' is not a finite",
    ),
    "text without an ending": ({"t": LIST}, "t", "lists", "it is text, not a Parquet file"),
    "lines before the names": (
        {"t.csv": f"# made on Monday\n{LIST}"},
        "t.csv",
        "lists",
        "line 2 holds these names",
    ),
    "only empty files": ({"t/a.csv": "", "t/b.csv": ""}, "t", "lists", "nothing but files of 0 bytes"),
    "another separator": ({"t.csv": LIST.replace(",", ";")}, "t.csv", "lists", "separated by ';'"),
    "nanoseconds beside": (
        {"t.parquet": {**ANN, "score": [2.0], "event_time": pa.array([1], pa.timestamp("ns"))}},
        "t.parquet",
        "lists",
        [("ann", "a", 2.0)],
    ),
}  # fmt: skip


def outcome(read: Callable[[], Any]) -> Any:
    """Rows in order, or the sentence."""
    try:
        rows = read()
    except RecbenchError as error:
        return str(error)
    return rows


def in_process(path: str, what: str) -> list[tuple]:
    table = arrow_files.read_table(path, ["user_id", "item_id"], what)
    columns = [table.column(name).to_pylist() for name in ("user_id", "item_id", "score")]
    return sorted(zip(*columns, strict=True))


@pytest.mark.parametrize("name", TABLES)
def test_tables(tmp_path: Path, name: str) -> None:
    content, path, what, wanted = TABLES[name]
    result = outcome(lambda: in_process(str(lay(tmp_path, content) / path), what))
    assert wanted in result if isinstance(wanted, str) else result == wanted


@pytest.mark.parametrize(
    "name", sorted(TABLES.keys() - {"Relevance alone"})
)  # a usual name, which is taken
@pytest.mark.parametrize("runner", ["local", pytest.param("spark", marks=pytest.mark.spark)])
def test_tables_in_pieces(tmp_path: Path, name: str, runner: str, request, monkeypatch) -> None:
    """Tasks of both runners read what one process reads, in small pieces; they take usual names."""
    content, path, what, wanted = TABLES[name]
    monkeypatch.setattr(input_rows, "TEXT_HERE", 0)
    engine = make_engine(runner, request, tmp_path)
    place = str(lay(tmp_path, content) / path)

    def read() -> list[tuple]:
        opened = open_input(engine, place, ["user_id", "item_id"], what, ColumnNames())
        values = {"score": "double"} if {"score", "relevance"} & {*opened.schema.names} else {}
        checked = check_input(opened, values, what)
        rows = [row for some in checked.rows.each(checked.names, list_rows) for row in some]
        return sorted((*row, *[None] * (3 - len(row))) for row in rows)

    result = outcome(read)
    if isinstance(wanted, str):
        assert wanted.partition(" rows whose")[0] in result
    elif None in {score for *_, score in wanted}:
        assert "1 rows whose score is NULL" in result
    else:
        assert result == wanted


def make_engine(runner: str, request: pytest.FixtureRequest, folder: Path) -> Any:
    if runner == "local":
        return LocalEngine(str(folder))
    return SparkEngine(request.getfixturevalue("spark"))


def list_rows(tables: Iterable[pa.Table]) -> list[tuple]:
    return [tuple(row.values()) for table in tables for row in table.to_pylist()]


def test_a_relative_path_is_told_as_an_absolute_one(tmp_path: Path) -> None:
    """Spark names files by their whole paths."""
    place = str(lay(tmp_path, {"run.txt": RUN}) / "run.txt")
    for where in ("run.txt", place):
        assert f"{where}: cannot be read: it is a run of TREC" in str(
            parquet_error(where, place, OSError("?"))
        )


@pytest.mark.parametrize("folder", ["one", "two"])
def test_vectors_of_half_precision(tmp_path: Path, folder: str) -> None:
    rows = {"item_id": ["a", "b"], "vector": half([1, -2.5, 6e-8, 0.1], [65504, -0.0, 6.1e-5, 3])}
    lay(tmp_path, {"one/x.parquet": rows, "two/x.parquet": rows})
    lay(tmp_path, {"two/y.parquet": {"item_id": ["c"], "vector": pa.array([[0.5] * 4])}})
    path = str(tmp_path / folder) if folder == "two" else str(tmp_path / "one/x.parquet")
    table = arrow_files.read_table(path, ["item_id", "vector"], "items")
    vectors = dict(
        zip(table.column("item_id").to_pylist(), table.column("vector").to_pylist(), strict=True)
    )
    for name, vector in zip("ab", rows["vector"].to_pylist(), strict=True):
        assert np.array_equal(np.array(vectors[name], np.float32), np.array(vector, np.float32))
    if folder == "two":
        assert vectors["c"] == [0.5] * 4


def test_a_delta_table_is_read_by_its_name(spark, tmp_path: Path) -> None:
    """Its folder is no pattern, and `%41` in it is no other folder's `A`."""
    for folder, user in (("d[1]", "ann"), ("d1", "bob"), ("d%41", "cid"), ("dA", "dan")):
        rows = spark.createDataFrame([(user, "a", 2.0)], "user_id string, item_id string, score double")
        rows.write.format("delta").save(str(tmp_path / folder))
    for folder, user in (("d[1]", "ann"), ("d%41", "cid")):
        path = str(tmp_path / folder)
        log = open_log(spark, Dataset(name="d", reader="delta", path=path))
        assert [row.user_id for row in log.rows.collect()] == [user]
        table = arrow_files.read_table(path, ["user_id"], "lists")
        assert table.column("user_id").to_pylist() == [user]
        pieces = open_rows(path, ["user_id"], "edges").pieces
        assert {Path(piece.file).parent for piece in pieces} == {tmp_path / folder}


@pytest.mark.parametrize("ending", ["", ".gz", ".bz2"])
def test_first_lines_of_remote_files(spark, tmp_path: Path, ending: str) -> None:
    """Files are read by Hadoop's file system; a local one represents any."""
    lay(tmp_path, {f"r[1] %41.csv{ending}": "user_id,item_id\n" + "ann,a\n" * 20_000})
    ((uri, folders),) = paths.list_files(spark, str(tmp_path / f"r[1] %41.csv{ending}")).items()
    head = paths.read_file_head(spark, uri)
    assert not folders
    assert head.startswith(b"user_id,item_id\nann,a\n") and len(head) == HEAD_BYTES


# -------------------------------------------------------------------------------------- edges

EDGES: dict[str, tuple[Files, str, Any]] = {
    "two blanks": ({"e.txt": "1  2\n3   4\n 5 6 \n"}, "e.txt", [(1, 2), (3, 4), (5, 6)]),
    "two blanks under names": ({"e.txt": "src  dst\n1 2\n"}, "e.txt", [(1, 2)]),
    "bz2": ({"e.csv.bz2": "1,2\n"}, "e.csv.bz2", [(1, 2)]),
    "other order": (
        {"e/a.csv": "src,dst\n1,2\n", "e/b.csv": "dst,src\n4,3\n"},
        "e",
        [(1, 2), (3, 4)],
    ),
    "names in the first file only": (
        {"e/a.csv": "src,dst\na,b\n", "e/b.csv": "c,d\n"},
        "e",
        "has no column src, dst; it has c, d",
    ),
    "whole numbers, then floats": (
        {"e/a.parquet": {"src": [1], "dst": [2]}, "e/b.parquet": {"src": [3.0], "dst": small([4])}},
        "e",
        [(1, 2), (3, 4)],
    ),
    "numbers, then texts": (
        {"e/a.parquet": {"src": [1], "dst": [2]}, "e/b.parquet": {"src": ["3"], "dst": [4]}},
        "e",
        "column src is of type int64 in a.parquet, string in b.parquet",
    ),
    "a column that only later files have": (
        {"e/a.parquet": {"src": [1]}, "e/b.parquet": {"src": [3], "dst": [4]}},
        "e",
        "a.parquet has no column dst",
    ),
    "files beside folders": (
        {"e/a.csv": "1,2\n", "e/day=1/b.csv": "3,4\n"},
        "e",
        [(1, 2), (3, 4)],
    ),
    "a pattern": ({"e[1].csv": "1,2\n", "e1.csv": "3,4\n"}, "e[1].csv", [(1, 2)]),
    "text that is called Parquet": ({"e.parquet": "1,2\n"}, "e.parquet", "it is text, not a Parquet file"),
    "csv and tsv": (
        {"e/a.csv": "src,dst\n1,2\n", "e/b.tsv": "src\tdst\n3\t4\n"},
        "e",
        [(1, 2), (3, 4)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EDGES)
def test_edges(tmp_path: Path, name: str) -> None:
    content, path, wanted = EDGES[name]

    def read() -> list[tuple]:
        ids = {"src": "auto", "dst": "auto"}
        rows = open_rows(str(lay(tmp_path, content) / path), ["src", "dst"], "edges", ids=ids)
        chunks = list(rows.chunks(rows.pieces))
        return [
            pair
            for chunk in chunks
            for pair in zip(*(rows.ids(chunk, x).to_pylist() for x in ("src", "dst")), strict=True)
        ]

    result = outcome(read)
    assert wanted in result if isinstance(wanted, str) else sorted(result) == wanted
