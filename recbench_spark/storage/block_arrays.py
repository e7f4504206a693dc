"""Arrays stored in immutable blocks, read as one array.

A task makes a block's rows under a private name and publishes them whole, under a name with their digest.
The driver then writes the list of all parts (`parts.json`), with each part's rows, length and digest.
Workers read what this list says. Spark may run a task twice at once, and PySpark takes the cut input of the
copy it ends for a complete one. Such a copy writes a part of another name, which no list contains. In a
folder workers map the parts where they are, without a copy. From an object storage a host fetches the parts
it reads, once (`host_files`).

A part is a `.npy` file. Its header is padded: within a page, its rows begin at the same place as in the
whole array. So one range of addresses maps all parts side by side, and only pages where two parts meet are
copied. Rows without a part are zeros.
"""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import os
import struct
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from recbench_spark.core.transfer_sizes import FETCHES_AT_ONCE
from recbench_spark.errors import StoreError
from recbench_spark.storage.host_files import (
    HINT_SHARED,
    digest_content,
    make_private_file,
    open_object,
    store_object,
    suggest_removal,
)
from recbench_spark.storage.objects import read_bytes, write_text
from recbench_spark.storage.publish import local_path
from recbench_spark.storage.uris import is_remote, join_uri

PARTS_FILE = "parts.json"

LAYOUT = 3
"""Version of an array's files: parts have their digests in their names. Others count as missing."""

PAGE = 4096
"""Page size in bytes for padding headers. Where pages are larger, parts are copied."""

MOST_LISTS, MOST_WHOLE = 64, 8
"""Lists of parts, and whole arrays, kept in a process. Most blocks read the same arrays again and again."""


class ArrayPart(NamedTuple):
    """One block's object, as the list of parts names it.

    Attributes:
        number: number of the block.
        first: place of its first row in the whole array.
        rows: number of its rows.
        size: the object's bytes.
        digest: digest of its bytes (`host_files.digest_content`).
    """

    number: int
    first: int
    rows: int
    size: int
    digest: str


@dataclass(frozen=True, eq=False)
class BlockArray:
    """One array stored in parts: place, shape, part list.

    Attributes:
        folder: folder of the parts, a path or a URI.
        shape: shape of the whole array. The first number is 0 if the parts are not rows of one array.
        dtype: name of the numbers' type.
        parts: parts by block number.
    """

    folder: str
    shape: tuple[int, ...]
    dtype: str
    parts: dict[int, ArrayPart]

    def open(self, part: ArrayPart) -> BinaryIO:
        """Open a part on this host, as `open_object`."""
        return open_object(part_place(self.folder, part), part.size, part.digest)


class PartMaker:
    """Writer of one part's rows, in any order."""

    def __init__(
        self, path: Path, file: BinaryIO, header: bytes, shape: tuple[int, ...], dtype: Any
    ) -> None:
        self._path, self._file, self._header = path, file, header
        self._shape, self._dtype = shape, np.dtype(dtype)
        self._rows, self._digest = 0, xxhash.xxh3_128(header)
        self._array: npt.NDArray[Any] | None = None
        self._part: ArrayPart | None = None

    @property
    def entry(self) -> ArrayPart:
        """Return the part when it is complete."""
        assert self._part is not None
        return self._part

    def append(self, rows: npt.NDArray[Any]) -> None:
        """Write the next rows; they have the part's type.

        This is faster than filling the result of `map_rows`.
        """
        packed = np.ascontiguousarray(rows)
        assert packed.dtype == self._dtype and packed.shape[1:] == self._shape[1:]
        self._rows += len(packed)
        self._digest.update(packed.data)
        self._file.write(packed.data)

    def map_rows(self) -> npt.NDArray[Any]:
        """Return all rows as zeros, to fill in any order.

        Fill them instead of appending. Rows left unfilled take no disk.
        """
        size = self._dtype.itemsize * math.prod(self._shape)
        self._file.truncate(len(self._header) + size)
        self._file.flush()
        empty = np.empty(self._shape, self._dtype)
        offset = len(self._header)
        self._array = np.memmap(self._path, self._dtype, "r+", offset, self._shape) if size else empty
        return self._array

    def complete(self, number: int, first: int) -> ArrayPart:
        """Return the part. Raises ValueError for missing rows."""
        self._file.flush()
        if self._array is not None:
            self._digest.update(self._array.data)
        elif self._rows != self._shape[0]:
            raise ValueError(f"part {number}: {self._rows} rows were written of {self._shape[0]}")
        size = self._path.stat().st_size
        self._part = ArrayPart(number, first, self._shape[0], size, self._digest.hexdigest())
        return self._part


def part_place(folder: str, part: ArrayPart) -> str:
    """Return the path or URI of a block's part."""
    return join_uri(folder, f"{part.number:05d}-{part.digest}.npy")


