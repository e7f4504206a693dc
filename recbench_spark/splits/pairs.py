"""Decide which rows of a pair a split leaves out.

They are duplicates, and pairs that training knows. Rows are labelled first. So no row after the cut decides
which rows train.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.arrays import Bools, Ints
from recbench_spark.sources.events import EVENT
from recbench_spark.splits.events import EventRule, read_events
from recbench_spark.splits.kernels.labels import NAMES
from recbench_spark.splits.kernels.positions import last_per_group, mark_repeats
from recbench_spark.splits.positions import hash_contents, id_numbers, name_parts
from recbench_spark.splits.queries import number_queries

DuplicateRule = Literal["keep_last", "keep_first", "error"]
RepeatRule = Literal["drop", "keep", "only"]

TRAIN, GIVEN, VALID, LATER, _ = NAMES
OPEN_LOOP = "open_loop"
"""The part with items that were shown uniformly at random; it comes with the log."""

UNASKED = (TRAIN, GIVEN, LATER)
"""Parts whose rows no model is asked for."""

REASONS = ("", "duplicates_dropped", "repeats_dropped", "new_pairs_dropped", "events_added")
"""Reasons to leave a row out, as facts in a manifest: its part has the pair in another row; training knows
the pair; training does not know it (`repeats: only`); another row of pair and part has its weight, too.
"""

STAYS, DUPLICATE, REPEAT, NEW, ADDED = range(len(REASONS))

FIRST_TIME = np.iinfo(np.int64).min
"""Time for a row without one, before all others."""


class PairRule(NamedTuple):
    """The rule for several rows of a pair.

    Attributes:
        duplicates: the row that stays in each part; None if no pair is in two rows.
        repeats: whether a held-out row stays whose pair training knows.
        open_repeats: true if such rows in the open loop stay.
        events: the rows' events, which are duplicates only of their own kind.
        in_time: true if `later` rows are history of questions: each event of a pair stays, at its first
            time, with the weights so far.
        query: column of queries, whose asked rows are duplicates only within a query; empty: there is none.
    """

    duplicates: DuplicateRule | None
    repeats: RepeatRule = "drop"
    open_repeats: bool = False
    events: EventRule | None = None
    in_time: bool = False
    query: str = ""


class Dropped(NamedTuple):
    """Rows left out by rule, and rows kept by hash.

    Attributes:
        why_r: (r,) place of each row's reason in REASONS.
        unordered_r: (r,) true for rows that stay by a hash: no time says which one is the last.
        places: (p,) rows whose pair is in another row, whether that stays or not.
    """

    why_r: Ints
    unordered_r: Bools
    places: Ints


def find_doubled(rows: pa.Table) -> Bools:
    """Mark (r,) rows whose pair is in another row."""
    return mark_repeats(id_numbers(rows, "user_id"), id_numbers(rows, "item_id"))


PAIR_COLUMNS = ("user_id", "item_id", "n")


def find_doubled_pair(rows: pa.Table, apart: bool) -> pa.Table:
    """Return the first pair in two rows, and its count.

    The columns are PAIR_COLUMNS. `apart`: a pair in the open loop and in another part does not count.
    """
    texts = {name: rows.column(name).cast(pa.string()) for name in ("user_id", "item_id")}
    if EVENT in rows.column_names:
        texts[EVENT] = rows.column(EVENT)
    if apart and "part" in rows.column_names:
        texts["part"] = pc.fill_null(pc.equal(rows.column("part").cast(pa.string()), OPEN_LOOP), False)
    counts = pa.table(texts).group_by([*texts]).aggregate([([], "count_all")])
    doubled = counts.filter(pc.greater(counts.column("count_all"), 1))
    first = doubled.sort_by([(name, "ascending") for name in texts]).slice(0, 1)
    return first.select(["user_id", "item_id", "count_all"]).rename_columns(list(PAIR_COLUMNS))


def mark_dropped(rows: pa.Table, rule: PairRule) -> Dropped:
    """Decide which rows stay: one per pair and part.

    Args:
        rows: all labelled rows of some users or items, ids as in `encode_ids`.
        rule: the rule.
    """
    why_r = np.zeros(len(rows), np.int64)
    if rule.repeats == "only":
        why_r[~_mark(rows, (*UNASKED, OPEN_LOOP))] = NEW
    unordered_r = np.zeros(len(rows), np.bool_)
    places = np.flatnonzero(find_doubled(rows))
    if len(places):
        why_r[places], unordered_r[places] = _mark_doubled(rows.take(pa.array(places)), rule)
    return Dropped(why_r, unordered_r, places)


def _mark_doubled(rows: pa.Table, rule: PairRule) -> tuple[Ints, Bools]:
    """Apply the rule to pairs with several rows; the result is that of `Dropped`."""
    pair_r = number_pairs(rows)
    why_r = _mark_repeats(rows, pair_r, rule)
    unordered_r = np.zeros(len(rows), np.bool_)
    if rule.duplicates:
        names, part_r = name_parts(rows)
        group_r = pair_r * max(len(names), 2) + part_r
        if rule.events:
            group_r = group_r * len(rule.events.names) + read_events(rows)
        if rule.query:
            query_r = np.where(_mark(rows, (*UNASKED, OPEN_LOOP)), -1, number_queries(rows, rule.query))
            group_r = group_r * (len(rows) + 1) + query_r + 1
        kept_r, unordered_r = choose_rows(rows, group_r, rule.duplicates)
        if rule.events and rule.in_time:
            kept_r = np.where(_mark(rows, (LATER,)), choose_rows(rows, group_r, "keep_first")[0], kept_r)
        why_r[~kept_r] = DUPLICATE
    return why_r, unordered_r & (why_r == STAYS)


def _mark_repeats(rows: pa.Table, pair_r: Ints, rule: PairRule) -> Ints:
    """Return (r,) the reason that `repeats` has against each row."""
    trained_r, valid_r = _mark(rows, (TRAIN, GIVEN)), _mark(rows, (VALID,))
    if rule.events and not rule.events.any_repeats:
        trained_r &= rule.events.mark_targets(rows)
    open_r = _mark(rows, (OPEN_LOOP,))
    held_out_r = ~(_mark(rows, UNASKED) | open_r)
    in_train_r = np.isin(pair_r, pair_r[trained_r])
    # At the test a model may know the validation rows, and their items are no candidates.
    known_r = in_train_r | (np.isin(pair_r, pair_r[valid_r]) & ~valid_r)
    why_r = np.zeros(len(rows), np.int64)
    if rule.repeats == "drop":
        why_r[held_out_r & (known_r | _mark_shown(rows, pair_r, rule))] = REPEAT
    if rule.repeats == "only":
        why_r[held_out_r & ~in_train_r] = NEW
    if not rule.open_repeats:
        why_r[open_r & known_r] = REPEAT
    return why_r


def _mark_shown(rows: pa.Table, pair_r: Ints, rule: PairRule) -> Bools:
    """Mark (r,) successive questions that are repeats of earlier `later` rows, of other events."""
    if not (rule.in_time and rule.events and rule.events.any_repeats):
        return np.zeros(len(rows), np.bool_)
    time_r = rows.column("event_time").to_numpy()
    signal_r = _mark(rows, (LATER,)) & ~rule.events.mark_targets(rows)
    names, part_r = name_parts(rows)
    group_r = pair_r * len(names) + part_r
    first_x, first_g = (
        np.full((int(pair_r.max()) + 1) * n, np.iinfo(np.int64).max) for n in (1, len(names))
    )
    np.minimum.at(first_x, pair_r[signal_r], time_r[signal_r])
    np.minimum.at(first_g, group_r, time_r)
    shown_r: Bools = first_g[group_r] > first_x[pair_r]
    return shown_r


def add_events(rows: pa.Table, dropped: Dropped, rule: PairRule) -> tuple[pa.Table, Dropped]:
    """Add up the weights of a pair's events, and leave one row in each part.

    Args:
        rows: all labelled rows of some users or items, ids as in `encode_ids`.
        dropped: rows already left out.
        rule: the rule, which has events.
    """
    assert rule.events is not None
    places = dropped.places[dropped.why_r[dropped.places] == STAYS]
    if rule.in_time:
        places = places[~_mark(rows, (LATER,))[places]]
    doubled = rows.take(pa.array(places))
    names, part_p = name_parts(doubled)
    group_p = np.unique(number_pairs(doubled) * max(len(names), 1) + part_p, return_inverse=True)[1]
    keep: DuplicateRule = "keep_first" if rule.duplicates == "keep_first" else "keep_last"
    why_r = dropped.why_r.copy()
    why_r[places[~choose_rows(doubled, group_p, keep)[0]]] = ADDED
    rows = rule.events.add_weights(rows, places, group_p)
    if rule.in_time:
        stay_s = np.flatnonzero(dropped.why_r == STAYS)
        rows = rule.events.sum_so_far(rows, stay_s, number_pairs(rows.take(pa.array(stay_s))))
    return rows, dropped._replace(why_r=why_r)


def divide_pairs(
    rows: pa.Table, dropped: Dropped, keep: DuplicateRule, repeats: RepeatRule, folds: int
) -> tuple[pa.Table, Dropped]:
    """Say what each row does in every fold.

    Each fold is held out as if it were alone. A row in the part `3` is asked in fold 3 and trains where
    another fold is held out. If a pair is in several folds, one row trains at a time: the choice of `keep`
    from all folds but the held-out one. Such a row, and with `only` any, has a part ASKED:TRAINS, such as
    `3:5`; see `read_fold_part`.

    Args:
        rows: all rows of some users, with the number of their fold as part.
        dropped: rows already left out inside a fold.
        keep: the row of a pair that trains.
        repeats: whether a row is asked whose pair another fold has.
        folds: number of folds; rows in other parts stay as they are.
    """
    places = np.flatnonzero(_mark(rows, [*map(str, range(folds))]) & (dropped.why_r == STAYS))
    doubled = places[find_doubled(rows.take(pa.array(places)))] if len(places) else places
    if not len(doubled) and repeats != "only":
        return rows, dropped
    part_r = rows.column("part").cast(pa.string()).to_numpy(zero_copy_only=False).copy()
    fold_r, why_r = part_r.copy(), dropped.why_r.copy()
    if repeats == "only":
        part_r[places] = [f":!{fold}" for fold in fold_r[places]]
    trains = _choose_folds(rows.take(pa.array(doubled)), fold_r[doubled], keep)
    for row, fold, trained in zip(doubled, fold_r[doubled], trains, strict=True):
        own = "" if repeats == "drop" else fold
        part_r[row] = fold if (own, trained) == (fold, f"!{fold}") else f"{own}:{trained}"
        if not own + trained:
            part_r[row], why_r[row] = fold, DUPLICATE
    place = rows.column_names.index("part")
    parts = pa.array(part_r, pa.string()).dictionary_encode()
    unordered_r = dropped.unordered_r & (why_r == STAYS)
    return rows.set_column(place, "part", parts), dropped._replace(why_r=why_r, unordered_r=unordered_r)


def _choose_folds(rows: pa.Table, fold_r: npt.NDArray[Any], keep: DuplicateRule) -> list[str]:
    """Say where rows of pairs in several folds train.

    `!3`: if 3 is not held out; `3`: if it is.
    """
    pair_r = number_pairs(rows)
    best_r, _ = choose_rows(rows, pair_r, keep)
    rest = np.flatnonzero(~best_r)
    second = rest[choose_rows(rows.take(pa.array(rest)), pair_r[rest], keep)[0]]
    best_fold = dict(zip(pair_r[best_r].tolist(), fold_r[best_r].tolist(), strict=True))
    trains = [f"!{fold}" if best else "" for fold, best in zip(fold_r, best_r, strict=True)]
    for row in second.tolist():
        trains[row] = best_fold[int(pair_r[row])]
    return trains


def read_fold_part(part: str, fold: int) -> tuple[bool, bool]:
    """Return whether a part's rows train, and are asked, in a fold.

    >>> read_fold_part("3", 3), read_fold_part("3", 5), read_fold_part("3:5", 5), read_fold_part(":!3", 3)
    ((False, True), (True, False), (True, False), (False, False))
    """
    own_fold, divided, trains = part.partition(":")
    if not divided:
        trains = f"!{own_fold}"
    other = trains.startswith("!") and trains != f"!{fold}"
    return other or trains == str(fold), own_fold == str(fold)


def number_pairs(rows: pa.Table) -> Ints:
    """Return (r,) each row's pair as a number from 0."""
    pairs_r = id_numbers(rows, "user_id") << 32 | id_numbers(rows, "item_id")
    numbers: Ints = np.unique(pairs_r, return_inverse=True)[1]
    return numbers


