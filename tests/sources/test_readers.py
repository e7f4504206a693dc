"""Readers: every format on files the tests write themselves, every bad input, real data where present."""

from __future__ import annotations

import gzip
import json
import math
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recbench_spark.config import Dataset, WorldSettings, parse
from recbench_spark.errors import ConfigError, DataError, MissingError, SchemaError
from recbench_spark.sources.log_checks import PARTS
from tests.labelled import id_order, open_log, read_log, read_table
from tests.log_schema import LOG_SCHEMA

SECOND = 1_000_000


def write(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return str(path)


def dataset(reader: str, path: str | Path, **keys: object) -> Dataset:
    return Dataset(name="d", reader=reader, path=str(path), **keys)


def rows(frame) -> list[tuple]:
    return sorted(tuple(row) for row in frame.collect())


def log(user: str, item: str, rating: float = 1.0, time=None, part=None, attributes=None) -> tuple:
    return (user, item, rating, time, part, attributes)


# --- logs that can be read ---


def test_world_through_the_registry(spark):
    world = WorldSettings(users=50, items=100, interactions=1000, open_loop=100, periods=1)
    frame = read_log(spark, Dataset(name="w", reader="world", world=world))
    assert frame.columns == LOG_SCHEMA.names
    assert id_order([frame]) == "bytes"
    assert frame.where("part = 'open_loop'").count() == 100


@pytest.mark.parametrize("name", ["u.data", "u.data.gz"])
def test_movielens_100k(spark, tmp_path, name):
    write(tmp_path / name, "1\t10\t3\t881250949\n2\t9\t5\t0\n")
    expected = [log("1", "10", 3.0, 881250949 * SECOND), log("2", "9", 5.0, 0)]
    for path in (tmp_path, tmp_path / name):
        frame = read_log(spark, dataset("movielens_100k", path))
        assert rows(frame) == expected
        assert frame.schema.simpleString() == LOG_SCHEMA.simpleString()
    assert id_order([frame]) == "numeric"


@pytest.mark.parametrize(
    ("name", "text", "time"),
    [
        ("ratings.dat", "1::1193::5::978300760\n", 978300760 * SECOND),
        ("ratings.dat.gz", "1::1193::5::978300760\n", 978300760 * SECOND),
        ("ratings.tsv", "user\titem\trating\n1\t1193\t5\n", None),
        ("ratings.tsv.gz", "user\titem\trating\n1\t1193\t5\n", None),
    ],
)
def test_movielens_1m(spark, tmp_path, name, text, time):
    write(tmp_path / name, text)
    assert rows(read_log(spark, dataset("movielens_1m", tmp_path))) == [log("1", "1193", 5.0, time)]
    file = dataset("movielens_1m", tmp_path / name)
    assert rows(read_log(spark, file)) == [log("1", "1193", 5.0, time)]


@pytest.mark.parametrize("name", ["ratings.csv", "ratings.csv.gz"])
def test_movielens_latest(spark, tmp_path, name):
    write(tmp_path / name, "userId,movieId,rating,timestamp\n7,31,2.5,1260759144\n")
    frame = read_log(spark, dataset("movielens_latest", tmp_path))
    assert rows(frame) == [log("7", "31", 2.5, 1260759144 * SECOND)]


def test_csv_with_a_column_map(spark, tmp_path):
    path = write(tmp_path / "log.csv", "who;what;when;stars;land\nann;a 1;5;4;DE\nbob;é;7;1;\n")
    given = dataset(
        "csv",
        path,
        columns={"user_id": "who", "item_id": "what", "event_time": "when", "rating": "stars"},
        attributes=("land",),
        options={"sep": ";"},
        time_unit="ms",
    )
    assert rows(read_log(spark, given)) == [
        log("ann", "a 1", 4.0, 5000, None, {"land": "DE"}),
        log("bob", "é", 1.0, 7000, None, {"land": None}),
    ]


def test_csv_without_rating_and_time(spark, tmp_path):
    path = write(tmp_path / "log.csv.gz", "user_id,item_id\n0012,x\n1e3,y\n")
    frame = read_log(spark, dataset("csv", path))
    assert rows(frame) == [log("0012", "x"), log("1e3", "y")]
    assert id_order([frame]) == "bytes"


@pytest.mark.parametrize(
    ("reader", "text"),
    [
        ("csv", "user_id,item_id,rating\n1,2,good\n"),
        ("csv", "user_id,item_id,Rating\n1,2,good\n"),
        ("json", '{"user_id": "1", "item_id": "2", "rating": "good"}\n'),
    ],
)
def test_a_column_of_our_name_is_not_read(spark, tmp_path, reader, text):
    path = write(tmp_path / f"log.{reader}", text)
    assert rows(read_log(spark, dataset(reader, path, columns={"rating": ""}))) == [log("1", "2")]


@pytest.mark.parametrize(
    ("unit", "times"),
    [
        ("s", {"3": 3 * SECOND, "1.5": 1_500_000}),
        ("ms", {"-9007199254740": -9007199254740 * 1000}),
        ("us", {"-9007199254740993": -9007199254740993}),
        (
            "timestamp",
            {
                "1970-01-02 00:00:01": 86401 * SECOND,
                "1970-01-01T02:00:00+02:00": 0,
                "1970-01-02 00:00:01Z": 86401 * SECOND,
            },
        ),
    ],
)
def test_time_units(spark, tmp_path, unit, times):
    lines = [f"u,i{n},{text}" for n, text in enumerate(times)]
    path = write(tmp_path / "log.csv", "\n".join(["user_id,item_id,event_time", *lines, ""]))
    frame = read_log(spark, dataset("csv", path, time_unit=unit))
    assert rows(frame) == [log("u", f"i{n}", 1.0, micros) for n, micros in enumerate(times.values())]


def test_time_zone_of_times_without_an_offset(spark, tmp_path):
    """Rome is an hour before UTC in winter, two in summer."""
    hour = 3600 * SECOND
    text = "user_id,item_id,event_time\nu,a,1970-01-01 01:00:00\nu,b,1970-01-01 00:00:00Z\nu,c,1970-01-02\n"
    path = write(tmp_path / "log.csv", text)
    rome = {"time_unit": "timestamp", "time_zone": "Europe/Rome"}
    read = rows(read_log(spark, dataset("csv", path, **rome)))
    assert [row[3] for row in read] == [0, 0, 23 * hour]
    stored = str(tmp_path / "log")
    spark.sql(
        "SELECT 'u' user_id, 'a' item_id, TIMESTAMP_NTZ'2020-07-01 02:00:00' event_time"
    ).write.parquet(stored)
    (row,) = rows(read_log(spark, dataset("parquet", stored, **rome)))
    assert row[3] == 1593561600 * SECOND


@pytest.mark.parametrize("stored", ["parquet", "delta"])
def test_stored_tables(spark, tmp_path, stored):
    path = str(tmp_path / "log")
    source = spark.sql(
        "SELECT 1L AS `user.id`, CAST(7 AS INT) AS item_id, CAST(2.5 AS DECIMAL(3,1)) AS rating,"
        " timestamp_seconds(9) AS t, 'train' AS part, 3 AS age"
    )
    source.write.format(stored).save(path)
    given = dataset(stored, path, columns={"user_id": "user.id", "event_time": "t"}, attributes=("age",))
    frame = read_log(spark, given)
    assert rows(frame) == [log("1", "7", 2.5, 9 * SECOND, "train", {"age": "3"})]
    assert id_order([frame]) == "numeric"


def test_duplicate_rows_are_left_to_the_protocol(spark, tmp_path):
    path = write(tmp_path / "log.csv", "user_id,item_id\nu,i\nu,i\n")
    assert read_log(spark, dataset("csv", path)).count() == 2


# --- logs that cannot ---


RATING, ITEM, USER = ("'rating' is not a finite number", "'item_id' is not an id", "'user_id' is not an id")
TIME, PART = "'event_time' is not a time in s", f"'part' is not one of {', '.join(PARTS)}"
BAD_VALUES = {
    # user_id,item_id,rating,event_time,part: the reason
    "a,i,good,1,train": RATING,
    "b,i,,1,train": RATING,
    "c,i,NaN,1,train": RATING,
    "d,i,-inf,1,train": RATING,
    ",i,3,1,train": USER,
    "f,,3,1,train": ITEM,
    "g,i,3,noon,train": TIME,
    "h,i,3,99999999999999999,train": TIME,
    "j,i,3,,train": TIME,
    "k,i,3,1,holdout": PART,
}


def test_values_that_cannot_be_read(spark, tmp_path):
    """One file, read once by each rule: every row is rejected with its reason, or all are counted."""
    names = "user_id,item_id,rating,event_time,part"
    path = write(tmp_path / "log.csv", "\n".join([names, *BAD_VALUES, "z,i,3,1,train", ""]))
    opened = open_log(spark, dataset("csv", path, bad_rows="reject"))
    assert rows(opened.rows) == [log("z", "i", 3.0, SECOND, "train")]
    reasons = {json.loads(row.line).get("user_id", ""): row.reason for row in opened.rejects.collect()}
    assert reasons == {line.partition(",")[0]: reason for line, reason in BAD_VALUES.items()}
    with pytest.raises(DataError) as error:
        read_log(spark, dataset("csv", path))
    assert error.value.message.startswith(path)
    counts = Counter(BAD_VALUES.values())
    assert all(f"{n} rows whose {reason}" in error.value.message for reason, n in counts.items())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("user_id,item_id,rating\nu,i,good\nu,j,3\n", f"1 rows whose {RATING}, e.g. 'good'"),
        ("user_id,item_id,event_time\nu,i,\n", f"1 rows whose {TIME}, e.g. a missing value"),
        ("user_id,item_id\nu,i,5\nu\n", "2 lines that are not 2 fields separated by ',', e.g. 'u'"),
        ("user_id,item_id\n", "no rows"),
    ],
)  # fmt: skip
def test_an_error_shows_an_example(spark, tmp_path, text, message):
    path = write(tmp_path / "log.csv", text)
    with pytest.raises(DataError) as error:
        read_log(spark, dataset("csv", path))
    assert message in error.value.message and error.value.message.startswith(path)


