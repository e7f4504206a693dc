"""Files of an auction log's layout: parts, and an index.

The index leads from auctions to parts. A layout depends on the log's content and on LAYOUT_VERSION, and not
on models. Queries are in classes by the first bits of their hash. A class with more rows than a part may
have is cut by the auction's hash into several parts, the *pieces* of the class, so that no task holds all
a large query's auctions.

    rows-00007.arrow        a part's rows, in order of query, auction and ad
    auctions-00007.npy      hashes of its auctions, in order
    index-00003.npy         a range of auction hashes, in order, and parts-00003.npy: the part of each
    rejects.json            rows left out
    layout.json             facts; written last
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from recbench_spark.auctions.auction_values import ID_COLUMNS
from recbench_spark.auctions.auctions import CheckedAuctions
from recbench_spark.core.arrays import Ints
from recbench_spark.core.hashed_ids import hash_ids
from recbench_spark.core.hashing import Hashes
from recbench_spark.splits.kernels.positions import number_slots
from recbench_spark.storage.publish import replace_file
from recbench_spark.storage.shared_arrays import replace_array

LAYOUTS = "auction_logs"
"""Folder in a warehouse for logs in their layout, and for counts of their replayed rows."""

LAYOUT_VERSION = 2
"""Version of the files; another one makes other layouts. 2: users; ranges of the index hold many parts."""

CLASS_BITS = 14
CLASSES = 1 << CLASS_BITS

MOST_ROWS_OF_A_PART = 1 << 19
"""Rows in a part; a class of queries with more is cut. A task takes some 300 bytes for each row, and 1.5 KB
for each query.
"""

AUCTIONS_OF_A_RANGE = 1 << 21
"""Auctions in a range of the index. A task that sorts one takes some 60 bytes for each."""

MANIFEST = "layout.json"
REJECTS = "rejects.json"


def find_classes(hash_r: Hashes) -> Ints:
    """Return each query's class from its hash, (r,)."""
    return (hash_r >> np.uint64(64 - CLASS_BITS)).astype(np.int64)


