"""Logs of auctions: good rows in order, and each mistake with its number and an example."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from recbench_spark.auctions.auction_log import match_probabilities
from recbench_spark.auctions.auctions import check_auctions, read_auctions
from recbench_spark.auctions.settings import AuctionLog
from recbench_spark.errors import DataError, SchemaError

ROW: dict[str, Any] = {
    "auction_id": "1", "query_id": "q", "ad_id": "9", "event_time": 5, "bid": 1.0, "block": "main",
    "position": 1, "clicked": 0, "probability": 0.5,
}  # fmt: skip
SECOND = {**ROW, "ad_id": "10", "position": 2}
LOSER = {**ROW, "ad_id": "2", "position": None, "block": None}
OTHER = {**ROW, "auction_id": "2", "query_id": "p", "clicked": 1}
GOOD = [ROW, SECOND, LOSER, OTHER]
SETTINGS = AuctionLog(path="log.csv")
REJECT = AuctionLog(path="log.csv", bad_rows="reject")


def check(rows: list[dict[str, Any]], settings: AuctionLog = SETTINGS) -> Any:
    return check_auctions(pa.Table.from_pylist(rows), settings, "log")


def test_rows_are_sorted_by_query_auction_and_ad_as_numbers() -> None:
    log = check([{**row, "ad_id": int(row["ad_id"])} for row in (OTHER, *GOOD[:3])])
    assert [log.ad_ids[int(ad)].as_py() for ad in log.ad_r] == ["9", "2", "9", "10"]
    assert log.position_r.tolist() == [1, 0, 1, 2] and log.click_r.tolist() == [1, 0, 0, 0]


def test_text_ids_are_sorted_by_bytes() -> None:
    log = check([{**row, "ad_id": f"x{row['ad_id']}"} for row in GOOD])
    assert log.ad_ids.to_pylist() == ["x10", "x2", "x9"]


MISTAKES = {
    "bid is not a number from 0 on": {"bid": -1.0},
    "bid is not a number from 0 on ": {"bid": float("nan")},
    "probability is not in 0..1": {"probability": 1.5},
    "clicked is not 0 or 1": {"clicked": 2},
    "a click on an ad that was not shown": {"position": None, "clicked": 1},
    "an ad twice in an auction": {"ad_id": "9"},
    "two ads at one slot": {"position": 1},
    "a slot without the one before it": {"position": 3},
    "an auction with two queries": {"query_id": "p"},
    "position is not a whole number from 1": {"position": 0},
    "block of an ad that was shown": {"block": "top"},
    "event_time is missing": {"event_time": None},
    "query_id is missing": {"query_id": None},
}


@pytest.mark.parametrize("reason", MISTAKES)
def test_a_mistake_is_refused_with_count_and_example(reason: str) -> None:
    wrong = [ROW, {**SECOND, **MISTAKES[reason]}, LOSER, OTHER]
    with pytest.raises(DataError, match=f"{reason.strip()}.*: 1 rows.*auction_id") as raised:
        check(wrong)
    assert '"1"' in raised.value.message
    log = check(wrong, REJECT)
    assert len(log.click_r) == 1 and log.left_out == 3
    assert reason.strip() in " ".join(why for _, why in log.rejects)


def test_all_auctions_bad() -> None:
    with pytest.raises(DataError, match="every auction has a row"):
        check([{**ROW, "clicked": 7}], REJECT)


def test_columns_are_mapped_and_a_csv_is_read(tmp_path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(
        "auction,query_id,ad_id,event_time,position,clicked\n"
        "1,q,9,2026-01-31 12:00:00,1,1\n1,q,8,2026-01-31,,0\n"
    )
    log = read_auctions(AuctionLog(path=str(path), columns={"auction_id": "auction"}))
    assert log.position_r.tolist() == [0, 1] and log.click_r.tolist() == [0, 1]
    assert log.time_r.tolist() == [1_769_817_600_000_000, 1_769_860_800_000_000]
    assert log.bid_r is None and log.block_r is None
    with pytest.raises(SchemaError, match="auction_id"):
        read_auctions(AuctionLog(path=str(path)))


def test_a_text_that_is_no_time_is_a_bad_row() -> None:
    texts = ["2026-01-31 12:00:00", "2026-01-31 13:00:00+01:00", "when", "2026-13-01", None, "5"]
    rows = [{**ROW, "auction_id": str(n), "event_time": text} for n, text in enumerate(texts)]
    with pytest.raises(DataError, match="event_time is missing or no time: 4 rows"):
        check(rows)
    log = check(rows, REJECT)
    assert log.time_r.tolist() == [1_769_860_800_000_000] * 2 and log.left_out == 4
    both = check([{**row, "event_time": texts[1]} for row in GOOD])
    assert set(both.time_r.tolist()) == {1_769_860_800_000_000}


def test_a_model_scores_every_participant() -> None:
    log = check([{**row, "ad_id": int(row["ad_id"])} for row in GOOD])
    rows = [{**row, "probability": 0.25 * n} for n, row in enumerate(GOOD)]
    table = pa.Table.from_pylist(rows).select(["auction_id", "ad_id", "probability"])
    assert match_probabilities(log, table, "model").tolist() == [0.5, 0, 0.25, 0.75]
    with pytest.raises(
        DataError, match=r"1 participants of the log have no probability, e\.g\. ad 9 in auction 2"
    ):
        match_probabilities(log, table.slice(0, 3), "model")
    with pytest.raises(DataError, match="ad 9 in auction 1 stands there twice"):
        match_probabilities(log, pa.concat_tables([table, table.slice(0, 1)]), "model")
    bad = pa.Table.from_pylist([{**row, "probability": 2.0} for row in GOOD])
    with pytest.raises(DataError, match="4 probabilities are not in"):
        match_probabilities(log, bad, "model")
