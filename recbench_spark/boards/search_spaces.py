"""Draw the points of a search space.

The n-th point is a function of seed, space and n alone. So an interrupted search continues with its next
point, and a search with a larger budget starts with the smaller one's points.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from recbench_spark.boards.searches import SearchTrials, Trial
from recbench_spark.boards.settings import Choice, SettingRange

Space = Mapping[str, SettingRange]
Setting = dict[str, Choice]

EDGE_SHARE = 0.1
"""Share of a range, at each end, which counts as its edge."""


def draw_points(space: Space, count: int, method: Literal["sobol", "random"], seed: int) -> list[Setting]:
    """Return the first settings in a search.

    `sobol`: Sobol's sequence, shifted by a hash of (seed, setting), modulo 1 (Cranley and Patterson 1976);
    `random`: hashes of (seed, setting, number).
    """
    names = sorted(space)
    if method == "sobol":
        from scipy.stats import qmc  # noqa: PLC0415 (slow to import)

        sequence = qmc.Sobol(len(names), scramble=False).random_base2(max(0, math.ceil(math.log2(count))))
        shift = np.array([hash_uniform(seed, name) for name in names])
        unit_nd = np.mod(sequence[:count] + shift, 1.0)
    else:
        unit_nd = np.array([[hash_uniform(seed, name, n) for name in names] for n in range(count)])
    return [{name: space[name].at(float(u)) for name, u in zip(names, row, strict=True)} for row in unit_nd]


def hash_uniform(*keys: Any) -> float:
    """Hash keys to a 53-bit number in [0, 1)."""
    digest = hashlib.sha256(json.dumps(keys).encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) * 2.0**-53


def replace_settings(document: Mapping[str, Any], setting: Setting) -> dict[str, Any]:
    """Return a learner's settings with some replaced.

    A dot leads into a section.
    """
    settings = json.loads(json.dumps(document))
    for name, value in setting.items():
        *sections, last = name.split(".")
        place = settings
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return dict(settings)


class Edge(NamedTuple):
    """A setting with its best value at a range's edge."""

    name: str
    side: Literal["low", "high"]
    value: float


def find_edges(space: Space, best: Setting) -> list[Edge]:
    """Return the best trial's settings near an edge.

    Such a setting is in the outermost tenth of its range; choices have no edge.
    """
    edges = []
    for name, bounds in sorted(space.items()):
        if bounds.values:
            continue
        place = _range_position(bounds, float(best[name]))
        if place <= EDGE_SHARE or place >= 1 - EDGE_SHARE:
            edges.append(Edge(name, "low" if place <= EDGE_SHARE else "high", float(best[name])))
    return edges


def _range_position(bounds: SettingRange, value: float) -> float:
    """Return a value's position in its range, 0 to 1."""
    assert bounds.low is not None and bounds.high is not None
    low, high = float(bounds.low), float(bounds.high)
    if bounds.log:
        low, high, value = math.log(low), math.log(high), math.log(value)
    return (value - low) / (high - low)


def extend_space(space: Space, beyond: Sequence[Edge]) -> dict[str, SettingRange]:
    """Return the space extended beyond these edges.

    The space is empty if nothing is beyond.
    """
    wider = {edge.name: space[edge.name].extend_beyond(edge.side) for edge in beyond}
    extended = {name: bounds for name, bounds in wider.items() if bounds is not None}
    return {**space, **extended} if extended else {}


def merge_spaces(one: Space, other: Space) -> dict[str, SettingRange]:
    """Return the smallest space with both inside."""
    return {name: _merge_ranges(bounds, other.get(name, bounds)) for name, bounds in one.items()}


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
    """Return the finished trials for verdicts, or None."""
    ends = {name: _range_bounds(bounds) for name, bounds in space.items()}
    finished = [(settings, value) for settings, value in tried if math.isfinite(value)]
    trials = tuple(Trial(settings=dict(settings), value=value) for settings, value in finished)
    if not trials:
        return None
    choices = tuple(sorted(name for name, bounds in space.items() if bounds.values))
    return SearchTrials(
        space=ends, trials=trials, noise=noise, lower_is_better=lower_is_better, choices=choices
    )


def _range_bounds(bounds: SettingRange) -> tuple[float, ...]:
    if bounds.values:
        return tuple(float(n) for n in range(len(bounds.values)))
    assert bounds.low is not None and bounds.high is not None
    return float(bounds.low), float(bounds.high)
