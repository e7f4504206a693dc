"""recbench init: logs in the shapes of public data sets, what is refused, a night of a file it writes."""

from __future__ import annotations

import bz2
import gzip
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recbench_spark import cli
from recbench_spark.commands import init, nightly
from recbench_spark.config import load_benchmark
from recbench_spark.schemas import REJECTS, SPLITS
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.objects import write_bytes
from tests.log_shapes import FIRST, SHAPES, make_rows


def run(path: Path, *flags: str) -> int | str | None:
    """Run the command; the file is `own.yaml` beside the log's folder."""
    words = ["--log", str(path), "--output", str(output_file(path)), "--name", "own", *flags]
    with pytest.raises(SystemExit) as end:
        cli.run(init.main, init.parser(), words)
    return end.value.code


def output_file(path: Path) -> Path:
    folder = path if path.is_dir() else path.parent
    return folder.parent / "own.yaml"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "log").mkdir()
    return tmp_path / "log"


EXPECTED = {
    "movielens 100k": ("csv", ("_c0", "_c1", "_c2", "_c3"), "s"),
    "movielens 1m": ("csv", ("_c0", "_c1", "_c2", "_c3"), "s"),
    "movielens latest": ("csv", ("userId", "movieId", "rating", "timestamp"), "s"),
    "recbole": ("csv", ("user_id:token", "item_id:token", "rating:float", "timestamp:float"), "s"),
    "retailrocket": ("csv", ("visitorid", "itemid", None, "timestamp"), "ms"),
    "gowalla": ("csv", ("_c0", "_c4", None, "_c1"), "timestamp"),
    "coat": ("coat", (None, None, None, None), "s"),
    "lenskit": ("parquet", ("user_id", "item_id", "rating", "timestamp"), "timestamp"),
    "replay": ("parquet", ("user_idx", "item_idx", "relevance", "timestamp"), "s"),
    "yelp": ("json", ("user_id", "business_id", "stars", "date"), "timestamp"),
    "amazon": ("json", ("user_id", "parent_asin", "rating", "timestamp"), "ms"),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_public_shapes(shape: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write, flags = SHAPES[shape]
    path = write(place)
    if flags:
        assert run(path) == 2
        assert flags[0] in capsys.readouterr().err and not output_file(path).exists()
    assert run(path, *flags) == 0
    dataset = load_benchmark(str(output_file(path))).dataset
    names = tuple(dataset.columns.get(role) for role in ("user_id", "item_id", "rating", "event_time"))
    assert (dataset.reader, names, dataset.time_unit) == EXPECTED[shape]
    assert ": 108 rows\n" in capsys.readouterr().out or shape == "coat"


@pytest.mark.contract("init")
def test_the_evidence_and_the_comments(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = SHAPES["retailrocket"][0](place)
    assert run(path) == 0
    lines = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()[:-2]}
    assert lines["user_id"] == ["visitorid", "108", "12", "1", "12", "1,", "2,", "3"]
    assert lines["rating"] == ["none"] and lines["unit"][-5:] == [
        "are",
        "from",
        "2010-01-01",
        "to",
        "2010-08-29",
    ]
    text = output_file(path).read_text()
    assert "time_unit: ms # by ms they are from 2010-01-01 to 2010-08-29" in text
    assert "# no rating: every row counts as 1" in text
    assert '# attributes: ["event"] # kept for slices; it has 3 values such as ' in text


def write_times(folder: Path, times: list[object]) -> Path:
    frame = pd.DataFrame({"user": [1, 1, 2], "item": [1, 2, 1], "time": times})
    frame.to_csv(folder / "log.csv", index=False)
    return folder / "log.csv"


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([1, 2, 900], "add --time-unit s or ms or us, or --time-column none"),
        ([0, FIRST, FIRST + 9], "no unit puts all of it between 1990 and 2099"),
        ([FIRST, FIRST * 1000, FIRST * 1000], "no unit puts all of it"),
        ([20140517, 20140518, 20141231], "dates such as 20260131, or seconds of 1970"),
        ([FIRST * 10**9] * 3, "divide them by 1000, then --time-unit us"),
        (
            ["05/04/2014", "06/04/2014", "07/04/2014"],
            "add --time-format 'M/d/yyyy' or --time-format 'd/M/yyyy'",
        ),
        (["05/04/2014", "06/04/2014", "2014-04-07"], "which are no times that a night reads"),
        (["10:30", "10:31", "10:32"], "which are no times that a night reads"),
    ],
)
def test_a_unit_is_never_guessed(
    times: list[object], message: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_times(place, times)
    assert run(path) == 2
    assert message in capsys.readouterr().err and not output_file(path).exists()
    assert run(path, "--time-column", "none") == 0
    assert "event_time" not in load_benchmark(str(output_file(path))).dataset.columns


def test_a_unit_of_the_caller_is_taken_unless_it_cannot_be(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_times(place, [1, 2, 900])
    assert run(path, "--time-unit", "s") == 0
    assert load_benchmark(str(output_file(path))).dataset.time_unit == "s"
    path = write_times(place, [FIRST * 1000, FIRST * 1000 + 1, FIRST * 1000 + 2])
    assert run(path, "--force", "--time-unit", "s") == 2
    assert "is after the year 2099" in capsys.readouterr().err


def test_timestamps_that_were_made_in_a_wrong_unit(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Seconds that pandas took for nanoseconds lie in the first seconds of 1970."""
    times = pd.to_datetime(np.array([FIRST, FIRST + 86_400]))
    pd.DataFrame({"user_id": [1, 2], "item_id": [1, 2], "timestamp": times}).to_parquet(place / "x.parquet")
    assert run(place / "x.parquet") == 1
    assert "seconds were taken for nanoseconds" in capsys.readouterr().err


def write_lines(folder: Path, name: str, *lines: str) -> Path:
    (folder / name).write_text("\n".join(lines) + "\n")
    return folder / name


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        ("a.csv", ("user,item,movieId", "1,2,3"), "add --item-column item or --item-column movieId"),
        ("a.txt", ("a;1,2", "b;3,4"), "',' and ';' could both separate the fields"),
        ("a.json", ("[", '{"user": 1, "item": 2}', "]"), "line 1 is the beginning of an array"),
        ("a.txt", ("one", "two"), "no separator gives all lines as many fields"),
        ("a.csv", ("ann,book", "bob,film"), "add --header yes or --header no"),
        ("a.csv", ("who,what", "1,2", "2,2"), "add --user-column NAME --item-column NAME, of who: 1, 2"),
        ("a.csv", ("user,item,Rating", "1,2,good"), "Rating has good: 0 of 1 values are finite numbers"),
        ("train.ascii", (" ".join("0" * 30), " ".join("5" * 30)), "is a matrix with a row for each user"),
    ],
)
def test_what_is_unclear_is_refused(
    name: str, lines: tuple[str, ...], message: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(write_lines(place, name, *lines)) in (1, 2)
    assert message in capsys.readouterr().err and not output_file(place).exists()


def test_a_column_of_our_name_wins(place: Path) -> None:
    assert run(write_lines(place, "a.csv", "user,item_id,item", "1,2,3")) == 0
    assert load_benchmark(str(output_file(place))).dataset.columns["item_id"] == "item_id"


def test_flags_for_what_was_unclear(place: Path) -> None:
    path = write_lines(place, "a.txt", "ann;1,2", "bob;3,4")
    assert (
        run(path, "--separator", ";", "--header", "no", "--user-column", "_c0", "--item-column", "_c1") == 0
    )
    dataset = load_benchmark(str(output_file(path))).dataset
    assert dataset.options == {"sep": ";", "header": "false"}


def test_missing_values_are_rejected_with_a_comment(place: Path) -> None:
    path = write_lines(place, "a.csv", "user,item,rating", "1,2,3", "2,3,", "3,,1")
    assert run(path) == 0
    assert load_benchmark(str(output_file(path))).dataset.bad_rows == "reject"
    assert "# 1 rows without item, 1 rows without rating: left out" in output_file(path).read_text()


@pytest.mark.parametrize("value", ["good", "nan", "inf"])
def test_ratings_are_finite_numbers(value: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_lines(place, "a.csv", "user,item,rating", "1,2,3", f"2,3,{value}")
    assert run(path) == 2
    error = capsys.readouterr().err
    assert "1 of 2 values are finite numbers" in error and "or add --rating-column none" in error


@pytest.mark.parametrize("name", ["rating", "Rating"])
def test_a_column_of_our_name_can_be_left_unread(name: str, place: Path) -> None:
    """The empty name tells a night that words are no ratings; the checks before a night take it too."""
    path = write_lines(
        place, "a.csv", f"user,item,{name},time", f"1,2,good,{FIRST}", f"2,3,bad,{FIRST + 9}"
    )
    assert run(path) == 2 and run(path, "--rating-column", "none") == 0
    benchmark = load_benchmark(str(output_file(path)))
    assert benchmark.dataset.source_names == {
        **{"user_id": "user", "item_id": "item", "event_time": "time", "part": "part"}
    }
    words = ["--config", str(output_file(path)), "--warehouse", str(place / "w"), "--dry-run"]
    with pytest.raises(SystemExit) as end:
        cli.run(nightly.main, nightly.parser(), [*words, "--logical-date", "2026-01-01"])
    assert end.value.code == 0


def test_an_error_of_the_reader_keeps_its_sentence(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "log.csv").write_text('user_id,item_id,text\n1,2,a\n3,4,"b\n' + "5,6,c\n" * 5)
    code = run(place / "log.csv", "--dry-run")
    said = capsys.readouterr()
    assert "stream" not in said.err, (code, said)


def test_broken_lines_are_counted(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They stand after the first 100 lines, all of which must be rows."""
    broken = ("2,3", "3,1,4,5,6", "4,1,")
    path = write_lines(place, "a.csv", "user,item,rating", *["1,2,3"] * 200, *broken)
    assert run(path) == 0
    assert "2 lines are no rows of 3 fields" in capsys.readouterr().out
    assert load_benchmark(str(output_file(path))).dataset.bad_rows == "reject"
    assert "# 2 lines that are no rows, 1 rows without rating: left" in output_file(path).read_text()


@pytest.mark.parametrize("name", ["a*b.csv", "a?b.csv", "a[x]b.csv"])
def test_a_name_with_wildcards_is_one_file(
    name: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lines(place, "axb.csv", "user,item", "1,2", "1,3")
    assert run(write_lines(place, name, "user,item", "1,2")) == 0
    assert f"{name}: 1 rows" in capsys.readouterr().out


def test_times_that_are_all_the_same(place: Path) -> None:
    """No row is after a cut at one time, so each user's rows are divided."""
    path = write_times(place, [FIRST] * 3)
    assert run(path) == 0
    text = output_file(path).read_text()
    assert "protocol: TO_RS" in text and "nan%" not in text


@pytest.mark.parametrize("header", ["user,item,user", "user,item,USER"])
def test_columns_of_one_name(header: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(write_lines(place, "a.csv", header, "1,2,3")) == 2
    assert f"differ only in case: user, {header[-4:]}" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [(), ("--header", "yes")])
def test_a_column_without_a_name_is_named_by_its_place(
    flags: tuple[str, ...], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The index that pandas writes first; Spark's reader calls it so too."""
    frame = pd.DataFrame({"userId": [1, 1, 2], "movieId": [5, 6, 5]}, index=[7, 8, 9])
    frame.to_csv(place / "a.csv")
    assert run(place / "a.csv", *flags) == 0
    assert "not taken: _c0" in capsys.readouterr().out
    columns = load_benchmark(str(output_file(place / "a.csv"))).dataset.columns
    assert (columns["user_id"], columns["item_id"]) == ("userId", "movieId")


def test_a_log_with_times_has_a_gate_on_its_age(place: Path) -> None:
    path = write_lines(place, "a.csv", "user,item,time", "1,2,2026-01-01", "2,2,2026-01-02")
    assert run(path) == 0
    *_, gate = load_benchmark(str(output_file(path))).gates
    assert (gate.fact, gate.part, gate.above, gate.action) == ("newest_age_days", "log", 2, "warn")
    write_lines(place, "a.csv", "user,item", "1,2", "2,2")
    assert run(path, "--force") == 0
    facts = [gate.fact for gate in load_benchmark(str(output_file(path))).gates]
    assert facts == ["rows", "users", "items"]


def test_a_later_time_without_an_offset_needs_a_zone(place: Path) -> None:
    times = [f"2026-01-0{day}T12:00:00Z" for day in range(1, 5)]
    rows = [f"{n},{n},{time}" for n, time in enumerate(times)]
    path = write_lines(place, "a.csv", "user,item,time", *rows)
    assert run(path) == 0 and "time_zone" not in output_file(path).read_text()
    write_lines(place, "a.csv", "user,item,time", *rows, "5,5,2026-01-09T12:00:00")
    assert run(path, "--force") == 0
    assert 'time_zone: "UTC" # of times without an offset' in output_file(path).read_text()


def test_users_who_come_once_are_split_one_by_one(place: Path) -> None:
    """After one cut for all nobody would be known; each user's own last rows are held out."""
    rows = [f"{user},{item},{FIRST + 86_400 * user + item}" for user in range(20) for item in range(6)]
    path = write_lines(place, "a.csv", "user,item,timestamp", *rows)
    assert run(path) == 0
    split = load_benchmark(str(output_file(path))).split
    assert (split.order, split.group) == ("temporal", "user")
    assert "0% have earlier rows" in output_file(path).read_text()


def test_an_existing_file_stays(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = SHAPES["movielens 100k"][0](place)
    output_file(path).write_text("mine")
    assert run(path) == 2 and "--force writes over it" in capsys.readouterr().err
    assert run(path, "--dry-run") == 0 and "reader: csv" in capsys.readouterr().out
    assert output_file(path).read_text() == "mine"
    assert run(path, "--force") == 0 and output_file(path).read_text() != "mine"


def test_folders(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder of MovieLens, of Parquet, and one without a log."""
    SHAPES["movielens 1m"][0](place)
    assert run(place) == 0
    assert load_benchmark(str(output_file(place))).dataset.path == str(place / "ratings.dat")
    parts = place / "parts"
    parts.mkdir()
    for n in range(2):
        table = pa.table({"user_id": [1, n], "item_id": [2, 3]})
        pq.write_table(table, parts / f"{n}.parquet")
    assert run(parts, "--dry-run") == 0 and "4 rows" in capsys.readouterr().out
    objects = place / "objects"
    objects.mkdir()
    for n in range(2):
        (objects / f"{n}.jsonl").write_text('{"user_id": 1, "item_id": 2}\n{"user_id": 3, "item_id": 4}\n')
    assert run(objects, "--dry-run") == 0 and "4 rows" in capsys.readouterr().out
    (place / "empty").mkdir()
    assert run(place / "empty") == 2


TEXT = "user_id;item_id;rating\n" + "".join(f"u{n % 9};{n % 7};{n % 5}.5\n" for n in range(40))
SHAPES_OF_FILES = {
    "bzip2": {"log.csv.bz2": bz2.compress(TEXT.encode())},
    "zstd": {"log.csv.zst": bytes(pa.Codec("zstd").compress(TEXT.encode()))},
    "lz4": {"log.csv.lz4": bytes(pa.Codec("lz4").compress(TEXT.encode()))},
    "a folder": {f"log/{name}.csv": TEXT.encode() for name in "ab"},
    "folders": {f"log/day={day}/a.csv": TEXT.encode() for day in (1, 2)},
}


@pytest.mark.parametrize("name", SHAPES_OF_FILES)
def test_what_nights_read_is_looked_at(name: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file, content in SHAPES_OF_FILES[name].items():
        (place / file).parent.mkdir(parents=True, exist_ok=True)
        (place / file).write_bytes(content)
    path = place / next(iter(SHAPES_OF_FILES[name])).split("/")[0]
    assert run(path, "--dry-run") == 0
    said = capsys.readouterr().out
    assert f"{path}: {40 * len(SHAPES_OF_FILES[name])} rows" in said and 'sep: ";"' in said
    assert f'path: "{path}"' in said and ("day" in said) == (name == "folders")


def test_a_log_of_object_storage_is_looked_at(bucket: str, place: Path, capsys) -> None:
    write_bytes(f"{bucket}/in/log.csv.gz", gzip.compress(TEXT.encode()))
    for path in (f"{bucket}/in", f"{bucket}/in/log.csv.gz"):
        words = ["--log", path, "--dry-run", "--name", "own"]
        with pytest.raises(SystemExit) as end:
            cli.run(init.main, init.parser(), words)
        said, errors = capsys.readouterr()
        assert end.value.code == 0, errors
        assert f"{path}: 40 rows" in said and f'path: "{path}"' in said


def test_the_file_runs(spark: object, place: Path) -> None:
    """A night of objects of JSON, one of which has no rating and one line of which is none."""
    path = SHAPES["yelp"][0](place)
    with path.open("a") as stream:
        stream.write(
            json.dumps({"user_id": "u1", "business_id": "b1", "date": "2010-01-01"}) + "\n{broken\n"
        )
    assert run(path) == 0
    text = output_file(path).read_text().partition("models:")[0]
    models = "models: [{name: popular, kind: popular}]\nevaluation: {metrics: [ndcg], k: [5]}\n"
    output_file(path).write_text(f"{text}{models}headline: ndcg@5\n")
    words = ["--config", str(output_file(path)), "--warehouse", str(place / "w")]
    with pytest.raises(SystemExit) as end:
        cli.run(nightly.main, nightly.parser(), [*words, "--logical-date", "2026-01-01"])
    assert end.value.code == 0
    tables = ArrowStore(str(place / "w"))
    rows = tables.read_rows(SPLITS).to_pandas()
    # A pair that occurs again has the same rating; the last of its rows stays.
    expected = {(f"u{user}", f"b{item}", rating) for user, item, rating, _ in make_rows()}
    assert sorted(zip(rows.user_id, rows.item_id, rows.rating, strict=True)) == sorted(expected)
    assert set(rows.part) == {"train", "test"} and tables.read_rows(REJECTS).num_rows == 2


def test_a_column_of_events_gives_lines_to_choose_from(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = pd.DataFrame(make_rows(), columns=["user", "item", "rating", "time"]).drop(columns="rating")
    rows["event"] = np.array([*["view"] * 7, "transaction", "add to cart"])[rows.index % 9]
    rows.to_csv(place / "log.csv", index=False)
    assert run(place / "log.csv") == 0
    counts = "event: view 84, add to cart 12, transaction 12 rows; all count alike."
    assert counts in capsys.readouterr().out.splitlines()
    text = output_file(place / "log.csv").read_text()
    assert f"  # {counts} Choose one of these lines:" in text
    for key in ("where", "events"):
        chosen = output_file(place / "log.csv").with_name(f"{key}.yaml")
        chosen.write_text(text.replace(f"  # {key}: ", f"  {key}: "))
        dataset = load_benchmark(str(chosen)).dataset
        if key == "where":
            assert dataset.where[0].one_of == ("transaction",) and not dataset.events
        else:
            assert dataset.events and dataset.events.targets == ("transaction",)
            assert dataset.events.weights == {"view": 1, "add to cart": 2, "transaction": 3}