def test_bad_line_is_shown(spark, tmp_path):
    write(tmp_path / "u.data", "1\t2\t3\t4\n1\t2\n")
    with pytest.raises(
        DataError, match=r"1 lines that are not 4 fields separated by '\\t', e\.g\. '1\\t2'"
    ):
        read_log(spark, dataset("movielens_100k", tmp_path))


def test_parquet_nulls_and_nans(spark, tmp_path):
    path = str(tmp_path / "log")
    frame = spark.createDataFrame(
        [(1.0, "a", math.nan), (math.nan, None, 2.0)], "user_id double, item_id string, rating double"
    )
    frame.write.parquet(path)
    with pytest.raises(DataError) as error:
        read_log(spark, dataset("parquet", path))
    for column in ("user_id", "item_id", "rating"):
        assert f"1 rows whose '{column}'" in error.value.message


def test_missing_columns(spark, tmp_path):
    path = write(tmp_path / "log.csv", "user,item_id\nu,i\n")
    with pytest.raises(SchemaError, match="has no column user_id; it has user, item_id") as error:
        read_log(spark, dataset("csv", path))
    assert "did you mean 'user'" in error.value.hint
    mapped = dataset("csv", path, columns={"user_id": "user", "rating": "stars"})
    with pytest.raises(SchemaError, match="no column stars"):
        read_log(spark, mapped)
    sliced = dataset("csv", path, columns={"user_id": "user"}, attributes=("age",))
    with pytest.raises(SchemaError, match="no column age"):
        read_log(spark, sliced)


