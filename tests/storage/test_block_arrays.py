"""Arrays in one object a block: any cut reads as the whole array, on a folder and on a real S3 server."""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recbench_spark.errors import StoreError
from recbench_spark.storage import block_arrays, host_files
from recbench_spark.storage.block_arrays import (
    PAGE,
    PARTS_FILE,
    has_parts,
    make_part,
    map_part,
    map_whole,
    part_place,
    publish_parts,
    read_parts,
    write_part,
)
from recbench_spark.storage.host_files import LIMIT_VARIABLE, make_room, open_object
from recbench_spark.storage.objects import list_objects, remove_object, remove_objects, write_bytes
from recbench_spark.storage.seals import list_files
from recbench_spark.storage.shared_arrays import host_folder


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for the copies of this host."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "disk"))
    return host_folder() / host_files.COPIES


def copies(disk: Path) -> list[str]:
    return sorted(path.name for path in disk.iterdir()) if disk.is_dir() else []


def write_array(folder: str, array: np.ndarray, cuts: list[int]) -> list[Any]:
    bounds = [0, *cuts, len(array)]
    parts = [
        write_part(folder, number, array[first:end], first)
        for number, (first, end) in enumerate(itertools.pairwise(bounds))
    ]
    publish_parts(folder, parts, array.shape, array.dtype)
    return parts


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(0, 4000),
    width=st.sampled_from([(), (1,), (3,), (37,), (128,)]),
    kind=st.sampled_from(["float16", "float32", "uint64", "bool", "uint8"]),
    places=st.lists(st.floats(0, 1), max_size=5),
)
def test_any_cut_reads_as_the_whole_array(tmp_path_factory, rows, width, kind, places) -> None:
    array = (
        np.random.default_rng(rows).integers(0, 2 if kind == "bool" else 200, (rows, *width)).astype(kind)
    )
    folder = str(tmp_path_factory.mktemp("array"))
    parts = write_array(folder, array, sorted(int(place * rows) for place in places))
    whole = map_whole(folder)
    assert (whole.dtype, whole.shape, whole.tobytes()) == (array.dtype, array.shape, array.tobytes())
    assert not whole.flags.writeable
    for part in parts:
        own = array[part.first : part.first + part.rows]
        assert map_part(folder, part.number).tobytes() == own.tobytes()
        plain = np.load(part_place(folder, part))  # a plain file for other tools
        assert plain.dtype == array.dtype and plain.tobytes() == own.tobytes()


def count_mapped_pages(folder: Path) -> int:
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    ends = [line.split()[0].split("-") for line in lines if f"{folder}/" in line]
    return sum(int(last, 16) - int(first, 16) for first, last in ends) // PAGE


@pytest.mark.skipif(block_arrays.mmap.PAGESIZE != PAGE, reason="headers are padded for pages of 4096 bytes")
def test_all_pages_but_the_borders_are_those_of_the_files(tmp_path: Path) -> None:
    array = np.arange(3_000_000, dtype=np.float32).reshape(-1, 3)
    write_array(str(tmp_path / "a"), array, [1, 100_001, 777_777])
    whole = map_whole(str(tmp_path / "a"))
    pages = array.nbytes // PAGE
    assert pages - 8 <= count_mapped_pages(tmp_path / "a") <= pages
    del whole
    block_arrays._map_parts.cache_clear()
    assert count_mapped_pages(tmp_path / "a") == 0


def test_rows_without_a_part_are_zeros(tmp_path: Path) -> None:
    folder, array = str(tmp_path), np.ones((9000, 5), np.float32)
    parts = write_array(folder, array, [3000, 6000])
    publish_parts(folder, [parts[0], parts[2]], array.shape, array.dtype)
    whole = map_whole(folder)
    assert whole[:3000].all() and not whole[3000:6000].any() and whole[6000:].all()
    assert map_part(folder, 1, 3000).shape == (3000, 5) and not map_part(folder, 1, 3000).any()


def test_a_part_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="broken"), make_part(str(tmp_path), 0, (10, 2), np.float32):
        assert not list(tmp_path.glob("*.npy"))
        raise ValueError("broken")
    assert list(tmp_path.iterdir()) == [] and not has_parts(str(tmp_path))
    with pytest.raises(StoreError, match=PARTS_FILE):
        map_whole(str(tmp_path))


def test_a_part_with_missing_rows_is_refused(tmp_path: Path) -> None:
    short = make_part(str(tmp_path), 3, (10, 2), np.float32)
    with pytest.raises(ValueError, match="part 3: 4 rows were written of 10"), short as maker:
        maker.append(np.ones((4, 2), np.float32))
    assert list(tmp_path.iterdir()) == []


