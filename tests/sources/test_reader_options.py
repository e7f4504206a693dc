"""Options of readers: each one that is accepted changes what is read, and all others are refused."""

from __future__ import annotations

import gzip
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from recbench_spark.engine.local import LocalEngine
from recbench_spark.errors import ConfigError, DataError, MissingError, SchemaError
from recbench_spark.sources import text_pieces
from recbench_spark.sources.log_sources import HERE, open_raw_log
from recbench_spark.sources.opened_logs import check_log
from recbench_spark.sources.settings import READER_OPTIONS, UNUSED_OPTIONS, Dataset
from recbench_spark.sources.times import convert_times
from recbench_spark.storage.objects import write_bytes
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
        ("json", {"multiLine": "true"}, "multiLine is not read by reader 'json'(?s:.*)jq -c '.\\[\\]'"),
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


def read_here(path: Path | str, **settings: Any) -> list[tuple[Any, ...]]:
    """Rows as processes of this machine read them."""
    dataset = Dataset(**{"name": "d", "reader": "csv", "path": str(path), **settings})
    with tempfile.TemporaryDirectory() as spill:
        log = check_log(open_raw_log(dataset), dataset, LocalEngine(spill))
        rows = pa.concat_tables(log.rows.each(log.columns, pa.concat_tables)).to_pylist()
    return [tuple(row.values()) for row in rows]


def test_text_that_is_read_as_one_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wide letters, and fields over several lines, of which one is blank, in files of many pieces."""
    monkeypatch.setattr(text_pieces, "BYTES_A_PIECE", 16)
    text = "user_id,item_id,rating,note\n" + "".join(f'u{n},é,{n},"a\n\nb ""{n}"""\n' for n in range(40))
    expected = [(f"u{n}", "é", float(n), None, [("note", f'a\n\nb "{n}"')]) for n in range(40)]
    for encoding in ("utf-8", "UTF-16", "utf-16le"):
        (tmp_path / "log.csv").write_text(text, encoding=encoding, newline="\r\n")
        options = {"multiLine": "true", "encoding": encoding}
        assert read_here(tmp_path / "log.csv", options=options, attributes=["note"]) == expected
    plain = text.replace("\n\n", " ")
    (tmp_path / "log.csv").write_text(plain, encoding="utf-16")
    assert len(read_here(tmp_path / "log.csv", options={"charset": "utf16"})) == 40


def test_a_quote_in_a_comment_opens_no_field_and_names_go_on(tmp_path: Path) -> None:
    header = ['# "a', 'user_id,"no', "", '#te",item_id']
    lines = [*header, '#3,"x', "1,a,2", '# see,"quoted', '3,"b', '#,""c",4', '5,"d",6']
    (tmp_path / "log.csv").write_text("\n".join(lines))
    options = {"multiLine": "true", "comment": "#"}
    rows = read_here(tmp_path / "log.csv", options=options, attributes=["no\n\n#te"])
    assert [row[-1][0][1] for row in rows] == ["a", 'b\n#,"c', "d"]


@pytest.mark.parametrize(
    ("pattern", "chosen"),
    [
        ("2026-0[^1].csv", "2 3"),
        ("2026-0[!1].csv", "2 3"),
        ("2026-{01,02}.csv", "1 2"),
        (r"2026\-0?.csv", "1 2 3"),
        ("*[1-2].csv", "1 2"),
        ("2026,01.csv", ""),
        ("*", "1 2 3"),
        ("2026-{01", None),
        ("2026-[01", None),
    ],
)
def test_patterns_of_names_are_those_of_hadoop(tmp_path: Path, pattern: str, chosen: str | None) -> None:
    for month in ("1", "2", "3"):
        (tmp_path / f"2026-0{month}.csv").write_text("user_id,item_id\n")
    (tmp_path / "2026-04.csv._COPYING_").write_text("half of an upload")
    if chosen is None:
        with pytest.raises(ConfigError, match="is no pattern"):
            HERE.list_files(str(tmp_path), pattern)
    else:
        assert " ".join(Path(file).stem[-1] for file in HERE.list_files(str(tmp_path), pattern)) == chosen


