"""The formats of published data sets, on files the tests write themselves; real data where present."""

from __future__ import annotations

import io
import random
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import functions as F

from recbench_spark.config import Benchmark, load_benchmark, parse
from recbench_spark.engine.local import LocalEngine
from recbench_spark.engine.sessions import SparkEngine
from recbench_spark.errors import ConfigError, DataError, FallbackToSpark, SchemaError
from recbench_spark.night.run_night import run_night
from recbench_spark.query.local_engine import find_names
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import ITEMS, MANIFESTS, RANKINGS, REJECTS
from recbench_spark.sources import text_pieces
from recbench_spark.sources.log_sources import open_raw_log
from recbench_spark.sources.readers.published import find_negatives, find_propensities, find_rounds
from recbench_spark.storage.store import Store
from tests.labelled import id_order, read_log, read_table
from tests.log_schema import LOG_SCHEMA
from tests.nights import DATE, run
from tests.sources.test_readers import SECOND, dataset, log, rows, write
from tools.compare_warehouses import main as compare

# --- MovieLens ---


@pytest.mark.parametrize(
    ("reader", "name", "text"),
    [
        ("movielens_10m", "ratings.dat.gz", "7::31::2.5::1260759144\n"),
        ("movielens_32m", "ratings.csv", "userId,movieId,rating,timestamp\n7,31,2.5,1260759144\n"),
    ],
)
def test_large_movielens(spark, tmp_path, reader, name, text):
    write(tmp_path / name, text)
    assert rows(read_log(spark, dataset(reader, tmp_path))) == [log("7", "31", 2.5, 1260759144 * SECOND)]


# --- Netflix ---