def test_mistakes_in_the_dataset(spark, tmp_path):
    path = str(tmp_path / "log.csv")
    named = {"name": "x", "path": path}
    with pytest.raises(ConfigError, match="unknown column 'ratng'") as error:
        parse(Dataset, {**named, "reader": "csv", "columns": {"ratng": "x"}}, "file")
    assert "did you mean 'rating'" in error.value.hint
    with pytest.raises(ConfigError, match="takes no 'columns'"):
        parse(Dataset, {**named, "reader": "movielens_1m", "columns": {"user_id": "u"}}, "file")
    with pytest.raises(ConfigError, match="a world has no 'gender'"):
        read_log(spark, Dataset(name="w", reader="world", attributes=("gender",)))


def test_missing_paths(spark, tmp_path):
    write(tmp_path / "log.csv", "user_id,item_id\nu,i\n")
    with pytest.raises(MissingError, match="no such file or folder") as error:
        read_log(spark, dataset("csv", tmp_path / "lag.csv"))
    assert "did you mean 'log.csv'" in error.value.hint
    with pytest.raises(ConfigError, match=r"no ratings\.dat or ratings\.tsv") as error:
        read_log(spark, dataset("movielens_1m", tmp_path))
    assert "log.csv" in error.value.hint
    with pytest.raises(MissingError) as error:
        read_table(spark, str(tmp_path / "no" / "where"), [], "lists")
    assert "no folder" in error.value.hint


