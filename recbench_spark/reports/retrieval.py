"""Collect what indexes find of exact lists, and their costs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from recbench_spark.reports.frame_values import PART_ORDER, order_key, read_facts, read_real, read_records

COLUMNS = (
    "run_id", "part", "k", "recall", "stderr", "n", "short_lists", "candidates", "queries_per_second",
    "single_queries_per_second", "build_seconds", "bytes", "items", "index_kind", "settings_json",
)  # fmt: skip


@dataclass(frozen=True)
class IndexFacts:
    """A model behind an index: recall and costs.

    None stands for a value that was not measured.
    """

    model: str
    base: str
    kind: str
    settings: str
    recall: float | None
    stderr: float | None
    users: int
    short_lists: int
    candidates: float | None
    rate: float | None
    single_rate: float | None
    build_seconds: float | None
    bytes: int
    items: int


@dataclass(frozen=True)
class SweepPoint:
    """An index on a curve: recall, and horizontal place."""

    model: str
    recall: float
    at: float


@dataclass(frozen=True)
class Sweep:
    """A curve over indexes of one kind on one model.

    Its points rise along the horizontal axis.
    """

    name: str
    points: tuple[SweepPoint, ...]


@dataclass(frozen=True)
class TradeFacts:
    """A figure's curves: recall against speed or proposed items.

    Speed is in users a second.
    """

    part: str
    k: int
    axis: str
    sweeps: tuple[Sweep, ...]

    @property
    def points(self) -> tuple[SweepPoint, ...]:
        """Points on all curves."""
        return tuple(point for sweep in self.sweeps for point in sweep.points)


AXES = {"users a second, in blocks": "rate", "items proposed": "candidates"}
"""Horizontal axes, and the fact each one shows."""


@dataclass(frozen=True)
class RetrievalFacts:
    """The indexes for a part and a list length."""

    part: str
    k: int
    indexes: tuple[IndexFacts, ...]

    @property
    def trades(self) -> tuple[TradeFacts, ...]:
        """Figures with two points or more."""
        made = (TradeFacts(self.part, self.k, axis, self._make_sweeps(AXES[axis])) for axis in AXES)
        return tuple(facts for facts in made if len(facts.points) > 1)

    def _make_sweeps(self, fact: str) -> tuple[Sweep, ...]:
        points: dict[str, list[SweepPoint]] = {}
        for one in self.indexes:
            at = getattr(one, fact)
            if one.recall is not None and at:
                point = SweepPoint(one.model, one.recall, at)
                points.setdefault(f"{one.base} {one.kind}", []).append(point)
        return tuple(
            Sweep(name, tuple(sorted(own, key=lambda point: (point.at, point.recall, point.model))))
            for name, own in sorted(points.items())
        )


def choose_indexes(facts: Sequence[RetrievalFacts], wanted: float) -> tuple[str, ...]:
    """Name each model's fastest index with the wanted recall.

    Each model has a sentence. The recall is that of the longest compared lists on part valid. What the
    chosen index reaches on other parts stands beside it; no other part has a say in the choice.

    Args:
        facts: the indexes on all parts.
        wanted: least recall.
    """
    longest = max((one.k for one in facts), default=0)
    shown = {one.part: {index.model: index for index in one.indexes} for one in facts if one.k == longest}
    valid = shown.pop("valid", {})
    sentences = []
    for base in sorted({index.base for index in valid.values()}):
        able = [index for index in valid.values() if index.base == base and (index.recall or 0.0) >= wanted]
        name = f"recall@{longest} of {wanted:g} or more on valid"
        if not able:
            sentences.append(f"{base}: no index has {name}.")
            continue
        best = min(able, key=lambda index: (-(index.rate or 0.0), index.model))
        others = [(part, indexes[best.model]) for part, indexes in shown.items() if best.model in indexes]
        elsewhere = "".join(f", {part} {index.recall or 0.0:.3f}" for part, index in others)
        sentences.append(f"{base}: {best.model} is the fastest with {name}: {best.recall:.3f}{elsewhere}.")
    return tuple(sentences)


def make_retrieval(rows: pd.DataFrame, models: dict[str, str]) -> tuple[RetrievalFacts, ...]:
    """Return each part's and cut-off's indexes, best recall first.

    Args:
        rows: rows of `retrieval_runs`.
        models: run id -> model, for the shown runs.
    """
    records = [row for row in read_records(rows, "retrieval_runs", COLUMNS) if row["run_id"] in models]
    groups: dict[tuple[str, int], list[IndexFacts]] = {}
    for row in records:
        model, settings = models[str(row["run_id"])], str(row["settings_json"])
        facts = read_facts(
            IndexFacts,
            row,
            model=model,
            base=find_base(model, settings),
            kind=str(row["index_kind"]),
            settings=describe_settings(settings),
            users=int(row["n"]),
            rate=read_real(row["queries_per_second"]),
            single_rate=read_real(row["single_queries_per_second"]),
        )
        groups.setdefault((str(row["part"]), int(row["k"])), []).append(facts)
    keys = sorted(groups, key=lambda key: (*order_key(key[0], PART_ORDER), key[1]))
    return tuple(RetrievalFacts(*key, tuple(sorted(groups[key], key=_order))) for key in keys)


def _order(facts: IndexFacts) -> tuple[float, str]:
    return (-1.0 if facts.recall is None else -facts.recall, facts.model)


def find_base(model: str, settings: str) -> str:
    """Return the model behind an index; names may hold dots.

    >>> find_base("als.ivf.8", '{"name": "ivf.8"}')
    'als'
    """
    return model.removesuffix("." + json.loads(settings)["name"])


def describe_settings(text: str) -> str:
    """Return an index's settings as one line.

    Name and kind are left out.

    >>> describe_settings('{"kind": "ivf", "name": "ivf_8", "probes": 8, "seed": 42}')
    'probes 8, seed 42'
    """
    settings = json.loads(text)
    return ", ".join(f"{name} {value}" for name, value in settings.items() if name not in ("kind", "name"))
