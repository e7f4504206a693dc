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

from recbench_spark.config.searching import Choice, SettingRange
from recbench_spark.leaderboard.searches import SearchTrials, Trial

Space = Mapping[str, SettingRange]
Setting = dict[str, Choice]

EDGE_SHARE = 0.1
"""The outermost share of a range is its edge."""


def draw_points(space: Space, count: int, method: Literal["sobol", "random"], seed: int) -> list[Setting]:
    """The first settings of a search.

    `sobol`: Sobol's sequence, shifted by a hash of (seed, setting), modulo 1 (Cranley and Patterson 1976);
    `random`: hashes of (seed, setting, number).
    """
    names = sorted(space)
    if method == "sobol":
        from scipy.stats import qmc  # noqa: PLC0415 (a second that few need)

        sequence = qmc.Sobol(len(names), scramble=False).random_base2(max(0, math.ceil(math.log2(count))))
        shift = np.array([hash_uniform(seed, name) for name in names])
        unit_nd = np.mod(sequence[:count] + shift, 1.0)
    else:
        unit_nd = np.array([[hash_uniform(seed, name, n) for name in names] for n in range(count)])
    return [{name: space[name].at(float(u)) for name, u in zip(names, row, strict=True)} for row in unit_nd]


def hash_uniform(*keys: Any) -> float:
    """A number in [0, 1) with 53 bits, from the keys."""
    digest = hashlib.sha256(json.dumps(keys).encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) * 2.0**-53


def replace_settings(document: Mapping[str, Any], setting: Setting) -> dict[str, Any]:
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


def find_edges(space: Space, best: Setting) -> list[Edge]:
    """Settings of the best trial in the outermost tenth of their range; choices have no edge."""
    found = []
    for name, of in sorted(space.items()):
        if of.values:
            continue
        place = _range_position(of, float(best[name]))
        if place <= EDGE_SHARE or place >= 1 - EDGE_SHARE:
            found.append(Edge(name, "low" if place <= EDGE_SHARE else "high", float(best[name])))
    return found


def _range_position(of: SettingRange, value: float) -> float:
    """How far along its range a value lies, 0 to 1."""
    assert of.low is not None and of.high is not None
    low, high = float(of.low), float(of.high)
    if of.log:
        low, high, value = math.log(low), math.log(high), math.log(value)
    return (value - low) / (high - low)


def extend_space(space: Space, beyond: Sequence[Edge]) -> dict[str, SettingRange]:
    """The space that goes on past these edges, other settings as they were; empty: nothing is beyond."""
    further = {edge.name: space[edge.name].extend_beyond(edge.side) for edge in beyond}
    known = {name: found for name, found in further.items() if found is not None}
    return {**space, **known} if known else {}


def merge_spaces(one: Space, other: Space) -> dict[str, SettingRange]:
    """The smallest space that holds both."""
    return {name: _merge_ranges(of, other.get(name, of)) for name, of in one.items()}


def _merge_ranges(one: SettingRange, other: SettingRange) -> SettingRange:
    if one.values or one == other:
        return one
    assert one.low is not None and other.low is not None
    assert one.high is not None and other.high is not None
    low, high = min(one.low, other.low), max(one.high, other.high)
    return SettingRange(low=low, high=high, log=one.log and low > 0)


def make_search(
    space: Space,
    tried: Sequence[tuple[Mapping[str, float], float]],
    noise: float = 0.0,
    lower_is_better: bool = True,
) -> SearchTrials | None:
    """Trials with a value as boards judge them; None where there is none."""
    ends = {name: _range_bounds(of) for name, of in space.items()}
    trials = [
        Trial(settings=dict(settings), value=value) for settings, value in tried if math.isfinite(value)
    ]
    if not trials:
        return None
    choices = tuple(sorted(name for name, of in space.items() if of.values))
    return SearchTrials(
        space=ends, trials=tuple(trials), noise=noise, lower_is_better=lower_is_better, choices=choices
    )


def _range_bounds(of: SettingRange) -> tuple[float, ...]:
    if of.values:
        return tuple(float(n) for n in range(len(of.values)))
    assert of.low is not None and of.high is not None
    return float(of.low), float(of.high)
