"""Tables in pieces: the rows of all pieces in their order are the rows of the whole table."""

from __future__ import annotations

import bz2
import gzip
import pickle
import random
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import convert_to_deltalake, write_deltalake

from recbench_spark.errors import DataError
from recbench_spark.sources import arrow_files, text_pieces
from recbench_spark.sources.table_pieces import open_pieces, read_rows
from recbench_spark.sources.text_lines import RFC_4180, split_lines
from recbench_spark.sources.text_pieces import Fields, LinePiece
from recbench_spark.storage import local_files

LINES = ["a,b\n", "1,x\r\n", "\n", '2,"y, z"\n', "3\n", "4,\xe9\n", "5,\n", "6,last"]


def read_all(path: Path) -> tuple[dict[str, list[object]], list[str]]:
    """Read all pieces as tasks get them."""
    opened = pickle.loads(pickle.dumps(open_pieces(str(path))))
    columns: dict[str, list[object]] = {name: [] for name in opened.schema.names}
    bad: list[str] = []
    for piece in opened.pieces:
        for stored in piece.read(opened.schema.names):
            bad.extend(stored.bad_lines)
            for name, values in columns.items():
                values.extend(stored.table.column(name).to_pylist())
    return columns, bad


@pytest.mark.parametrize("step", [1, 2, 3, 5, 7, 11, 1 << 20])
@pytest.mark.parametrize("form", ["csv", "csv.gz", "csv.bz2"])
def test_lines_of_all_ranges_are_the_lines_of_the_file(tmp_path, monkeypatch, step: int, form: str) -> None:
    monkeypatch.setattr(text_pieces, "BYTES_A_PIECE", step)
    monkeypatch.setattr(local_files, "CHUNK_BYTES", max(2, step // 2))
    raw = b"\xef\xbb\xbf" + "".join(LINES).encode()
    pack = {"csv": bytes, "csv.gz": gzip.compress, "csv.bz2": bz2.compress}[form]
    path = tmp_path / f"log.{form}"
    path.write_bytes(pack(raw))
    whole = arrow_files.open_path(str(path))
    columns, bad = read_all(path)
    assert columns == whole.table.to_pydict() == {"a": list("12456"), "b": ["x", "y, z", "é", None, "last"]}
    assert bad == list(whole.bad_lines) == ["3"]
    pieces = len(open_pieces(str(path)).pieces)
    assert pieces == 1 if form != "csv" or step > 1000 else pieces > 1


def test_row_groups_and_partitions(tmp_path) -> None:
    table = pa.table({"a": list(range(100)), "b": [f"x{n % 3}" for n in range(100)]})
    pq.write_table(table, tmp_path / "one.parquet", row_group_size=30)
    assert len(open_pieces(str(tmp_path / "one.parquet")).pieces) == 4
    assert read_all(tmp_path / "one.parquet") == (table.to_pydict(), [])
    write_deltalake(str(tmp_path / "delta"), table, partition_by=["b"])
    columns, _ = read_all(tmp_path / "delta")
    rows = sorted(zip(columns["a"], columns["b"], strict=True))
    assert rows == sorted(zip(*table.to_pydict().values(), strict=True))


def test_what_cannot_be_read(tmp_path) -> None:
    path = tmp_path / "log.csv.gz"
    path.write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * 100_000)[:-300])
    with pytest.raises(DataError, match="cannot be read"):
        read_all(path)
    (tmp_path / "log.csv").write_text("a,a\n1,2\n")
    assert open_pieces(str(tmp_path / "log.csv")).schema.names == ["a0", "a1"], "as Spark calls them"
    (tmp_path / "bare.csv").write_text("a,b\n")
    assert read_all(tmp_path / "bare.csv") == ({"a": [], "b": []}, [])


@pytest.mark.parametrize("seed", range(6))
def test_lines_that_are_cut_at_once_have_the_fields_of_lines_that_are_looked_at(seed: int) -> None:
    draw, cut = random.Random(seed), 0
    for _ in range(1000):
        sep, end = draw.choice([",", "\t", ";", " ", "::"]), draw.choice(["\n", "\r\n", "\r"])
        width = draw.randint(1, 4)
        odd = ["a", "", " ", "\t", "#", '"', "\0", "NULL", "\u2028", sep]
        rows = [
            sep.join(draw.choice(["a", "é", "1.5", "", " ", "x y"]) for _ in range(width))
            if draw.random() < 0.8
            else "".join(draw.choices(odd, k=draw.randint(0, 6)))
            for _ in range(draw.randint(0, 5))
        ]
        raw = end.join(rows).encode() + draw.choice([b"", end.encode(), b"\xff"])
        names = tuple(draw.choice([f"c{place}", f"c{place}", None]) for place in range(width))
        layout = Fields(
            names, sep, draw.random() < 0.5, draw.choice([RFC_4180, None]), draw.choice(["", "#"])
        )
        piece, columns = LinePiece("x.csv", draw.choice([0, 5]), -1, layout), [*filter(None, names)][:2]
        at_once = layout.cut_at_once(raw, piece, columns)
        if at_once is not None:
            slowly = layout.cut(split_lines(raw), piece, columns)
            assert at_once.to_pydict() == slowly.to_pydict(), (raw, layout)
            cut += 1
    assert cut > 50