@pytest.mark.parametrize("reader", ["parquet", "delta"])
def test_not_of_that_format(spark, tmp_path, reader):
    path = write(tmp_path / "folder" / "log.parquet", "this is text\n")
    with pytest.raises(DataError, match="cannot be read"):
        read_log(spark, dataset(reader, Path(path).parent))


def test_a_folder_names_the_file(spark, tmp_path):
    write(tmp_path / "log" / "a.csv", "user_id,item_id,rating\nu,i,1\n")
    write(tmp_path / "log" / "b.csv", "user_id,item_id,rating\nu,i,x\n")
    with pytest.raises(DataError, match=r"'rating' is not a finite number, e\.g\. 'x' in b\.csv"):
        read_log(spark, dataset("csv", tmp_path / "log"))


BAD_ROWS = "user_id,item_id,rating,event_time\nu,i,5,1\nv,,NaN,1\nw,j,4,noon\nx,k,3,2\ny\n"


def test_bad_rows_are_left_out_counted_and_kept(spark, tmp_path):
    path = write(tmp_path / "log.csv", BAD_ROWS)
    opened = open_log(spark, dataset("csv", path, bad_rows="reject"))
    assert rows(opened.rows) == [log("u", "i", 5.0, SECOND), log("x", "k", 3.0, 2 * SECOND)]
    assert id_order([opened.rows]) == "bytes"
    line, rating, item = (
        "not 4 fields separated by ','",
        "'rating' is not a finite number",
        "'item_id' is not an id",
    )
    time = "'event_time' is not a time in s"
    assert opened.rejected == 3
    assert opened.reasons == {line: 1, item: 1, rating: 1, time: 1}
    kept = {row.line: row.reason for row in opened.rejects.collect()}
    assert kept == {
        "y": line,
        '{"user_id":"v","rating":"NaN","event_time":"1"}': f"{item}; {rating}",
        '{"user_id":"w","item_id":"j","rating":"4","event_time":"noon"}': time,
    }
    assert opened.rejects.first().file.endswith("/log.csv")


def test_no_usable_row_is_an_error_whatever_is_asked(spark, tmp_path):
    path = str(tmp_path / "log")
    spark.sql("SELECT 'u' user_id, 'i' item_id, double('NaN') rating").write.parquet(path)
    with pytest.raises(DataError, match=r"no usable row: 1 rows whose 'rating'.*'NaN' in part-"):
        read_log(spark, dataset("parquet", path, bad_rows="reject"))


def test_not_gzip(spark, tmp_path):
    path = tmp_path / "log.csv.gz"
    path.write_text("user_id,item_id\nu,i\n")
    with pytest.raises(DataError, match="cannot be read"):
        read_log(spark, dataset("csv", path))


def test_number_column_is_no_timestamp(spark, tmp_path):
    path = str(tmp_path / "log")
    spark.sql("SELECT 'u' AS user_id, 'i' AS item_id, 5L AS event_time").write.parquet(path)
    with pytest.raises(SchemaError, match="is bigint, not a timestamp"):
        read_log(spark, dataset("parquet", path, time_unit="timestamp"))


# --- tables ---


