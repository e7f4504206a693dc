"""Tables by path, read in this process."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recbench_spark.errors import DataError
from recbench_spark.sources import arrow_files
from recbench_spark.sources.paths import refuse_empty

BEYOND = [
    (pa.int64(), 2**53),
    (pa.int64(), -(2**53) - 1),
    (pa.uint64(), 2**64 - 1),
    (pa.decimal128(30, 0), 10**20),
]


@pytest.mark.parametrize(("kind", "value"), BEYOND, ids=[str(value) for _, value in BEYOND])
def test_whole_numbers_that_floats_make_one_are_refused(tmp_path, kind, value):
    """A score of 2^53 + 1 would tie with 2^53, and the smaller id win."""
    path = str(tmp_path / "lists.parquet")
    pq.write_table(pa.table({"user_id": ["u"] * 2, "score": pa.array([1, value], kind)}), path)
    with pytest.raises(DataError, match=r"1 rows whose 'score' is not a number below 2\^53"):
        arrow_files.read_table(path, ["user_id"], "lists")
    pq.write_table(pa.table({"user_id": ["u"], "score": pa.array([2**53 - 1], kind)}), path)
    assert arrow_files.read_table(path, ["user_id"], "lists")["score"].to_pylist() == [2.0**53 - 1]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_folder_of_files_of_no_bytes_is_reported_as_empty(tmp_path: Path, ending: str) -> None:
    (tmp_path / "k=1").mkdir()
    (tmp_path / "_SUCCESS").write_text("hidden")
    refuse_empty(str(tmp_path))  # a folder without files is reported elsewhere
    for name in (f"a.{ending}", f"k=1/b.{ending}"):
        (tmp_path / name).touch()
    for look in (
        arrow_files.read_column_names,
        arrow_files.estimate_rows,
        arrow_files.identity,
        refuse_empty,
    ):
        with pytest.raises(DataError, match="is empty: a folder of nothing but files of 0 bytes"):
            look(str(tmp_path))
    (tmp_path / f"k=1/c.{ending}").write_text("user_id")
    refuse_empty(str(tmp_path))


@pytest.mark.parametrize("name", ["log.csv", "log.tsv", "log.parquet", "log.csv.gz"])
def test_a_file_of_no_bytes_is_reported_as_empty(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.touch()
    for look in (
        arrow_files.read_column_names,
        arrow_files.estimate_rows,
        arrow_files.identity,
        refuse_empty,
    ):
        with pytest.raises(DataError, match=f"{name} is empty: a file of 0 bytes"):
            look(str(path))
