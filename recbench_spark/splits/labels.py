"""Label each row in a task, by plain numbers.

The rules are plain numbers. The module imports neither Spark nor the settings, so that workers load it
fast.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.arrays import Bools, Floats, Ints
from recbench_spark.core.streams import NOTES
from recbench_spark.sources.events import EVENT
from recbench_spark.splits import pairs
from recbench_spark.splits.events import EventRule
from recbench_spark.splits.kernels import labels
from recbench_spark.splits.kernels.labels import Codes, Hashes
from recbench_spark.splits.pairs import Dropped, DuplicateRule, PairRule, RepeatRule
from recbench_spark.splits.positions import encode_ids, id_column, id_numbers, name_parts, order_rows

TRAIN, GIVEN, VALID, LATER, TEST = labels.NAMES

HISTORY = (TRAIN, GIVEN)
"""Parts with a user's history: models see them, and they are never ranked. Models train on `train`."""

LabelMethod = Literal["position", "n_given", "user_folds", "folds", "share", "instants", "given"]


@dataclass(frozen=True)
class HeldOutIds:
    """Kind of held-out ids; shares for test and validation."""

    of: Literal["users", "items"]
    test: float
    valid: float


@dataclass(frozen=True)
class SplitRule:
    """A split protocol in the form which tasks need.

    Attributes:
        by: rows by their position in the owner's order, by folds (in each owner's order or by each row's
            hash), by a share of all, by instants; or as the log says (`given`).
        temporal: true if an owner's rows are in order of time; otherwise they are in order of hashes.
        ratio: shares for train, valid, test.
        n: an owner's test and validation rows; None: by `ratio`. For `n_given`: rows that train.
        folds: their number, the test fold's number, and whether the next fold validates.
        every_fold: true if each row's part is the number of its fold, for work on all folds; see
            `pairs.divide_pairs`.
        instants: starts of validation, test and `later`, in microseconds.
        parts: the parts among which test rows are distributed.
        held_out: held-out ids.
        duplicates: the row of a pair that stays in each part; None if no pair is in two rows.
        repeats: true if a held-out row stays although its pair is in training.
        keeps_known: true if the pairs in training stay in the open loop, too.
        targets: the rows of a user that are asked, in each part held out by instants.
        validation: the rows that validate, for labels by instants.
        valid_users: share of users that validate.
        seed: the seed for the hashes.
        numeric: true if ids sort as numbers, as in rankings, where they decide between equal keys (`tie`).
        events: events of rows, of which only targets are held out; None: all rows are alike.
        query: column of queries, each of which is a question; empty: there is none.
    """

    by: LabelMethod
    temporal: bool = False
    ratio: tuple[float, float, float] = (0.8, 0.0, 0.2)
    n: tuple[int, int] | None = None
    folds: tuple[int, int, bool] = (10, 0, False)
    every_fold: bool = False
    instants: tuple[int, int, int] = (0, 0, 0)
    parts: tuple[str, ...] = (TEST,)
    held_out: HeldOutIds | None = None
    duplicates: DuplicateRule | None = None
    repeats: RepeatRule = "drop"
    keeps_known: bool = False
    targets: str = "all"
    validation: str = "time"
    valid_users: float = 0.1
    seed: int = 42
    numeric: bool = False
    events: EventRule | None = None
    query: str = ""

    @property
    def by_owner(self) -> bool:
        """True if rows are ordered within their owner."""
        return self.by in ("position", "n_given", "user_folds")

    @property
    def owner(self) -> Literal["user_id", "item_id"]:
        """The id column whose rows a task must hold completely.

        The owners are users, or held-out items.
        """
        return "item_id" if self.by_owner and self.held_out and self.held_out.of == "items" else "user_id"

    @property
    def tie(self) -> Literal["user_id", "item_id"]:
        """The column which decides between an owner's equal keys.

        Equal keys are equal times, for example.
        """
        return "item_id" if self.owner == "user_id" else "user_id"

    @property
    def pair_rule(self) -> PairRule:
        """The rule for several rows of a pair.

        With all folds at once, it is the rule inside one fold.
        """
        repeats: RepeatRule = "keep" if self.every_fold else self.repeats
        in_time = self.targets == "successive" and self.events is not None
        return PairRule(self.duplicates, repeats, self.keeps_known, self.events, in_time, self.query)


