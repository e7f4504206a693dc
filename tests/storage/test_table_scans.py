"""Files of a table are listed, opened and refused by one rule for graphs, logs and tables of others."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from recbench_spark.errors import DataError
from recbench_spark.graphs.edges import open_rows
from recbench_spark.schemas import IDS
from recbench_spark.sources import arrow_files
from recbench_spark.sources.columnar import open_columnar_log
from recbench_spark.storage import table_scans

ROWS = pa.table({"user_id": [1, 2, 3], "item_id": [4, 5, 6]})


def open_log(path: Path, reader: str = "parquet") -> Any:
    return open_columnar_log(
        SimpleNamespace(path=path, reader=reader, columns={}, time_unit="s", attributes={}, options={},
                        until=None, bad_rows="fail", is_typed=True, where=(), value_columns=(), events=None,
                        query=None, source_names=dict(zip(IDS, IDS, strict=True)))
    )  # fmt: skip


def count_rows(path: Path, reader: str = "parquet") -> set[int]:
    """Return the numbers of rows that the three users of the scans count; one number if they agree."""
    edges = open_rows(str(path), ("user_id", "item_id"), "edges")
    return {edges.n, open_log(path, reader).n, arrow_files.estimate_rows(str(path))}


def test_all_callers_take_the_files_that_spark_takes(tmp_path: Path) -> None:
    """Spark passes over `.x` and `_x`, but not over `_x=1`."""
    for name in ("b.parquet", "a.parquet", "_day=1.parquet", "_hidden.parquet", ".b.parquet.crc"):
        pq.write_table(ROWS, tmp_path / name)
    assert count_rows(tmp_path) == {9}
    names = [Path(piece.file).name for piece in open_log(tmp_path).groups]
    assert names == ["_day=1.parquet", "a.parquet", "b.parquet"]


def test_a_folder_within_a_folder_is_a_column_or_refused(tmp_path: Path) -> None:
    (tmp_path / "day=1").mkdir()
    pq.write_table(ROWS, tmp_path / "day=1" / "a.parquet")
    assert open_log(tmp_path).n == 3
    whole = arrow_files.open_path(str(tmp_path)).table
    assert whole.column("day").to_pylist() == ["1"] * arrow_files.estimate_rows(str(tmp_path)) == ["1"] * 3
    edges = open_rows(str(tmp_path), ("user_id",), "edges", where={"day": "1"})
    assert edges.n == 3 and sum(map(len, edges.chunks(edges.pieces))) == 3
    edges = open_rows(str(tmp_path), ("user_id",), "edges", where={"day": "2"})
    assert not list(edges.chunks(edges.pieces))


def test_all_callers_read_a_delta_table_without_its_removed_files(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.concat_tables([ROWS, ROWS]))
    write_deltalake(tmp_path, ROWS, mode="overwrite")
    assert count_rows(tmp_path, "delta") == {3}


def test_a_log_in_partitions_is_whole_and_edges_name_theirs(tmp_path: Path) -> None:
    write_deltalake(tmp_path, ROWS.append_column("day", pa.array(["a", "a", "b"])), partition_by=["day"])
    assert open_log(tmp_path, "delta").n == 3
    columns = ("user_id", "item_id")
    assert open_rows(str(tmp_path), columns, "edges", partitions={"day": "a"}).n == 2
    with pytest.raises(DataError, match="has no rows of"):
        open_rows(str(tmp_path), columns, "edges", partitions={"day": "c"})
    with pytest.raises(DataError, match="is not partitioned by week"):
        open_rows(str(tmp_path), columns, "edges", partitions={"week": "a"})


def test_a_file_that_is_not_parquet_is_named_alike(tmp_path: Path) -> None:
    pq.write_table(ROWS, tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_text("user_id,item_id\n1,2\n")
    report = f"{tmp_path}: cannot be read: b.parquet is text, not a Parquet file"
    with pytest.raises(DataError) as refused:
        arrow_files.estimate_rows(str(tmp_path))
    assert refused.value.message == report
    with pytest.raises(DataError) as refused:
        open_rows(str(tmp_path), ("user_id",), "edges")
    assert refused.value.message == f"edges {report}" and "--format" in refused.value.hint
    assert open_log(tmp_path) is None


@pytest.mark.parametrize("rows", [2, 0])
def test_a_file_that_changed_since_its_footer_was_read_is_refused(rows: int, tmp_path: Path) -> None:
    """Edges were read from another file than the one that was counted."""
    place = tmp_path / "e.parquet"
    pq.write_table(ROWS, place)
    edges = open_rows(str(place), ("user_id", "item_id"), "edges")
    assert [len(chunk) for chunk in edges.chunks(edges.pieces)] == [3]
    pq.write_table(ROWS.slice(0, rows), place)
    with pytest.raises(DataError, match="has changed since its footer was read"):
        list(edges.chunks(edges.pieces))


def test_row_groups_are_read_in_batches(tmp_path: Path) -> None:
    place = str(tmp_path / "g.parquet")
    pq.write_table(ROWS, place, row_group_size=2)
    pieces = table_scans.list_row_groups([place], table_scans.read_footers([place]))
    assert [(piece.number, piece.rows) for piece in pieces] == [(0, 2), (1, 1)]
    batches = [batch for piece in pieces for batch in table_scans.read_row_group(piece, ["item_id"], 1)]
    assert [batch.to_pydict() for batch in batches] == [{"item_id": [n]} for n in (4, 5, 6)]


def test_a_page_that_was_changed_is_refused_where_the_file_has_checksums(tmp_path) -> None:
    """Files of `neighbourhoods` have them: a night reads them again as the edges of a graph."""
    path = tmp_path / "lists.parquet"
    options = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    pq.write_table(pa.table({"node": ["n10", "n50", "n99"]}), path, write_page_checksum=True, **options)
    footers = table_scans.read_footers([str(path)])
    (piece,) = table_scans.list_row_groups([str(path)], footers)
    assert sum(batch.num_rows for batch in table_scans.read_row_group(piece, ["node"], 10)) == 3
    raw = bytearray(path.read_bytes())
    raw[raw.index(b"n50") + 1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(DataError, match=r"lists.parquet: cannot be read: .*checksum"):
        list(table_scans.read_row_group(piece, ["node"], 10))