def test_rows_of_a_large_text_file_are_estimated(tmp_path, monkeypatch) -> None:
    path = tmp_path / "log.csv"
    path.write_text("a,b\n" + "10,20\n" * 999)
    assert arrow_files.estimate_rows(str(path)) == 1000
    monkeypatch.setattr(arrow_files, "COUNTED_BYTES", 600)
    assert abs(arrow_files.estimate_rows(str(path)) - 1000) < 20, "bytes are not rows"
    path.write_text("a" * 6000)
    assert arrow_files.estimate_rows(str(path)) == 10, "a row is longer than what is read"


PACKERS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": lambda text: bytes(pa.Codec("zstd").compress(text)),
    ".lz4": lambda text: bytes(pa.Codec("lz4").compress(text)),
}


@pytest.mark.parametrize("ending", PACKERS)
def test_a_compressed_text_file_has_the_size_of_its_text(ending, tmp_path, monkeypatch) -> None:
    lines = [f"{n},{n * n % 9973}\n" for n in range(40_000)]
    text, path = "".join(["a,b\n", *lines]).encode(), tmp_path / f"log.csv{ending}"
    half, pack = len(text) // 2, PACKERS[ending]
    path.write_bytes(pack(text[:half]) + pack(text[half:]))
    assert arrow_files.estimate_rows(str(path)) == 40_001
    assert arrow_files.count_large_text(str(path)) == 0
    monkeypatch.setattr(arrow_files, "COUNTED_BYTES", len(text) - 1)
    packed = path.stat().st_size * (1 if ending == ".lz4" else 2)
    assert arrow_files.count_large_text(str(path)) == len(text) > packed
    for name in ("UNPACKED_BYTES", "COUNTED_BYTES"):
        monkeypatch.setattr(arrow_files, name, len(text) // 4)
    assert 0.4 < arrow_files.estimate_rows(str(path)) / 40_001 < 1.2, "bz2 unpacks large blocks"
    assert 0.4 < arrow_files.count_large_text(str(path)) / len(text) < 1.2
    assert len(arrow_files._read_text_head(str(path))[0]) < len(text) / 2, "no more than is asked for"


@pytest.mark.parametrize(
    ("ending", "is_cut", "error"),
    [
        (".gz", True, EOFError),
        (".gz", False, zlib.error),
        (".bz2", True, EOFError),
        (".bz2", False, OSError),
    ],
)
def test_rows_of_a_damaged_file_are_estimated(ending: str, is_cut: bool, error, tmp_path) -> None:
    """A reader of its rows refuses it."""
    one, two = (b"".join(b"%d,%d\n" % (n, n * n) for n in range(at, at + 20_000)) for at in (0, 20_000))
    first, level = gzip.compress(one), 1  # small blocks
    packed = first + gzip.compress(two) if ending == ".gz" else bz2.compress(one + two, level)
    at = len(first) + 10 if ending == ".gz" else len(packed) // 2
    path = tmp_path / f"log.csv{ending}"
    path.write_bytes(
        packed[: 3 * len(packed) // 4] if is_cut else packed[:at] + b"\xff" * 1000 + packed[at:]
    )
    with arrow_files.OPENERS[ending](path) as text, pytest.raises(error):
        text.read()
    assert 15_000 < arrow_files.estimate_rows(str(path)) < 45_000


def test_names_of_a_large_text_file_are_read_without_its_rows(tmp_path, monkeypatch) -> None:
    path = tmp_path / "log.csv.gz"
    path.write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * 100_000)[:-300])
    with pytest.raises(DataError, match="cannot be read"):
        arrow_files.read_column_names(str(path))
    monkeypatch.setattr(arrow_files, "COUNTED_BYTES", 100)
    assert arrow_files.read_column_names(str(path)) == ["a", "b"]


# ---------------------------------------------------------------------------------------- Delta

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([True, False, None], pa.bool_()),
        ([1.0, 2.5, None], pa.float64()),
        ([NOON, NOON + timedelta(days=1), None], pa.timestamp("us", "UTC")),
        (["x", "y z", None], pa.string()),
    ],
    ids=["bool", "float", "time", "text"],
)
def test_the_folder_of_a_partition_has_its_rows(tmp_path: Path, values: list[Any], kind: Any) -> None:
    """Also NULL, and a piece that travels has kilobytes, however many columns there are."""
    many = {f"c{n}": pa.array(range(3)) for n in range(40)}
    rows = pa.table({"item_id": ["a", "b", "c"], "k": pa.array(values, kind), **many})
    write_deltalake(tmp_path / "t", rows, partition_by=["k"])
    seen = {}
    for folder in (tmp_path / "t").glob("k=*"):
        opened = open_pieces(str(folder))
        assert len(pickle.dumps(opened.pieces)) < 6_000
        (row,) = pa.concat_tables(read_rows(opened.pieces, ["item_id", "k"])).to_pylist()
        seen[row["item_id"]] = row["k"]
    assert seen == dict(zip("abc", values, strict=True))


def test_old_timestamps_of_delta_reach_beyond_nanoseconds(tmp_path: Path) -> None:
    times = pa.array([datetime(9999, 12, 31), datetime(1600, 1, 1)], pa.timestamp("us"))
    (tmp_path / "t").mkdir()
    rows = pa.table({"item_id": ["a", "b"], "event_time": times})
    pq.write_table(rows, tmp_path / "t" / "a.parquet", use_deprecated_int96_timestamps=True)
    convert_to_deltalake(tmp_path / "t")
    (table,) = read_rows(open_pieces(str(tmp_path / "t")).pieces, ["event_time"])
    assert [time.year for time in table.column("event_time").to_pylist()] == [9999, 1600]
