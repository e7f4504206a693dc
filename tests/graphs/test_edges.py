"""Edge lists as tasks read them: by ranges of bytes of CSV, ids by the rule of `core.ids`."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recbench_spark.errors import ConfigError, DataError, MissingError, SchemaError
from recbench_spark.graphs.edge_values import parse_weights
from recbench_spark.graphs.edges import RowSource, expand_lists, open_rows, require_one_kind
from recbench_spark.graphs.features import count_dimensions, open_features
from recbench_spark.sources import text_pieces
from tests.id_rule import BAD, GOOD, make_id

BOTH = {"src": "auto", "dst": "auto"}


def read_rows(path: Path, readers: int = 1, **options: str) -> list[tuple]:
    """(src, dst) of each line, in the order of the file, as so many tasks read them."""
    rows = open_rows(str(path), ["src", "dst"], "edges", ids={**BOTH, **options})
    result = {
        id(piece): [pair for chunk in rows.chunks([piece]) for pair in _pairs(rows, chunk)]
        for number in range(readers)
        for piece in rows.part(number, readers)
    }
    return [pair for piece in rows.pieces for pair in result[id(piece)]]


def test_edges_have_a_uri_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "a b.csv").write_text("src,dst\n1,2\n")
    (piece,) = open_rows(f"file://{tmp_path}/a b.csv", ["src", "dst"], "edges").pieces
    assert piece.file == f"{tmp_path}/a b.csv"


def _pairs(rows: RowSource, chunk: pa.Table) -> list[tuple]:
    return list(zip(*(rows.ids(chunk, name).to_pylist() for name in ("src", "dst")), strict=True))


WRITTEN = {
    "plain": ("", ",", "\n", True),
    "names, crlf, no last end": ("src,dst\r\n", ",", "\r\n", False),
    "byte order mark": ("\ufeff", "\t", "\n", True),
    "byte order mark and names": ("\ufeffdst;src\n", ";", "\n", True),
    "remarks": ("# a graph\n# of some nodes\n", " ", "\n", True),
}


@pytest.mark.parametrize("form", WRITTEN)
@pytest.mark.parametrize("size", [1, 3, 64, 1 << 24])
def test_the_lines_of_a_csv_file_are_read_once_however_it_is_cut(form, size, tmp_path, monkeypatch) -> None:
    head, mark, end, last = WRITTEN[form]
    draw = random.Random(1)
    pairs = [(draw.randrange(-50, 10 ** draw.randrange(1, 15)), draw.randrange(99)) for _ in range(15)]
    lines = [f"{s}{mark}{d}" for s, d in pairs]
    (tmp_path / "e.csv").write_bytes((head + end.join(lines) + (end if last else "")).encode())
    monkeypatch.setattr(text_pieces, "BYTES_A_PIECE", size)
    names_swapped = "dst;src" in head
    want = [(d, s) for s, d in pairs] if names_swapped else pairs
    for readers in (1, 17):
        assert read_rows(tmp_path / "e.csv", readers) == want
    (tmp_path / "e.csv.gz").write_bytes(gzip.compress((tmp_path / "e.csv").read_bytes()))
    assert read_rows(tmp_path / "e.csv.gz") == want


@pytest.mark.parametrize(
    "text",
    [
        "src,dst\r1,2\r3,4\r",
        '"src" "dst"\n1 2\n3 4\n',
        '"src", "dst"\n1,2\n3,4\n',
        "src,dst,weight,Weight\n1,2,.5,1\n3,4,1,1\n",
        "src,dst,w,w\n1,2,.5,1\n3,4,1,1\n",
    ],
)
def test_names_of_columns_are_read_as_programs_write_them(text: str, tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_bytes(text.encode())
    assert read_rows(tmp_path / "e.csv") == [(1, 2), (3, 4)]
    if "Weight" in text:
        rows = open_rows(str(tmp_path / "e.csv"), ["weight"], "edges")
        assert next(rows.chunks(rows.pieces)).to_pydict() == {"weight": [".5", "1"]}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"e.csv": b"src,dst\nM\xfcller,Mej\xeda\n"}, "edges .*e.csv: it is not UTF-8"),
        ({"e.csv": b"# a\nsrc,dst\r1,2\r"}, "some lines end in"),
        ({"e.csv": b"src,src,dst\n1,2,3\n"}, "edges .*e.csv: two columns are called src"),
        ({"a.csv": b"src,dst\n1,2\n", "x/b.csv": b"src,dst\n3,4\n"}, "edges .* holds a folder, x"),
        ({"k=1/x/b.csv": b"src,dst\n3,4\n"}, "edges .* holds a folder, k=1/x"),
        ({"a.csv": b"src,dst\n1,2\n", "b.csv": b"src,w\n3,4\n"}, "b.csv has no column dst; it has src, w"),
    ],
)
def test_files_of_which_rows_would_be_lost_are_refused(files: dict, message: str, tmp_path: Path) -> None:
    for name, raw in files.items():
        (tmp_path / "e" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "e" / name).write_bytes(raw)
    with pytest.raises((DataError, SchemaError), match=message) as error:
        read_rows(tmp_path / "e")
    assert "--format" not in str(error.value)


def test_rows_that_are_left_out_do_not_decide_the_kind_of_ids(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("src,dst,kind\n1,2,x\n")
    (tmp_path / "b.csv").write_text("src,dst,kind\n3,4,y\n")
    rows = open_rows(str(tmp_path), ["src"], "edges", ids={"src": "auto"}, where={"kind": "y"})
    assert [rows.ids(chunk, "src").to_pylist() for chunk in rows.chunks(rows.pieces)] == [[3]]
    (tmp_path / "c.csv").write_text("src,dst\n5,6\n")
    with pytest.raises(SchemaError, match=r"c\.csv has no column kind"):
        open_rows(str(tmp_path), ["src"], "edges", where={"kind": "y"})


def test_ids_of_a_first_file_without_rows_are_those_of_the_next(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n")
    (tmp_path / "b.csv").write_text("id\n1\n2\n")
    for requested in ("numeric", "auto"):
        rows = open_rows(str(tmp_path), ["id"], "nodes", ids={"id": requested})
        assert [rows.ids(chunk, "id").to_pylist() for chunk in rows.chunks(rows.pieces)] == [[1, 2]]


def test_a_folder_is_text_by_its_own_name(tmp_path: Path) -> None:
    for name in ("a.txt", "b.csv"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part-00000").write_text("1,2\n3,4\n")
        assert read_rows(tmp_path / name) == [(1, 2), (3, 4)]


def test_large_ids_of_files_with_several_types_of_numbers(tmp_path: Path) -> None:
    large = [2**53 + 1, 2**53 + 3]
    for name, ids in (("a", large), ("b", pa.array(large, pa.uint64())), ("c", [7.0, 8.0])):
        pq.write_table(pa.table({"src": ids, "dst": ids, "x": [1, 2], "X": [1, 2]}), tmp_path / name)
    assert sorted(read_rows(tmp_path)) == sorted((n, n) for n in [*large, *large, 7, 8])
    pq.write_table(pa.table({"src": [1], "SRC": [2], "dst": [3]}), tmp_path / "d")
    with pytest.raises(SchemaError, match=r"edges .*src in a and SRC in d differ in case alone"):
        read_rows(tmp_path)
    pq.write_table(pa.table({"src": [1]}), tmp_path / "d")
    with pytest.raises(SchemaError, match="/d has no column dst; it has src"):
        read_rows(tmp_path)


def test_a_missing_file_of_edges_is_no_table_of_a_catalog(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("nope.edges", "nope.el"):
        with pytest.raises(MissingError, match="no such file or folder: nope"):
            open_rows(name, ["src"], "edges")
    (tmp_path / "nope.el").write_text("1 2\n")
    with pytest.raises(DataError, match="see --format"):
        open_rows("nope.el", ["src"], "edges")


@pytest.mark.parametrize("size", [1, 5, 8, 1 << 24])
def test_values_in_quotes_hold_marks_and_quotes_and_no_line_ends(size, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(text_pieces, "BYTES_A_PIECE", size)
    (tmp_path / "good.csv").write_text('src,dst\n"a,1","say ""b"""\n"",x\n,y\n')
    assert read_rows(tmp_path / "good.csv") == [("a,1", 'say "b"'), (None, "x"), (None, "y")]
    (tmp_path / "bad.csv").write_text('src,dst\nx,"a\nb,c"\nd,e\n')
    with pytest.raises(DataError, match="continues in the next line: 'x,\"a'"):
        read_rows(tmp_path / "bad.csv")
    (tmp_path / "bytes.csv").write_bytes(b'src,dst\nx,"a\xff\nb,c"\nd,e\n')
    with pytest.raises(DataError, match="continues in the next line: 'x,\"a\N{REPLACEMENT CHARACTER}'"):
        read_rows(tmp_path / "bytes.csv")


