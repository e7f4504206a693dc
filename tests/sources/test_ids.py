"""Ids through Spark's readers and evaluator: against the slow rule, and ids without a match."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyspark.sql import DataFrame

import recbench_spark
from recbench_spark.config import Bootstrap, CandidateDraw, Dataset
from recbench_spark.errors import ConfigError, DataError, SchemaError
from recbench_spark.sources import arrow_files
from recbench_spark.sources.arrow_rows import encode_ids
from tests import id_rule
from tests.labelled import open_log, read_table

HIT: dict[str, Any] = {"k": [1], "metrics": ["hit"], "bootstrap": Bootstrap(replicates=0)}


def parquet(path: Path, **columns: Any) -> str:
    pq.write_table(pa.table(columns), path)
    return str(path)


def hit(truth: DataFrame, **handed: Any) -> float:
    result = recbench_spark.evaluate(truth, **handed, **HIT)
    value = result.metrics.where("metric = 'hit'").collect()[0].value
    result.release()
    return float(value)


def in_order(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in frame.collect()), key=str)


# --------------------------------------------------------------------------------- the rule by types


def test_every_type_of_parquet_means_the_ids_of_the_rule(spark, tmp_path: Path) -> None:
    """One table with a column of each type; both readers, and the log without missing ids."""
    for name, (kind, values) in id_rule.GOOD.items():
        path = parquet(
            tmp_path / f"{name}.parquet", n=range(len(values)), item_id=id_rule.column(kind, values)
        )
        read_ids = {row.n: row.item_id for row in read_table(spark, path, ["item_id"], "t").collect()}
        assert read_ids == {n: id_rule.make_id(kind, value) for n, value in enumerate(values)}, name
        known = [value for value in values if id_rule.make_id(kind, value) is not None]
        ids = id_rule.column(kind, known)
        log = parquet(tmp_path / f"{name} log.parquet", user_id=ids, item_id=ids)
        rows = open_log(spark, Dataset(name="log", reader="parquet", path=log)).rows
        expected = [id_rule.make_id(kind, value) for value in known]
        pairs = rows.select("user_id", "item_id")
        assert in_order(pairs) == sorted(((one, one) for one in expected), key=str), name


def test_values_that_are_no_ids_are_shown_by_file_and_column(spark, tmp_path: Path) -> None:
    for name, (kind, values, shown) in id_rule.BAD.items():
        ids = id_rule.column(kind, values)
        path = parquet(tmp_path / f"{name}.parquet", user_id=[1, 2], item_id=ids)
        example, file = f"({shown})".replace("^", r"\^"), re.escape(f"{name}.parquet")
        reason = "1 rows whose 'item_id' is not (an id|text in UTF-8)"
        pattern = rf"(?s){file}.*{reason}.*e.g. '.*{example}"
        with pytest.raises(DataError, match=pattern):
            open_log(spark, Dataset(name="log", reader="parquet", path=path))
        pattern = rf"(?s)t .*{file}: item_id: 1 rows \(.*\) are not .*, e.g. .*{example}"
        with pytest.raises(DataError, match=pattern):
            arrow_files.read_table(path, ["item_id"], "t")
    path = parquet(tmp_path / "latin.parquet", user_id=[1, 2], item_id=id_rule.not_utf8())
    with pytest.raises(DataError, match=r"latin.parquet.*'item_id' is not text in UTF-8"):
        open_log(spark, Dataset(name="log", reader="parquet", path=path))
    path = parquet(tmp_path / "time.parquet", user_id=[1], item_id=pa.array([1], pa.timestamp("us")))
    with pytest.raises(SchemaError, match=r"item_id.*timestamp.*holds no ids"):
        read_table(spark, path, ["item_id"], "t")


FIELDS: dict[str, list[str | None]] = {
    "whole floats": ["10.0", "11.0", "-3.0", None],
    "whole floats and NaN": ["10.0", "nan", "NaN", " ", "11.0", None],
    "whole floats behind NaN": ["nan", "10.0", "1e+15"],
    "nan is somebody": ["nan", "7", "NULL", "NA", None],
    "blanks": ["a", " ", "   ", " a", None],
    "beside a half": ["10.0", "1.5", None],
    "beside an integer": ["10.0", "7", None],
    "versions": ["1.0", "1.0.1", None],
    "leading zeros": ["007", "7", " 7", None],
    "integers": ["10", "11", None],
    "quotes": ['a"b', 'say ""x""', "c,d", None],
}


def test_fields_of_csv_mean_the_ids_of_the_rule(spark, tmp_path: Path, capsys) -> None:
    for name, fields in FIELDS.items():
        path = tmp_path / f"{name}.csv"
        pd.DataFrame({"user_id": range(len(fields)), "item_id": fields}).to_csv(path, index=False)
        local = arrow_files.read_table(str(path), ["item_id"], "t").column("item_id").to_pylist()
        assert local == id_rule.make_csv_ids(fields), name
        noted = "item_id is whole floats throughout" in capsys.readouterr().err
        assert noted == name.startswith("whole floats")
    (tmp_path / "large.csv").write_text("user_id,item_id\n1,9007199254740992.0\n2,1.0\n")
    with pytest.raises(DataError, match=r"'item_id' is not an id .a whole number below 2.53"):
        open_log(spark, Dataset(name="log", reader="csv", path=str(tmp_path / "large.csv")))


# ------------------------------------------------------------------------------- as the issue tells it


def test_a_missing_item_makes_floats_and_no_other_number(spark, tmp_path: Path) -> None:
    """The README's own way to say "empty truth": as Parquet, CSV, frames of Spark and of this process."""
    truth = pd.DataFrame({"user_id": [1, 2, 3], "item_id": [10, 9, None]})
    lists = pd.DataFrame({"user_id": [1, 1, 2, 2], "item_id": [10, 9, 10, 9], "score": [1.0] * 4})
    truth.to_parquet(tmp_path / "truth.parquet")
    truth.to_csv(tmp_path / "truth.csv", index=False)
    pq.write_table(
        pa.table({"user_id": [1, 2, 3], "item_id": [10.0, 9.0, np.nan]}), tmp_path / "nan.parquet"
    )
    given = spark.createDataFrame(lists)
    frames = [read_table(spark, str(tmp_path / name), ["item_id"], "truth")
              for name in ("truth.parquet", "truth.csv", "nan.parquet")]  # fmt: skip
    frames.append(spark.createDataFrame(truth))
    # Of equal scores the smaller number stands first: 9 before 10.
    expected = float(recbench_spark.evaluate_frames(truth, lists, k=[1], metrics=["hit"]).value[0])
    assert expected == 1 / 2
    assert [hit(frame, lists=given) for frame in frames] == [expected] * 4


