"""Enter published and own results on a board, with verdicts."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, NamedTuple, cast

from recbench_spark.boards.fold_statistics import FoldSummary
from recbench_spark.boards.published import Board, BoardRun, RanBy
from recbench_spark.boards.searches import SearchTrials
from recbench_spark.boards.verdicts import TuningNote, TuningVerdict, judge_run

BoardPart = Literal["probe", "quiz", "test"]

BAYESIAN_METHODS = {
    "u,i": "Bayesian matrix factorisation",
    "u,i,t": "Bayesian timeSVD",
    "u,i,iu": "Bayesian SVD++",
    "u,i,iu,ii": "Bayesian SVD++ flipped",
    "u,i,t,iu": "Bayesian timeSVD++",
    "u,i,t,iu,ii": "Bayesian timeSVD++ flipped",
}
"""Names for the feature sets in the source's table."""

METHOD_NAMES = {
    "sgd_mf": "matrix factorisation by SGD",
    "als": "ALS-WR",
    "als_wr": "ALS-WR",
    "nsvd1": "NSVD1",
    "rbm": "RBM",
    "item_neighbours": "item nearest neighbours",
    "mllib_als": "ALS-WR",
    "means": "means of users and items",
    "popular": "most popular",
    "item_knn": "item nearest neighbours of lists",
    "implicit_als": "iALS",
    "logistic_mf": "logistic matrix factorisation",
    "wmf": "weighted matrix factorisation",
    "gmf": "generalised matrix factorisation",
    "mf_bpr": "MF-BPR",
    "lightgcn": "LightGCN",
    "pinsage": "PinSage",
    "graphsage": "GraphSAGE",
    "sasrec": "SASRec",
    "gru4rec": "GRU4Rec",
    "memn2n": "MemN2N",
}
"""Canonical name for each learner's method."""


@dataclass(frozen=True)
class Entry:
    """A row in the table `boards`, without id and time.

    The table's comments explain the fields.
    """

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
        """Hash over the fields which describe the run.

        Facts about its search may change.
        """
        columns = asdict(self)
        run_columns = {name: columns[name] for name in _RUN_FIELDS}
        return hashlib.sha256(json.dumps(run_columns, sort_keys=True).encode()).hexdigest()[:16]

    def to_run(self) -> BoardRun:
        """Return the entry as a run, for verdicts."""
        part = cast("BoardPart | None", self.part if self.part in ("probe", "quiz", "test") else None)
        return BoardRun(
            method=self.name, value=self.value, spread=self.spread_folds, part=part, year=self.year,
            ran_by=cast("RanBy | None", self.ran_by), dims=self.dims, by_fold=dict(self.fold_values),
        )  # fmt: skip

    def merge_earlier(self, before: Entry) -> Entry:
        """Return `before` with this entry's search and fold values.

        So a search run after the first entry is added to it, and no search is lost.
        """
        is_searched = self.budget_settings is not None or self.search_space is not None
        facts = {name: getattr(self, name) for name in _SEARCH_FIELDS} if is_searched else {}
        return replace(before, **facts, fold_values=self.fold_values or before.fold_values)


_SEARCH_FIELDS = ("search_space", "budget_settings", "budget_seconds", "at_edge", "never_searched")
_RUN_FIELDS = ("board", "origin", "method", "name", "value", "part", "ran_by", "year", "dims", "evidence")


def canonical_method(kind: str, settings: Mapping[str, Any]) -> str:
    """Return the canonical name for a learner's method.

    The feature set decides if there is one.

    >>> canonical_method("bayesian_mf", {"features": "u,i,t"}), canonical_method("mine", {})
    ('Bayesian timeSVD', 'mine')
    """
    if kind == "bayesian_mf":
        return BAYESIAN_METHODS.get(str(settings.get("features", "u,i")), kind)
    if kind in ("als", "mllib_als") and settings.get("implicit"):
        return "ALS of implicit feedback"
    return METHOD_NAMES.get(kind, kind)


BESIDE_TABLE = "beside the table"
"""Evidence for a number which the source gives outside its table. It is shown, and not judged."""


def make_published_entries(board: Board) -> list[Entry]:
    """Return a published table's rows, and numbers beside it.

    The source gives both.
    """
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
    """Return the value, or None (NULL in tables) for NaN."""
    return None if math.isnan(value) else value


def spread_columns(summary: FoldSummary) -> dict[str, Any]:
    """Return the columns for a mean over folds and seeds.

    Spreads are among them.
    """
    return {
        "value": summary.mean,
        "spread_folds": number_or_none(summary.over_folds),
        "spread_seeds": number_or_none(summary.over_seeds),
        "folds": summary.folds,
        "seeds": summary.seeds,
        "fold_values": dict(summary.by_fold),
    }


