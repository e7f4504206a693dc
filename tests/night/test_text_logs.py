"""Logs in text are split without Spark: the rows of each format, of small pieces, and what is left out."""

from __future__ import annotations

import gzip
import io
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from recbench_spark.config import Benchmark, make_benchmark
from recbench_spark.errors import DataError, ProtocolError
from recbench_spark.night.runners import choose_runner
from recbench_spark.night.split import identify_split, prepare_split
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import REJECTS, SPLITS
from recbench_spark.sources import text_pieces
from recbench_spark.splits.rules import estimate_rows
from recbench_spark.storage.arrow_store import ArrowStore

LOG = [(str(u), str(i), float(1 + (u * i) % 5), 86_400 * (u + 3 * i)) for u in range(12) for i in range(9)]
LEAVE_OUT = {"holdout": "leave_one_out", "order": "temporal"}


def make(path: Path, split: dict[str, Any], **dataset: Any) -> Benchmark:
    document = {
        "name": "text",
        "dataset": {"name": "log", "reader": "csv", "path": str(path), **dataset},
        "split": split,
        "models": [{"name": "popular", "kind": "popular"}],
    }
    return make_benchmark(document, [], "test")


def split(folder: Path, benchmark: Benchmark) -> list[dict[str, Any]]:
    store = ArrowStore(str(folder))
    split_id, _ = identify_split(store, benchmark)
    assert choose_runner("auto", benchmark, str(folder))[0].engine == "local"
    prepare_split(store, benchmark, split_id, Journal(io.StringIO()))
    return store.rows(SPLITS, [("split_id", "=", split_id)])


def write(path: Path, sep: str, header: str = "user_id,item_id,rating,event_time", end: str = "\n") -> Path:
    lines = [header.replace(",", sep)] if header else []
    text = end.join([*lines, *(sep.join(map(str, row)) for row in LOG), ""]).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


FORMS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "csv": ("log.csv", ",", {}),
    "windows": ("log.csv", ",", {"end": "\r\n"}),
    "packed": ("log.tsv.gz", "\t", {}),
    "semicolons": ("log.csv", ";", {"options": {"sep": ";"}}),
    "blanks": ("log.txt", "  ", {"options": {"sep": "blanks"}}),
    "movielens": ("ratings.dat", "::", {"reader": "movielens_1m", "header": ""}),
}


@pytest.mark.parametrize("form", FORMS)
def test_pieces_and_formats_decide_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    name, sep, settings = FORMS[form]
    given = {key: settings.pop(key) for key in ("end", "header") if key in settings}
    path = write(tmp_path / name, sep, **given)
    monkeypatch.setattr(text_pieces, "BYTES_A_PIECE", 100)
    rows = split(tmp_path / "w", make(path, LEAVE_OUT, **settings))
    last = {u: max((t, int(i)) for v, i, _, t in LOG if v == u) for u, *_ in LOG}
    wanted = {(u, i, r, t * 10**6, "test" if (t, int(i)) == last[u] else "train") for u, i, r, t in LOG}
    names = ("user_id", "item_id", "rating", "event_time", "part")
    assert {tuple(row[one] for one in names) for row in rows} == wanted and len(rows) == len(LOG)


def test_rows_after_the_end_and_bad_rows_are_left_out_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", ",")
    with path.open("a") as file:
        file.write("x,1,good,3\ny,1\n")
    with pytest.raises(
        DataError, match=r"1 lines that are not 4 fields .* e\.g\. 'y,1'; 1 rows whose 'rating'"
    ):
        split(tmp_path / "a", make(path, LEAVE_OUT))
    settings = {"bad_rows": "reject", "until": "1970-01-11", "attributes": ["rating"]}
    rows = split(tmp_path / "w", make(path, LEAVE_OUT, **settings))
    assert len(rows) == sum(t < 11 * 86_400 for *_, t in LOG)
    assert {dict(row["attributes"])["rating"] for row in rows} == {f"{n}.0" for n in range(1, 6)}
    rejects = ArrowStore(str(tmp_path / "w")).rows(REJECTS)
    assert {row["line"]: row["reason"] for row in rejects} == {
        "y,1": "not 4 fields separated by ','",
        '{"user_id":"x","item_id":"1","rating":"good","event_time":"3"}': "'rating' is not a finite number",
    }


def test_consecutive_folds_are_stretches_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_pieces, "BYTES_A_PIECE", 100)
    path = write(tmp_path / "log.csv", ",")
    rows = split(
        tmp_path / "w", make(path, {"holdout": "consecutive", "folds": 5, "fold": 1, "valid": True})
    )
    parts = {(row["user_id"], row["item_id"]): row["part"] for row in rows}
    names = {1: "test", 2: "valid"}
    assert [parts[row[:2]] for row in LOG] == [
        names.get(n * 5 // len(LOG), "train") for n in range(len(LOG))
    ]


def test_parts_of_the_log_stay_and_must_all_be_there(tmp_path: Path) -> None:
    for name, lines in (("train", ["1 10 11", "2 10"]), ("test", ["1 12", "2 11 12"])):
        (tmp_path / f"{name}.txt").write_text("\n".join([*lines, ""]))
    rows = split(tmp_path / "w", make(tmp_path, {"protocol": "given"}, reader="lightgcn"))
    assert Counter(row["part"] for row in rows) == {"train": 3, "test": 3}
    path = write(tmp_path / "log.csv", ",")
    with pytest.raises(ProtocolError, match="rows without a part"):
        split(tmp_path / "v", make(path, {"protocol": "given"}))
    doubled = tmp_path / "twice.csv"
    doubled.write_text("user_id,item_id\nu,a\nu,b\nu,a\n")
    with pytest.raises(DataError, match="the log holds 2 rows of user u, item a"):
        split(tmp_path / "u", make(doubled, {"holdout": "leave_one_out"}, duplicates="error"))


@pytest.mark.parametrize("rows", [1, 200, 200_000])
def test_rows_are_estimated_before_a_runner_is_chosen(tmp_path: Path, rows: int) -> None:
    """The first lines tell the length of a row; lines that grow by digits are nearly as long."""
    path = tmp_path / "log.csv"
    path.write_text("user_id,item_id\n" + "".join(f"{n % 900},{n}\n" for n in range(rows)))
    counted = estimate_rows(make(path, LEAVE_OUT).dataset)
    assert rows * 0.8 <= counted <= rows * 1.4