CSV = {
    "1,2\n3,4\n": [(1, 2), (3, 4)],
    "1.0,2.0\n3.0,4.0\n": [(1, 2), (3, 4)],
    "src,dst\n007,2\n7,02\n": [("007", "2"), ("7", "02")],
    "src,dst\nNA,null\nnan,b\n": [("NA", "null"), ("nan", "b")],
    "src,dst\n1,\n,3\n": [(1, None), (None, 3)],
    "src,dst\n10.0,10\n10,10.0\n": [("10.0", "10"), ("10", "10.0")],
}


@pytest.mark.parametrize("text", CSV)
def test_ids_of_text_files_are_what_is_written(text, tmp_path) -> None:
    (tmp_path / "e.csv").write_text(text)
    assert read_rows(tmp_path / "e.csv") == CSV[text]


REFUSED = {
    "1, 2\n2, 3\n": "column dst has white space around its ids, e.g. ' 2'",
    "1,2\n3\n": "1 lines have not 2 fields separated by ',', e.g. '3'",
    "": "is empty",
    "a,b\nb,c\n": "no column src, dst; it has a, b",
}


@pytest.mark.parametrize("text", REFUSED)
def test_text_files_that_are_no_lists_of_edges_are_refused(text, tmp_path) -> None:
    (tmp_path / "e.csv").write_text(text)
    with pytest.raises((DataError, SchemaError)) as error:
        read_rows(tmp_path / "e.csv")
    assert REFUSED[text] in str(error.value)