@pytest.mark.parametrize("name", ["lists.csv", "lists.csv.gz", "lists.tsv", "folder/part-0.csv"])
def test_text_tables(spark, tmp_path, name):
    text = "user_id,item_id,rank,score,note\n1,10,1,0.5,x\n1,9,2,-1e-3,\n2,,,,\n"
    text = text.replace(",", "\t") if ".tsv" in name else text
    path = Path(write(tmp_path / name, text))
    path = path.parent if path.parent.name == "folder" else path
    frame = read_table(spark, str(path), ["user_id", "item_id"], "lists")
    assert dict(frame.dtypes) == {
        "user_id": "string", "item_id": "string", "rank": "bigint", "score": "double", "note": "string",
    }  # fmt: skip
    assert {tuple(row) for row in frame.collect()} == {
        ("1", "10", 1, 0.5, "x"),
        ("1", "9", 2, -1e-3, None),
        ("2", None, None, None, None),
    }
    assert id_order([frame]) == "numeric"


@pytest.mark.parametrize("stored", ["parquet", "delta"])
def test_stored_embeddings(spark, tmp_path, stored):
    path = str(tmp_path / "items")
    source = "SELECT 3 AS item_id, array(0.5D, -2D) AS vector, 1 AS bias"
    spark.sql(source).write.format(stored).save(path)
    frame = read_table(spark, path, ["item_id", "vector"], "embeddings")
    assert dict(frame.dtypes) == {"item_id": "string", "vector": "array<float>", "bias": "double"}
    assert [tuple(row) for row in frame.collect()] == [("3", [0.5, -2.0], 1.0)]
    assert id_order([frame]) == "numeric"


def test_vectors_as_json(spark, tmp_path):
    path = write(tmp_path / "users.csv", 'user_id,vector\nu,"[0.5, -2, 1e-1]"\n')
    (row,) = read_table(spark, path, ["user_id", "vector"], "embeddings").collect()
    assert row.vector == pytest.approx([0.5, -2, 0.1])
    for bad in ('"0.5, 1"', '"[0.5, null]"', '"[0.5, x]"', '"[0.5"'):
        path = write(tmp_path / "bad.csv", f"user_id,vector\nu,{bad}\n")
        with pytest.raises(DataError, match="1 rows whose 'vector' is not an array of numbers"):
            read_table(spark, path, ["user_id"], "embeddings")


def test_table_values_that_cannot_be_read(spark, tmp_path):
    lines = ["u,i,high,1.5,yes", "u,j,NaN,1,1", "u,k,1,2,1"]
    path = write(tmp_path / "lists.csv", "\n".join(["user_id,item_id,score,rank,relevance", *lines, ""]))
    with pytest.raises(DataError) as error:
        read_table(spark, path, ["user_id"], "lists")
    assert error.value.message.startswith(f"lists {path}")
    for problem in (
        "2 rows whose 'score' is not a finite number, below 2^53 where it is whole, e.g. ",
        "1 rows whose 'rank' is not a whole number, e.g. '1.5'",
        "1 rows whose 'relevance' is not a finite number, below 2^53 where it is whole, e.g. 'yes'",
    ):
        assert problem in error.value.message


def test_whole_numbers_that_floats_make_one_are_refused(spark, tmp_path):
    path = str(tmp_path / "lists.parquet")
    pq.write_table(pa.table({"user_id": ["u"] * 2, "score": pa.array([2**53 - 1, 2**53])}), path)
    with pytest.raises(DataError, match=r"1 rows whose 'score' is not a number below 2\^53"):
        read_table(spark, path, ["user_id"], "lists")


def test_table_of_the_wrong_shape(spark, tmp_path):
    path = str(tmp_path / "t")
    spark.sql("SELECT 'u' AS user_id, array(1) AS score, 'x' AS item").write.parquet(path)
    with pytest.raises(SchemaError, match=r"'score' is list<element: int32.*>, not a number"):
        read_table(spark, path, ["user_id"], "scores")
    with pytest.raises(SchemaError, match="has no column item_id") as error:
        read_table(spark, path, ["user_id", "item_id"], "scores")
    assert "did you mean 'item'" in error.value.hint
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="cannot be read"):
        read_table(spark, str(tmp_path / "empty"), ["user_id"], "scores")


