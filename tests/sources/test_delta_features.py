"""Tables of Delta with newer features: read as what they say, or refused with the feature's name."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from recbench_spark.errors import DataError, FallbackToSpark
from recbench_spark.graphs.edges import open_rows
from recbench_spark.sources import arrow_files
from recbench_spark.sources.log_files import open_log_file
from recbench_spark.sources.log_values import profile_columns
from recbench_spark.storage.table_scans import query_delta
from tests.delta_features import ROWS, write_mapped, write_plain

V3 = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": ["columnMapping"],
    "writerFeatures": ["columnMapping"],
}


def delete_second_row() -> dict[str, Any]:
    """A deletion vector of row 1, within the log: a Roaring bitmap in the letters of Z85."""
    bitmap = struct.pack("<IIHHIH", 12346, 1, 0, 0, 16, 1)
    raw = struct.pack("<IQI", 1681511377, 1, 0) + bitmap
    letters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    padded, text = raw + bytes(-len(raw) % 4), ""
    for at in range(0, len(padded), 4):
        number = int.from_bytes(padded[at : at + 4], "big")
        text += "".join(letters[number // 85**n % 85] for n in range(4, -1, -1))
    return {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(raw), "cardinality": 1}


SHORTER = {name: [values[0], values[2]] for name, values in ROWS.items()}

READ: dict[str, tuple[Callable[[Path], Path], dict[str, list[int]]]] = {
    "columnMapping by name": (write_mapped, ROWS),
    "columnMapping by name of version 3": (lambda place: write_mapped(place, protocol=V3), ROWS),
    "deletionVectors": (
        lambda place: write_plain(place, ["deletionVectors"], delete_second_row()),
        SHORTER,
    ),
    "v2Checkpoint": (lambda place: write_plain(place, ["v2Checkpoint"]), ROWS),
}
REFUSED: dict[str, Callable[[Path], Path]] = {
    "columnMapping by id": lambda place: write_mapped(place, "id"),
    "typeWidening": lambda place: write_plain(place, ["typeWidening"]),
    "vacuumProtocolCheck": lambda place: write_plain(place, ["vacuumProtocolCheck"]),
    "newestOfAll": lambda place: write_plain(place, ["newestOfAll"]),
}


@pytest.mark.parametrize("name", READ)
def test_init_reads_the_rows_that_the_table_has(name: str, tmp_path: Path) -> None:
    write, rows = READ[name]
    path = str(write(tmp_path / "t"))
    assert pa.table(query_delta(path).read_all()).to_pydict() == rows
    log = open_log_file(path)
    count, _, columns = profile_columns(log)
    assert (count, log.names) == (len(rows["user_id"]), tuple(ROWS))
    assert {one.name: (one.lowest, one.highest) for one in columns} == {
        key: (min(values), max(values)) for key, values in rows.items()
    }


@pytest.mark.parametrize("name", REFUSED)
def test_init_names_a_feature_that_it_does_not_read(name: str, tmp_path: Path) -> None:
    path = REFUSED[name](tmp_path / "t")
    with pytest.raises(DataError, match="(?i)only Spark reads.*" + name) as error:
        open_log_file(str(path))
    assert "as Parquet" in str(error.value.hint) and not isinstance(error.value, FallbackToSpark)


@pytest.mark.parametrize("name", [*READ, *REFUSED])
def test_readers_of_this_process_leave_the_table_to_spark(name: str, tmp_path: Path) -> None:
    """Evaluations and nights do not read its files: by them users and items would be exchanged."""
    path = str((REFUSED.get(name) or READ[name][0])(tmp_path / "t"))
    feature = name.removesuffix(" of version 3")
    for read in (arrow_files.open_path, arrow_files.read_column_names, arrow_files.estimate_rows):
        with pytest.raises(FallbackToSpark, match=feature):
            read(path)
    with pytest.raises(DataError, match=feature):
        open_rows(path, ["user_id"], "edges")


def test_features_that_leave_the_rows_to_the_files(tmp_path: Path) -> None:
    path = str(write_plain(tmp_path / "t", ["timestampNtz"]))
    assert arrow_files.open_path(path).table.to_pydict() == ROWS
    assert open_log_file(path).names == tuple(ROWS)
