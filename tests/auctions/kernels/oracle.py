"""Replay of auctions in plain Python and fractions: slow, and easy to read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from recbench_spark.auctions.kernels.mechanism import OperatingPoint


class Ad(NamedTuple):
    """A participant of an auction."""

    query: int
    auction: int
    ad: int
    bid: Any
    probability: Any
    slot: int
    clicked: int


def run_auction(ads: Sequence[Ad], point: OperatingPoint, main: int) -> dict[int, tuple[int, Any]]:
    """Slot and price by ad; losers are left out. The exponent must be a whole number."""
    weights = {one.ad: one.probability ** int(point.exponent) for one in ads}
    scores = {one.ad: one.bid * weights[one.ad] for one in ads}
    left = sorted(scores, key=lambda ad: (-scores[ad], ad))
    outcome = {}
    for floor, size, first in (
        (point.main_floor, point.main_slots, 0),
        (point.reserve, point.side_slots, main),
    ):
        block = [ad for ad in left if scores[ad] >= floor][:size]
        left = left[len(block) :]
        for place, ad in enumerate(block):
            following = scores[block[place + 1]] if place + 1 < len(block) else floor
            outcome[ad] = (first + place, following / weights[ad] if weights[ad] else 0)
    return outcome


def group(log: Sequence[Ad]) -> dict[int, list[Ad]]:
    """Participants by auction."""
    auctions: dict[int, list[Ad]] = defaultdict(list)
    for one in log:
        auctions[one.auction].append(one)
    return auctions


def count(log: Sequence[Ad], slots: int) -> tuple[dict[Any, list[int]], dict[Any, list[int]]]:
    """Impressions and clicks by pair, at each slot."""
    shown: dict[Any, list[int]] = defaultdict(lambda: [0] * slots)
    clicks: dict[Any, list[int]] = defaultdict(lambda: [0] * slots)
    for one in log:
        if one.slot >= 0:
            shown[one.query, one.ad][one.slot] += 1
            clicks[one.query, one.ad][one.slot] += one.clicked
    return shown, clicks


def step_curve(shown: Any, clicks: Any, theta: Sequence[float], known: Sequence[int]) -> list[float]:
    """One step of the issue's fixed-point equation, among the slots of one connected set."""
    above = dict.fromkeys(known, 0.0)
    below = dict.fromkeys(known, 0.0)
    for pair, n in shown.items():
        total = sum(clicks[pair][s] for s in known)
        mass = sum(n[s] * theta[s] for s in known)
        for s in known:
            above[s] += clicks[pair][s]
            below[s] += total * n[s] / mass if mass else 0.0
    stepped = [above[s] / below[s] if s in known else theta[s] for s in range(len(theta))]
    return [value / stepped[known[0]] if s in known else value for s, value in enumerate(stepped)]


def estimate(
    log: Sequence[Ad],
    point: OperatingPoint,
    theta: Sequence[Any],
    main: int,
    sets: Sequence[int] | None = None,
) -> dict[str, Fraction]:
    """Clicks by case, on the main line, of pairs seen in several slots, and revenue.

    The curve is given; `sets` has the connected set of each slot: without it, all are one.
    """
    sets = sets or [0] * len(theta)
    shown, clicks = count(log, len(theta))
    totals: dict[str, Fraction] = defaultdict(Fraction)
    impressions = [sum(n[s] for n in shown.values()) for s in range(len(theta))]
    reference = [
        Fraction(sum(k[s] for k in clicks.values()), impressions[s]) if impressions[s] else Fraction(0)
        for s in range(len(theta))
    ]
    for ads in group(log).values():
        outcome = run_auction(ads, point, main)
        for one in ads:
            if one.ad not in outcome:
                continue
            slot, price = outcome[one.ad]
            n, k = shown[one.query, one.ad], clicks[one.query, one.ad]
            near = [s for s in range(len(theta)) if sets[s] == sets[slot]]
            if n[slot]:
                case, value = "same", Fraction(k[slot], n[slot])
            elif any(n[s] for s in near):
                mass = sum(n[s] * theta[s] for s in near)
                case, value = "other", theta[slot] * sum(k[s] for s in near) / mass
            else:
                case, value = "unseen", reference[slot]
            totals[f"{case}_ads"] += 1
            totals[f"{case}_clicks"] += value
            totals["clicks"] += value
            totals["main_clicks"] += value if slot < main else 0
            totals["multi_slot_clicks"] += value if sum(map(bool, n)) > 1 else 0
            totals["revenue"] += value * price
    return totals
