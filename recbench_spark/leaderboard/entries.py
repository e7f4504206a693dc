"""Rows of a board: published results and ours under one name a method, and the verdict on each."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, NamedTuple, cast

from recbench_spark.leaderboard.fold_statistics import FoldSummary
from recbench_spark.leaderboard.published import Board, BoardRun, RanBy
from recbench_spark.leaderboard.searches import SearchTrials
from recbench_spark.leaderboard.verdicts import TuningNote, TuningVerdict, judge_run

BoardPart = Literal["probe", "quiz", "test"]

BAYESIAN_METHODS = {
    "u,i": "Bayesian matrix factorisation",
    "u,i,t": "Bayesian timeSVD",
    "u,i,iu": "Bayesian SVD++",
    "u,i,iu,ii": "Bayesian SVD++ flipped",
    "u,i,t,iu": "Bayesian timeSVD++",
    "u,i,t,iu,ii": "Bayesian timeSVD++ flipped",
}
"""Feature sets by the names that the source's table gives them."""

METHOD_NAMES = {
    "sgd_mf": "matrix factorisation by SGD",
    "als": "ALS-WR",
    "als_wr": "ALS-WR",
    "nsvd1": "NSVD1",
    "rbm": "RBM",
    "item_neighbours": "item nearest neighbours",
    "means": "means of users and items",
    "popular": "most popular",
    "item_knn": "item nearest neighbours of lists",
    "implicit_als": "iALS",
    "logistic_mf": "logistic matrix factorisation",
    "mf_bpr": "MF-BPR",
    "lightgcn": "LightGCN",
    "pinsage": "PinSage",
    "graphsage": "GraphSAGE",
}
"""Learners by the one name of their method."""


@dataclass(frozen=True)
class Entry:
    """A row of `boards`, but for its id and time: see the table's comments."""

    board: str
    origin: Literal["published", "ours", "bundle"]
    data: str
    protocol: str
    metric: str
    lower_is_better: bool
    method: str
    name: str
    value: float
    spread_folds: float | None = None
    spread_seeds: float | None = None
    folds: int | None = None
    seeds: int | None = None
    part: str | None = None
    ran_by: str | None = None
    who: str | None = None
    quoted_from: str | None = None
    year: int | None = None
    dims: int | None = None
    search_space: str | None = None
    budget_settings: int | None = None
    budget_seconds: float | None = None
    at_edge: tuple[str, ...] = ()
    never_searched: tuple[str, ...] = ()
    evidence: str | None = None
    fold_values: Mapping[int, float] = field(default_factory=dict)

    @property
    def entry_id(self) -> str:
        """Hash of what the row says of the run; what is known of its search may grow."""
        known = asdict(self)
        of_run = {name: known[name] for name in _RUN_FIELDS}
        return hashlib.sha256(json.dumps(of_run, sort_keys=True).encode()).hexdigest()[:16]

    def to_run(self) -> BoardRun:
        """As verdicts take it."""
        part = cast("BoardPart | None", self.part if self.part in ("probe", "quiz", "test") else None)
        return BoardRun(
            method=self.name, value=self.value, spread=self.spread_folds, part=part, year=self.year,
            ran_by=cast("RanBy | None", self.ran_by), dims=self.dims, by_fold=dict(self.fold_values),
        )  # fmt: skip

    def merge_earlier(self, before: Entry) -> Entry:
        """The row that stands for both: what this one lacks of search and folds is that of `before`.

        A search that was made after the first entry is joined to it; none is lost.
        """
        if self.budget_settings is None and self.search_space is None:
            facts = {name: getattr(before, name) for name in _SEARCH_FIELDS}
        else:
            facts = {name: getattr(self, name) for name in _SEARCH_FIELDS}
        return replace(before, **facts, fold_values=self.fold_values or before.fold_values)


_SEARCH_FIELDS = ("search_space", "budget_settings", "budget_seconds", "at_edge", "never_searched")
_RUN_FIELDS = ("board", "origin", "method", "name", "value", "part", "ran_by", "year", "dims", "evidence")


def canonical_method(kind: str, settings: Mapping[str, Any]) -> str:
    """The one name of a learner's method, by its feature set where it has one.

    >>> method_of("bayesian_mf", {"features": "u,i,t"}), method_of("mine", {})
    ('Bayesian timeSVD', 'mine')
    """
    if kind == "bayesian_mf":
        return BAYESIAN_METHODS.get(str(settings.get("features", "u,i")), kind)
    if kind == "als" and settings.get("implicit"):
        return "ALS of implicit feedback"
    return METHOD_NAMES.get(kind, kind)


BESIDE_TABLE = "beside the table"
"""Evidence of a number that its source gives, and that is no row of its table: shown, and not judged."""


def make_published_entries(board: Board) -> list[Entry]:
    """The rows of a published table, and the numbers that its source gives beside it."""
    return [
        Entry(
            board.name, "published", board.data, board.protocol, board.metric, board.lower_is_better,
            board.canonical(run.method), run.method, run.value, run.spread, part=run.part,
            ran_by=run.ran_by, quoted_from=board.source, year=run.year, dims=run.dims,
            evidence=BESIDE_TABLE if run in board.beside else None,
        )
        for run in (*board.runs, *board.beside)
    ]  # fmt: skip


def number_or_none(value: float) -> float | None:
    """NaN is no number of a table."""
    return None if math.isnan(value) else value