def test_a_later_id_of_another_kind_is_refused_with_its_number(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(text_pieces, "BYTES_A_PIECE", 36)
    for first, later, message in (
        ("1,2\n" * 9, "05,6\n7,8\n", "column src: 1 ids are not whole numbers, e.g. '05'"),
        ("1,2\n" * 9, "u5,6\nu7,8\n", "column src: 2 ids are not whole numbers, e.g. 'u5'"),
        ("1.0,2.0\n" * 9, "5,6.0\n", "column src: 1 ids are not written as the others, e.g. '5'"),
    ):
        (tmp_path / "e.csv").write_text(first + later)
        with pytest.raises(DataError, match=message):
            read_rows(tmp_path / "e.csv")
        assert (
            read_rows(tmp_path / "e.csv", src="text", dst="text")[-1][0]
            == later.split("\n")[-2].split(",")[0]
        )


@pytest.mark.parametrize("name", GOOD)
def test_ids_of_columns_are_those_of_the_rule(name, tmp_path) -> None:
    kind, values = GOOD[name]
    pq.write_table(pa.table({"src": pa.array(values, kind, from_pandas=False)}), tmp_path / "e.parquet")
    stored = pq.read_table(tmp_path / "e.parquet")["src"].type
    want = [make_id(kind, value) for value in values]
    for options in ("auto", "text"):
        rows = open_rows(str(tmp_path / "e.parquet"), ["src"], "edges", ids={"src": options})
        if options == "auto" and any(v is not None and len(v) > 18 and stored != pa.int64() for v in want):
            continue  # beyond 64 bits: the error names ids: text
        result = rows.ids(next(rows.chunks(rows.pieces)), "src")
        assert [None if one is None else str(one) for one in result.to_pylist()] == want
        assert pa.types.is_integer(result.type) == (options == "auto" and dict(rows.numeric)["src"])


@pytest.mark.parametrize("name", BAD)
def test_values_that_are_no_ids_are_refused_with_an_example(name, tmp_path) -> None:
    kind, values, shown = BAD[name]
    pq.write_table(pa.table({"src": pa.array(values, kind)}), tmp_path / "e.parquet")
    rows = open_rows(str(tmp_path / "e.parquet"), ["src"], "edges", ids={"src": "auto"})
    with pytest.raises(DataError, match=shown):
        rows.ids(next(rows.chunks(rows.pieces)), "src")


def test_numbers_and_texts_meet_where_they_are_spelled_alike(tmp_path) -> None:
    pq.write_table(pa.table({"src": ["7", "-1"]}), tmp_path / "t.parquet")
    rows = open_rows(str(tmp_path / "t.parquet"), ["src"], "nodes", ids={"src": "numeric"})
    assert rows.ids(next(rows.chunks(rows.pieces)), "src").to_pylist() == [7, -1]
    pq.write_table(pa.table({"src": ["7", "u1"]}), tmp_path / "u.parquet")
    rows = open_rows(str(tmp_path / "u.parquet"), ["src"], "nodes", ids={"src": "numeric"})
    with pytest.raises(DataError, match=r"nodes: column src: 1 ids are not whole numbers, e\.g\. 'u1'"):
        rows.ids(next(rows.chunks(rows.pieces)), "src")
    pq.write_table(pa.table({"src": [1], "dst": ["u1"]}), tmp_path / "both.parquet")
    rows = open_rows(str(tmp_path / "both.parquet"), ["src", "dst"], "edges", ids=BOTH)
    with pytest.raises(ConfigError, match="src and dst are whole numbers and texts"):
        require_one_kind(rows, ("src", "dst"), "edges")


def test_weights_that_are_missing_or_no_numbers() -> None:
    result = parse_weights(pa.array(["1.5", "", None, "NaN", "na", "-inf", "1e39"]).filter(
        pa.array([True, False, True, True, True, True, True])), "w")  # fmt: skip
    np.testing.assert_array_equal(result, [1.5, np.nan, np.nan, np.nan, -np.inf, 1e39])
    with pytest.raises(DataError, match="'heavy' is not a number"):
        parse_weights(pa.array(["1", "heavy"]), "w")
    with pytest.raises(SchemaError, match="of type bool"):
        parse_weights(pa.array([True]), "w")


def test_lists_must_be_lists() -> None:
    with pytest.raises(SchemaError, match="column n is of type int64, and lists are expected"):
        expand_lists(pa.table({"v": [1], "n": [2]}), "v", "n", None)
    with pytest.raises(DataError, match="more or fewer weights than neighbours"):
        expand_lists(pa.table({"v": [1], "n": [[2]], "w": [[1.0, 2.0]]}), "v", "n", "w")


def test_a_format_that_somebody_gives_counts_more_than_the_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({"src": [1, 2]}), tmp_path / "rows.csv")
    assert open_rows(str(tmp_path / "rows.csv"), ["src"], "edges", fmt="parquet").n == 2
    with pytest.raises(MissingError, match=r"no such file or folder: .*none"):
        open_rows(str(tmp_path / "none"), ["src"], "edges")


def test_what_lies_elsewhere_is_not_looked_for_here() -> None:
    with pytest.raises(DataError, match=r"edges ftp://host/e\.parquet is on a storage that Spark reads"):
        open_rows("ftp://host/e.parquet", ["src"], "edges")


def test_vectors_stand_in_text_as_arrays_of_json(tmp_path: Path) -> None:
    (tmp_path / "v.csv").write_text('id,vector\n7,"[0.5, -2]"\n8,"[1, 1e3]"\n')
    rows = open_features(str(tmp_path / "v.csv"), "id", "numeric")
    (chunk,) = rows.chunks(rows.pieces)
    assert rows.ids(chunk, "id").to_pylist() == [7, 8] and count_dimensions(rows) == 2
    assert chunk.column("vector").to_pylist() == [[0.5, -2.0], [1.0, 1000.0]]
    (tmp_path / "w.csv").write_text('id,vector\n7,"[0.5, x]"\n')
    with pytest.raises(DataError, match="1 rows whose 'vector' is not an array of numbers"):
        open_features(str(tmp_path / "w.csv"), "id", "numeric")