def test_table_by_name(spark):
    spark.sql("CREATE SCHEMA IF NOT EXISTS readers")
    spark.sql("CREATE OR REPLACE TABLE readers.truth USING delta AS SELECT '1' user_id, '2' item_id")
    frame = read_table(spark, "readers.truth", ["user_id", "item_id"], "truth")
    assert [tuple(row) for row in frame.collect()] == [("1", "2")]
    logged = read_log(spark, dataset("delta", "spark_catalog.readers.truth"))
    assert rows(logged) == [log("1", "2")]
    with pytest.raises(MissingError, match=r"no such file or folder: readers\.nothing"):
        read_table(spark, "readers.nothing", [], "truth")


def test_id_order_takes_the_stored_type_at_its_word(spark, tmp_path):
    numbers = write(tmp_path / "a.csv", "item_id\n10\n9\n-3\n0\n")
    others = [write(tmp_path / f"{n}.csv", f"item_id\n1\n{n}\n") for n in ("007", "x", "1.0", "-0")]
    text = read_table(spark, numbers, ["item_id"], "t")
    assert id_order([text]) == "numeric"
    for path in others:
        assert id_order([text, read_table(spark, path, ["item_id"], "t")]) == "bytes"
    spark.sql("SELECT '10' AS item_id").write.parquet(str(tmp_path / "strings"))
    strings = read_table(spark, str(tmp_path / "strings"), ["item_id"], "t")
    assert id_order([strings]) == "bytes"
    assert id_order([spark.range(1).withColumnRenamed("id", "item_id")]) == "numeric"
    spark.sql("SELECT 'u' AS user_id, '10' AS item_id").write.parquet(str(tmp_path / "log"))
    assert id_order([read_log(spark, dataset("parquet", tmp_path / "log"))]) == "bytes"


def test_movielens_user_and_item_files(spark, tmp_path):
    write(tmp_path / "users.dat", "1::F::18::10::48067\n")
    write(tmp_path / "u.user", "1|24|M|technician|85711\n")
    (tmp_path / "movies.dat").write_bytes('5::"É" (1995)::Drama|War\n'.encode("latin-1"))
    users = read_table(spark, str(tmp_path / "users.dat"), ["user_id", "gender"], "users")
    assert users.select("user_id", "gender", "age").collect() == [("1", "F", "18")]
    users = read_table(spark, str(tmp_path / "u.user"), ["user_id", "occupation"], "users")
    assert users.select("user_id", "occupation").collect() == [("1", "technician")]
    items = read_table(spark, str(tmp_path / "movies.dat"), ["item_id", "genres"], "items")
    assert [tuple(row) for row in items.collect()] == [("5", '"É" (1995)', "Drama|War")]


# --- real data ---


@pytest.mark.data
@pytest.mark.parametrize(
    ("reader", "folder", "counts"),
    [
        ("movielens_100k", "ml-100k", (100_000, 943, 1_682)),
        pytest.param("movielens_1m", "ml-1m", (1_000_209, 6_040, 3_706), marks=pytest.mark.slow),
        ("movielens_latest", "ml-latest-small", (100_004, 671, 9_066)),
    ],
)
def test_real_movielens(spark, shared_data, reader, folder, counts):
    frame = read_log(spark, dataset(reader, shared_data / folder))
    sizes = frame.selectExpr("count(*)", "count(DISTINCT user_id)", "count(DISTINCT item_id)").first()
    assert tuple(sizes) == counts
    assert id_order([frame]) == "numeric"


@pytest.mark.data
def test_real_attribute_tables(spark, shared_data):
    for path, n in (("ml-100k/u.user", 943), ("ml-1m/users.dat", 6_040)):
        assert read_table(spark, str(shared_data / path), ["user_id", "gender"], "users").count() == n
    for path, n in (("ml-100k/u.item", 1_682), ("ml-1m/movies.dat", 3_883)):
        assert read_table(spark, str(shared_data / path), ["item_id", "title"], "items").count() == n
