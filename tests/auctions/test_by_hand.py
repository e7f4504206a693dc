"""A log of ten auctions whose replay is worked out in fractions, and orders that never change a bit.

Query q, six auctions of the ads A, B and C; C never won. A stood at slot 1 four times (4 clicks) and at
slot 2 twice (1 click); B twice at slot 1 (1 click) and four times at slot 2 (1 click). Query p, four
auctions: D always above E, 1 click each. The curve is 1, 1/2: A gives slot 2 a fifth of its 5 clicks, 2 / 2
over 4 + 2 / 2, and B half of its 2 clicks; 1 + 1 clicks are what slot 2 had. The new model shows C and A in
q, E and D in p.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recbench_spark.auctions.auction_log import make_parts, match_probabilities
from recbench_spark.auctions.auctions import check_auctions
from recbench_spark.auctions.replay import replay_models
from recbench_spark.auctions.settings import AuctionLog, AuctionWorld, ReplaySettings
from recbench_spark.auctions.worlds import LOGGED, make_auctions

SHOWN = [
    *[("q", "A", "B", clicks) for clicks in ("A", "A", "A", "AB")],
    *[("q", "B", "A", clicks) for clicks in ("BA", "")],
    *[("p", "D", "E", clicks) for clicks in ("D", "E", "", "")],
]
"""Query, ads at slots 1 and 2, and the ads that were clicked."""

BELIEVED = {"A": 0.5, "B": 0.25, "C": 0.75, "D": 0.25, "E": 0.5}
FEW = {"bootstrap": {"replicates": 5}}
SOURCE = AuctionLog(path="log")


def make_log() -> pa.Table:
    rows = []
    for n, (query, first, second, clicks) in enumerate(SHOWN):
        for ad in "ABC" if query == "q" else "DE":
            place = {first: 1, second: 2}.get(ad)
            ids = {"auction_id": n, "query_id": query, "ad_id": ad}
            block = "main" if place else None
            rows.append({**ids, "block": block, "position": place, "clicked": int(ad in clicks)})
    return pa.Table.from_pylist(rows)


def replay(
    log: pa.Table, model: pa.Table, document: dict[str, Any], parts: int = 1
) -> list[dict[str, Any]]:
    checked = check_auctions(log, SOURCE, "log")
    probabilities = {"new": match_probabilities(checked, model, "model")}
    chosen = ReplaySettings.model_validate({**FEW, **document})
    return replay_models(make_parts(checked, probabilities, parts), ["new"], chosen)[0]


def replay_by_hand(**changes: Any) -> dict[str, float]:
    """Metrics of the new model, and of others as METRIC WORD."""
    log = make_log()
    believed = pa.array([BELIEVED[ad] for ad in log.column("ad_id").to_pylist()])
    model = log.select(["auction_id", "ad_id"]).append_column("probability", believed)
    rows = replay(log, model, {"points": [{"main_slots": 2}], **changes})
    named = {}
    for row in rows:
        words = [row["metric"], row.get("slot"), row.get("other") and "difference"]
        words += [row.get("unseen") if row.get("unseen") != "reference" else None]
        words += ["logged"] if row["model"] == "logged" and not row.get("slot") else []
        named[" ".join(filter(None, words))] = row["value"]
    return named


EXPECTED = {
    "position_curve main 1": 1,
    "position_curve main 2": Fraction(1, 2),
    "reference_rate main 1": Fraction(6, 10),
    "reference_rate main 2": Fraction(3, 10),
    "clicks logged": 9,
    "multi_slot_yield logged": Fraction(7, 10),
    # C at the rate of slot 1, A at its own 1/2 of slot 2; E moves up: 1 / (4/2); D moves down: 1/2 x 1/4.
    "clicks": Fraction(6 * 6, 10) + Fraction(6, 2) + Fraction(4, 2) + Fraction(4, 8),
    "click_yield": Fraction(91, 100),
    "main_line_yield": Fraction(91, 100),
    "clicks zero": Fraction(55, 10),
    "clicks probability": Fraction(55, 10) + 6 * Fraction(3, 4),
    "multi_slot_yield": Fraction(3, 10),
    "ads_per_view": 2,
    "clicks difference": Fraction(1, 10),
    "click_lift difference": Fraction(1, 90),
    "share_same_slot": Fraction(6, 20),
    "share_other_slot": Fraction(8, 20),
    "share_unseen": Fraction(6, 20),
    "clicks_same_slot": 3,
    "clicks_other_slot": Fraction(5, 2),
    "clicks_unseen": Fraction(36, 10),
}


def test_every_number_of_a_replay_by_hand() -> None:
    named = replay_by_hand()
    for name, value in EXPECTED.items():
        assert named[name] == pytest.approx(float(value), abs=1e-7), name


def test_a_minimum_count_by_hand() -> None:
    """With 3, A leaves its slot (2 of 6 impressions) for the curve. With 5, D and E are unseen."""
    assert replay_by_hand(minimum=3)["share_other_slot"] == pytest.approx(14 / 20)
    named = replay_by_hand(minimum=5)
    assert named["clicks"] == pytest.approx(3.6 + 3 + 4 * 0.3 + 4 * 0.6, abs=1e-7)
    assert named["share_unseen"] == pytest.approx(14 / 20)


def test_shrinkage_by_hand() -> None:
    """Two impressions at the slot's rate join the 2 of A and the 4 each of D and E."""
    a = Fraction(1, 2) * Fraction(1, 2) + Fraction(1, 2) * Fraction(3, 10)
    d = Fraction(4, 6) * Fraction(1, 8) + Fraction(2, 6) * Fraction(3, 10)
    e = Fraction(4, 6) * Fraction(1, 2) + Fraction(2, 6) * Fraction(6, 10)
    clicks = Fraction(36, 10) + 6 * a + 4 * d + 4 * e
    assert replay_by_hand(shrinkage=2.0)["clicks"] == pytest.approx(float(clicks), abs=1e-7)