def spread_columns(found: FoldSummary) -> dict[str, Any]:
    """Columns of what was found over folds and seeds."""
    return {
        "value": found.mean,
        "spread_folds": number_or_none(found.over_folds),
        "spread_seeds": number_or_none(found.over_seeds),
        "folds": found.folds,
        "seeds": found.seeds,
        "fold_values": dict(found.by_fold),
    }


def search_columns(search: SearchTrials | None, seconds: float, edges: Sequence[str]) -> dict[str, Any]:
    """Columns of what was searched; nothing where no search is known."""
    if search is None:
        return {}
    varied = {name: {trial.settings[name] for trial in search.trials} for name in search.space}
    return {
        "search_space": json.dumps(search.space),
        "budget_settings": len(search.trials),
        "budget_seconds": seconds,
        "at_edge": tuple(edges),
        "never_searched": tuple(sorted(name for name, values in varied.items() if len(values) < 2)),
    }


class SettingsSource(NamedTuple):
    """Where the settings of an entry are from.

    Attributes:
        search: of this model with its other settings, on this log; None: there is none.
        used: the run's own values of the settings that were searched; None: those of the best trial.
        told: what a file says of a search of which no trial is known.
        fixed: the model has nothing to search.
        why: a search of this model that is none of this run, in words.
    """

    search: SearchTrials | None = None
    used: Mapping[str, float] | None = None
    told: str = ""
    fixed: bool = False
    why: str = ""


def judge_entries(
    entries: Sequence[Entry],
    searches: Mapping[str, SearchTrials],
    effects_elsewhere: Mapping[str, Mapping[str, float]],
    used: Mapping[str, SettingsSource] | None = None,
) -> dict[str, TuningVerdict]:
    """A verdict on each entry, by its id; those of one part are held against one another.

    Args:
        entries: of one board.
        searches: by the name of an entry of ours.
        moved_elsewhere: by method, settings and how much each has moved it, relative to the value.
        used: by entry id, where its settings are from; without it a search belongs to the entry of its
            name, which uses its best.
    """
    found = {}
    known = {} if used is None else used
    judged = [entry for entry in entries if entry.evidence != BESIDE_TABLE]
    for part in {entry.part for entry in judged}:
        same = [entry for entry in judged if entry.part == part]
        board = _make_board(same)
        for entry in same:
            by_name = searches.get(entry.name) if used is None and entry.origin == "ours" else None
            tuning = known.get(entry.entry_id, SettingsSource(by_name))
            rivals = {name: search for name, search in searches.items() if name != entry.name}
            moved = effects_elsewhere.get(entry.method, {})
            one = judge_run(entry.to_run(), board, tuning.search, rivals, moved, tuning.used)
            found[entry.entry_id] = one._replace(notes=(*one.notes, *_note_missing_search(entry, tuning)))
    return found


def _note_missing_search(entry: Entry, tuning: SettingsSource) -> list[TuningNote]:
    """The note on a row of ours, or one handed in, of whose search no trial is known."""
    if tuning.search is not None or entry.origin == "published" or tuning.fixed:
        return []
    if tuning.told or entry.search_space:
        told = tuning.told or f"a search over {entry.search_space}"
        return [
            TuningNote(
                "no_power", f"its file or bundle tells of {told}, and the board knows no trial of it"
            )
        ]
    if entry.origin == "bundle":
        return [TuningNote("never_searched", "it was handed in without a search")]
    return [
        TuningNote("never_searched", tuning.why or "no search of this model with these settings is known")
    ]


def _make_board(entries: Sequence[Entry]) -> Board:
    """Entries of one part as verdicts take a board: aliases are names of one method."""
    first = entries[0]
    names: dict[str, list[str]] = {}
    for entry in entries:
        if entry.name not in names.setdefault(entry.method, []):
            names[entry.method].append(entry.name)
    taken: set[str] = set()
    aliases = {method: tuple(_take_new_names(of, taken)) for method, of in names.items()}
    return Board(
        name=first.board, data=first.data, protocol=first.protocol, metric=first.metric,
        lower_is_better=first.lower_is_better, source="board",
        aliases={method: of for method, of in aliases.items() if of},
        runs=tuple(entry.to_run() for entry in entries),
    )  # fmt: skip


def _take_new_names(names: Iterable[str], taken: set[str]) -> list[str]:
    fresh = [name for name in names if name not in taken]
    taken.update(fresh)
    return fresh


def measure_setting_effects(
    searches: Mapping[str, tuple[str, SearchTrials]],
) -> dict[str, dict[str, float]]:
    """By method, how much each setting searched elsewhere has moved its number, relative to the value.

    The best of the level that did best against the best of the one that did worst: what is lost by the
    wrong value while all others are as good as they were found.

    Args:
        searches: method and search, by any name.
    """
    found: dict[str, dict[str, float]] = {}
    for method, search in searches.values():
        losses = search.losses()
        for name, space in search.space.items():
            levels: dict[int, float] = {}
            low, high = min(space), max(space)
            for trial, loss in zip(search.trials, losses, strict=True):
                level = int(3 * (trial.settings[name] - low) / ((high - low) or 1.0)) if high > low else 0
                levels[min(level, 2)] = min(float(loss), levels.get(min(level, 2), math.inf))
            moved = (max(levels.values()) - min(levels.values())) / abs(min(levels.values()) or 1.0)
            known = found.setdefault(method, {})
            known[name] = max(moved, known.get(name, 0.0))
    return found