def label_rows(rows: pa.Table, rule: SplitRule) -> pa.Table:
    """Add `part` to rows, and drop a pair's surplus rows.

    Ids become dictionaries of texts. Of a pair, one row stays per part. A row that came with a part keeps
    it and does not count for the others. All rows are labelled before one is left out: what is tested
    decides nothing about what trains.

    Args:
        rows: all rows of some owners, in a log's columns; `part` and `attributes` may be missing.
        rule: the protocol.
    """
    rows = encode_ids(rows)
    free_r = _mark_free(rows)
    labelled = rows if rule.by == "given" else _label(rows, rule)
    if rule.events and "part" in rows.column_names:
        labelled = rule.events.move_unasked(labelled)
    unasked: list[tuple[str, str, int]] = []
    if rule.targets != "all":
        labelled, unasked = _ask_targets(labelled, rule, free_r)
    dropped = pairs.mark_dropped(labelled, rule.pair_rule)
    if rule.every_fold:
        keep = rule.duplicates or "keep_last"
        labelled, dropped = pairs.divide_pairs(labelled, dropped, keep, rule.repeats, rule.folds[0])
    left_out = unasked
    if rule.events:
        left_out = [*unasked, *rule.events.count_rows(labelled)]
        labelled, dropped = pairs.add_events(labelled, dropped, rule.pair_rule)
        labelled = labelled.drop_columns([EVENT])
    left_out += _count_dropped(labelled, dropped)
    if dropped.why_r.any():
        labelled = labelled.filter(pa.array(dropped.why_r == pairs.STAYS))
    return labelled.replace_schema_metadata({NOTES: json.dumps(left_out)}) if left_out else labelled


def read_dropped(labelled: pa.Table) -> Counter[tuple[str, str]]:
    """Return numbers of rows left out: (part, reason) -> rows.

    The counts are in its table's notes. Reasons are names of facts. `unordered_pairs`: pairs that differ in
    rating or attributes, and no time says which row is the last.
    """
    return sum_dropped([(labelled.schema.metadata or {}).get(NOTES)])


def sum_dropped(notes: Iterable[bytes | None]) -> Counter[tuple[str, str]]:
    """Add up the notes of several tables."""
    total: Counter[tuple[str, str]] = Counter()
    for note in notes:
        total.update({(part, reason): n for part, reason, n in json.loads(note or b"[]")})
    return total


def _count_dropped(labelled: pa.Table, dropped: Dropped) -> list[tuple[str, str, int]]:
    marks = {reason: dropped.why_r == why for why, reason in enumerate(pairs.REASONS) if why}
    marks[UNORDERED] = dropped.unordered_r
    names, part_r = name_parts(labelled)
    return [
        (name, reason, int(n))
        for reason, marked_r in marks.items()
        for name, n in zip(names, np.bincount(part_r[marked_r], minlength=len(names)), strict=True)
        if n
    ]


UNORDERED = "unordered_pairs"

UNASKED = "unasked_rows"
"""Reason in notes: rows of a held-out part that `split.targets` does not ask for; they stay, as `later`."""


def _mark_free(rows: pa.Table) -> Bools:
    """Mark (r,) rows that came without a part."""
    if "part" not in rows.column_names:
        return np.ones(len(rows), np.bool_)
    free_r: Bools = pc.is_null(rows.column("part")).to_numpy()
    return free_r


def _ask_targets(
    labelled: pa.Table, rule: SplitRule, free_r: Bools
) -> tuple[pa.Table, list[tuple[str, str, int]]]:
    """Label as later what is not asked, for `split.targets`.

    First among validation rows: those asked are known at the test. Rows left out as repeats are no choice.

    Args:
        labelled: all rows of some users.
        rule: the protocol, by instants.
        free_r: (r,) rows that came without a part.

    Returns:
        The rows, and the notes on those not asked.
    """
    notes = []
    for parts in ((VALID,), rule.parts):
        names, part_r = name_parts(labelled)
        choice_r = np.isin(names, parts)[part_r] & free_r
        if not choice_r.any():
            continue
        choice_r &= (
            pairs.mark_dropped(labelled, rule.pair_rule._replace(duplicates=None)).why_r == pairs.STAYS
        )
        asked_r = np.zeros(len(labelled), np.bool_)
        asked_r[_choose_targets(labelled, np.flatnonzero(choice_r), rule)] = True
        unasked_r = choice_r & ~asked_r
        notes += [(name, UNASKED, int((unasked_r & (part_r == n)).sum())) for n, name in enumerate(names)]
        every = names if LATER in names else [*names, LATER]
        codes = pa.array(np.where(unasked_r, every.index(LATER), part_r).astype(np.int32))
        divided = pa.DictionaryArray.from_arrays(codes, pa.array(every))
        labelled = labelled.set_column(labelled.column_names.index("part"), "part", divided)
    return labelled, [note for note in notes if note[2]]


