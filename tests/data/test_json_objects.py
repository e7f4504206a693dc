"""Files of JSON that are no lines of objects with plain ids: refused by what they are, with the line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from recbench_spark import cli
from recbench_spark.commands import init
from recbench_spark.config import Dataset
from recbench_spark.data.json_objects import check_first_lines, describe_line, find_bad_line, open_unmarked
from recbench_spark.data.log_files import open_log_file
from recbench_spark.data.log_values import profile_columns
from recbench_spark.errors import DataError
from tests.labelled import open_log

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
    with open_unmarked(str(plain)) as same:
        assert same == str(plain)


def read(spark: Any, path: Path, **more: Any) -> set[tuple[str, str]]:
    dataset = Dataset(name="log", reader="json", path=str(path), columns=COLUMNS, **more)
    return {(row.user_id, row.item_id) for row in open_log(spark, dataset).rows.collect()}


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
    # The old reading has a name.
    log.write_text("\n".join(LINES[:-1]) + "\n" + repr(GOOD[-1]))
    with pytest.raises(DataError, match="line 40 is a literal of Python"):
        read(spark, log)
    assert len(read(spark, log, bad_rows="reject")) == len(GOOD) - 1
    assert read(spark, log, bad_rows="reject", options={"allowSingleQuotes": "true"}) == pairs
