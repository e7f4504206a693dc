"""Worlds of lists, truth and histories, and slow oracles of families of metrics, by definition."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations
from typing import Any

KS = (1, 3, 6)


@dataclass
class World:
    """Ids of items, and of each user the list, truth, training and masked items, or candidates."""

    items: list[str]
    trained: list[list[str]]
    labels: dict[str, dict[str, Fraction]] = field(default_factory=dict)
    users: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def counts(self) -> Counter[str]:
        return Counter(item for row in self.trained for item in row)

    @property
    def head(self) -> set[str]:
        """The most popular items that together pass 80 % of training rows; equal ones stand together."""
        counts, held, head = self.counts, 0, set[str]()
        for count in sorted({*counts.values()}, reverse=True):
            if held * 10 > 8 * sum(counts.values()):
                break
            level = [item for item, n in counts.items() if n == count]
            held, head = held + count * len(level), head | {*level}
        return head

    @property
    def groups(self) -> list[str]:
        """Groups that the table has, also of items outside the catalogue."""
        return sorted({group for labels in self.labels.values() for group in labels})

    def listing(self) -> list[dict[str, Any]]:
        """Users with a list."""
        return [user for user in self.users.values() if user["list"]]


def draw_world(seed: int) -> World:
    """Empty lists, truth and histories, items outside the catalogue, empty places, equal popularities."""
    draw = random.Random(seed)
    items = [f"i{n:02d}" for n in range(draw.randint(1, 25))]
    tastes = [draw.choice([0.2, 1, 3, 10]) for _ in items]
    trained = []
    for _ in range(draw.randint(1, 14)):
        wanted = draw.choices(items, tastes, k=draw.randint(0, 9))
        trained.append(sorted({*wanted}))
    world = World(items, trained)
    names, weighted = [f"g{n}" for n in range(draw.choice([1, 2, 3, 5]))], draw.random() < 0.5
    for item in [*items, "strange"]:
        own = draw.sample(names, draw.choice([0, 1, 1, min(2, len(names))]))
        parts = [draw.randint(1, 4) if weighted else 1 for _ in own]
        world.labels[item] = {
            name: Fraction(part, sum(parts)) for name, part in zip(own, parts, strict=True)
        }
    candidates = draw.random() < 0.3
    for n in range(draw.randint(1, 14)):
        history = trained[n] if n < len(trained) and draw.random() < 0.9 else []
        open_items = [item for item in items if item not in history]
        listed: list[str | None] = draw.sample(open_items, draw.randint(0, min(8, len(open_items))))
        if listed and draw.random() < 0.2:
            listed[draw.randrange(len(listed))] = draw.choice([None, "elsewhere"])
        free = draw.sample(open_items, draw.randint(0, len(open_items))) if candidates else None
        truth = {item: float(draw.random() < 0.8) for item in draw.sample(items, min(4, len(items)))}
        world.users[f"u{n}"] = {
            "list": listed, "truth": truth, "history": history, "closed": history, "offered": free,
        }  # fmt: skip
    return world


def spread(values: list[Fraction | None]) -> float | None:
    """Standard deviation / mean."""
    if None in values or not sum(values):  # type: ignore[arg-type]
        return None
    known = [one for one in values if one is not None]
    mean = sum(known) / len(known)
    return math.sqrt(sum((one - mean) ** 2 for one in known) / len(known)) / float(mean)


def ratio(a: Fraction | int, b: Fraction | int) -> Fraction | None:
    return Fraction(a) / Fraction(b) if b else None


def popularity_rsp(world: World, k: int) -> float | None:
    rates: list[Fraction | None] = []
    for side in (False, True):
        listed = offered = 0
        for user in world.listing():
            listed += sum((i in world.head) == side for i in user["list"][:k] if i is not None)
            free = user["offered"]
            if free is None:
                free = [item for item in world.items if item not in user["closed"]]
            offered += sum((i in world.head) == side for i in free)
        rates.append(ratio(listed, offered))
    return spread(rates)


def popularity_lift(world: World, k: int) -> float | None:
    counts, mine, theirs = world.counts, [], []
    for user in world.listing():
        shown = [i for i in user["list"][:k] if i is not None]
        if user["history"] and shown:
            mine.append(Fraction(sum(counts[i] for i in shown), len(shown)))
            theirs.append(Fraction(sum(counts[i] for i in user["history"]), len(user["history"])))
    if not theirs:
        return None
    return float(sum(mine) / sum(theirs) - 1)


def sum_weights(world: World, items: list[str | None], factors: list[Any] | None = None) -> dict[str, Any]:
    """Weights of items by group, each with its factor."""
    total: dict[str, Any] = dict.fromkeys(world.groups, 0)
    for n, item in enumerate(items):
        for group, weight in world.labels.get(item or "", {}).items():
            total[group] += weight * (1 if factors is None else factors[n])
    return total


def relevant(user: dict[str, Any]) -> list[str]:
    return [item for item, grade in user["truth"].items() if grade > 0]


def list_hits(user: dict[str, Any], k: int) -> list[str]:
    return [item for item in user["list"][:k] if item in relevant(user)]


def add_up(world: World, parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {group: sum(part[group] for part in parts) for group in world.groups}


def group_recall(world: World, k: int) -> dict[str, Any]:
    hits = add_up(world, [sum_weights(world, list_hits(user, k)) for user in world.listing()])
    wanted = [
        sum_weights(world, [i for i in relevant(user) if i in world.items]) for user in world.listing()
    ]
    return {group: ratio(hits[group], n) for group, n in add_up(world, wanted).items()}


def spread_known(rates: dict[str, Any]) -> float | None:
    known = [rate for rate in rates.values() if rate is not None]
    return spread(known) if len(known) > 1 else None


def reo(world: World, k: int) -> float | None:
    return spread_known(group_recall(world, k))


def rsp(world: World, k: int) -> float | None:
    shown = add_up(world, [sum_weights(world, user["list"][:k]) for user in world.listing()])
    offered = []
    for user in world.listing():
        free = user["offered"]
        if free is None:
            free = [item for item in world.items if item not in user["closed"]]
        offered.append(sum_weights(world, free))
    return spread_known({group: ratio(shown[group], n) for group, n in add_up(world, offered).items()})


def share(parts: dict[str, Any]) -> dict[str, Any]:
    total = sum(parts.values())
    return {group: part / total if total else None for group, part in parts.items()}


def exposure_share(world: World, k: int) -> dict[str, Any]:
    discounts = [1 / math.log2(n + 2) for n in range(k)]
    return share(add_up(world, [sum_weights(world, u["list"][:k], discounts) for u in world.listing()]))


def bias_disparity(world: World, k: int) -> dict[str, Any]:
    shown, own = (
        share(add_up(world, [sum_weights(world, items) for items in rows]))
        for rows in ([u["list"][:k] for u in world.listing()], [u["history"] for u in world.listing()])
    )
    return {g: (shown[g] - own[g]) / own[g] if own[g] and shown[g] is not None else None for g in own}


def mean_user(world: World, value: Callable[[dict[str, Any]], Any]) -> float | None:
    values = [one for user in world.listing() if (one := value(user)) is not None]
    return float(sum(values) / len(values)) if values else None


def divergence(p: dict[str, Any], q: dict[str, Any], log: Callable[[float], float] = math.log) -> float:
    return sum(float(p[g]) * log(float(p[g]) / float(q[g])) for g in p if p[g])


def calibration(world: World, k: int, *, symmetric: bool = False) -> float | None:
    def value(user: dict[str, Any]) -> float | None:
        p, q = share(sum_weights(world, user["history"])), share(sum_weights(world, user["list"][:k]))
        if None in (*p.values(), *q.values()):
            return None
        if symmetric:
            middle = {g: (p[g] + q[g]) / 2 for g in p}
            return (divergence(p, middle, math.log2) + divergence(q, middle, math.log2)) / 2
        return divergence(p, {g: 0.99 * float(q[g]) + 0.01 * float(p[g]) for g in p})

    return mean_user(world, value)


def calibration_js(world: World, k: int) -> float | None:
    return calibration(world, k, symmetric=True)


def category_diversity(world: World, k: int) -> float | None:
    def value(user: dict[str, Any]) -> float | None:
        sets = [{*world.labels.get(item, {})} for item in user["list"][:k] if item is not None]
        pairs = [len(one ^ other) for one, other in combinations(sets, 2)]
        return sum(pairs) / len(pairs) if pairs else None

    return mean_user(world, value)


def subtopic_recall(world: World, k: int) -> float | None:
    def value(user: dict[str, Any]) -> Fraction | None:
        mine, all_of_them = (
            {group for item in items for group in world.labels.get(item, {}) if item in world.items}
            for items in (list_hits(user, k), relevant(user))
        )
        return ratio(len(mine), len(all_of_them))

    return mean_user(world, value)


def serendipity(world: World, k: int) -> float | None:
    """RecTools: max(p(rank) - p(rank by popularity), 0) of relevant entries, averaged over entries."""
    counts, n = world.counts, len(world.items)
    levels = sorted({counts[item] for item in world.items}, reverse=True)

    def value(user: dict[str, Any]) -> Fraction | None:
        gains, shown = Fraction(0), 0
        for rank, item in enumerate(user["list"][:k], 1):
            shown += item is not None
            if item in relevant(user) and item in world.items:
                popular = Fraction(n + 1 - 1 - levels.index(counts[item]), n) if counts[item] else 0
                gains += max(Fraction(n + 1 - rank, n) - popular, Fraction(0))
        return ratio(gains, shown)

    return mean_user(world, value)


def serendipity_primitive(world: World, k: int) -> float | None:
    ordered = sorted(world.items, key=lambda item: (-world.counts[item], item))

    def value(user: dict[str, Any]) -> Fraction:
        free = ordered if user["offered"] is None else [i for i in ordered if i in user["offered"]]
        if user["offered"] is None:
            free = [item for item in free if item not in user["closed"]]
        own = [item for item in list_hits(user, k) if item in world.items]
        return Fraction(sum(item not in free[:k] for item in own), k)

    return mean_user(world, value)


ORACLES: dict[str, Callable[[World, int], Any]] = {
    one.__name__: one
    for one in (
        popularity_rsp, popularity_lift, reo, rsp, group_recall, exposure_share, bias_disparity,
        calibration, calibration_js, category_diversity, subtopic_recall, serendipity,
        serendipity_primitive,
    )
}  # fmt: skip