# ------------------------------------------------------------------------------------------ write


@contextmanager
def make_part(
    folder: str, number: int, shape: tuple[int, ...], dtype: Any, first: int = 0
) -> Iterator[PartMaker]:
    """Make a block's part and publish it at the end.

    A second attempt writes the same bytes under the same name; other bytes get another name.

    Args:
        folder: folder of the parts.
        number: number of the block.
        shape: rows of the part, and the shape of a row.
        dtype: type of the numbers.
        first: place of the first row in the whole array.
    """
    row_bytes = np.dtype(dtype).itemsize * math.prod(shape[1:])
    header = _make_header(shape, np.dtype(dtype), first * row_bytes)
    with make_private_file(join_uri(folder, f"{number:05d}.npy")) as path, path.open("wb") as file:
        file.write(header)
        maker = PartMaker(path, file, header, shape, dtype)
        yield maker
        part = maker.complete(number, first)
        store_object(path, part_place(folder, part), part.size, part.digest)


def write_part(folder: str, number: int, array: npt.NDArray[Any], first: int = 0) -> ArrayPart:
    """Write an array as a block's part, as `make_part`."""
    with make_part(folder, number, array.shape, array.dtype, first) as maker:
        maker.append(array)
    return maker.entry


def _make_header(shape: tuple[int, ...], dtype: np.dtype[Any], offset: int) -> bytes:
    """Return a `.npy` header, padded to meet a page.

    The header's length is `offset` modulo a page, its version 1.0. Source: the format's description in
    `numpy.lib.format`.
    """
    fields = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    text = repr(fields).encode("latin1")
    padding = (offset - len(text) - 11) % PAGE
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text) + padding + 1) + text + b" " * padding + b"\n"


def publish_parts(folder: str, parts: Iterable[ArrayPart], shape: tuple[int, ...], dtype: Any) -> None:
    """Write the list of parts, which completes the array.

    An earlier list is replaced.
    """
    listed = [list(part) for part in sorted(parts)]
    fields = {"layout": LAYOUT, "shape": list(shape), "dtype": np.dtype(dtype).name, "parts": listed}
    write_text(join_uri(folder, PARTS_FILE), json.dumps(fields))


# ------------------------------------------------------------------------------------------- read


def has_parts(folder: str) -> bool:
    """Check whether an array is complete."""
    return _read_list(folder) is not None


def is_whole(folder: str, number: int) -> bool:
    """Check whether a block's part has the bytes written.

    The check looks at folders; a remote part is compared when it is fetched.
    """
    part = read_parts(folder).parts.get(number)
    if part is None or is_remote(folder):
        return part is not None
    path = local_path(part_place(folder, part))
    return path.is_file() and path.stat().st_size == part.size and digest_content(path) == part.digest


def read_parts(folder: str) -> BlockArray:
    """Read the list of an array's parts.

    Raises:
        StoreError: there is no list, or it is damaged.
    """
    array = _read_list(folder)
    if array is None:
        place = join_uri(folder, PARTS_FILE)
        hint = suggest_removal(place) if is_remote(place) else HINT_SHARED
        raise StoreError(f"no file {place}", hint)
    return array


def _read_list(folder: str) -> BlockArray | None:
    """Read an array's list, again if its file changed.

    One run writes a folder in object storage, and each of its lists once.
    """
    version: tuple[int, ...] = ()
    try:
        if not is_remote(folder):
            status = Path(local_path(folder), PARTS_FILE).stat()
            version = (status.st_ino, status.st_mtime_ns, status.st_size)
        return _parse_list(folder, version)
    except FileNotFoundError:
        return None


@lru_cache(maxsize=MOST_LISTS)
def _parse_list(folder: str, version: tuple[int, ...]) -> BlockArray:
    """Read a list. Raises FileNotFoundError where there is none.

    The cache does not keep this error.
    """
    del version  # part of the key
    place = join_uri(folder, PARTS_FILE)
    text = read_bytes(place)
    if text is None:
        raise FileNotFoundError(place)
    try:
        fields = json.loads(text)
        if fields.get("layout") != LAYOUT:
            raise FileNotFoundError(place)
        parts = {part[0]: ArrayPart(*part) for part in fields["parts"]}
        return BlockArray(folder, tuple(fields["shape"]), fields["dtype"], parts)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        message = f"{place} is cut short or damaged: {str(error)[:200]}"
        raise StoreError(message, suggest_removal(place)) from None


def map_part(folder: str, number: int, rows: int = 0) -> npt.NDArray[Any]:
    """Map a block's rows read-only; without a part, `rows` zeros.

    Raises:
        StoreError: the array or the part is missing or damaged, or the storage does not answer.
    """
    array = read_parts(folder)
    part = array.parts.get(number)
    if part is None:
        return np.zeros((rows, *array.shape[1:]), array.dtype)
    with array.open(part) as file:
        return _map_array(file)