def search_columns(search: SearchTrials | None, seconds: float, edges: Sequence[str]) -> dict[str, Any]:
    """Return the columns about a search; none without a search."""
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
    """The source of an entry's settings.

    Attributes:
        search: trials of this model with the same fixed settings, on this log; None: no search is known.
        used: values of the searched settings in this run; None: the best trial's.
        description: text about a search in a file, if none of its trials is known.
        fixed: the model has no setting to search.
        why: reason why this model's searches do not count for this run.
    """

    search: SearchTrials | None = None
    used: Mapping[str, float] | None = None
    description: str = ""
    fixed: bool = False
    why: str = ""


def judge_entries(
    entries: Sequence[Entry],
    searches: Mapping[str, SearchTrials],
    effects_elsewhere: Mapping[str, Mapping[str, float]],
    used: Mapping[str, SettingsSource] | None = None,
) -> dict[str, TuningVerdict]:
    """Return a verdict on each entry by its id.

    Entries on the same part are compared with each other.

    Args:
        entries: entries on one board.
        searches: trials by the name of an entry with origin `ours`.
        effects_elsewhere: by method, how much each setting has moved it, relative to the value.
        used: by entry id, where its settings come from. None: a search belongs to the entry with the same
            name, which uses its best trial.
    """
    verdicts = {}
    sources = {} if used is None else used
    judged = [entry for entry in entries if entry.evidence != BESIDE_TABLE]
    for part in {entry.part for entry in judged}:
        peers = [entry for entry in judged if entry.part == part]
        board = _make_board(peers)
        for entry in peers:
            by_name = searches.get(entry.name) if used is None and entry.origin == "ours" else None
            tuning = sources.get(entry.entry_id, SettingsSource(by_name))
            rivals = {name: search for name, search in searches.items() if name != entry.name}
            moved = effects_elsewhere.get(entry.method, {})
            verdict = judge_run(entry.to_run(), board, tuning.search, rivals, moved, used=tuning.used)
            verdicts[entry.entry_id] = verdict._replace(
                notes=(*verdict.notes, *_note_missing_search(entry, tuning))
            )
    return verdicts


def _note_missing_search(entry: Entry, tuning: SettingsSource) -> list[TuningNote]:
    """Return the note on an entry without known trials."""
    if tuning.search is not None or entry.origin == "published" or tuning.fixed:
        return []
    if tuning.description or entry.search_space:
        description = tuning.description or f"a search over {entry.search_space}"
        text = f"its file or bundle names {description}, and the board knows no trial of it"
        return [TuningNote("no_power", text)]
    if entry.origin == "bundle":
        return [TuningNote("never_searched", "it was submitted without a search")]
    why = tuning.why or "no search of this model with these settings is known"
    return [TuningNote("never_searched", why)]


def _make_board(entries: Sequence[Entry]) -> Board:
    """Return a board with entries on one part.

    Different names for one method are aliases.
    """
    first = entries[0]
    places = {method: n for n, method in enumerate(dict.fromkeys(entry.method for entry in entries))}
    aliases: dict[str, list[str]] = {}
    taken: set[str] = set()
    for entry in sorted(entries, key=lambda entry: places[entry.method]):
        if entry.name not in taken:
            aliases.setdefault(entry.method, []).append(entry.name)
            taken.add(entry.name)
    return Board(
        name=first.board, data=first.data, protocol=first.protocol, metric=first.metric,
        lower_is_better=first.lower_is_better, source="board",
        aliases={method: tuple(group) for method, group in aliases.items()},
        runs=tuple(entry.to_run() for entry in entries),
    )  # fmt: skip


def measure_setting_effects(
    searches: Mapping[str, tuple[str, SearchTrials]],
) -> dict[str, dict[str, float]]:
    """Return how much each setting has moved its method elsewhere.

    The effect is relative to the value, in other searches. A setting's range is cut into three levels. The
    effect is the difference between the best trials at the best and the worst level: the loss by a wrong
    value while all other settings are well chosen.

    Args:
        searches: method and trials by any name.
    """
    effects: dict[str, dict[str, float]] = {}
    for method, search in searches.values():
        losses = search.losses()
        for name, space in search.space.items():
            levels: dict[int, float] = {}
            low, high = min(space), max(space)
            for trial, loss in zip(search.trials, losses, strict=True):
                level = int(3 * (trial.settings[name] - low) / ((high - low) or 1.0)) if high > low else 0
                levels[min(level, 2)] = min(float(loss), levels.get(min(level, 2), math.inf))
            effect = (max(levels.values()) - min(levels.values())) / abs(min(levels.values()) or 1.0)
            by_setting = effects.setdefault(method, {})
            by_setting[name] = max(effect, by_setting.get(name, 0.0))
    return effects