def frame(spark, schema: str, *rows: Any) -> DataFrame:
    return spark.createDataFrame(list(rows), schema)


PAIR, SCORED = "user_id {0}, item_id {1}", "user_id {0}, item_id {1}, score double"


def test_ids_that_do_not_meet_are_an_error_with_both_types(spark) -> None:
    truth = frame(spark, PAIR.format("string", "string"), ("u1", "a"), ("u2", "b"))
    ints = frame(spark, SCORED.format("long", "string"), (1, "a", 1.0), (2, "b", 1.0))
    with pytest.raises(
        DataError, match=r"(?s)user_id of lists \(bigint\): '1', '2'.*\(string\): 'u1', 'u2'"
    ):
        hit(truth, lists=ints)
    train = frame(spark, PAIR.format("string", "string"), ("u1", "c"))
    strange = frame(spark, SCORED.format("string", "string"), ("u1", "z", 1.0))
    with pytest.raises(
        DataError, match="item_id of scores and item_id of train and truth have no id in common"
    ):
        hit(truth, scores=strange, train=train)
    # Without training rows a system may miss the whole truth; text can never be whole numbers.
    assert hit(truth, lists=strange) == 0
    numbers = frame(spark, SCORED.format("string", "long"), ("u1", 7, 1.0))
    with pytest.raises(DataError, match=r"item_id of lists \(bigint\): '7'"):
        hit(truth, lists=numbers)
    with pytest.raises(DataError, match="item_id of train and item_id of truth"):
        hit(truth, lists=strange, train=frame(spark, PAIR.format("string", "int"), ("u1", 7)))
    vectors = spark.createDataFrame([(1.0, [1.0])], "user_id double, vector array<double>")
    items = spark.createDataFrame([("a", [1.0])], "item_id string, vector array<double>")
    with pytest.raises(DataError, match=r"user_id of embeddings \(double\): '1'"):
        hit(truth, embeddings=(vectors, items))


