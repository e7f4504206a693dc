"""Files of JSON that are no lines of objects with plain ids: refused by what they are, with the line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from recbench_spark import cli
from recbench_spark.commands import init
from recbench_spark.config import Dataset
from recbench_spark.engine.local import LocalEngine
from recbench_spark.engine.sessions import SparkEngine
from recbench_spark.errors import DataError
from recbench_spark.sources import text_pieces
from recbench_spark.sources.json_objects import (
    Objects,
    check_first_lines,
    describe_line,
    find_bad_line,
    list_keys,
)
from recbench_spark.sources.log_files import open_log_file
from recbench_spark.sources.log_sources import open_raw_log
from recbench_spark.sources.log_values import profile_columns
from recbench_spark.sources.opened_logs import check_log
from recbench_spark.sources.readers.logs import open_frames
from recbench_spark.sources.text_pieces import BAD_LINE, read_pieces, split_file
from recbench_spark.storage import local_files
from tests.labelled import make_log_frame, open_log

GOOD = [
    {"user": f"u{n % 9}", "item": f"i{n}", "rating": n % 5, "time": 1_600_000_000 + n} for n in range(40)
]
LINES = [json.dumps(row) for row in GOOD]
COLUMNS = {"user_id": "user", "item_id": "item", "rating": "rating", "event_time": "time"}

WHOLE = {
    "array": (json.dumps(GOOD), 1, "an array of JSON"),
    "pretty array": (json.dumps(GOOD, indent=1), 1, "the beginning of an array over several lines"),
    "pretty": ("\n".join(json.dumps(row, indent=2) for row in GOOD), 1, "does not end in its line"),
    "python": ("\n".join(map(repr, GOOD)), 1, "a literal of Python"),
    "literals": ('{"user": "u1", "item": True}\n{"user": "u2", "item": None}\n', 1, "a literal of Python"),
}
"""Files none of whose lines is an object of JSON: text, number of the line, what it is."""

VALUES = {
    "mongo": ({"$numberLong": "1"}, "an object whose 'user' is an object"),
    "object": ({"id": "u1", "name": "x"}, "an object whose 'user' is an object"),
    "array": (["u1"], "an object whose 'user' is an array"),
}
"""Values of an id that are no text and no number."""


@pytest.mark.parametrize("name", WHOLE)
def test_a_file_without_lines_of_objects_is_refused_by_what_it_is(name: str, tmp_path: Path) -> None:
    text, number, what = WHOLE[name]
    (tmp_path / "log.json").write_text("\n\n" + text)
    with pytest.raises(DataError, match=rf"log.json: line {number + 2} is .*{what}") as error:
        check_first_lines(str(tmp_path / "log.json"))
    assert error.value.hint
    (tmp_path / "log.json").write_text(text)
    with pytest.raises(DataError, match=f"line {number} is .*{what}"):
        open_log_file(str(tmp_path / "log.json"))


@pytest.mark.parametrize("name", VALUES)
def test_a_value_that_is_no_id_is_named_with_its_line(name: str, tmp_path: Path, capsys) -> None:
    value, what = VALUES[name]
    rows = [*GOOD[:7], {**GOOD[7], "user": value}, *GOOD[8:]]
    with gzip.open(tmp_path / "log.json.gz", "wt") as stream:
        stream.write("\n".join(map(json.dumps, rows)))
    bad = find_bad_line(str(tmp_path / "log.json.gz"), ["user", "item"])
    assert bad is not None and bad.number == 8 and bad.what.startswith(what)
    if name == "mongo":
        assert """jq -c '."user" |= .["$numberLong"]'""" in bad.hint
    assert find_bad_line(str(tmp_path / "log.json.gz"), ["item"]) is None, "other keys may be nested"
    flags = [
        "--log",
        str(tmp_path / "log.json.gz"),
        "--dry-run",
        "--user-column",
        "user",
        "--item-column",
        "item",
    ]
    with pytest.raises(SystemExit) as ended:
        cli.run(init.main, init.parser(), flags)
    assert ended.value.code == 1 and f"line 8 is {what}" in capsys.readouterr().err


def test_lines_are_told_apart() -> None:
    assert describe_line('{"user": 1, "tags": ["a"]}', ["user"]) is None
    assert describe_line("12")[0].startswith("a value of JSON, and no object")  # type: ignore[index]
    assert describe_line("user,item")[0].startswith("no JSON")  # type: ignore[index]


def test_init_reads_all_rows_behind_a_mark_of_the_byte_order(tmp_path: Path) -> None:
    plain, marked = tmp_path / "plain.json", tmp_path / "marked.json"
    plain.write_text("\n".join(LINES))
    marked.write_text("\ufeff" + "\n".join(LINES), encoding="utf-8")
    profiles = [profile_columns(open_log_file(str(path))) for path in (plain, marked)]
    assert profiles[0] == profiles[1] and profiles[1][0] == len(GOOD)


def read(spark: Any, path: Path, **more: Any) -> set[tuple[str, str]]:
    dataset = Dataset(name="log", reader="json", path=str(path), columns=COLUMNS, **more)
    return {(row.user_id, row.item_id) for row in open_log(spark, dataset).rows.collect()}


ODD = [
    {"user": "é", "item": 7, "rating": 1.50, "genre": "a", "extra": {"b": 1}},
    {"user": 1, "item": "x", "rating": 1e2, "genre": True},
    {"item": 7, "user": 12345678901234567890, "rating": "2.25", "genre": None, "time": 1_600_000_000},
    {"user": "", "item": 3, "rating": 1},
]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_objects_are_rows_of_texts_as_they_are_written(tmp_path: Path, end: str) -> None:
    texts = [json.dumps(row, ensure_ascii=n % 2 == 0) for n, row in enumerate(ODD)]
    more = ['{"user": NaN, "item": 1.50, "user": 2.0}', '{"user": "\\ud83d", "item": "\\ud83d\\ude00"}']
    bad = ["[1]", '"text"', '{"user": [1], "item": 2}', '{"user": 1,}', "[" * 100_000]
    with gzip.open(tmp_path / "log.json.gz", "wt", encoding="utf-8", newline="") as stream:
        stream.write("\ufeff" + end.join([*texts, "", " ", *more, *bad]) + end)
    keys = list_keys([str(tmp_path / "log.json.gz")], ["none"], "utf-8")
    assert set(keys) == {"user", "item", "rating", "genre", "extra", "time"}
    layout = Objects(keys, ("user", "item"))
    pieces = split_file(str(tmp_path / "log.json.gz"), layout)
    table = pa.concat_tables(read_pieces(pieces, ["user", "item", "rating", "genre", "none", BAD_LINE]))
    assert table.column(BAD_LINE).to_pylist() == [None] * 6 + bad
    assert table.column("user").to_pylist()[:6] == ["é", "1", "12345678901234567890", "", "2.0", "?"]
    assert table.column("item").to_pylist()[:6] == ["7", "x", "7", "3", "1.50", "\U0001f600"]
    assert table.column("rating").to_pylist()[:4] == ["1.5", "100.0", "2.25", "1"]
    assert table.column("genre").to_pylist()[:3] == ["a", "true", None]
    assert table.column("none").null_count == len(table)


def test_pieces_of_a_file_have_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log.json"
    path.write_text("\n".join(LINES))
    layout, wanted = Objects(("user", "item", "time"), ("user", "item")), ["user", "item", "time", BAD_LINE]
    whole = pa.concat_tables(read_pieces(split_file(str(path), layout), wanted))
    monkeypatch.setattr(text_pieces, "BYTES_A_PIECE", 100)
    pieces = list(split_file(str(path), layout))
    assert len(pieces) > 20 and pa.concat_tables(read_pieces(pieces, wanted)).equals(whole)
    assert len(list_keys([str(path)], ["user"], "utf-8")) == 4


def test_a_log_of_objects_needs_no_spark(tmp_path: Path) -> None:
    """The same rows in CSV say what they are."""
    rows = [{**row, "user": f"é{row['user']}"} for row in GOOD]
    texts = {
        "json": "\n".join(json.dumps(row, ensure_ascii=False) for row in rows),
        "csv": "\n".join(["user,item,rating,time", *(",".join(map(str, row.values())) for row in rows)]),
    }
    opened = []
    for reader, text in texts.items():
        folder = tmp_path / reader
        folder.mkdir()
        (folder / f"a.{reader}").write_text(text, encoding="cp1252")
        options = {"encoding": "cp1252"}
        dataset = Dataset(name="log", reader=reader, path=str(folder), columns=COLUMNS, options=options)
        log = check_log(open_raw_log(dataset), dataset, LocalEngine(str(tmp_path / "spill")))
        opened.append(pa.concat_tables(log.rows.each(log.columns, pa.concat_tables)).to_pylist())
    assert opened[0] == opened[1] and len(opened[0]) == len(GOOD)


@pytest.mark.spark
def test_spark_reads_the_same_texts(spark: Any, tmp_path: Path) -> None:
    """Tasks cut the text of a file that Spark alone reaches."""
    (tmp_path / "log.json").write_text("\n".join(map(json.dumps, [row for row in ODD if row["user"]])))
    columns = {"user_id": "user", "item_id": "item", "rating": "rating", "event_time": ""}
    tables = []
    given = {"name": "log", "reader": "json", "path": str(tmp_path), "columns": columns}
    dataset = Dataset(**given, attributes=["genre"])
    raws = (open_raw_log(dataset), open_frames(spark, dataset))
    for log in (check_log(raw, dataset, SparkEngine(spark)) for raw in raws):
        rows = make_log_frame(spark, log).drop("event_time").collect()
        tables.append(sorted((*row[:3], str(row.attributes)) for row in rows))
    assert tables[0] == tables[1] and len(tables[0]) == 3


def test_a_night_refuses_what_init_refuses_and_reads_a_mark(spark, tmp_path: Path) -> None:
    log, pairs = tmp_path / "log.json", {(row["user"], row["item"]) for row in GOOD}
    log.write_text("\ufeff" + "\n".join(LINES), encoding="utf-8")
    assert read(spark, log) == pairs
    for text, number, what in WHOLE.values():
        log.write_text(text)
        for rows in ("error", "reject"):
            with pytest.raises(DataError, match=f"line {number} is .*{what}"):
                read(spark, log, bad_rows=rows)
    many = [*LINES, *(json.dumps({**row, "item": f"j{n}"}) for n, row in enumerate(GOOD * 4))]
    for value, what in VALUES.values():
        rows = [*many, json.dumps({**GOOD[0], "user": value}), *LINES]
        log.write_text("\n".join(rows))
        with pytest.raises(
            DataError, match=f"1 lines that are not an object .* line {len(many) + 1} .*{what}"
        ):
            read(spark, log)
        assert pairs < read(spark, log, bad_rows="reject")
        assert all("{" not in user for user, _ in read(spark, log, bad_rows="reject"))
    log.write_text("\n".join(LINES[:-1]) + "\n" + repr(GOOD[-1]))
    with pytest.raises(DataError, match="line 40 is a literal of Python"):
        read(spark, log)
    assert len(read(spark, log, bad_rows="reject")) == len(GOOD) - 1


@pytest.mark.parametrize("key", ['"part"', '"p\\u0061rt"', '"a\\/b"', '"é"', '"\\u00e9"'])
def test_keys_that_only_a_late_line_has(key: str, tmp_path: Path, monkeypatch) -> None:
    """Text that cannot hold them is not parsed; a letter may stand by its number."""
    monkeypatch.setattr(text_pieces, "BYTES_A_PIECE", 64)
    monkeypatch.setattr(local_files, "CHUNK_BYTES", 64)
    lines = [f'{{"user": {n}}}' for n in range(100)]
    path, name = tmp_path / "log.json", json.loads(key)
    path.write_text("\n".join([*lines, f'{{"user": 1, {key}: 2}}']), encoding="utf-8")
    assert list_keys([str(path)], {"user", name}, "utf-8") == ("user", name)
    assert list_keys([str(path)], {"user", "item"}, "utf-8") in {("user",), ("user", name)}