SETS = [("PXY", "P"), ("PXY", ""), ("PYX", "Y")]
"""Ads at slots 1, 2, 3 of an auction, and the clicked ones. No clicks lead from slot to slot and back."""


def test_pairs_of_another_set_count_at_the_reference_rate() -> None:
    """The new model shows X and Y. X stood at slots 2 and 3 alone: at slot 1 it has a third of a click.

    Y stood at slot 2 once, with a click. Both were seen at two slots, so all clicks are of such pairs.
    """
    rows = [
        {"auction_id": n, "query_id": "q", "ad_id": ad, "block": "main", "position": slot,
         "clicked": int(ad in clicked)}
        for n, (shown, clicked) in enumerate(SETS)
        for slot, ad in enumerate(shown, 1)
    ]  # fmt: skip
    log = pa.Table.from_pylist(rows)
    chances = pa.array([{"P": 0.2, "X": 0.9, "Y": 0.5}[row["ad_id"]] for row in rows])
    model = log.select(["auction_id", "ad_id"]).append_column("probability", chances)
    values = {
        (row["metric"], row.get("unseen")): row["value"]
        for row in replay(log, model, {"points": [{"main_slots": 2}]})
        if row["model"] == "new" and not row.get("other")
    }
    assert values["clicks", "reference"] == pytest.approx(3 * Fraction(1, 3) + 3)
    assert values["click_yield", "reference"] == pytest.approx(float(Fraction(4, 3)))
    assert values["multi_slot_yield", "reference"] == values["click_yield", "reference"]


@given(st.randoms(use_true_random=False), st.sampled_from([1, 3]))
@settings(max_examples=12, deadline=None)
def test_the_order_of_rows_and_of_auctions_changes_no_bit(random: Any, parts: int) -> None:
    """Rows of log and model are mixed, and auctions get other names, hence another order."""
    draw = np.random.default_rng(random.randrange(1 << 30))
    world = make_auctions(AuctionWorld(auctions=150, queries=40, seed=8))
    probability = pa.array(world.predict(0.3, 0))
    model = world.log.select(["auction_id", "ad_id"]).append_column("probability", probability)
    document = {"points": [vars(LOGGED)], "minimum": 2, "shrinkage": 1.0}
    first = replay(world.log, model, document)
    names = draw.permutation(150)
    mixed = [
        rename_auctions(table, names).take(draw.permutation(len(table))) for table in (world.log, model)
    ]
    assert replay(mixed[0], mixed[1], document, parts) == first


def rename_auctions(table: pa.Table, names: Any) -> pa.Table:
    auctions = names[table.column("auction_id").to_numpy()]
    return table.set_column(table.column_names.index("auction_id"), "auction_id", pa.array(auctions))
