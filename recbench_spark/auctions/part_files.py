"""Arrays about a part's replayed auctions, in mapped files.

They depend on the layout and on the time after which rows are replayed, and not on models. If a query
class is cut, counts are first for one piece; `join_counts` adds the other pieces' counts in order.
Whole numbers are added, so the number of pieces changes no bit.

    counted-00007/key_q.npy ...   fields of `AuctionPart`
    counted-00007/pairs.arrow     pairs as text, of a piece
    counted-00007/peer-00008.npy  pairs of another piece that this piece has too: number there, number here
    facts.json                    facts about all replayed rows; written last
    sums-DIGEST.npz               position curve and sums of the log for the settings of a replay
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recbench_spark.auctions import auction_log
from recbench_spark.auctions.auctions import CheckedAuctions
from recbench_spark.auctions.kernels.auction_parts import AuctionPart
from recbench_spark.auctions.kernels.counts import ImpressionCounts
from recbench_spark.auctions.kernels.mechanism import SlotCounts
from recbench_spark.auctions.kernels.user_bootstrap import PairShowings
from recbench_spark.auctions.log_layout import LogLayout, read_part, write_table
from recbench_spark.core.arrays import Ints
from recbench_spark.sources.arrow_rows import find_indices
from recbench_spark.storage.publish import replace_file
from recbench_spark.storage.shared_arrays import replace_array

FIELDS = (
    "key_q", "pair_starts_q", "auctions_q", "starts_a", "query_r", "pair_r", "bid_r", "quality_r", "slot_r",
    "click_r",
)  # fmt: skip
USERS = "user_key_r"
COUNTS = ("shown_gs", "clicks_gs")
TELLING = ("telling_shown", "telling_clicks")
FACTS = "facts.json"


def write_facts(folder: Path, facts: auction_log.LogFacts, parts: list[int]) -> None:
    """Write the facts about all replayed rows, and their parts."""
    content = json.dumps({"facts": asdict(facts), "parts": parts})
    replace_file(folder / FACTS, lambda path: path.write_text(content, encoding="utf-8"))


def read_facts(folder: Path) -> tuple[auction_log.LogFacts, tuple[int, ...]]:
    """Read the facts about all replayed rows, and their parts."""
    content = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    slots = SlotCounts(**content["facts"].pop("slots"))
    return auction_log.LogFacts(slots=slots, **content["facts"]), tuple(content["parts"])


def read_replayed(layout: LogLayout, part: int, until: int | None) -> CheckedAuctions | None:
    """Return a part's rows after a time, if any.

    With None as time, all rows count.
    """
    if not (layout.folder / f"rows-{part:05d}.arrow").exists():
        return None
    log = read_part(layout.folder, part)
    if until is None:
        return log
    keep = auction_log.mask_later_rows(log, until)
    return auction_log.select_rows(log, keep) if keep.any() else None


# ------------------------------------------------------------------------------------ writing


def count_part(
    part: int, layout: LogLayout, until: int | None, facts: auction_log.LogFacts, folder: Path
) -> None:
    """Write a part's arrays. A task holds its rows."""
    log = read_replayed(layout, part, until)
    assert log is not None, "only parts with rows are counted"
    place, auctions = find_folder(folder, part), auction_log.make_part(log, facts)
    place.mkdir(parents=True, exist_ok=True)
    for name in FIELDS:
        _save(place, name, getattr(auctions, name))
    if log.probability_r is not None:
        _save(place, "probability", log.probability_r)
    if auctions.user_key_r is not None:
        _save(place, USERS, auctions.user_key_r)
    if part in layout.peers:
        _write_pairs(place, log, auctions)
    _write_counts(place, auctions, auctions.auctions_q)


def _write_counts(place: Path, auctions: AuctionPart, whole_auctions_q: Ints) -> None:
    """Write what depends on all of a query's auctions."""
    telling = auctions.telling_pairs
    counts = (auctions.counts.shown_gs, auctions.counts.clicks_gs, telling.shown_gs, telling.clicks_gs)
    for name, array in zip((*COUNTS, *TELLING), counts, strict=True):
        _save(place, name, array)
    _save(place, "whole_auctions_q", whole_auctions_q)
    if auctions.owned_g is not None:
        _save(place, "owned_g", auctions.owned_g)


