"""Options of readers: each one that is accepted changes what is read, and all others are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from recbench_spark.config.dataset import READER_OPTIONS, UNUSED_OPTIONS, Dataset
from recbench_spark.errors import DataError, SchemaError
from tests.labelled import open_log

Case = tuple[str, str | bytes, dict[str, str]]
"""Value of the option, text of the file, and options that stand beside it."""

CSV: dict[str, Case] = {
    "sep": (";", "u;i\n1;2\n", {}),
    "delimiter": (";", "u;i\n1;2\n", {}),
    "encoding": ("cp1252", b"u,i\ncaf\xe9,\x80\n", {}),
    "charset": ("ISO-8859-1", b"u,i\ncaf\xe9,2\n", {}),
    "quote": ("'", "u,i\n'a,b',2\n", {}),
    "escape": ("\\", 'u,i\n"a\\"b",2\n', {}),
    "comment": ("#", "u,i\n#x,1\n1,2\n", {}),
    "header": ("false", "u,i\n1,2\n", {}),
    "nullValue": ("nix", "u,i\nnix,1\n1,2\n", {}),
    "timestampFormat": ("MM/dd/yyyy", "u,i,t\n1,2,03/14/2015\n", {}),
    "multiLine": ("true", 'u,i,n\n1,2,"a\nb"\n', {}),
}

JSON: dict[str, Case] = {
    "encoding": ("ISO-8859-1", b'{"u": "caf\xe9", "i": 2}\n', {}),
    "charset": ("cp1252", b'{"u": "caf\xe9", "i": 2}\n', {}),
    "timestampFormat": ("MM/dd/yyyy", '{"u": 1, "i": 2, "t": "03/14/2015"}\n', {}),
}

TEXTS = {"csv": CSV, "json": JSON}

TYPED = {"parquet": {"pathGlobFilter": "a*"}, "delta": {"versionAsOf": "0", "timestampAsOf": "2020-01-01"}}


def read(spark: object, reader: str, path: Path, options: dict[str, str]) -> Any:
    """The rows, or the class of the error."""
    named = {"user_id": "u", "item_id": "i"}
    if options.get("header") == "false":
        named = {"user_id": "_c0", "item_id": "_c1"}
    dated = path.name.startswith("t.")
    more = {"time_unit": "timestamp"} if dated else {}
    columns = {**named, **({"event_time": "t"} if dated else {})}
    try:
        dataset = Dataset(name="d", reader=reader, path=str(path), columns=columns, options=options, **more)
        rows = open_log(spark, dataset).rows.collect()
    except Exception as error:
        return type(error).__name__
    return sorted((row.user_id, row.item_id, row.event_time, str(row.attributes)) for row in rows)


@pytest.mark.spark
@pytest.mark.parametrize(("reader", "option"), [(r, o) for r, cases in TEXTS.items() for o in cases])
def test_an_option_of_text_has_an_effect(spark: object, tmp_path: Path, reader: str, option: str) -> None:
    value, text, beside = TEXTS[reader][option]
    path = tmp_path / f"{'t' if option == 'timestampFormat' else 'a'}.{reader}"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    without, used = (read(spark, reader, path, {**beside, **more}) for more in ({}, {option: value}))
    assert used != without
    if option in ("encoding", "charset"):
        assert "café" in str(used)


@pytest.mark.spark
@pytest.mark.parametrize("reader", ["csv", "json", "parquet"])
def test_a_pattern_chooses_files_by_their_names(spark: object, tmp_path: Path, reader: str) -> None:
    line = {"csv": "u,i\n1,2\n", "json": '{"u": 1, "i": 2}\n'}
    for folder in (tmp_path, tmp_path / "day=1"):
        folder.mkdir(exist_ok=True)
        for name in ("a", "b"):
            if reader == "parquet":
                pq.write_table(pa.table({"u": ["1"], "i": ["2"]}), folder / f"{name}.parquet")
            else:
                (folder / f"{name}.{reader}").write_text(line[reader])
    assert [len(read(spark, reader, tmp_path, one)) for one in ({}, {"pathGlobFilter": "a*"})] == [4, 2]


@pytest.mark.spark
def test_options_of_delta_have_an_effect(spark: object, tmp_path: Path) -> None:
    path = tmp_path / "t"
    write_deltalake(str(path), pa.table({"u": [1], "i": [2]}))
    write_deltalake(str(path), pa.table({"u": [3], "i": [4]}), mode="append")
    latest = read(spark, "delta", path, {})
    for option, value in (("versionAsOf", "0"), ("timestampAsOf", "2020-01-01")):
        assert read(spark, "delta", path, {option: value}) != latest


def test_each_accepted_option_is_tried() -> None:
    tried = {reader: {*cases} for reader, cases in {**TEXTS, **TYPED}.items()}
    for reader, accepted in READER_OPTIONS.items():
        assert {*accepted} - {"pathGlobFilter"} == tried[reader] - {"pathGlobFilter"}, reader


def test_options_that_are_not_read_are_refused() -> None:
    for reader, accepted in READER_OPTIONS.items():
        for option in {*UNUSED_OPTIONS} - {*accepted}:
            for name in (option, option.upper()):
                with pytest.raises(ValueError, match=f"{name} is not read by reader '{reader}'"):
                    Dataset(name="d", reader=reader, path="log", options={name: "true"})


@pytest.mark.parametrize(
    ("reader", "options", "message"),
    [
        ("csv", {"timestampFormat": "M/d/yyyy"}, "set dataset.time_unit: timestamp"),
        ("json", {"encoding": "UTF-16"}, "iconv -f UTF-16 -t UTF-8"),
        (
            "csv",
            {"headder": "true"},
            "(?s)has no 'headder'.*did you mean 'header'.*known: charset",
        ),
        (
            "json",
            {"allowComments": "true"},
            "allowComments is not read by reader 'json'(?s:.*)jq -c . FILE",
        ),
        ("csv", {"fs.s3a.endpoint": "x"}, "--conf spark.hadoop.fs.s3a.endpoint=VALUE"),
        ("csv", {"sep": "blanks", "quote": "'"}, "with sep: blanks has no 'quote'"),
        ("csv", {"delimiter": "Blanks", "multiLine": "true"}, "with sep: blanks has no 'multiLine'"),
        ("csv", {"inferSchema": "true"}, "every field is read as text"),
        ("delta", {"readChangeFeed": "true"}, "a feed of changes is no log"),
    ],
)
def test_the_refusal_says_what_to_set(reader: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Dataset(name="d", reader=reader, path="log", options=options)


def open_rows(
    spark: object, path: Path, options: dict[str, str], **more: object
) -> list[tuple[object, ...]]:
    dataset = Dataset(name="d", reader="csv", path=str(path), options=options, **more)
    return sorted(
        (row.user_id, row.item_id, row.rating, row.event_time)
        for row in open_log(spark, dataset).rows.collect()
    )


@pytest.mark.spark
def test_fields_separated_by_blanks(spark: object, tmp_path: Path) -> None:
    """One or several blanks, tabs, a blank line, comments, an encoding, folders, and bad lines."""
    plain = {"user_id": "_c0", "item_id": "_c1", "rating": "_c2"}
    path = tmp_path / "a.txt"
    path.write_text(" 1  2 3.5\n\n1\t10   4 \n")
    options = {"sep": "blanks", "header": "false"}
    assert open_rows(spark, path, options, columns=plain) == [("1", "10", 4.0, None), ("1", "2", 3.5, None)]
    path.write_bytes("# note\nuser_id  item_id\nJosé a\nAna  b\n".encode("cp1252"))
    options = {"delimiter": "blanks", "charset": "cp1252", "comment": "#"}
    assert open_rows(spark, path, options) == [("Ana", "b", 1.0, None), ("José", "a", 1.0, None)]
    folder = tmp_path / "days"
    for day, text in (("1", "user_id item_id\n1 2\n"), ("2", "user_id item_id\n3 4\n5 6 7\n")):
        (folder / f"day={day}").mkdir(parents=True)
        (folder / f"day={day}" / "a.csv").write_text(text)
    with pytest.raises(DataError, match="1 lines that are not 2 fields separated by blanks"):
        open_rows(spark, folder, {"sep": "blanks"}, attributes=("day",))
    rows = open_rows(spark, folder, {"sep": "blanks"}, attributes=("day",), bad_rows="reject")
    assert rows == [("1", "2", 1.0, None), ("3", "4", 1.0, None)]
    (folder / "day=2" / "a.csv").write_text("item_id user_id\n3 4\n")
    with pytest.raises(SchemaError, match="files begin with different names"):
        open_rows(spark, folder, {"sep": "blanks"})


@pytest.mark.spark
@pytest.mark.parametrize(
    ("pattern", "text", "hour"),
    [
        ("M/d/yyyy", "03/14/2015", 0),
        ("d.M.yyyy H:mm", "14.3.2015 9:00", 9),
        ("M/d/yyyy h:mm a", "3/14/2015 9:00 PM", 21),
        ("yyyy/M/d HH:mm XXX", "2015/3/14 10:00 +01:00", 10),
    ],
)
def test_times_of_a_pattern(spark: object, tmp_path: Path, pattern: str, text: str, hour: int) -> None:
    """Without an offset they are of the zone: 14 March is winter in Rome, an hour before UTC."""
    (tmp_path / "t.csv").write_text(f"user_id,item_id,event_time\n1,2,{text}\n")
    options = {"timestampFormat": pattern}
    rows = open_rows(spark, tmp_path / "t.csv", options, time_unit="timestamp", time_zone="Europe/Rome")
    assert rows == [("1", "2", 1.0, (1_426_287_600 + 3600 * hour) * 1_000_000)]
    (tmp_path / "t.csv").write_text("user_id,item_id,event_time\n1,2,2015-03-14\n")
    with pytest.raises(DataError, match="is not a timestamp by "):
        open_rows(spark, tmp_path / "t.csv", options, time_unit="timestamp")