def map_file(path: Path) -> npt.NDArray[Any]:
    """Map a `.npy` file read-only.

    Raises:
        StoreError: the file does not exist or is damaged.
    """
    try:
        with path.open("rb") as file:
            return _map_array(file)
    except FileNotFoundError:
        raise StoreError(f"no file {path}", HINT_SHARED) from None


def _map_array(file: BinaryIO) -> npt.NDArray[Any]:
    """Map an open `.npy` file's rows.

    An empty one cannot be mapped, a small one need not be.
    """
    try:
        np.lib.format.read_magic(file)
        length = file.read(2)
        shape, by_column, dtype = _parse_header(length + file.read(int.from_bytes(length, "little")))
        order: Any = "F" if by_column else "C"
        if os.fstat(file.fileno()).st_size <= 2 * PAGE:
            return np.frombuffer(bytearray(file.read()), dtype).reshape(shape, order=order)
        return np.memmap(file, dtype, "r", file.tell(), shape, order)
    except (ValueError, EOFError) as error:
        message = f"{file.name} is cut short or damaged: {str(error)[:200]}"
        raise StoreError(message, suggest_removal(str(file.name))) from None


@lru_cache(maxsize=256)
def _parse_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    return np.lib.format.read_array_header_1_0(BytesIO(header))


def map_whole(folder: str) -> npt.NDArray[Any]:
    """Map a whole array read-only; a process keeps recent maps.

    Raises:
        StoreError: as `map_part`.
    """
    return _map_parts(read_parts(folder))


@lru_cache(maxsize=MOST_WHOLE)
def _map_parts(array: BlockArray) -> npt.NDArray[Any]:
    """Map an array's parts side by side.

    The map lasts as long as a view of it.
    """
    kind = np.dtype(array.dtype)
    row_bytes = kind.itemsize * math.prod(array.shape[1:])
    if not array.shape[0] * row_bytes:
        return np.broadcast_to(np.zeros((), kind), array.shape)
    region = mmap.mmap(-1, array.shape[0] * row_bytes, flags=RESERVED)
    parts = [part for part in array.parts.values() if part.rows]
    place = partial(_place_rows, region, array, row_bytes)
    with ThreadPoolExecutor(FETCHES_AT_ONCE) as pool:
        list(pool.map(place, parts))  # raises the parts' errors
    whole: npt.NDArray[Any] = np.frombuffer(region, kind).reshape(array.shape)
    whole.flags.writeable = False
    return whole


def _place_rows(region: mmap.mmap, array: BlockArray, row_bytes: int, part: ArrayPart) -> None:
    """Put a part's rows into a range of addresses.

    Whole pages are mapped, the other rows are copied.

    Args:
        region: addresses of the whole array.
        array: the array.
        row_bytes: bytes of a row.
        part: the part; in its file the header stands before the rows.
    """
    begin, end = part.first * row_bytes, (part.first + part.rows) * row_bytes
    low, high = -(-begin // PAGE) * PAGE, end // PAGE * PAGE
    header, view = part.size - (end - begin), memoryview(region)
    with array.open(part) as file:
        if high <= low or not _map_pages(region, low, high, file.fileno(), header + low - begin):
            low = high = end
        for first, last in ((begin, low), (high, end)):
            file.seek(header + first - begin)
            if file.readinto(view[first:last]) != last - first:  # type: ignore[attr-defined]
                raise StoreError(f"{file.name} is cut short", suggest_removal(str(file.name)))


def _map_pages(region: mmap.mmap, low: int, high: int, file: int, offset: int) -> bool:
    """Map a file's pages over some addresses.

    Returns:
        False where pages have another size.
    """
    if mmap.PAGESIZE != PAGE or offset % PAGE:
        return False
    address = ctypes.addressof(ctypes.c_char.from_buffer(region)) + low
    placed = _load_mmap()(address, high - low, mmap.PROT_READ, mmap.MAP_SHARED | MAP_FIXED, file, offset)
    return bool(placed == address)


@lru_cache(maxsize=1)
def _load_mmap() -> Any:
    """Return mmap(2) of the C library.

    Python's own has no flag for a fixed address.
    """
    function = ctypes.CDLL(None, use_errno=True).mmap
    numbers = (ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *numbers)
    function.restype = ctypes.c_void_p
    return function


MAP_FIXED = 0x10
"""Flag of mmap(2), on Linux and macOS: exactly this address."""

MAP_NORESERVE = 0x4000 if sys.platform == "linux" else 0

RESERVED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
"""Addresses of zeros, which take memory only when something is written."""