@dataclass(frozen=True, eq=False)
class LayoutPlan:
    """Assignment of rows to parts, by query class.

    Attributes:
        first_k: (CLASSES,) each class's first part.
        pieces_k: (CLASSES,) parts in each class; 1: the class shares its part with others.
        parts: number of parts.
    """

    first_k: Ints
    pieces_k: Ints
    parts: int

    @classmethod
    def from_counts(cls, rows_k: Ints, most: int) -> LayoutPlan:
        """Fill parts with classes in order.

        Args:
            rows_k: (CLASSES,) rows in each class.
            most: rows in a part.
        """
        first_k, pieces_k = np.zeros(CLASSES, np.int64), -(-rows_k // most)
        part, filled = 0, 0
        for number in np.flatnonzero(rows_k):
            pieces, rows = int(pieces_k[number]), int(rows_k[number])
            if filled and (pieces > 1 or filled + rows > most):
                part, filled = part + 1, 0
            first_k[number] = part
            part, filled = (part + pieces, 0) if pieces > 1 else (part, filled + rows)
        return cls(first_k, np.maximum(pieces_k, 1), part + (filled > 0))

    def assign(self, query_hash_r: Hashes, auction_hash_r: Hashes) -> Ints:
        """Return each row's part, (r,)."""
        class_r = find_classes(query_hash_r)
        pieces_r = self.pieces_k[class_r].astype(np.uint64)
        return self.first_k[class_r] + (auction_hash_r % pieces_r).astype(np.int64)

    def list_cuts(self) -> list[tuple[int, int]]:
        """Return first part and part count of cut classes."""
        cut = np.flatnonzero(self.pieces_k > 1)
        return [(int(self.first_k[number]), int(self.pieces_k[number])) for number in cut]


@dataclass(frozen=True)
class LogLayout:
    """A log in its layout: files and facts.

    Attributes:
        folder: the files.
        parts: number of parts.
        ranges: number of ranges in the index.
        cuts: first part and number of parts for each cut class.
        numeric_ads: whether ads sort as numbers.
        has_times: whether rows have times.
        rows: rows in good auctions; left_out: rows in others.
    """

    folder: Path
    parts: int
    ranges: int
    cuts: tuple[tuple[int, int], ...]
    numeric_ads: bool
    has_times: bool
    rows: int
    left_out: int

    @classmethod
    def read(cls, folder: Path) -> LogLayout:
        """Read the facts about a published layout."""
        facts = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        cuts = tuple((first, count) for first, count in facts.pop("cuts"))
        return cls(folder=folder, cuts=cuts, **facts)

    def write(self, rejects: tuple[tuple[str, str], ...]) -> None:
        """Write rejects and facts."""
        (self.folder / REJECTS).write_text(json.dumps(rejects), encoding="utf-8")
        facts = {name: value for name, value in asdict(self).items() if name != "folder"}
        (self.folder / MANIFEST).write_text(json.dumps(facts), encoding="utf-8")

    def read_rejects(self) -> tuple[tuple[str, str], ...]:
        """Return the first bad rows as JSON, with reasons."""
        rows = json.loads((self.folder / REJECTS).read_text(encoding="utf-8"))
        return tuple((line, why) for line, why in rows)

    @cached_property
    def peers(self) -> dict[int, range]:
        """Pieces by part, for parts in cut classes."""
        classes = (range(first, first + count) for first, count in self.cuts)
        return {part: pieces for pieces in classes for part in pieces}


# ------------------------------------------------------------------------------------ rows


def write_part(folder: Path, part: int, log: CheckedAuctions) -> None:
    """Write a part's rows, and its auctions' hashes."""
    replace_file(folder / f"rows-{part:05d}.arrow", lambda path: _write_rows(path, log))
    present = np.unique(log.auction_r)
    hashes = np.sort(hash_ids(log.auction_ids)[present])
    replace_array(folder / f"auctions-{part:05d}.npy", hashes)


def write_no_rows(folder: Path, part: int) -> None:
    """Write a part without rows, also over an earlier attempt's."""
    (folder / f"rows-{part:05d}.arrow").unlink(missing_ok=True)
    replace_array(folder / f"auctions-{part:05d}.npy", np.zeros(0, np.uint64))


def _write_rows(path: Path, log: CheckedAuctions) -> None:
    ids = ((log.auction_r, log.auction_ids), (log.query_r, log.query_ids), (log.ad_r, log.ad_ids))
    columns = {
        name: pa.DictionaryArray.from_arrays(pa.array(places.astype(np.int32)), texts)
        for name, (places, texts) in zip(ID_COLUMNS, ids, strict=True)
    }
    for name, (kind, attribute) in STORED.items():
        values = getattr(log, attribute)
        if values is not None:
            columns[name] = pa.array(values.astype(kind))
    write_table(path, pa.table(columns))


def write_table(path: Path, table: pa.Table) -> None:
    """Write a table as an Arrow file, which readers map."""
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


STORED: dict[str, tuple[type, str]] = {
    "event_time": (np.int64, "time_r"), "bid": (np.float64, "bid_r"), "quality": (np.float64, "quality_r"),
    "probability": (np.float64, "probability_r"), "block": (np.int8, "block_r"),
    "position": (np.int16, "position_r"), "clicked": (np.int8, "click_r"), "user_id": (np.int64, "user_r"),
}  # fmt: skip
"""Columns in the files, their types, and the log's attributes which they hold; users are hashes."""


def read_part(folder: Path, part: int) -> CheckedAuctions:
    """Read a part's rows."""
    source = pa.memory_map(str(folder / f"rows-{part:05d}.arrow"))
    table = pa.ipc.open_file(source).read_all().combine_chunks()
    coded = [table.column(name).chunk(0) for name in ID_COLUMNS]
    values: dict[str, Any] = {
        attribute: table.column(name).to_numpy().astype(np.int64 if kind != np.float64 else kind)
        if name in table.column_names
        else None
        for name, (kind, attribute) in STORED.items()
    }
    auctions, queries, ads = (one.dictionary for one in coded)
    auction_r, query_r, ad_r = (one.indices.to_numpy().astype(np.int64) for one in coded)
    return CheckedAuctions(queries, auctions, ads, query_r, auction_r, ad_r, **values)


# ------------------------------------------------------------------------------------ index


def count_ranges(auctions: int) -> int:
    """Return the number of ranges in an index."""
    return max(1, -(-auctions // AUCTIONS_OF_A_RANGE))


def find_ranges(hashes: Hashes, ranges: int) -> Ints:
    """Return each hash's range in the index, (n,).

    Ranges are equally wide, and in order.
    """
    half = np.uint64(32)
    return ((hashes >> half) * np.uint64(ranges) >> half).astype(np.int64)


def read_auction_hashes(folder: Path, part: int) -> Hashes:
    """Return a part's auction hashes."""
    hashes: Hashes = np.load(folder / f"auctions-{part:05d}.npy")
    return hashes


def write_index(folder: Path, number: int, hashes: Hashes, part_a: Ints) -> bool:
    """Write an index range; return whether a hash repeats.

    Args:
        folder: the layout's folder.
        number: number of the range.
        hashes: (a,) hashes of its auctions, in any order.
        part_a: (a,) their parts.
    """
    order = np.lexsort((part_a, hashes))
    hashes = hashes[order]
    replace_array(folder / f"index-{number:05d}.npy", hashes)
    replace_array(folder / f"parts-{number:05d}.npy", part_a[order].astype(np.int32))
    return bool((hashes[1:] == hashes[:-1]).any())


def find_parts(layout: LogLayout, hashes: Hashes) -> Iterator[tuple[Ints, Ints]]:
    """Yield places of auctions among some hashes, and their parts.

    Unknown auctions are left out. If two auctions share a hash, each may be yielded with several parts.

    Args:
        layout: the log's layout.
        hashes: (n,) auction hashes.
    """
    order = np.argsort(hashes)
    wanted = hashes[order]
    bounds = np.searchsorted(find_ranges(wanted, layout.ranges), np.arange(layout.ranges + 1))
    for number, (start, end) in enumerate(pairwise(bounds)):
        if start == end:
            continue
        index = np.load(layout.folder / f"index-{number:05d}.npy", mmap_mode="r")
        part_a = np.load(layout.folder / f"parts-{number:05d}.npy", mmap_mode="r")
        first = np.searchsorted(index, wanted[start:end])
        counts = np.searchsorted(index, wanted[start:end], side="right") - first
        row, number_r = number_slots(counts)
        yield order[start:end][row], np.asarray(part_a[first[row] + number_r], dtype=np.int64)