def _choose_targets(rows: pa.Table, places: Ints, rule: SplitRule) -> Ints:
    """Return each user's chosen places among these.

    Equal times go by item id, as in other orders; `random` goes by a hash of the pair. `successive` chooses
    each pair at its first time.
    """
    if rule.targets == "successive":
        chosen = rows.take(pa.array(places))
        pair_r, time_r = pairs.number_pairs(chosen), _read_times(chosen)
        first_p = np.full(int(pair_r.max(initial=-1)) + 1, np.iinfo(np.int64).max)
        np.minimum.at(first_p, pair_r, time_r)
        chosen_r: Ints = places[time_r == first_p[pair_r]]
        return chosen_r
    if rule.targets == "random":
        chosen = rows.take(pa.array(places))
        kept_r, _ = pairs.choose_rows(chosen, pairs.number_pairs(chosen), rule.duplicates or "keep_last")
        places = places[kept_r]
    place_o, position_o, n_o = _order_places(rows, places, rule)
    chosen_o: Ints = place_o[position_o == (n_o if rule.targets == "first" else 1)]
    return chosen_o


def _order_places(rows: pa.Table, places: Ints, rule: SplitRule) -> tuple[Ints, Ints, Ints]:
    """Sort some rows' places as `order_rows` sorts rows by user."""
    chosen = rows.take(pa.array(places))
    key_r = _read_times(chosen)
    if rule.targets == "random":
        key_r = draw_hashes(chosen, rule.seed, word=b"target").view(np.int64)
    names = [name for name in chosen.column_names if name != "part"]
    numbered = chosen.select(names).append_column("place", pa.array(places, pa.int64()))
    ordered, position_o, n_o = order_rows(
        numbered, "user_id", "item_id", key_r, numeric=rule.numeric, by_pair=False
    )
    return ordered.column("place").to_numpy(), position_o, n_o


def _validate(rows: pa.Table, rule: SplitRule, codes: Codes) -> Codes:
    """Label rows before the cut for `validation` by last rows or users."""
    free_r = _mark_free(rows) & (rule.events.mark_targets(rows) if rule.events else True)
    places = np.flatnonzero((codes == labels.TRAIN) & free_r)
    place_o, position_o, n_o = _order_places(rows, places, replace(rule, targets="all"))
    validates_o = n_o > 1
    if rule.validation == "users":
        users = rows.take(pa.array(place_o))
        validates_o &= _draw_places(users, rule.seed, "user_id", word=b"valid") < rule.valid_users
        codes[place_o[validates_o]] = labels.GIVEN
    codes[place_o[validates_o & (position_o == 1)]] = labels.VALID
    return codes


def _label(rows: pa.Table, rule: SplitRule) -> pa.Table:
    """Add `part` to rows, for protocols which label them."""
    position_r = n_r = np.empty(0, np.int64)
    if rule.by_owner:
        key_r = _read_times(rows) if rule.temporal else draw_hashes(rows, rule.seed).view(np.int64)
        rows, position_r, n_r = order_rows(
            rows,
            rule.owner,
            rule.tie,
            key_r,
            numeric=rule.numeric,
            by_pair=not rule.temporal,
            apart_r=_mark_apart(rows, rule),
        )
    if rule.every_fold:
        fold_r = np.mod(_fold_numbers(rows, rule, position_r), rule.folds[0])
        codes = pa.array(fold_r.astype(np.int32))
        names = pa.array(map(str, range(rule.folds[0])))
    else:
        codes = pa.array(_part_codes(rows, rule, position_r, n_r))
        names = pa.array([*labels.NAMES[:-1], *rule.parts])
    return _set_part(rows, pa.DictionaryArray.from_arrays(codes, names))


def _mark_apart(rows: pa.Table, rule: SplitRule) -> Bools | None:
    """Return (r,) true for rows that no protocol holds out, if there may be such.

    Their part is known, or their event is no target.
    """
    if "part" not in rows.column_names and rule.events is None:
        return None
    return ~_mark_free(rows) | (~rule.events.mark_targets(rows) if rule.events else False)


def _read_times(rows: pa.Table) -> Ints:
    times: Ints = pc.fill_null(rows.column("event_time"), 0).to_numpy()
    return times