def test_few_ids_in_common_are_a_warning_and_unranked_items_of_lists_are_none(spark) -> None:
    truth = frame(spark, PAIR.format("long", "long"), *((n, n) for n in range(150)))
    lists = frame(spark, SCORED.format("long", "long"), *((n + 149, 1, 1.0) for n in range(150)))
    result = recbench_spark.evaluate(truth, lists=lists, **HIT)
    failed = [check for check in result.checks if not check.passed]
    result.release()
    (few,) = [check for check in failed if check.check == "user_id of lists not in truth"]
    assert few.severity == "warning" and few.observed == 149 / 150 and "bigint" in few.detail
    (unranked,) = [check for check in result.checks if check.check == "test: unranked truth items"]
    assert unranked.passed and unranked.severity == "info" and unranked.observed == 150


# --------------------------------------------------------------------------------- files gone wrong


def test_latin_1_is_refused_and_a_genuine_replacement_character_by_option(spark, tmp_path: Path) -> None:
    path = tmp_path / "latin.csv"
    path.write_bytes("user_id,item_id\n1,café\n2,cafè\n".encode("latin-1"))
    log = Dataset(name="log", reader="csv", path=str(path))
    for read in (lambda: open_log(spark, log), lambda: read_table(spark, str(path), ["item_id"], "truth")):
        with pytest.raises(
            DataError, match=r"latin.csv.*2 rows whose .item_id..*e.g. .caf\ufffd."
        ) as error:
            read()
        assert "ISO-8859-1" in error.value.hint
    told_so = log.model_copy(update={"options": {"encoding": "ISO-8859-1"}})
    assert {row.item_id for row in open_log(spark, told_so).rows.collect()} == {"café", "cafè"}
    path.write_text("user_id,item_id\n1,caf\ufffd\n", encoding="utf-8")
    with pytest.raises(DataError, match="item_id"):
        open_log(spark, log)
    spark.conf.set("spark.recbench.replacement", "keep")
    try:
        assert [row.item_id for row in open_log(spark, log).rows.collect()] == ["caf\ufffd"]
    finally:
        spark.conf.unset("spark.recbench.replacement")