def test_rows_filled_in_any_order_are_rows_appended(tmp_path: Path) -> None:
    array = np.random.default_rng(2).standard_normal((999, 3)).astype(np.float16)
    with make_part(str(tmp_path / "a"), 0, array.shape, array.dtype, 7) as maker:
        rows, order = maker.map_rows(), np.random.default_rng(3).permutation(999)
        rows[order] = array[order]
    assert maker.entry == write_part(str(tmp_path / "b"), 0, array, 7)


def test_a_task_that_lost_to_its_twin_changes_nothing(tmp_path: Path) -> None:
    folder, array = str(tmp_path), np.ones((9000, 5), np.float32)
    publish_parts(folder, [write_part(folder, 0, array)], array.shape, array.dtype)
    with make_part(folder, 0, array.shape, array.dtype) as maker:
        maker.map_rows()[:10] = 1  # its input was cut, and the other rows stay zeros
    assert maker.entry.size == read_parts(folder).parts[0].size
    assert map_whole(folder).all() and map_part(folder, 0).all()
    block_arrays._map_parts.cache_clear()
    assert map_whole(folder).all()


def test_a_list_of_an_older_layout_counts_as_missing(tmp_path: Path) -> None:
    write_array(str(tmp_path), np.ones(10), [])
    file = tmp_path / PARTS_FILE
    older = {name: value for name, value in json.loads(file.read_text()).items() if name != "layout"}
    assert has_parts(str(tmp_path))
    file.write_text(json.dumps(older))
    assert not has_parts(str(tmp_path))


def test_a_seal_names_no_private_files(tmp_path: Path) -> None:
    with make_part(str(tmp_path / "a"), 0, (10,), np.float32) as maker:
        maker.map_rows()
        assert list_files(tmp_path) == []
    assert list_files(tmp_path) == [f"a/00000-{maker.entry.digest}.npy"]


def test_a_list_that_was_written_again_is_read_again(tmp_path: Path) -> None:
    for value in (1, 2, 3):
        write_array(str(tmp_path), np.full((5000, 3), value, np.float32), [70])
        assert (map_whole(str(tmp_path)) == value).all() and (map_part(str(tmp_path), 1) == value).all()


def test_rows_that_nobody_fills_take_no_disk(tmp_path: Path) -> None:
    with make_part(str(tmp_path), 0, (1 << 22, 4), np.float32) as maker:
        maker.map_rows()[5] = 1
    file = Path(part_place(str(tmp_path), maker.entry))
    assert file.stat().st_size > 1 << 26 and file.stat().st_blocks * 512 < 1 << 20
    publish_parts(str(tmp_path), [maker.entry], (1 << 22, 4), np.float32)
    assert map_whole(str(tmp_path))[:10].sum() == 4


@pytest.mark.parametrize("damage", ["gone", "short", "list"])
def test_damage_is_said(damage: str, tmp_path: Path) -> None:
    folder = str(tmp_path / damage)
    parts = write_array(folder, np.ones((9000, 5), np.float32), [3000])
    file = Path(part_place(folder, parts[1]))
    if damage == "gone":
        file.unlink()
    elif damage == "short":
        os.truncate(file, 100)
    else:
        Path(folder, PARTS_FILE).write_text('{"shape": [9000', encoding="utf-8")
    for read in (lambda: map_part(folder, 1), lambda: map_whole(folder)):
        with pytest.raises(StoreError, match=r"no file|100 bytes, and|damaged") as error:
            read()
        assert damage == "gone" or error.value.hint == f"remove {folder}, and run again"


# --------------------------------------------------------------------------------- object storage


def test_arrays_on_s3_are_those_on_a_folder(bucket: str, disk: Path) -> None:
    array = np.random.default_rng(1).standard_normal((50_000, 33)).astype(np.float16)
    folder = f"{bucket}/graph files/a"
    parts = write_array(folder, array, [0, 10, 20_000])
    assert len(copies(disk)) == 4  # the maker keeps what it has made
    for path in disk.iterdir():
        path.unlink()
    assert map_part(folder, 2).tobytes() == array[10:20_000].tobytes()
    assert copies(disk) == [f"{parts[2].digest}-{parts[2].size}"]  # a task fetches the parts that it reads
    assert map_whole(folder).tobytes() == array.tobytes()
    assert copies(disk) == sorted(f"{part.digest}-{part.size}" for part in parts if part.rows)
    remove_objects(folder)
    assert list(list_objects(bucket)) == []