def _part_codes(rows: pa.Table, rule: SplitRule, position_r: Ints, n_r: Ints) -> Codes:
    folds, fold, validates = rule.folds
    if rule.by in ("position", "n_given"):
        test_r, valid_r, n_train = _holdout_sizes(rule, n_r)
        codes = labels.by_position(position_r, n_r, test_r, valid_r, n_train)
    elif rule.by in ("user_folds", "folds"):
        codes = labels.by_fold(_fold_numbers(rows, rule, position_r), folds, fold, validates)
    elif rule.by == "share":
        codes = labels.by_share(_draw_places(rows, rule.seed), *rule.ratio[:2])
    else:
        codes = labels.by_time(_read_times(rows), *rule.instants)
        codes = codes if rule.validation == "time" else _validate(rows, rule, codes)
    if rule.events:
        codes = _label_events(rows, rule, codes)
    if rule.held_out:
        place_r = _draw_places(rows, rule.seed, f"{rule.held_out.of[:-1]}_id")
        codes = labels.by_held_out(codes, place_r, rule.held_out.test, rule.held_out.valid)
    if rule.parts == (TEST,):
        return codes
    # A word keeps the hash that deals out parts apart from the one that orders the rows.
    return labels.partition_test_rows(codes, draw_hashes(rows, rule.seed, word=b"deal"), len(rule.parts))


def _label_events(rows: pa.Table, rule: SplitRule, codes: Codes) -> Codes:
    """Label rows of events that are no targets."""
    apart_r = _mark_apart(rows, rule)
    assert apart_r is not None
    if rule.by == "instants" and rule.validation == "time":
        return np.where(apart_r & (codes != labels.TRAIN), labels.LATER, codes)
    times = _read_times(rows) if rule.temporal else None
    divided = labels.by_target(codes, ~apart_r, id_numbers(rows, rule.owner), times)
    if rule.by == "instants":
        divided[apart_r & (codes != labels.TRAIN)] = labels.LATER
    return divided


def _fold_numbers(rows: pa.Table, rule: SplitRule, position_r: Ints) -> Ints:
    """Return a number per row, whose remainder is the fold."""
    if rule.by == "folds":
        return draw_hashes(rows, rule.seed).view(np.int64)
    # A user's rows are assigned to folds in turn; the first fold differs from user to user.
    begin_r: Ints = np.mod(draw_hashes(rows, rule.seed, "user_id").view(np.int64), rule.folds[0])
    return position_r + begin_r


def _holdout_sizes(rule: SplitRule, n_r: Ints) -> tuple[Ints, Ints, int]:
    """Return each owner's test, validation and fewest training rows."""
    if rule.by == "n_given":
        assert rule.n is not None
        return np.maximum(n_r - rule.n[0], 0), np.zeros_like(n_r), 0
    if rule.n is None:
        return labels.count_share(n_r, rule.ratio[2]), labels.count_share(n_r, rule.ratio[1]), 1
    return np.full_like(n_r, rule.n[0]), np.full_like(n_r, rule.n[1]), 1


def _set_part(rows: pa.Table, labelled: pa.DictionaryArray) -> pa.Table:
    if "part" not in rows.column_names:
        return rows.append_column("part", labelled)
    place, log_parts = rows.column_names.index("part"), rows.column("part")
    if log_parts.null_count < len(log_parts):
        texts = log_parts.cast(pa.string()).combine_chunks()
        labelled = pc.coalesce(texts, labelled.dictionary_decode()).dictionary_encode()
    return rows.set_column(place, "part", labelled)


def draw_hashes(rows: pa.Table, seed: int, *names: str, word: bytes = b"") -> Hashes:
    """Return (r,) hashes of rows' ids under a seed, (user, item) by default.

    They are what Spark's `xxhash64` gives for ids, word and seed. A row's label does not depend on how its
    log is stored: ids are hashed as texts.
    """
    # Imported here, because numba takes half a second to load and temporal splits need no hashes.
    from recbench_spark.core import hashing  # noqa: PLC0415
    from recbench_spark.core.hashed_ids import hash_encoded  # noqa: PLC0415

    first, *others = names or ("user_id", "item_id")
    hashes_r = hash_encoded(id_column(rows, first))
    for name in others:
        hashes_r = hash_encoded(id_column(rows, name), hashes_r)
    hashes_r = hashing.hash_bytes(word, hashes_r) if word else hashes_r
    return hashing.hash_bytes(seed.to_bytes(8, "little", signed=True), hashes_r)


def _draw_places(rows: pa.Table, seed: int, *names: str, word: bytes = b"") -> Floats:
    """Return (r,) numbers in [0, 1) with 53 random bits."""
    from recbench_spark.core import hashing  # noqa: PLC0415

    return hashing.place_hashes(draw_hashes(rows, seed, *names, word=word))
