"""Small logs of auctions, and their arrays."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from recbench_spark.auctions.kernels.auction_parts import AuctionPart, AuctionRows
from tests.auctions.kernels.oracle import Ad, group, run_auction


def make_part(log: Sequence[Ad], slots: int, largest_bid: float = 1.0) -> tuple[AuctionPart, Any]:
    """Arrays of a log, and the probabilities in the same order."""
    rows = sorted(log, key=lambda one: (one.query, one.auction, one.ad))
    queries = sorted({one.query for one in rows})
    auctions = {auction: n for n, auction in enumerate(dict.fromkeys(one.auction for one in rows))}

    def ints(values: Any, kind: Any = np.int64) -> Any:
        return np.array(list(values), dtype=kind)

    arrays = AuctionRows(
        query_r=ints(queries.index(one.query) for one in rows),
        auction_r=ints(auctions[one.auction] for one in rows),
        ad_r=ints(one.ad for one in rows),
        bid_r=ints((float(one.bid) / largest_bid for one in rows), np.float64),
        quality_r=np.ones(len(rows)),
        slot_r=ints((one.slot for one in rows), np.int32),
        click_r=ints((one.clicked for one in rows), np.int32),
    )
    # Any numbers that differ do for keys.
    part = AuctionPart.from_rows(arrays, ints(queries) * 7919 + 5, slots)
    return part, ints((float(one.probability) for one in rows), np.float64)


def make_log(
    seed: int, auctions: int, point: Any, main: int, *, queries: int = 7, ads: int = 9
) -> list[Ad]:
    """Auctions of five of nine ads; numbers are multiples of powers of two, so that floats are exact."""
    draw = np.random.default_rng(seed)
    log = []
    for auction in range(auctions):
        query = int(draw.integers(queries))
        chosen = draw.choice(ads, 5, replace=False)
        rows = [
            Ad(query, auction, int(ad), Fraction(int(draw.integers(1, 16)), 16),
               Fraction(int(draw.integers(1, 32)), 32), -1, 0)
            for ad in sorted(chosen)
        ]  # fmt: skip
        outcome = run_auction(rows, point, main)
        for row in rows:
            slot = outcome.get(row.ad, (-1, 0))[0]
            clicked = int(slot >= 0 and draw.random() < 0.4 / (1 + slot))
            log.append(row._replace(slot=slot, clicked=clicked))
    return log


def with_model(log: Sequence[Ad], seed: int) -> list[Ad]:
    """The same log with probabilities of another model."""
    draw = np.random.default_rng(seed)
    return [row._replace(probability=Fraction(int(draw.integers(1, 32)), 32)) for row in log]


def split_log(log: Sequence[Ad], parts: int) -> list[list[Ad]]:
    """The log cut by query; empty parts are left out."""
    pieces: list[list[Ad]] = [[] for _ in range(parts)]
    for ads in group(log).values():
        pieces[ads[0].query % parts].extend(ads)
    return [piece for piece in pieces if piece]