def test_damaged_parquet_and_torn_lines_name_file_and_cause(spark, tmp_path: Path) -> None:
    path = Path(parquet(tmp_path / "log.parquet", user_id=range(500), item_id=range(500)))
    whole = path.read_bytes()
    for spoilt, cause in ((whole[:900], "not a Parquet file"), (b"garbage" * 50, "not a Parquet file")):
        path.write_bytes(spoilt)
        for read in (
            lambda: open_log(spark, Dataset(name="log", reader="parquet", path=str(path))),
            lambda: read_table(spark, str(path), ["item_id"], "lists"),
        ):
            with pytest.raises(DataError, match=f"log.parquet.*{cause}") as error:
                read()
            assert "An error occurred while calling" not in str(error.value)
    for n, text in enumerate(('1,"a\nb"\n2,c\n', '1,"a\n2,b"\n3,c\n')):
        torn = tmp_path / f"torn{n}.csv"
        torn.write_text("user_id,item_id\n" + text)
        with pytest.raises(
            DataError, match=rf"torn{n}.csv: a quoted field continues in the next line: '1,\"a'"
        ):
            read_table(spark, str(torn), ["item_id"], "truth")
    sound = tmp_path / "sound.csv"
    sound.write_text('user_id,item_id\n1,"x,"\n"2","say ""y"""\n3,12" vinyl\n')
    ids = {row.item_id for row in read_table(spark, str(sound), ["item_id"], "truth").collect()}
    assert ids == {"x,", 'say "y"', '12" vinyl'}
    torn.write_text('user_id,item_id\n1,"a\nb"\n2,c\n')
    log = Dataset(name="log", reader="csv", path=str(torn), options={"multiLine": "true"})
    assert {row.item_id for row in open_log(spark, log).rows.collect()} == {"a\nb", "c"}


# ------------------------------------------------------------------------------ batches, draws, values

ITEMS = {"a": [1.0, 0.0], "b": [0.0, 1.0], "c": [1.0, 1.0], "d": [-1.0, 0.5]}


def make_vectors(spark, known: dict[str, list[float]]) -> tuple[DataFrame, DataFrame]:
    users = spark.createDataFrame(list(known.items()), "user_id string, vector array<double>")
    return users, spark.createDataFrame(list(ITEMS.items()), "item_id string, vector array<double>")


def test_which_users_share_a_batch_changes_nothing(spark) -> None:
    """A batch of one, and of cold users alone: they are ranked nowhere, and nothing fails."""
    truth = frame(spark, PAIR.format("string", "string"), *((f"u{n}", "abcd"[n % 4]) for n in range(6)))
    both = make_vectors(spark, {"u3": [1.0, -1.0], "u5": [0.5, 2.0]})
    rows = []
    before = spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")
    try:
        for size in ("1", "2", "64"):
            spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", size)
            result = recbench_spark.evaluate(truth, embeddings=both, **HIT)
            assert result.rankings is not None
            rows.append(in_order(result.rankings.select("user_id", "above", "tied", "before", "length")))
            result.release()
    finally:
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", before)
    assert rows[0] == rows[1] == rows[2]
    assert [row[1] for row in rows[0]] == [[-1], [-1], [-1], [3], [-1], [1]]


@pytest.mark.parametrize("mode", ["uniform", "popularity"])
def test_candidates_are_drawn_where_there_is_a_train(spark, mode: str) -> None:
    truth = frame(spark, PAIR.format("string", "string"), ("u1", "a"), ("u2", "b"))
    train = frame(spark, PAIR.format("string", "string"), ("u1", "b"), ("u2", "c"), ("u3", "d"))
    both = make_vectors(spark, {"u1": [1.0, 0.0], "u2": [0.0, 1.0]})
    wanted = {"candidates": mode}
    with pytest.raises(ConfigError, match=f"candidates is {mode} without training rows"):
        recbench_spark.evaluate(truth, embeddings=both, definition=wanted)
    given: Any = {"embeddings": both, "train": train, "definition": wanted, **HIT}
    result = recbench_spark.evaluate(truth, **given, draw=CandidateDraw(n=1))
    assert result.rankings is not None
    rows = result.rankings.collect()
    assert [row.length for row in rows] == [2, 2]  # the truth and one drawn item
    assert [row.drawn for row in rows] == ([1, 1] if mode == "uniform" else [None, None])
    (check_row,) = [check for check in result.checks if check.check == "candidates drawn"]
    request = f"{mode}, 1 a user asked, seed 42, of 4 items"
    assert check_row.observed == 1 and check_row.detail == f"1 to 1 a user drawn; {request}"
    result.release()