def _write_pairs(place: Path, log: CheckedAuctions, auctions: AuctionPart) -> None:
    """Write a piece's pairs: the query's place, ad, own counts.

    Own counts are those in this piece alone.
    """
    ad_g = np.empty(len(auctions.counts.shown_gs), np.int64)
    ad_g[auctions.pair_r] = log.ad_r
    query_q = np.unique(log.query_r)
    query_g = np.repeat(np.arange(len(query_q)), np.diff(auctions.pair_starts_q))
    table = pa.table(
        {"query": pa.array(query_g), "ad": log.ad_ids.take(pa.array(ad_g))},
        metadata={"queries": json.dumps(log.query_ids.take(pa.array(query_q)).to_pylist())},
    )
    replace_file(place / "pairs.arrow", lambda path: write_table(path, table))
    for name, array in zip(COUNTS, (auctions.counts.shown_gs, auctions.counts.clicks_gs), strict=True):
        _save(place, f"own_{name}", array)


def _read_pairs(place: Path) -> tuple[pa.Array, Ints, pa.Array]:
    """Return queries, each pair's query among them, and its ad."""
    table = pa.ipc.open_file(pa.memory_map(str(place / "pairs.arrow"))).read_all().combine_chunks()
    queries = pa.array(json.loads(table.schema.metadata[b"queries"]), pa.string())
    return queries, table.column("query").to_numpy(), table.column("ad").combine_chunks()


def join_counts(part: int, layout: LogLayout, parts: frozenset[int], folder: Path) -> None:
    """Add other pieces' counts to a piece of their class.

    The first piece with a pair, or a query, adds it to the log's sums. A task holds two pieces'
    pairs.

    Args:
        part: the piece.
        layout: the log's layout.
        parts: parts with rows.
        folder: where the arrays are.
    """
    place = find_folder(folder, part)
    queries, query_g, ad_g = _read_pairs(place)
    ads = ad_g.unique()
    ad_count = np.int64(len(ads))
    keys = query_g * ad_count + find_indices(ad_g, ads)
    order = np.argsort(keys)
    auctions = load_auctions(place, 1.0)
    shown, clicks = (np.zeros(auctions.counts.shown_gs.shape, np.int32) for _ in COUNTS)
    owned_g, whole_q = np.ones(len(keys), bool), np.zeros(len(queries), np.int64)
    owned_q = np.ones(len(queries), bool)
    for peer in [one for one in layout.peers[part] if one in parts]:
        there = find_folder(folder, peer)
        their_queries, their_query_g, their_ad_g = _read_pairs(there)
        query_of = find_indices(their_queries, queries)
        known_q = query_of >= 0
        whole_q[query_of[known_q]] += _load(there, "auctions_q")[known_q]
        query, ad = query_of[their_query_g], find_indices(their_ad_g, ads)
        theirs = np.where((query < 0) | (ad < 0), -1, query * ad_count + ad)
        at = np.minimum(np.searchsorted(keys[order], theirs), len(keys) - 1)
        same = keys[order][at] == theirs
        own_g = order[at[same]]
        shown[own_g] += _load(there, "own_shown_gs")[same]
        clicks[own_g] += _load(there, "own_clicks_gs")[same]
        if auctions.user_key_r is not None and peer != part:
            _save(place, f"peer-{peer:05d}", np.stack([np.flatnonzero(same), own_g]))
        if peer < part:
            owned_g[own_g] = False
            owned_q[query_of[known_q]] = False
    fields = {name: getattr(auctions, name) for name in FIELDS}
    counts = ImpressionCounts(shown, clicks)
    whole = AuctionPart(**fields, counts=counts, owned_g=owned_g, largest_bid=1.0)
    _write_counts(place, whole, np.where(owned_q, whole_q, 0))


def keep_sums(folder: Path, name: str, make: Callable[[], auction_log.LogArrays]) -> auction_log.LogArrays:
    """Return the arrays in a file, made if missing.

    Two runs that make it at once write equal files. A damaged file is made again.

    Args:
        folder: where the parts' arrays are.
        name: digest of what the arrays depend on beside the log.
        make: makes them.
    """
    path = folder / f"sums-{name}.npz"
    with suppress(OSError, EOFError, ValueError, BadZipFile), np.load(path) as stored:
        return tuple(stored[one] for one in stored.files)
    arrays = make()
    replace_file(path, partial(_write_arrays, arrays=arrays))
    return arrays