def test_one_of_many_readers_fetches(bucket: str, disk: Path, monkeypatch) -> None:
    part = write_part(f"{bucket}/a", 0, np.arange(100_000))
    for path in disk.iterdir():
        path.unlink()
    fetched, fetch = [], host_files.copy_object_to_file
    monkeypatch.setattr(
        host_files,
        "copy_object_to_file",
        lambda place, path: (fetched.append(place), fetch(place, path)),
    )
    barrier = threading.Barrier(8)

    def read(_: int) -> bytes:
        barrier.wait()
        with open_object(part_place(f"{bucket}/a", part), part.size, part.digest) as file:
            return file.read()

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(read, range(8)))) == 1
    assert len(fetched) == 1


@pytest.mark.parametrize("content", [b"", b"short", None])
def test_a_fetched_object_is_checked_by_length_and_digest(content, bucket: str, disk: Path) -> None:
    folder = f"{bucket}/a"
    parts = write_array(folder, np.arange(100_000), [50])
    for path in disk.iterdir():
        path.unlink()
    other = bytes(read_parts(folder).parts[1].size) if content is None else content
    write_bytes(part_place(folder, parts[1]), other)
    with pytest.raises(StoreError, match="other bytes" if content is None else "were written"):
        map_part(folder, 1)
    assert copies(disk) == []


def test_copies_stay_below_the_limit_and_the_oldest_go_first(bucket: str, disk: Path, monkeypatch) -> None:
    array = np.arange(400_000, dtype=np.float32)
    parts = write_array(f"{bucket}/a", array, [100_000, 200_000, 300_000])
    names = [f"{part.digest}-{part.size}" for part in parts]
    for path in disk.iterdir():
        path.unlink()
    monkeypatch.setenv(LIMIT_VARIABLE, str(3 * parts[0].size))
    mapped = map_part(f"{bucket}/a", 0)
    for number in (1, 2, 1, 3):
        map_part(f"{bucket}/a", number)
    assert set(copies(disk)) == set(names[1:])
    assert mapped.tobytes() == array[:100_000].tobytes()  # a map outlives its copy
    map_part(f"{bucket}/a", 0)
    assert set(copies(disk)) == {names[1], names[3], names[0]}, "the second was used after the third"
    assert map_whole(f"{bucket}/a").tobytes() == array.tobytes()  # larger than the limit
    assert sum(path.stat().st_size for path in disk.iterdir()) <= 3 * parts[0].size
    monkeypatch.setenv(LIMIT_VARIABLE, "much")
    with pytest.raises(StoreError, match=f"{LIMIT_VARIABLE}=much"):
        make_room()


@pytest.mark.parametrize("name", ["h", "graph_files/g-4/0123456789abcdef0123456789abcdef/src"])
def test_a_lost_object_is_said_with_the_folder_to_remove(name: str, bucket: str, disk: Path) -> None:
    folder = f"{bucket}/{name}"
    parts = write_array(folder, np.arange(9000), [70])
    for path in disk.iterdir():
        path.unlink()
    remove_object(part_place(folder, parts[1]))
    published = folder.partition("/0123")[0]
    for read in (lambda: map_part(folder, 1), lambda: map_whole(folder)):
        with pytest.raises(StoreError, match="no object") as error:
            read()
        assert error.value.hint == f"remove {published}, and run again"
    remove_objects(folder)
    block_arrays._parse_list.cache_clear()
    with pytest.raises(StoreError, match=PARTS_FILE) as error:
        map_whole(folder)
    assert error.value.hint == f"remove {published}, and run again"


def test_a_copy_that_lost_bytes_is_fetched_again(bucket: str, disk: Path) -> None:
    array = np.arange(9000)
    (part,) = write_array(f"{bucket}/a", array, [])
    for length in (100, 0):
        os.truncate(disk / f"{part.digest}-{part.size}", length)
        assert map_part(f"{bucket}/a", 0).tobytes() == array.tobytes()


def test_private_files_of_killed_processes_are_removed_after_a_day(disk: Path) -> None:
    for name, age in (("old", 2), ("new", 0)):
        with host_files.make_private_file(f"s3://b/{name}.npy") as path:
            left = path.with_name(path.name.replace(name, f"{name}-left"))
            left.write_bytes(b"1" * 100)
            os.utime(left, (time.time() - age * 86400,) * 2)
    make_room()
    assert [name.split(".")[1] for name in copies(disk)] == ["new-left"]


def test_an_array_is_removed_by_few_requests(bucket: str, disk: Path, monkeypatch) -> None:
    write_array(f"{bucket}/a", np.arange(100), list(range(10, 40)))
    write_array(f"{bucket}/ab", np.arange(10), [])
    requests, delete = [], obstore.delete
    monkeypatch.setattr(obstore, "delete", lambda *given: (requests.append(given), delete(*given)))
    remove_objects(f"{bucket}/a")
    assert len(requests) == 1 and {name.split("/")[0] for name in list_objects(bucket)} == {"ab"}
