"""Files of a log that is laid out, without a JVM: parts, pieces of large queries, the index, same bits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from recbench_spark.auctions import part_files, passes, replay
from recbench_spark.auctions.auction_log import (
    CountShowings,
    LogFacts,
    PartWork,
    Sums,
    add_sums,
    make_parts,
    read_later_rows,
    select_rows,
    square_auctions,
)
from recbench_spark.auctions.auctions import CheckedAuctions, check_auctions
from recbench_spark.auctions.log_layout import (
    CLASSES,
    LayoutPlan,
    LogLayout,
    count_ranges,
    find_classes,
    find_parts,
    find_ranges,
    read_auction_hashes,
    read_part,
    write_index,
    write_no_rows,
    write_part,
)
from recbench_spark.auctions.part_tasks import CountedLog, PartReader
from recbench_spark.auctions.replay import LOGGED, replay_models
from recbench_spark.auctions.settings import AuctionLog, AuctionWorld, ReplaySettings
from recbench_spark.auctions.worlds import LOGGED as LOGGED_POINT
from recbench_spark.auctions.worlds import make_auctions
from recbench_spark.core.hashed_ids import hash_ids

WORLD = AuctionWorld(auctions=900, queries=200, zipf=0.8, seed=3)
SETTINGS = ReplaySettings.model_validate(
    {
        "points": [vars(LOGGED_POINT), {**vars(LOGGED_POINT), "main_slots": 2, "exponent": 0.5}],
        "logged": vars(LOGGED_POINT),
        "bootstrap": {"replicates": 20},
        "shrinkage": 1.5,
    }
)


def make_log() -> CheckedAuctions:
    """A log in which each auction has one of 60 users."""
    log = make_auctions(WORLD).log
    users = np.random.default_rng(2).integers(60, size=WORLD.auctions)[log.column("auction_id").to_numpy()]
    return check_auctions(log.append_column("user_id", pa.array(users)), AuctionLog(world=WORLD), "log")


def lay_out(log: CheckedAuctions, folder: Path, most: int) -> LogLayout:
    """Write a layout as tasks do, one part after the other."""
    query_hash, auction_hash = (
        hash_ids(log.query_ids)[log.query_r],
        hash_ids(log.auction_ids)[log.auction_r],
    )
    plan = LayoutPlan.from_counts(np.bincount(find_classes(query_hash), minlength=CLASSES), most)
    part_r = plan.assign(query_hash, auction_hash)
    for part in range(plan.parts):
        write_part(folder, part, select_rows(log, part_r == part))
    ranges = 3
    hashes = [read_auction_hashes(folder, part) for part in range(plan.parts)]
    part_a = np.repeat(np.arange(plan.parts), [len(one) for one in hashes])
    all_hashes = np.concatenate(hashes)
    range_a = find_ranges(all_hashes, ranges)
    for number in range(ranges):
        mine = range_a == number
        assert not write_index(folder, number, all_hashes[mine], part_a[mine])
    layout = LogLayout(
        folder,
        plan.parts,
        ranges,
        tuple(plan.list_cuts()),
        True,
        log.time_r is not None,
        len(log.click_r),
        0,
    )
    layout.write((("line", "why"),))
    return LogLayout.read(folder)


@dataclass(frozen=True, eq=False)
class FileParts:
    """Parts in files, read by this process one after the other, as tasks read them."""

    reader: PartReader

    @property
    def facts(self) -> LogFacts:
        return self.reader.log.facts

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(self.reader.models)

    def add(self, work: PartWork, count_showings: CountShowings | None = None) -> Sums:
        log, reader = self.reader.log, self.reader
        if count_showings is not None and log.layout.peers:
            folder = log.folder / "shared"
            for part in set(log.layout.peers) & set(log.parts):
                for number, showings in enumerate(count_showings(reader.read(part))):
                    part_files.save_showings(folder, part, number, showings)
            reader = replace(reader, showings=folder)
        return reduce(add_sums, map(work, map(reader.read, log.parts)))

    def keep(self, name: str, make: Any) -> Any:
        return part_files.keep_sums(self.reader.log.folder, name, make)

    def count_users(self) -> Any:
        users = [self.reader.read(part).auctions.users for part in self.reader.log.parts]
        return square_auctions(
            np.concatenate([one.key_u for one in users]), np.concatenate([one.auctions_u for one in users])
        )


def count(layout: LogLayout, until: int | None, folder: Path) -> FileParts:
    logs = {part: part_files.read_replayed(layout, part, until) for part in range(layout.parts)}
    each = {
        part: LogFacts.from_log(log) for part, log in logs.items() if log is not None and len(log.click_r)
    }
    facts = reduce(lambda one, two: one + two, each.values())
    for part in each:
        part_files.count_part(part, layout, until, facts, folder)
    for part in set(layout.peers) & set(each):
        part_files.join_counts(part, layout, frozenset(each), folder)
    part_files.write_facts(folder, facts, sorted(each))
    facts, numbers = part_files.read_facts(folder)
    return FileParts(PartReader(CountedLog(layout, until, folder, facts, numbers), {LOGGED: folder}))


@pytest.mark.full
@pytest.mark.parametrize("most", [10_000, 500, 150])
@pytest.mark.parametrize("until", [None, 1_767_225_800_000_000])
@pytest.mark.parametrize("resample", ["query", "user"])
def test_files_give_the_bits_of_one_process(tmp_path, most: int, until: int | None, resample: str) -> None:
    settings = SETTINGS.model_copy(update={"resample": resample})
    log = make_log()
    layout = lay_out(log, tmp_path, most)
    assert bool(layout.cuts) == (most < 1000), "a head query is cut"
    assert max(len(read_part(tmp_path, part).click_r) for part in range(layout.parts)) < 1.5 * most
    (tmp_path / "counts").mkdir()
    parts = count(layout, until, tmp_path / "counts")
    later = log if until is None else read_later_rows(log, until)
    whole = make_parts(later, {LOGGED: later.probability_r}, 1)
    assert parts.facts == whole.facts
    expected, checks = replay_models(whole, [LOGGED], settings)
    rows, own_checks = replay_models(parts, [LOGGED], settings)
    assert sum(row.get("ci_low") is not None for row in expected) > 60, "bits of all replicates"
    assert rows == expected and own_checks == checks


def test_a_piece_whose_peers_have_no_rows_needs_no_showings(tmp_path) -> None:
    """All later auctions of a class that is cut can be in one piece."""
    layout = lay_out(make_log(), tmp_path, 150)
    (tmp_path / "counts").mkdir()
    parts = count(layout, None, tmp_path / "counts")
    piece = min(layout.peers)
    folder = parts.reader.log.folder
    showings = part_files.load_showings(tmp_path, piece, 0, counts=folder, peers=[piece])
    assert showings.stack().shape == (3, 0)


def test_a_layout_keeps_all_rows_and_facts(tmp_path) -> None:
    log = make_log()
    layout = lay_out(log, tmp_path, 300)
    assert layout.read_rejects() == (("line", "why"),) and layout.rows == 7200

    def list_rows(part: CheckedAuctions) -> list[tuple[Any, ...]]:
        return [
            (str(part.auction_ids[a]), str(part.query_ids[q]), str(part.ad_ids[d]), bid, time, position)
            for a, q, d, bid, time, position in zip(
                part.auction_r,
                part.query_r,
                part.ad_r,
                part.bid_r,
                part.time_r,
                part.position_r,
                strict=True,
            )
        ]

    kept = [row for part in range(layout.parts) for row in list_rows(read_part(tmp_path, part))]
    assert sorted(kept) == sorted(list_rows(log))


def test_the_index_finds_the_part_of_each_auction(tmp_path) -> None:
    layout = lay_out(make_log(), tmp_path, 300)
    own = [read_part(tmp_path, part) for part in range(layout.parts)]
    ids = pa.array([str(number) for number in range(1000)])
    part_of = dict.fromkeys(range(1000), -1)
    for places, parts in find_parts(layout, hash_ids(ids)):
        part_of.update(zip(places.tolist(), parts.tolist(), strict=True))
    for place, part in part_of.items():
        present = [
            n for n, log in enumerate(own) if str(place) in log.auction_ids.take(log.auction_r).to_pylist()
        ]
        assert present == ([] if part < 0 else [part])
    assert sum(part < 0 for part in part_of.values()) == 100, "the log has 900 auctions"


def test_a_part_that_loses_its_rows_has_none(tmp_path) -> None:
    """A log with bad rows is written twice; a part that only bad auctions filled stays without rows."""
    log = make_log()
    layout = lay_out(log, tmp_path, 300)
    write_no_rows(tmp_path, 0)
    assert part_files.read_replayed(layout, 0, None) is None
    assert len(read_auction_hashes(tmp_path, 0)) == 0 < len(read_auction_hashes(tmp_path, 1))


def test_few_points_at_once_change_no_bit(monkeypatch) -> None:
    log = make_log()
    parts = make_parts(log, {LOGGED: log.probability_r}, 3)
    expected = replay_models(parts, [LOGGED], SETTINGS)
    monkeypatch.setattr(passes, "CELLS_AT_ONCE", 1)
    assert replay_models(parts, [LOGGED], SETTINGS) == expected
    monkeypatch.setattr(replay, "POINTS_AT_ONCE", 1)
    assert replay_models(parts, [LOGGED], SETTINGS) == expected


def test_two_auctions_of_one_hash_are_noticed(tmp_path) -> None:
    hashes = np.array([7, 5, 7], np.uint64)
    assert write_index(tmp_path, 0, hashes, np.array([1, 0, 0]))
    layout = LogLayout(tmp_path, 2, 1, (), True, False, 3, 0)
    ((places, parts),) = find_parts(layout, hashes[:2])
    assert sorted(zip(places.tolist(), parts.tolist(), strict=True)) == [(0, 0), (0, 1), (1, 0)]
    assert not write_index(tmp_path, 0, hashes[:2], np.array([1, 0]))


def test_ranges_of_the_index_are_equal_and_in_order() -> None:
    hashes = np.array([0, 2**62, 2**63 - 1, 2**63, 2**64 - 1], np.uint64)
    assert find_ranges(hashes, 1).tolist() == [0] * 5
    assert find_ranges(hashes, 4).tolist() == [0, 1, 1, 2, 3]
    assert [count_ranges(auctions) for auctions in (0, 1, 1 << 21, (1 << 21) + 1)] == [1, 1, 1, 2]


def test_a_plan_fills_parts_and_cuts_large_classes() -> None:
    rows_k = np.zeros(CLASSES, np.int64)
    rows_k[[3, 5, 9, 12, 13]] = [4, 5, 25, 6, 5]
    plan = LayoutPlan.from_counts(rows_k, 10)
    assert plan.first_k[[3, 5, 9, 12, 13]].tolist() == [0, 0, 1, 4, 5]
    assert plan.parts == 6 and plan.list_cuts() == [(1, 3)]
