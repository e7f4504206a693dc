"""Folders that are made once: by a lease on a folder, by one write that fails on object storage."""

from __future__ import annotations

from pathlib import Path

import pytest

from recbench_spark.storage.made_folders import (
    explain_missing_folder,
    find_folder,
    hold_private_folder,
    make_folder,
    write_once,
)
from recbench_spark.storage.objects import (
    list_folders,
    list_objects,
    read_bytes,
    remove_object,
    remove_objects,
    write_text,
)


def is_made(target: str) -> bool:
    folder = find_folder(target)
    return folder is not None and read_bytes(f"{folder}/done") is not None


def make(target: str, text: str, fail: bool = False) -> bool:
    """Make a folder of one file; return whether this call has made it."""
    with make_folder(target, lambda: is_made(target)) as work:
        if work is None:
            return False
        work.clear()
        write_text(f"{work.work}/done", text)
        if fail:
            raise ValueError("broken")
        work.publish()
    return True


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.full)])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path) if request.param == "folder" else request.getfixturevalue("bucket")


def test_a_folder_is_made_once_and_half_of_one_does_not_count(root: str) -> None:
    target = f"{root}/g-4"
    with pytest.raises(ValueError, match="broken"):
        make(target, "half", fail=True)
    assert not is_made(target)
    assert make(target, "first") and not make(target, "second")
    assert read_bytes(f"{find_folder(target)}/done") == b"first"
    assert list_folders(root) == ["g-4"] and list_folders(f"{root}/none") == []


def test_one_of_two_makers_on_object_storage_counts(bucket: str) -> None:
    target = f"{bucket}/g"
    with make_folder(target, lambda: False) as one, make_folder(target, lambda: False) as two:
        assert one is not None and two is not None and one.work != two.work
        for work in (one, two):
            write_text(f"{work.work}/done", work.work)
        two.publish()
        one.publish()
    assert find_folder(target) == two.work
    assert sorted(list_objects(bucket)) == sorted(
        ["g/current.txt", f"{two.work.removeprefix(bucket)[1:]}/done"]
    )


def test_a_private_folder_is_gone_at_the_end(root: str) -> None:
    with hold_private_folder(f"{root}/models/m") as place:
        write_text(f"{place}/x", "1")
        assert read_bytes(f"{place}/x") == b"1"
    assert read_bytes(f"{place}/x") is None


def test_a_folder_that_cannot_be_read_any_more_is_said_with_the_way_out(bucket: str) -> None:
    target = f"{bucket}/g"
    assert explain_missing_folder(target).hint == "run again"
    assert make(target, "first")
    remove_object(f"{find_folder(target)}/done")
    assert make(target, "second") and not is_made(target)
    assert explain_missing_folder(target).hint == f"remove {target}, and run again"
    remove_objects(target)
    assert make(target, "third") and is_made(target)


def test_a_folder_is_written_once_and_again_where_its_last_file_is_missing(tmp_path: Path) -> None:
    target, written = f"{tmp_path}/logs/a", list[str]()

    def write(folder: str) -> None:
        written.append(folder)
        write_text(f"{folder}/rows", "1")
        write_text(f"{folder}/last", "x")

    assert write_once(target, write, "last") == write_once(target, write, "last") == target
    Path(target, "last").unlink()
    assert write_once(target, write, "last") == target and len(written) == 2
    assert list_folders(f"{tmp_path}/logs") == ["a"]
