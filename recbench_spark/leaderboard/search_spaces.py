"""Points of a search, and where its best lies: the n-th is a function of seed, space and n alone.

So a search that was killed goes on with the point it had come to, and one of a larger budget begins with
those of the smaller.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from recbench_spark.config.searching import Choice, Range
from recbench_spark.leaderboard.searches import Search, Trial

Space = Mapping[str, Range]
Setting = dict[str, Choice]

OUTER = 0.1
"""The outermost share of a range is its edge."""


def points(space: Space, count: int, method: Literal["sobol", "random"], seed: int) -> list[Setting]:
    """The first settings of a search.

    `sobol`: Sobol's sequence, shifted by a hash of (seed, setting), modulo 1 (Cranley and Patterson 1976);
    `random`: hashes of (seed, setting, number).
    """
    names = sorted(space)
    if method == "sobol":
        from scipy.stats import qmc  # noqa: PLC0415 (a second that few need)

        sequence = qmc.Sobol(len(names), scramble=False).random_base2(max(0, math.ceil(math.log2(count))))
        shift = np.array([uniform(seed, name) for name in names])
        unit_nd = np.mod(sequence[:count] + shift, 1.0)
    else:
        unit_nd = np.array([[uniform(seed, name, n) for name in names] for n in range(count)])
    return [{name: space[name].at(float(u)) for name, u in zip(names, row, strict=True)} for row in unit_nd]


def uniform(*keys: Any) -> float:
    """A number in [0, 1) with 53 bits, from the keys."""
    digest = hashlib.sha256(json.dumps(keys).encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) * 2.0**-53


def with_settings(document: Mapping[str, Any], setting: Setting) -> dict[str, Any]:
    """A learner's settings with some replaced; a dot leads into a section."""
    found = json.loads(json.dumps(document))
    for name, value in setting.items():
        *sections, last = name.split(".")
        place = found
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return dict(found)


class Edge(NamedTuple):
    """A setting whose best value lies on the edge of what was searched."""

    name: str
    side: Literal["low", "high"]
    value: float


def edges(space: Space, best: Setting) -> list[Edge]:
    """Settings of the best trial in the outermost tenth of their range; choices have no edge."""
    found = []
    for name, of in sorted(space.items()):
        if of.values:
            continue
        place = _share(of, float(best[name]))
        if place <= OUTER or place >= 1 - OUTER:
            found.append(Edge(name, "low" if place <= OUTER else "high", float(best[name])))
    return found


def _share(of: Range, value: float) -> float:
    """How far along its range a value lies, 0 to 1."""
    assert of.low is not None and of.high is not None
    low, high = float(of.low), float(of.high)
    if of.log:
        low, high, value = math.log(low), math.log(high), math.log(value)
    return (value - low) / (high - low)


def extended(space: Space, beyond: Sequence[Edge]) -> dict[str, Range]:
    """The space that goes on past these edges, other settings as they were; empty: nothing is beyond."""
    further = {edge.name: space[edge.name].beyond(edge.side) for edge in beyond}
    known = {name: found for name, found in further.items() if found is not None}
    return {**space, **known} if known else {}


def joined(one: Space, other: Space) -> dict[str, Range]:
    """The smallest space that holds both."""
    return {name: _hull(of, other.get(name, of)) for name, of in one.items()}


def _hull(one: Range, other: Range) -> Range:
    if one.values or one == other:
        return one
    assert one.low is not None and other.low is not None
    assert one.high is not None and other.high is not None
    low, high = min(one.low, other.low), max(one.high, other.high)
    return Range(low=low, high=high, log=one.log and low > 0)


def as_search(
    space: Space,
    tried: Sequence[tuple[Mapping[str, float], float]],
    noise: float = 0.0,
    lower_is_better: bool = True,
) -> Search | None:
    """Trials with a value as boards judge them; None where there is none."""
    ends = {name: _ends(of) for name, of in space.items()}
    trials = [
        Trial(settings=dict(settings), value=value) for settings, value in tried if math.isfinite(value)
    ]
    if not trials:
        return None
    choices = tuple(sorted(name for name, of in space.items() if of.values))
    return Search(
        space=ends, trials=tuple(trials), noise=noise, lower_is_better=lower_is_better, choices=choices
    )


def _ends(of: Range) -> tuple[float, ...]:
    if of.values:
        return tuple(float(n) for n in range(len(of.values)))
    assert of.low is not None and of.high is not None
    return float(of.low), float(of.high)