def _mark(rows: pa.Table, parts: Sequence[str]) -> Bools:
    """Return (r,) true for rows in these parts.

    `part` may be text, a dictionary, or missing.
    """
    column = rows.column("part").combine_chunks()
    texts = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    marked_r: Bools = pc.is_in(column, pa.array(parts, texts)).to_numpy(zero_copy_only=False)
    return marked_r


def choose_rows(rows: pa.Table, group_r: Ints, keep: DuplicateRule) -> tuple[Bools, Bools]:
    """Keep one row per group, the last or first.

    Between equal times a hash of the row decides. It covers ids, rating and attributes, so no rating is
    preferred, and neither is any row order.

    Returns:
        kept_r, (r,); unordered_r: kept rows that differ from another row at the same time.
    """
    times = rows.column("event_time")
    times = times if keep == "keep_last" else pc.bit_wise_not(times)
    best_g, equal_r = last_per_group(group_r, pc.fill_null(times, FIRST_TIME).to_numpy())
    kept_r, unordered_r = np.zeros(len(rows), np.bool_), np.zeros(len(rows), np.bool_)
    kept_r[best_g] = True
    if len(equal_r):
        kept_r[equal_r] = False
        hash_e = hash_contents(rows.take(pa.array(equal_r))).view(np.int64)
        (high_g, _), (low_g, _) = (last_per_group(group_r[equal_r], key_e) for key_e in (hash_e, ~hash_e))
        kept_r[equal_r[high_g]] = True
        unordered_r[equal_r[high_g]] = hash_e[high_g] != hash_e[low_g]
    return kept_r, unordered_r