def _write_arrays(path: Path, arrays: auction_log.LogArrays) -> None:
    with path.open("wb") as file:
        np.savez(file, *arrays)


# ------------------------------------------------------------------------------------ reading


def find_folder(folder: Path, part: int) -> Path:
    """Return the folder with a part's arrays."""
    return folder / f"counted-{part:05d}"


def load_part(
    folder: Path, part: int, facts: auction_log.LogFacts, models: Mapping[str, Path]
) -> auction_log.LoggedPart:
    """Map a part's arrays.

    Args:
        folder: where the arrays are.
        part: the part.
        facts: facts about all rows.
        models: folder with each model's probabilities.
    """
    place = find_folder(folder, part)
    probabilities = {name: _load(find_folder(one, part), "probability") for name, one in models.items()}
    auctions = load_auctions(place, facts.bid_unit)
    return auction_log.LoggedPart(auctions, probabilities, _load(place, "whole_auctions_q"))


def save_showings(folder: Path, part: int, number: int, showings: PairShowings) -> None:
    """Write the showings of a piece's pairs at a point.

    `number`: the point's number.
    """
    place = find_folder(folder, part)
    place.mkdir(parents=True, exist_ok=True)
    _save(place, f"showings-{number:05d}", showings.stack())


def load_showings(folder: Path, part: int, number: int, counts: Path, peers: Sequence[int]) -> PairShowings:
    """Add up a piece's pair showings in other pieces.

    Those are all others in its class. A task holds two at once.

    Args:
        folder: where the showings are.
        part: the piece.
        number: the operating point's number.
        counts: where the arrays are.
        peers: the class's pieces with rows.
    """
    place = find_folder(counts, part)
    slots = _load(place, COUNTS[0]).shape[1]
    total = np.zeros((3, 0), np.int64)
    for peer in [one for one in peers if one != part]:
        rows = _load(find_folder(folder, peer), f"showings-{number:05d}")
        theirs = _translate_places(rows, _load(place, f"peer-{peer:05d}"), slots)
        total = PairShowings.add_up(*np.concatenate([total, theirs], axis=1)).stack()
    return PairShowings(*total)


def _translate_places(rows: Ints, pairs: Ints, slots: int) -> Ints:
    """Return showings of common pairs, with places here, (3, n).

    Args:
        rows: (3, m) places in the other piece, times and prices.
        pairs: (2, g) pairs in both pieces: rising numbers there, and numbers here.
        slots: number of slots.
    """
    their_g, own_g = pairs
    if not len(their_g):
        return rows[:, :0]
    pair, slot = np.divmod(rows[0], slots)
    at = np.minimum(np.searchsorted(their_g, pair), len(their_g) - 1)
    known = their_g[at] == pair
    return np.stack([own_g[at[known]] * slots + slot[known], rows[1][known], rows[2][known]])


def load_auctions(place: Path, bid_unit: float) -> AuctionPart:
    """Map a part's auctions."""
    counts = ImpressionCounts(*(_load(place, name) for name in COUNTS))
    owned_g = _load(place, "owned_g") if (place / "owned_g.npy").exists() else None
    fields = {name: _load(place, name) for name in FIELDS}
    user_key_r = _load(place, USERS) if (place / f"{USERS}.npy").exists() else None
    part = AuctionPart(
        **fields, counts=counts, owned_g=owned_g, largest_bid=bid_unit, user_key_r=user_key_r
    )
    vars(part)["telling_pairs"] = ImpressionCounts(*(_load(place, name) for name in TELLING))
    return part


def save_probabilities(folder: Path, part: int, probability_r: npt.NDArray[np.float64]) -> None:
    """Write a model's probabilities for a part."""
    place = find_folder(folder, part)
    place.mkdir(parents=True, exist_ok=True)
    _save(place, "probability", probability_r)


def _save(place: Path, name: str, array: npt.NDArray[Any]) -> None:
    replace_array(place / f"{name}.npy", array)


def _load(place: Path, name: str) -> npt.NDArray[Any]:
    """Map an array.

    Pages that nobody needs are not read, and no change reaches the file.
    """
    path = place / f"{name}.npy"
    return np.asarray(np.load(path, mmap_mode="c")) if path.stat().st_size > 1 << 16 else np.load(path)