def day(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND


def test_netflix_across_blocks(spark, monkeypatch, tmp_path):
    """Some blocks begin within a movie, some hold none of its header, some several headers."""
    draw, wanted = random.Random(5), []
    for n in (1, 2):
        lines = []
        for movie in range(10 * n, 10 * n + 6):
            lines.append(f"{movie}:")
            for user in range(draw.choice([0, 1, 12, 30])):
                rating, when = draw.randint(1, 5), f"2005-09-{draw.randint(1, 30):02}"
                lines.append(f"{user},{rating},{when}")
                wanted.append(log(str(user), str(movie), float(rating), day(when)))
        write(tmp_path / f"combined_data_{n}.txt", "\n".join(lines) + "\n")
    write(tmp_path / "combined_data_3.txt.gz", "99:\n5,4,2005-01-02\n")
    write(tmp_path / "probe.txt", "1:\n5\n")
    wanted.append(log("5", "99", 4.0, day("2005-01-02")))
    monkeypatch.setattr(text_pieces, "BYTES_A_PIECE", 64)
    assert len(open_raw_log(dataset("netflix", tmp_path)).open(None).pieces) > 10
    assert rows(read_log(spark, dataset("netflix", tmp_path))) == sorted(wanted)


def test_netflix_by_movie(spark, tmp_path):
    write(tmp_path / "training_set" / "mv_0000007.txt", "7:\n5,4,2005-01-02\n6,1,2005-01-03\n")
    write(tmp_path / "training_set" / "mv_0000010.txt", "10:\n5,2,2005-01-02\n")
    frame = read_log(spark, dataset("netflix", tmp_path))
    assert rows(frame) == [
        log("5", "10", 2.0, day("2005-01-02")),
        log("5", "7", 4.0, day("2005-01-02")),
        log("6", "7", 1.0, day("2005-01-03")),
    ]
    assert id_order([frame]) == "numeric"


def test_netflix_gone_wrong(spark, tmp_path):
    write(tmp_path / "a" / "combined_data_1.txt", "5,4,2005-01-02\n1:\n6,4\n7,4,soon\n")
    with pytest.raises(DataError) as error:
        read_log(spark, dataset("netflix", tmp_path / "a"))
    wanted = "2 lines that are not 'user,rating,date' under a line 'movie:', e.g. '5,4,2005-01-02'"
    assert f"{wanted} in combined_data_1.txt" in error.value.message
    assert "1 rows whose 'event_time' is not a timestamp" in error.value.message
    write(tmp_path / "b" / "mv_0000002.txt", "3:\n5,4,2005-01-02\n")
    with pytest.raises(DataError, match=r"1 lines that are not .*, e\.g\. '3:' in mv_0000002\.txt"):
        read_log(spark, dataset("netflix", tmp_path / "b"))


# --- Coat, Yahoo! R3 ---


def test_coat(spark, tmp_path):
    write(tmp_path / "train.ascii", "0 0 5\r\n1 0 0 \r\n")
    write(tmp_path / "test.ascii", "0 2 0\r\n0 0 3\r\n")
    write(tmp_path / "propensities.ascii", "1e-1 0.5 1\n0.25 0.5 0.75\n")
    frame = read_log(spark, dataset("coat", tmp_path))
    assert rows(frame) == [
        log("0", "1", 2.0, part="open_loop"),
        log("0", "2", 5.0, part="train"),
        log("1", "0", 1.0, part="train"),
        log("1", "2", 3.0, part="open_loop"),
    ]
    assert id_order([frame]) == "numeric"
    for engine in (LocalEngine(str(tmp_path)), SparkEngine(spark)):
        propensities = read_typed(find_propensities(str(tmp_path)), engine)
        known = [("0", "0", 0.1), ("0", "1", 0.5), ("0", "2", 1.0), ("1", "0", 0.25)]
        assert propensities[:4] == known and len(propensities) == 6
    write(tmp_path / "propensities.ascii", "1e-1 0\n3\n")
    with pytest.raises(DataError, match=r"1 rows whose 'propensity' is not a probability.*'0'") as refused:
        find_propensities(str(tmp_path)).open(LocalEngine(str(tmp_path)))
    assert "1 lines that are not as many numbers as in the first line, e.g. '3'" in refused.value.message
    write(tmp_path / "test.ascii", "0 2 0\n0 3\n0 0 x\n")
    with pytest.raises(DataError) as error:
        read_log(spark, dataset("coat", tmp_path))
    assert "1 lines that are not as many numbers as in the first line, e.g. '0 3' in test.ascii" in str(
        error
    )
    assert "1 rows whose 'rating' is not a finite number, e.g. 'x' in test.ascii" in str(error)


def test_yahoo_r3(spark, tmp_path):
    name = "ydata-ymusic-rating-study-v1_0-{}.txt"
    write(tmp_path / name.format("train"), "1\t14\t5\n1\t35\t1\n")
    with pytest.raises(ConfigError, match=r"no ydata-ymusic-rating-study-\*-test\.txt") as error:
        read_log(spark, dataset("yahoo_r3", tmp_path))
    assert "did you mean 'ydata-ymusic-rating-study-v1_0-train.txt'" in error.value.hint
    write(tmp_path / f"{name.format('test')}.gz", "1\t49\t2\n")
    assert rows(read_log(spark, dataset("yahoo_r3", tmp_path))) == [
        log("1", "14", 5.0, part="train"),
        log("1", "35", 1.0, part="train"),
        log("1", "49", 2.0, part="open_loop"),
    ]


# --- LightGCN ---


def test_lightgcn(spark, tmp_path):
    """User 1 has no items, user 2 an item twice, user 3 a test item only."""
    write(tmp_path / "train.txt", "0 5 3\n1\n2 4 4 \n\n")
    write(tmp_path / "test.txt.gz", "0 1\r\n2 \r\n3 7\r\n")
    frame = read_log(spark, dataset("lightgcn", tmp_path))
    assert rows(frame) == [
        log("0", "1", part="test"),
        log("0", "3", part="train"),
        log("0", "5", part="train"),
        log("2", "4", part="train"),
        log("2", "4", part="train"),
        log("3", "7", part="test"),
    ]
    assert id_order([frame]) == "numeric"
    write(tmp_path / "valid.txt", "0 9\n3 8\n")
    held_out = [log("0", "9", part="valid"), log("3", "8", part="valid")]
    read = rows(read_log(spark, dataset("lightgcn", tmp_path)))
    assert [row for row in read if row in held_out] == held_out and len(read) == 8
    write(tmp_path / "train.txt", "0 5 3\n1,5\n")
    with pytest.raises(
        DataError, match=r"1 lines that are not 'user item item \.\.\.'.*'1,5' in train\.txt"
    ):
        read_log(spark, dataset("lightgcn", tmp_path))


# --- NCF ---


def write_ncf(folder: Path) -> None:
    """Training rows of item 9: three, of 10: two, of 3: one; and a line that is cut off."""
    train = ["0\t9\t5", "2\t9\t1", "3\t9\t2", "0\t3\t4", "1\t10\t3", "2\t10\t3", "7\t7"]
    write(folder / "x.train.tsv.gz", "\n".join(train) + "\n")
    write(folder / "x.test.rating", "0\t10\t5\t978824351\n1\t9\t3\t978300174\n")
    # 10 is the test item of user 0 itself, and 3 stands twice.
    write(folder / "x.test.negative.gz", "(0,10)\t10\t9\t3\t3\n(1,9)\t3\t10\n")


def test_ncf_files(spark, tmp_path):
    write_ncf(tmp_path)
    write(tmp_path / "x.train.rating", "0\t9\t5\t7\n")
    frame = read_log(spark, dataset("ncf", tmp_path))
    test = [log("0", "10", 5.0, 978824351 * SECOND, "test"), log("1", "9", 3.0, 978300174 * SECOND, "test")]
    assert rows(frame) == [test[0], log("0", "9", 5.0, 7 * SECOND, "train"), test[1]]
    for engine in (LocalEngine(str(tmp_path)), SparkEngine(spark)):
        negatives = read_typed(find_negatives(str(tmp_path)), engine)
        assert negatives == [("0", "3"), ("0", "9"), ("1", "10"), ("1", "3")]
    write(tmp_path / "y.test.negative", "(0,10)\t9\n0\t10\t9\n")
    with pytest.raises(DataError, match=r"1 lines that are not '\(user,item\) negative"):
        find_negatives(str(tmp_path / "y.test.negative")).open(engine)
    write(tmp_path / "x.train.rating", "0,9,5,7\n")
    with pytest.raises(SchemaError, match="first line has 1 fields separated by tabs"):
        read_log(spark, dataset("ncf", tmp_path))


@pytest.mark.slow
def test_a_night_on_listed_negatives_with_a_rejected_row(spark, tmp_path):
    """User 0: 10 stands after 9, before 3. User 1: 9 stands before 10 and 3. Hits at 1: 1/2.

    Centred item-kNN: with s = sqrt 2 / (sqrt 2 + 1) the weights are s_9,3 = s, s_9,10 = 1 - s, s_3,9 =
    s_10,9 = 1; the means 1/4, 3/4 and 1/2 of items 3, 9 and 10. User 0 (3 and 9): 3 is at 1/4 + 1/4, 10
    at 1/2 + 1/4, 9 at .98. User 1 (10): 9 is at .81, 3 below 0. Without centring 3 would beat 10.
    """
    write_ncf(tmp_path / "data")
    benchmark = parse(
        Benchmark,
        {
            "name": "n",
            "dataset": {"name": "d", "reader": "ncf", "path": str(tmp_path / "data"), "bad_rows": "reject"},
            "split": {"protocol": "given"},
            "models": [
                {"name": "popular", "kind": "popular"},
                {"name": "knn", "kind": "item_knn", "scores": "centred_mean"},
            ],
            "evaluation": {
                "metrics": ["hit", "mrr"],
                "k": [1, 5],
                "definition": {"candidates": "given"},
                "slices": [],
                "bootstrap": {"replicates": 0},
                "user_metrics": False,
            },
            "headline": "mrr@5",
        },
        "test",
    )
    store = Store(spark, str(tmp_path / "warehouse"))
    ran = run(store, benchmark)
    assert ran.outcome.failed == {}
    (reject,) = store.read(REJECTS).collect()
    assert (reject.line, reject.reason.startswith("not 3 fields")) == ("7\t7", True)
    assert reject.file.endswith("x.train.tsv.gz")
    facts = store.read(MANIFESTS).where("fact IN ('rejected_rows', 'rows_read')").collect()
    assert {fact.fact: fact.value for fact in facts} == {"rejected_rows": 1, "rows_read": 9}
    assert {fact.detail for fact in facts} == {None, f"1 {reject.reason}"}
    # Ids in text files that are all whole numbers are ordered as numbers.
    assert {row.item_id: row.item_index for row in store.read(ITEMS).collect()} == {"3": 0, "9": 1, "10": 2}
    ranked = store.read(RANKINGS).select("user_id", "above", "tied", "length").collect()
    assert sorted(map(tuple, ranked)) == [("0", [1], [0], 3)] * 2 + [("1", [0], [0], 3)] * 2
    condition = "part = 'test' AND model = 'popular' AND k IS NOT NULL"
    store.install_views(find_names("latest_metrics"))
    values = spark.table("latest_metrics").where(condition).select("metric", "k", "value").collect()
    assert {(row.metric, row.k): row.value for row in values} == {
        ("hit", 1): 1 / 2, ("hit", 5): 1, ("mrr", 1): 1 / 2, ("mrr", 5): 3 / 4,
    }  # fmt: skip
    other = Store(spark, str(tmp_path / "spark"))
    assert run_night(other, benchmark, DATE, Journal(io.StringIO())).failed == {}
    assert compare([str(tmp_path / "warehouse"), other.root]) == 0


# --- Open Bandit ---

ROUND_HEADER = (
    ",timestamp,item_id,position,click,propensity_score,user_feature_0,user_feature_1,user-item_affinity_0"
)


def read_typed(source, engine):
    rows = source.open(engine).rows
    tables = (table for part in rows.each(rows.names, list) for table in part)
    return sorted(tuple(row.values()) for table in tables for row in table.to_pylist())


def test_rounds(tmp_path):
    engine = LocalEngine(str(tmp_path))
    lines = [
        ROUND_HEADER,
        "0,2019-11-24 00:00:17.004101+00:00,79,2,0,0.0125,a,b,0.0",
        "1,2019-11-24 00:00:19,14,1,1,1,a,,1.0",
    ]
    write(tmp_path / "all.csv", "\n".join(lines) + "\n")
    write(tmp_path / "item_context.csv", ",item_id,item_feature_0\n0,79,-0.5\n")
    assert read_typed(find_rounds(str(tmp_path)), engine) == [("14", 1, 1.0, 1.0), ("79", 2, 0.0, 0.0125)]
    lines += ["2,2019-11-24,14,0,2,0,a,b,", "3,never,,1.5,1,1.5,a,b,0", "x,2101-01-01,1,1,1,1,a,b,0", "4,5"]
    write(tmp_path / "all.csv.gz", "\n".join(lines) + "\n")
    with pytest.raises(DataError) as error:
        find_rounds(str(tmp_path / "all.csv.gz")).open(engine)
    for problem in (
        "1 lines that are not 9 fields separated by ',', e.g. '4,5'",
        "1 rows whose '_c0' is not a whole number, e.g. 'x'",
        "1 rows whose 'timestamp' is not a timestamp such as",
        "1 rows whose 'timestamp' is not a timestamp before the year 2100, e.g. '2101-01-01'",
        "1 rows whose 'item_id' is not an id, e.g. a missing value",
        "2 rows whose 'position' is not a position from 1, e.g. '0'",
        "1 rows whose 'click' is not 0 or 1, e.g. '2'",
        "2 rows whose 'propensity_score' is not a probability above 0, e.g. '0'",
        "1 rows whose 'affinities' is not an array of numbers",
    ):
        assert problem in error.value.message
    write(tmp_path / "men.csv", "a,b\n1,2\n")
    with pytest.raises(SchemaError, match="has no column _c0, timestamp"):
        find_rounds(str(tmp_path / "men.csv"))
    write(tmp_path / "women.csv", ROUND_HEADER + "\n")
    with pytest.raises(DataError, match="no rows"):
        find_rounds(str(tmp_path / "women.csv")).open(engine)
    with pytest.raises(FallbackToSpark, match="wasb://c@a/b is on a storage that Spark reads"):
        find_rounds("wasb://c@a/b", engine)


# --- files that are missing ---


@pytest.mark.parametrize(
    ("reader", "there", "missing"),
    [
        ("netflix", "combined_data_1.csv", r"no combined_data_\*\.txt or mv_\*\.txt"),
        ("coat", "train.asci", r"no train\.ascii"),
        ("lightgcn", "test.txt", r"no train\.txt"),
        ("ncf", "x.test.rating", r"no \*\.train\.rating or \*\.train\.tsv"),
    ],
)
def test_missing_files(spark, tmp_path, reader, there, missing):
    write(tmp_path / there, "1\n")
    with pytest.raises(ConfigError, match=missing) as error:
        read_log(spark, dataset(reader, tmp_path))
    assert there in error.value.hint


# --- real data ---


@pytest.mark.data
@pytest.mark.parametrize(
    ("reader", "folder", "held_out", "counts"),
    [
        ("coat", "coat", "open_loop", (6_960, 4_640, 290, 300)),
        pytest.param(
            "lightgcn", "gowalla", "test", (810_128, 217_242, 29_858, 40_981), marks=pytest.mark.slow
        ),
        pytest.param(
            "ncf", "ml-1m-ncf-loo", "test", (994_169, 6_040, 6_040, 3_706), marks=pytest.mark.slow
        ),
    ],
)
def test_real_splits(spark, shared_data, reader, folder, held_out, counts):
    """Rows of both parts; ids are 0, 1, 2 ..., so the largest tells how many there are."""
    frame = read_log(spark, dataset(reader, shared_data / folder))
    assert frame.schema.simpleString() == LOG_SCHEMA.simpleString()
    sizes = frame.agg(
        F.count_if(F.col("part") == "train"),
        F.count_if(F.col("part") == held_out),
        F.max(F.col("user_id").cast("int")) + 1,
        F.max(F.col("item_id").cast("int")) + 1,
    ).first()
    assert tuple(sizes) == counts


@pytest.mark.data
@pytest.mark.slow
def test_real_candidates_propensities_and_rounds(spark, shared_data, tmp_path):
    """156 test items are among the 99 negatives of their own users."""
    engine = LocalEngine(str(tmp_path))
    negatives = read_typed(find_negatives(str(shared_data / "ml-1m-ncf-loo")), engine)
    assert len(negatives) == 6_040 * 99 - 156
    assert len(read_typed(find_propensities(str(shared_data / "coat")), engine)) == 290 * 300
    for policy in ("random", "bts"):
        source = find_rounds(str(shared_data / "obd-sample" / policy))
        assert len(read_typed(source, engine)) == 10_000 and len(source.marked) == 6 + 80
    context = read_table(spark, str(shared_data / "obd-sample/bts/item_context.csv"), ["item_id"], "items")
    assert context.count() == 80


# --- benchmark files ---


@pytest.mark.parametrize(
    "name", ["gowalla_lightgcn", "ncf_leave_one_out", "movielens_10m_rating", "netflix"]
)
def test_benchmark_files_need_only_a_path(name):
    from recbench_spark.night.benchmark_checks import check_benchmark

    check_benchmark(load_benchmark(name, ["dataset.path=somewhere"]))
