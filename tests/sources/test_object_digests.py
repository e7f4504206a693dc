"""Identities of plain files in object storage: those of a disk, and each object is read once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from recbench_spark.errors import DataError
from recbench_spark.sources import digests
from recbench_spark.sources.digests import Piece, content_identity, digest_in_threads
from recbench_spark.storage.object_access import open_filesystem
from recbench_spark.storage.objects import list_objects, write_bytes

FILES = {"a.csv": b"user,item\n1,2\n", "day=1/b.tsv": b"3\t4\n", "_hidden/c.csv": b"x", "day=2/d.csv": b""}


@pytest.fixture
def log(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a log in object storage; the same files are in the folder `log` of `tmp_path`."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, content in FILES.items():
        write_bytes(f"{bucket}/log/{name}", content)
        write_bytes(str(tmp_path / "log" / name), content)
    return f"{bucket}/log"


class CountedDigests:
    """Digests of pieces, and the files that were read for them."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self.files: list[str] = []
        self.before = before

    def __call__(self, pieces: Sequence[Piece]) -> list[bytes]:
        self.before()
        self.files += [file for file, _ in pieces]
        return digest_in_threads(pieces)


@pytest.mark.parametrize("named", [True, False])
def test_objects_have_the_identity_of_files(log: str, tmp_path: Path, named: bool) -> None:
    expected = content_identity(str(tmp_path / "log"), named)
    assert content_identity(log, named, digest_in_threads) == expected
    assert content_identity(f"{log.replace('s3:', 's3a:')}/", named, digest_in_threads) == expected
    one = content_identity(str(tmp_path / "log" / "a.csv"), named)
    assert content_identity(f"{log}/a.csv", named, digest_in_threads) == one


def test_an_object_is_read_once_until_it_is_replaced(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "PIECE", 8)  # several pieces a file
    counted = CountedDigests()
    first = content_identity(log, False, counted)
    assert {file.removeprefix(f"{log}/") for file in counted.files} == FILES.keys() - {"_hidden/c.csv"}
    counted.files.clear()
    assert content_identity(log, False, counted) == first and not counted.files
    write_bytes(f"{log}/a.csv", FILES["a.csv"].replace(b"2", b"7"))  # as long as before
    assert content_identity(log, False, counted) != first
    assert set(counted.files) == {f"{log}/a.csv"}
    write_bytes(f"{log}/a.csv", FILES["a.csv"])
    assert content_identity(log, False, counted) == first


def test_marks_of_folders_are_no_files(log: str, tmp_path: Path) -> None:
    system, folder = open_filesystem(log)
    for name in ("", "/day=1", "/empty"):  # as a console makes a folder: no bytes, and a slash at the end
        system.create_dir(folder + name)
    assert content_identity(log, True, digest_in_threads) == content_identity(str(tmp_path / "log"), True)
    assert set(list_objects(log)) == FILES.keys()
    assert [f"log/{name}" for name in sorted(FILES)] == list(list_objects(log.removesuffix("/log")))


def test_what_is_missing_or_changes_meanwhile_is_refused(log: str) -> None:
    with pytest.raises(DataError, match=r"no files at .*none"):
        content_identity(f"{log}/none", False, digest_in_threads)
    change = CountedDigests(lambda: write_bytes(f"{log}/a.csv", b"another"))
    with pytest.raises(DataError, match="changed while it was read"):
        content_identity(log, False, change)