@pytest.mark.parametrize("reader", ["csv", "json"])
def test_a_log_without_a_file_that_is_read(tmp_path: Path, reader: str) -> None:
    folder, blank = tmp_path / "log", tmp_path / "blank.csv"
    (folder / "old").mkdir(parents=True)
    (folder / "old" / f"a.{reader}").write_text('{"user_id": 1, "item_id": 2}\n')
    blank.write_text("\n \n")
    with pytest.raises(DataError, match="log: cannot be read: it has no files"):
        read_here(folder, reader=reader)
    (folder / f"b.{reader}").write_text('{"user_id": 1, "item_id": 2}\n')
    with pytest.raises(DataError, match="it has no files") as error:
        read_here(folder, reader=reader, options={"pathGlobFilter": "x*"})
    assert "pathGlobFilter" in error.value.hint
    (folder / "README.md").write_text("# The log\n")
    (folder / "c.tsv").write_text("user_id\titem_id\n1\t2\n")
    if reader == "csv":
        assert len(read_here(folder, options={"pathGlobFilter": "*.tsv"})) == 1
        with pytest.raises(SchemaError, match="are of two formats"):
            read_here(folder)
        with pytest.raises(SchemaError, match="log has no column user_id, item_id"):
            read_here(folder, options={"pathGlobFilter": "b*"})
    with pytest.raises(DataError, match="it has no lines"):
        read_here(blank)


def test_quotes_escapes_and_texts_of_missing_values(tmp_path: Path) -> None:
    lines = ["user_id;item_id;rating", "1;'a;\\'b\\\\';NA", "NA;'c;\\n';2", "3; 'd;4", "'5';e'f';6"]
    (tmp_path / "log.txt").write_text("\n".join(lines))
    options = {"sep": ";", "quote": "'", "escape": "\\", "nullValue": "NA"}
    with pytest.raises(DataError, match=r"1 rows whose 'user_id' .*1 rows whose 'rating'"):
        read_here(tmp_path / "log.txt", options=options)
    rows = read_here(tmp_path / "log.txt", options=options, bad_rows="reject")
    assert rows == [("3", " 'd", 4.0, None), ("5", "e'f'", 6.0, None)]
    (tmp_path / "log.txt").write_text(lines[0] + "\n" + lines[1].replace("NA", "7"))
    assert read_here(tmp_path / "log.txt", options=options) == [("1", "a;'b\\", 7.0, None)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sep": ";", "delimiter": ","}, "one option, with two values"),
        ({"quote": "''"}, "quote is one letter, not \"''\""),
        ({"encoding": "x-windows-874"}, "no encoding 'x-windows-874' is known"),
        ({"encoding": "base64"}, "no encoding 'base64' is known"),
        ({"timestampFormat": "E, d MMM yyyy"}, "E is not known"),
        ({"timestampFormat": "yyyy-yyyy"}, "redefinition of group name"),
    ],
)
def test_values_of_options_that_are_none(tmp_path: Path, options: dict[str, str], message: str) -> None:
    (tmp_path / "log.csv").write_text("user_id,item_id,event_time\n1,2,2020-01-01\n")
    with pytest.raises(ConfigError, match=message) as error:
        read_here(tmp_path / "log.csv", options=options, time_unit="timestamp")
    assert error.value.hint


@pytest.mark.parametrize(
    ("pattern", "text", "micros"),
    [
        ("yyyyMMddHHmmss", "20150314100203", 1_426_323_723_000_000),
        ("d MMM yy[ h:mm:ss.SSS a]", "14 mar 15", 1_426_287_600_000_000),
        ("d MMM yy[ h:mm:ss.SSS a]", "14 Mar 15 12:00:00.5 am", 1_426_287_600_500_000),
        ("MMMM d, yyyy 'at' H'h'", "March 14, 2015 at 9h", 1_426_320_000_000_000),
        ("yyyy-MM-dd'T'HH:mmX", "2015-03-14T09:00Z", 1_426_323_600_000_000),
        ("yyyy-MM-dd HH:mm VV", "2015-03-14 09:00 America/New_York", 1_426_338_000_000_000),
        *(("M/d/yyyy h:mm a", text, None) for text in ("3/14/2015 0:30 AM", "3/14/2015 13:00 PM", "x")),
        *(("dd.MM.yyyy HH", text, None) for text in ("30.02.2015 00", "1.02.2015 00", "01.02.2015 24")),
    ],
)
def test_patterns_of_times(pattern: str, text: str, micros: int | None) -> None:
    times = convert_times(pa.array([text]), "timestamp", ZoneInfo("Europe/Rome"), pattern)
    assert times.to_pylist() == [micros]


