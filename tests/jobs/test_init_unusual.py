"""recbench init: encodings, blanks, ratings and times of unusual names and forms, values for no rating."""

from __future__ import annotations

import gzip
from pathlib import Path

import pandas as pd
import pytest

from recbench_spark import cli
from recbench_spark.commands import init
from recbench_spark.config import Dataset, load_benchmark
from recbench_spark.errors import DataError
from recbench_spark.sources.arrow_files import read_table

FIRST = 1_262_304_000


def run(path: Path, *flags: str) -> int | str | None:
    words = [
        "--log",
        str(path),
        "--output",
        str(path.parent / "own.yaml"),
        "--name",
        "own",
        "--force",
        *flags,
    ]
    with pytest.raises(SystemExit) as end:
        cli.run(init.main, init.parser(), words)
    return end.value.code


def load(path: Path) -> Dataset:
    return load_benchmark(str(path.parent / "own.yaml")).dataset


def write(folder: Path, lines: list[str], name: str = "log.txt", encoding: str = "utf-8") -> Path:
    raw = ("\n".join(lines) + "\n").encode(encoding)
    (folder / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    return folder / name


# ------------------------------------------------------------------------------------- encodings

NAMES = [
    "user,item,rating",
    *(f"{user},Café {n},{n % 5 + 1}" for user in ("ann", "José", "Zoë") for n in range(4)),
]


@pytest.mark.parametrize("name", ["log.csv", "log.csv.gz"])
@pytest.mark.parametrize(("text", "encoding"), [("", "cp1252"), ("\x81", "ISO-8859-1")])
def test_an_encoding_is_found_and_written(
    name: str, text: str, encoding: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All 12 rows and 3 users count, and no line is called broken: it was, where é is a byte of its own."""
    path = write(tmp_path, [*NAMES, f"ann,x{text},1"], name, encoding)
    assert run(path) == 0
    out = capsys.readouterr().out
    line = "byte 0xE9 in line 2 is not UTF-8: read as " + encoding
    assert line in out and ": 13 rows\n" in out and "no rows of" not in out
    dataset = load(path)
    assert (dataset.options, dataset.bad_rows) == ({"encoding": encoding}, "error")
    written = (tmp_path / "own.yaml").read_text()
    assert line in written and 'user_id: "user" # 3 values such as ann, José, Zoë' in written


def test_the_encoding_of_the_caller_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, ["user,item", "Иван,a", "Анна,b"], "log.csv", "cp1251")
    assert run(path, "--encoding", "cp1251") == 0
    assert load(path).options == {"encoding": "cp1251"} and "Иван, Анна" in capsys.readouterr().out
    assert run(path, "--encoding", "cp12510") == 2
    assert "--encoding cp12510 is not known" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["log.csv", "log.csv.gz"])
def test_utf_16_is_refused_by_name(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(write(tmp_path, NAMES, name, "utf-16")) == 1
    err = capsys.readouterr().err
    assert "is text in UTF-16" in err and "iconv -f UTF-16 -t UTF-8" in err


def test_json_in_another_encoding_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(
        tmp_path, ['{"user": "ann", "item": 1}', '{"user": "José", "item": 2}'], "log.json", "cp1252"
    )
    assert run(path) == 1
    assert "byte 0xE9 in line 2 is not UTF-8" in capsys.readouterr().err


def test_text_of_several_bytes_at_the_end_of_a_chunk(tmp_path: Path) -> None:
    """A letter that two reads cut is UTF-8 nevertheless."""
    from recbench_spark.storage import local_files

    path = tmp_path / "log.csv"
    path.write_bytes(b"x" * (local_files.CHUNK_BYTES - 1) + "é\n".encode() * 3)
    assert local_files.find_undecoded(str(path)) is None
    path.write_bytes(path.read_bytes() + b"a\n\xc3")
    assert local_files.find_undecoded(str(path)) == (5, 0xC3)


# ---------------------------------------------------------------------------------------- blanks


@pytest.mark.parametrize("gap", [" ", "  ", " \t "])
def test_fields_separated_by_blanks(gap: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        f"{user}{gap}{item}{gap}{(user + item) % 8 / 2 + 0.5:g}"
        for user in range(1, 5)
        for item in range(1, 6)
    ]
    path = write(tmp_path, [*rows[:7], "", f"  {rows[7]} ", *rows[8:]])
    ids = ("--user-column", "_c0", "--item-column", "_c1")
    assert run(path, *ids) == 2
    assert "rating may be _c2" in capsys.readouterr().err
    assert run(path, *ids, "--rating-column", "_c2") == 0
    dataset = load(path)
    assert (
        dataset.options == {"sep": "blanks", "header": "false"} and ": 20 rows\n" in capsys.readouterr().out
    )
    assert dataset.columns == {"user_id": "_c0", "item_id": "_c1", "rating": "_c2"}


def test_names_separated_by_blanks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, ["user item  rating", *["1 2 3"] * 120, "1 2"])
    assert run(path) == 0
    assert load(path).options == {"sep": "blanks"} and load(path).bad_rows == "reject"
    assert "1 lines are no rows of 3 fields" in capsys.readouterr().out


# ----------------------------------------------------------------------------- ratings and times


@pytest.mark.parametrize(
    ("header", "rating", "time"),
    [
        ("User-ID;ISBN;Book-Rating", "Book-Rating", None),
        ("user_id;item_id;label", "label", None),
        ("user;item;user_rating", "user_rating", None),
        ("user;item;review_stars;watched_at", "review_stars", None),
    ],
)
def test_ratings_of_unusual_names(header: str, rating: str, time: str | None, tmp_path: Path) -> None:
    more = ";7" if header.count(";") == 3 else ""
    path = write(tmp_path, [header, *(f"{n};{n % 3};{n % 2 + 1}{more}" for n in range(9))], "log.csv")
    assert run(path, *(("--time-column", "none") if more else ())) == 0
    assert load(path).columns.get("rating") == rating


def test_epoch_seconds_in_a_column_without_a_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, [f"{n}\t{n % 3}\t{n % 5 + 1}\t{FIRST + n}" for n in range(9)])
    ids = ("--user-column", "_c0", "--item-column", "_c1")
    assert run(path, *ids) == 2
    assert "add --rating-column _c2 or --rating-column none" in capsys.readouterr().err
    assert run(path, *ids, "--rating-column", "_c2") == 0
    assert (load(path).columns["event_time"], load(path).time_unit) == ("_c3", "s")


@pytest.mark.parametrize("times", ["{}000.0", "{}.25", "{}e0"])
def test_epoch_times_of_other_writings_are_not_passed_over(times: str, tmp_path: Path) -> None:
    path = write(tmp_path, [f"{n}\t{n % 3}\t{n % 5 + 1}\t{times.format(FIRST + n)}" for n in range(9)])
    ids = ("--user-column", "_c0", "--item-column", "_c1", "--rating-column", "_c2")
    assert run(path, *ids) == 0
    unit = "ms" if "000" in times else "s"
    assert (load(path).columns["event_time"], load(path).time_unit) == ("_c3", unit)


@pytest.mark.parametrize("missing", [0, -1])
def test_epoch_times_with_missing_ones_are_asked_for(
    missing: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"{n},{n % 3},{FIRST + n if n else missing}" for n in range(9)]
    path = write(tmp_path, ["user,item,x", *lines], "log.csv")
    assert run(path) == 2
    assert "add --time-column x or --time-column none" in capsys.readouterr().err


def test_years_of_two_digits_are_no_years_of_the_first_century(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, ["user,item,date", "1,1,09/13/20", "1,2,09/14/20", "2,1,09/15/20"], "log.csv")
    assert run(path) == 2
    assert "09/13/20, 09/14/20, 09/15/20, which are no times" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("header", "values", "message"),
    [
        ("is_click", ["0", "1", "1"], "rating may be is_click (0, 1)"),
        ("thumbs", ["1", "2", "3"], "rating may be thumbs"),
        ("watch_ratio", ["0.1234", "2.5", "1"], "add --rating-column watch_ratio or --rating-column none"),
        ("stars", ["5 of 5", "4 of 5", "3 of 5"], "0 of 3 values are finite numbers"),
        ("session_start", [str(FIRST), str(FIRST + 1), str(FIRST + 2)], "event_time may be session_start"),
        ("played_time", ["3", "4", "5"], "event_time may be played_time"),
        ("day", ["Mar 14, 2015", "Mar 15, 2015", "Mar 16, 2015"], "day has Mar 14, 2015"),
        ("day", ["14-Mar-2015", "15-MAR-15 10:00", "1-Apr-2015"], "day has 14-Mar-2015"),
        ("day", ["Sat, 14 Mar 2015 10:00:00 GMT", "15 Mar 2015", "Mar 2015"], "day has Sat, 14 Mar"),
        ("day", ["20150314", "20150315", "20150401"], "event_time may be day"),
    ],
)
def test_what_may_be_a_rating_or_a_time_is_asked_for(
    header: str, values: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pd.DataFrame({"user": [1, 1, 2], "item": [1, 2, 1], header: values}).to_csv(
        tmp_path / "log.csv", index=False
    )
    assert run(tmp_path / "log.csv") == 2
    assert message in capsys.readouterr().err
    flag = "--time-column" if "time" in message or header == "day" else "--rating-column"
    assert run(tmp_path / "log.csv", flag, "none") == 0


@pytest.mark.parametrize(
    ("values", "pattern"),
    [
        (["03/14/2015", "3/2/2015", "12/31/2014"], "M/d/yyyy"),
        (["14/03/2015 09:00", "2/3/2015 10:30", "31/12/2014 23:59"], "d/M/yyyy H:mm"),
        (["14.03.2015", "2.3.2015", "31.12.2014"], "d.M.yyyy"),
        (["3/14/2015 1:02:03 PM", "3/2/2015 1:02:03 AM", "12/31/2014 12:00:00 AM"], "M/d/yyyy h:mm:ss a"),
        (["2015/03/14", "2015/3/2", "2014/12/31"], "yyyy/M/d"),
    ],
)
@pytest.mark.parametrize("name", ["date", "when"])
def test_dates_in_another_order(values: list[str], pattern: str, name: str, tmp_path: Path) -> None:
    pd.DataFrame({"user": [1, 1, 2], "item": [1, 2, 1], name: values}).to_csv(
        tmp_path / "log.csv", index=False
    )
    assert run(tmp_path / "log.csv") == 0
    dataset = load(tmp_path / "log.csv")
    assert (dataset.columns["event_time"], dataset.time_unit, dataset.time_format) == (
        name,
        "timestamp",
        pattern,
    )
    assert load_benchmark(str(tmp_path / "own.yaml")).split.holdout is not None


def test_a_day_and_a_month_that_could_be_exchanged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(
        tmp_path, ["user,item,date", "1,1,03/04/2015", "1,2,05/06/2015", "2,1,01/02/2015"], "log.csv"
    )
    assert run(path) == 2
    assert "add --time-format 'M/d/yyyy' or --time-format 'd/M/yyyy'" in capsys.readouterr().err
    assert run(path, "--time-format", "dd/MM/yyyy") == 0
    assert load(path).time_format == "d/M/yyyy"
    assert run(path, "--time-format", "yyyy/MM/dd") == 2
    assert run(path, "--time-format", "QQQ") == 2


def test_a_split_without_times_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, ["user,item,quantity", "1,1,1", "1,2,3", "2,1,2"], "log.csv")
    assert run(path) == 0
    out = capsys.readouterr().out
    assert "no times: rows are split at random, by hash" in out
    assert "quantity (1 to 3; as ratings: --rating-column quantity)" in out


@pytest.mark.parametrize(
    ("ratings", "code"),
    [
        ([0, 0, 5, 10], "0 (2 rows)"),
        ([-1, 7, 8, 10], "-1 (1 rows)"),
        ([99, -9.81, 4.5, 9.2], "99 (1 rows)"),
        ([0, 1, 1, 0], None),
        ([-1, 0, 1, 1], None),
        ([0, 0.5, 4, 5], None),
        ([1, 2, 3, 4], None),
        ([97, 98, 99, 60], None),
    ],
)
def test_values_that_usually_mean_no_rating(
    ratings: list[float], code: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = pd.DataFrame({"user": [1, 1, 2, 2], "item": [1, 2, 1, 3], "rating": ratings})
    frame.to_csv(tmp_path / "log.csv", index=False)
    assert run(tmp_path / "log.csv") == 0
    for text in (capsys.readouterr().out, (tmp_path / "own.yaml").read_text()):
        assert (f"Rating {code} usually means no rating" in text) if code else "no rating;" not in text


def test_tables_of_other_systems_name_the_byte(tmp_path: Path) -> None:
    path = write(tmp_path, ["user_id,item_id", "ann,a", "José,b"], "truth.csv", "cp1252")
    with pytest.raises(DataError, match="byte 0xE9 in line 3 is not UTF-8") as error:
        read_table(str(path), ["user_id", "item_id"], "truth")
    assert "cp1252" in error.value.hint