def test_gains_ranks_and_scores_beyond_float64(spark) -> None:
    lists = frame(spark, SCORED.format("long", "long"), (1, 1, 1.0))
    truth = frame(spark, "user_id long, item_id long, relevance double", (1, 1, 2000.0))
    with pytest.raises(DataError, match="relevance such as 2000"):
        recbench_spark.evaluate(truth, lists=lists, definition={"gain": "exponential"}, **HIT)
    truth = truth.drop("relevance")
    for column, value in (("rank", 2**53), ("score", 2**53)):
        rows = frame(spark, f"user_id long, item_id long, {column} long", (1, 1, value))
        with pytest.raises(DataError, match=f"lists: 1 rows whose {column}"):
            hit(truth, lists=rows)
    assert hit(truth, lists=frame(spark, "user_id long, item_id long, rank double", (1, 1, 1.0))) == 1
    with pytest.raises(ConfigError, match="cut-off nan"):
        recbench_spark.evaluate(truth, lists=lists, k=[float("nan")])


# --------------------------------------------------------------------------- one rule for missing ids

USERS = ["a", "", " ", None, "NA", "7", "   ", "NULL", " b"]
"""Ids of users as a log has them: three are missing beside NULL, whatever the file is."""

KNOWN = {"a", "NA", "7", "NULL", " b"}


def write_everywhere(folder: Path) -> dict[str, str]:
    """Write one log in every format; return reader -> path."""
    table = pa.table({"user_id": USERS, "item_id": [f"i{n}" for n in range(len(USERS))]})
    rows = table.to_pylist()
    lines = [f"{row['user_id'] or ''},{row['item_id']}" for row in rows]
    (folder / "log.csv").write_text("\n".join(["user_id,item_id", *lines]) + "\n")
    quoted = [f'"{row["user_id"] or ""}","{row["item_id"]}"' for row in rows]
    (folder / "quoted.csv").write_text("\n".join(["user_id,item_id", *quoted]) + "\n")
    (folder / "log.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(table, folder / "log.parquet")
    pq.write_table(
        table.set_column(0, "user_id", table.column(0).dictionary_encode()), folder / "coded.parquet"
    )
    raw = pa.array([None if user is None else user.encode() for user in USERS])
    pq.write_table(table.set_column(0, "user_id", raw), folder / "bytes.parquet")
    write_deltalake(folder / "delta", table)
    names = {"csv": ("log.csv", "quoted.csv"), "json": ("log.json",), "delta": ("delta",)}
    names["parquet"] = ("log.parquet", "coded.parquet", "bytes.parquet")
    return {str(folder / name): reader for reader, files in names.items() for name in files}


def test_a_log_has_the_same_users_in_every_format(spark, tmp_path: Path) -> None:
    for path, reader in write_everywhere(tmp_path).items():
        rejected = open_log(spark, Dataset(name="log", reader=reader, path=path, bad_rows="reject"))
        assert {row.user_id for row in rejected.rows.collect()} == KNOWN, path
        assert rejected.rejected == len(USERS) - len(KNOWN), path
        with pytest.raises(DataError, match="4 rows whose 'user_id' is not an id"):
            open_log(spark, Dataset(name="log", reader=reader, path=path))


def test_tables_have_the_same_users_in_every_format(tmp_path: Path) -> None:
    for path, reader in write_everywhere(tmp_path).items():
        if reader != "json":
            local = arrow_files.read_table(path, ["user_id"], "t").column("user_id").to_pylist()
            assert {one for one in local if one is not None} == KNOWN, path


def test_frames_have_the_users_of_files() -> None:
    columns = {"arrow": pa.array(USERS), "coded": pa.array(USERS).dictionary_encode()}
    for name, users in columns.items():
        ids = encode_ids(pa.table({"user_id": users}), "user_id", name)[1].to_pylist()
        assert {one for one in ids if one is not None} == KNOWN
        assert ids.count(None) == len(USERS) - len(KNOWN)