def test_attributes_are_spelled_as_spark_casts_them(tmp_path: Path) -> None:
    at = pa.array([datetime(2020, 1, 1, 10), datetime(2020, 1, 1, 10, 0, 0, 500_000)], pa.timestamp("us"))
    columns = {"double": [1e10, 0.1], "half": pa.array([1.5, None], pa.float16()), "at": at}
    rows = {"user_id": [1, 2], "item_id": [1, 2], **columns}
    pq.write_table(
        pa.table({**rows, "list": [[1], [2]], "bytes": [b"a", b"\xff"]}), tmp_path / "log.parquet"
    )
    read = read_here(tmp_path / "log.parquet", reader="parquet", attributes=[*columns])
    assert [[text for _, text in row[-1]] for row in read] == [
        ["1.0E10", "1.5", "2020-01-01 10:00:00"],
        ["0.1", None, "2020-01-01 10:00:00.5"],
    ]
    with pytest.raises(SchemaError, match=r"column list is list<.*>, which is no attribute"):
        read_here(tmp_path / "log.parquet", reader="parquet", attributes=["list"])
    with pytest.raises(DataError, match=r"log\.parquet: attribute bytes has bytes that are no text"):
        read_here(tmp_path / "log.parquet", reader="parquet", attributes=["bytes"])


def test_a_folder_of_delta_is_read_by_its_own_reader(tmp_path: Path) -> None:
    write_deltalake(
        tmp_path / "t", pa.table({"user_id": [1, 2], "item_id": [1, 2]}), partition_by=["user_id"]
    )
    write_deltalake(tmp_path / "t", pa.table({"user_id": [3], "item_id": [3]}), mode="append")
    for version, users in (("0", {1, 2}), ("1", {1, 2, 3})):
        rows = read_here(tmp_path / "t", reader="delta", options={"versionAsOf": version})
        assert {row[0] for row in rows} == users
    with pytest.raises(DataError, match="it is a table of Delta") as error:
        read_here(tmp_path / "t", reader="parquet")
    assert error.value.hint == "its reader is delta"


def test_logs_of_object_storage_are_those_of_a_folder(bucket: str, tmp_path: Path) -> None:
    """Each format by tasks, in folders NAME=VALUE; the rows and the sentences are the same."""
    column = {"user_id": ["a", "b"], "item_id": ["c", "d"]}
    pq.write_table(pa.table(column), tmp_path / "x.parquet")
    contents = {
        "csv": b"user_id,item_id\na,c\nb,d\n",
        "csv.gz": gzip.compress(b"user_id,item_id\na,c\nb,d\n"),
        "json": b'{"user_id": "a", "item_id": "c"}\n{"user_id": "b", "item_id": "d"}\n',
        "parquet": (tmp_path / "x.parquet").read_bytes(),
    }
    for ending, content in contents.items():
        for place in (f"{bucket}/{ending}", str(tmp_path / ending)):
            for name in (f"day=1 2/x.{ending}", f"day=2/x.{ending}", f"old/x.{ending}"):
                write_bytes(f"{place}/{name}", content)
        reader = ending.removesuffix(".gz")
        here, there = (
            read_here(place, reader=reader, attributes=["day"])
            for place in (tmp_path / ending, f"{bucket}/{ending}")
        )
        assert here == there and len(there) == 4 and there[0][-1] == [("day", "1 2")]
    for place in (bucket, str(tmp_path)):
        write_bytes(f"{place}/ml/u.data", b"1\t2\t3\t4\n")
        assert read_here(f"{place}/ml", reader="movielens_100k") == [("1", "2", 3.0, 4_000_000)]
        with pytest.raises(ConfigError, match=r"no train\.txt"):
            read_here(f"{place}/ml", reader="lightgcn")
    with pytest.raises(MissingError, match="no such file or folder"):
        read_here(f"{bucket}/none", reader="movielens_100k")
