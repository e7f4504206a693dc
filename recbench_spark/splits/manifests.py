"""Write a split's manifest: content, leakage, and drift between parts.

Passes over labelled rows count them, on any runner.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from recbench_spark.config import Events, Split
from recbench_spark.core.checks import Check
from recbench_spark.core.ids import MANY
from recbench_spark.core.text_tables import align_cells
from recbench_spark.errors import DataError, EmptyPartError, ProtocolError, nearest
from recbench_spark.schemas import TIME_FACTS
from recbench_spark.splits import audit
from recbench_spark.splits.audit import COLUMNS, NOT_HELD_OUT, AuditRequest, PartSummary
from recbench_spark.splits.events import ROWS_OF, SIGNAL
from recbench_spark.splits.labels import GIVEN, LATER, TRAIN, UNASKED
from recbench_spark.splits.pairs import OPEN_LOOP
from recbench_spark.storage.blocks import Engine, Rows


class Fact(NamedTuple):
    """A number or text about a part or whole log."""

    part: str
    fact: str
    value: float | None
    detail: str | None = None


class Manifest(NamedTuple):
    """A labelled log's facts, and its distinct users and items."""

    facts: list[Fact]
    users: int
    items: int


Parts = Mapping[str, PartSummary]


@dataclass(frozen=True)
class LogRows:
    """Counts of rows read, rejected and left out.

    Attributes:
        n: rows to label, duplicates included: without rejected rows and rows after the log's end.
        later: rows after `dataset.until`.
        rejected, reasons: number of unusable rows, and the reasons.
        unselected: conditions of `dataset.where` in words, with the rows that each leaves out.
        dropped: labelled rows left out by the split, (part, reason) -> rows; see `labels.read_dropped`.
            With `dataset.events`, also the rows of each event.
        signals: true if trained events that are no targets make no repeat.
        infrequent: rows that `dataset.least` leaves out, with a sentence.
        future_selection: true if it counts rows of the whole log.
        query: column of queries, each of which is asked; empty: there is none.
    """

    n: int
    later: int = 0
    rejected: int = 0
    reasons: str | None = None
    unselected: tuple[tuple[str, int], ...] = ()
    dropped: Counter[tuple[str, str]] = field(default_factory=Counter)
    signals: bool = False
    infrequent: tuple[int, str] | None = None
    future_selection: bool = False
    query: str = ""


COUNTED = tuple(name for name in COLUMNS if name != "rating")
"""Columns of labelled rows that are counted by user and item."""


def build_manifest(
    rows: Rows,
    log: LogRows,
    settings: str,
    engine: Engine,
    *,
    parts: Parts | None = None,
    by_time: bool = False,
) -> Manifest:
    """Count a labelled log, and make its facts.

    Tasks make two passes: by part, and by user and item, where each task shuffles one row for each id in
    its rows (`audit`). If a user's rows are in several pieces, a third pass shuffles the rows by user. A
    task holds `audit.ROWS_PER_PIECE` rows, and in the third pass all rows of its users.

    Args:
        rows: one split's labelled log.
        log: counts of the rows read.
        settings: the split's settings as JSON.
        engine: the runner.
        parts: the result of `count_parts`; None to compute it here.
        by_time: a user's rows of each time are a question.
    """
    parts = count_parts(rows) if parts is None else parts
    times = [part.earliest for name, part in parts.items() if name not in NOT_HELD_OUT]
    protocol = json.loads(settings)
    request = AuditRequest(
        {name: part.rows for name, part in parts.items()},
        min((time for time in times if time is not None), default=None),
        keeps_known=protocol.get("open_loop") == "all",
        asks_repeats=protocol.get("repeats", "drop") != "drop",
        signals=log.signals,
        in_time=protocol.get("targets") == "successive",
        query=log.query,
        by_time=by_time,
    )
    sums = _sum_audit(rows, request, engine)
    facts = [*list_log_facts(log), Fact("log", "settings", None, settings)]
    facts += [*_count_facts(sums, request, parts), *_drift_facts(sums, parts), *_leakage_facts(sums, parts)]
    if request.keeps_known:
        facts.append(Fact(OPEN_LOOP, "known_pairs", float(sums["known"]), "pairs that training knows"))
    if protocol.get("held_out"):
        owners = protocol["held_out"]["of"]
        detail = f"held-out {owners} all of whose rows are given"  # such users are never tested
        facts.append(Fact(GIVEN, f"untested_{owners}", float(sums[owners, "untested"]), detail))
    return Manifest(facts, sums["users", "all"], sums["items", "all"])


def count_parts(rows: Rows) -> Parts:
    """Return each part's rows, content hash and range in time.

    One pass is enough, without a shuffle.
    """
    return audit.merge_parts(rows.each(COLUMNS, audit.summarise_parts))


def _sum_audit(rows: Rows, request: AuditRequest, engine: Engine) -> Counter[Any]:
    """Sum `audit.sum_pieces` over all users and items."""
    tasks = engine.count_tasks(sum(request.rows.values()))
    names = (*COUNTED, *([SIGNAL] if request.signals else []), *(["attributes"] if request.query else []))
    counted = rows.deal(names, partial(audit.count_in_blocks, request=request, tasks=tasks), tasks)
    sums: Counter[Any] = Counter()
    for one in counted.each(partial(audit.sum_pieces, request=request)):
        sums.update(one)
    if sums["parted"]:
        users = rows.deal(names, partial(audit.deal_users, tasks=tasks), tasks)
        whole: Counter[Any] = Counter()
        for counts in users.each(partial(audit.count_by_user, request=request)):
            whole.update(counts)
        sums.update({name: whole[name] - sums[name] for name in whole})
    return sums


DROPPED = {
    "duplicates_dropped": "rows of a pair that has another row in the part",
    "repeats_dropped": "held-out rows of pairs that training knows",
    "new_pairs_dropped": "held-out rows of pairs that training does not know",
    "events_added": "rows of a pair whose other row in the part has their weight",
    "unordered_pairs": "pairs whose rows differ, and no time says which is the last: a hash chose",
}
"""Facts about rows left out by a split, in the whole log and in each part with such rows."""


def list_log_facts(log: LogRows) -> list[Fact]:
    """Return counts of rows read and left out, by part."""
    unselected = sum(n for _, n in log.unselected)
    read = log.n + log.later + log.rejected + unselected
    facts = [
        Fact("log", "rows_read", float(read)),
        Fact("log", "rejected_rows", float(log.rejected), log.reasons),
    ]
    if log.unselected:
        detail = "; ".join(f"{words}: {n:,}" for words, n in log.unselected)
        facts.append(Fact("log", "unselected_rows", float(unselected), detail))
    if log.infrequent:
        n, detail = log.infrequent
        facts.append(Fact("log", "infrequent_rows", float(n), detail))
        if log.future_selection:
            late = "rows left out by counts over held-out rows, too (dataset.least.on: log)"
            facts.append(Fact("log", "future_selection", float(n), late))
    of_events = sorted({fact for _, fact in log.dropped if fact.startswith(ROWS_OF)})
    facts_of = {name: text for name, text in DROPPED.items() if of_events or name != "events_added"}
    for fact, detail in {**facts_of, **dict.fromkeys(of_events, "labelled rows (dataset.events)")}.items():
        of_parts = {part: n for (part, reason), n in sorted(log.dropped.items()) if reason == fact}
        facts.append(Fact("log", fact, float(sum(of_parts.values())), detail))
        facts += [Fact(part, fact, float(n), detail) for part, n in of_parts.items()]
    for (part, reason), n in sorted(log.dropped.items()):
        if reason == UNASKED:
            facts.append(Fact(part, UNASKED, float(n), "held-out rows that split.targets does not ask for"))
    return facts


def describe_rows(facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say how many rows were left out, and why.

    Without lost rows there is no sentence.

    Args:
        facts: rows in the manifest (part, fact, value, detail).
    """
    of_log = {row["fact"]: row for row in facts if row["part"] == "log"}
    counts = {fact: int(row["value"]) for fact, row in of_log.items() if row["value"] is not None}
    reasons = (of_log.get("rejected_rows") or {}).get("detail")
    words = {
        "rejected_rows": f"rejected ({reasons})" if reasons else "rejected",
        "unselected_rows": f"by dataset.where ({(of_log.get('unselected_rows') or {}).get('detail')})",
        "infrequent_rows": f"{(of_log.get('infrequent_rows') or {}).get('detail')} (dataset.least)",
        "later_rows": (of_log.get("later_rows") or {}).get("detail") or "after the end of the log",
        "duplicates_dropped": "duplicates inside a part (dataset.duplicates)",
        "repeats_dropped": "of pairs that training knows (split.repeats, split.open_loop)",
        "new_pairs_dropped": "of pairs that training does not know (split.repeats: only)",
        "events_added": "added to another row of their pair (dataset.events)",
    }
    left_out = [f"{counts[fact]:,} {text}" for fact, text in words.items() if counts.get(fact)]
    read = counts.get("rows_read", 0)
    total = sum(counts.get(fact, 0) for fact in words)
    lines = [f"{total:,} of {read:,} rows left out: {', '.join(left_out)}"] if left_out else []
    if unordered := counts.get("unordered_pairs"):
        lines.append(
            f"warning: {unordered:,} pairs have rows of equal or missing times that differ: none is the "
            "last, and a hash of the row chose one"
        )
    return lines


def report_events(events: Events, log: LogRows) -> None:
    """Report events with a weight of which the log has no row.

    Raises:
        DataError: no row is of a target.
    """
    there = {fact.removeprefix(ROWS_OF) for _, fact in log.dropped if fact.startswith(ROWS_OF)}
    missing = [name for name in events.weights if name not in there]
    if not there & {*events.targets}:
        message = f"dataset.events: no row has {events.column} {' or '.join(events.targets)} (targets)"
        raise DataError(message, f"events of the log: {', '.join(sorted(there)) or 'none'}")
    for name in missing:
        hint = nearest(name, sorted(there))
        print(f"note: dataset.events: no row has {events.column} {name!r}; {hint}", file=sys.stderr)


def refuse_empty_parts(parts: Parts, split: Split, log: LogRows) -> None:
    """Refuse a split without training rows or without test rows.

    Raises:
        ProtocolError: `dataset.least` or `split.repeats` leaves no test rows; and as `refuse_empty`.
    """
    if log.infrequent and log.infrequent[0] and not any(part in parts for part in split.parts):
        n, detail = log.infrequent
        raise ProtocolError(
            f"no test rows: dataset.least leaves out {n:,} rows {detail}", "smaller numbers"
        )
    settled = ("repeats_dropped", "new_pairs_dropped")
    n = sum(n for (part, why), n in log.dropped.items() if part in split.parts and why in settled)
    if n and not any(part in parts for part in split.parts):
        what = "does not know" if split.repeats == "only" else "knows"
        raise ProtocolError(
            f"no test rows: all {n:,} are of pairs that training {what} (split.repeats: {split.repeats})",
            "split.repeats: keep",
        )
    times = [time for part in parts.values() for time in (part.earliest, part.latest)]
    known_times = [time for time in times if time is not None]
    required = {TRAIN: 0, **dict.fromkeys(split.parts, 0)}
    sizes = required | {name: part.rows for name, part in parts.items()}
    refuse_empty(sizes, split, min(known_times, default=None), max(known_times, default=None))


def refuse_empty(sizes: Mapping[str, int], split: Split, first: int | None, last: int | None) -> None:
    """Refuse part sizes without training rows or without test rows.

    If the log names its rows' parts, some part must be held out.

    Args:
        sizes: rows in each part.
        split: the protocol.
        first: the log's earliest time in microseconds; None if it has no times.
        last: its latest time.

    Raises:
        ProtocolError: a part is empty; the message has the sizes of all parts and the log's range.
    """
    has_own_parts = split.holdout == "given"
    tested = sizes.keys() - {TRAIN, GIVEN, LATER} if has_own_parts else {*split.parts}
    empty = [] if has_own_parts or sizes.get(TRAIN) else ["training"]
    empty += [] if sum(sizes.get(part, 0) for part in tested) else ["test"]
    if not empty:
        return
    listed = ", ".join(f"{part} {n:,}" for part, n in sizes.items())
    span = "the log has no times"
    if first is not None and last is not None:
        span = f"the log runs from {_format_time(first)} to {_format_time(last)}"
    hint = {
        "training": "hold out less: a later start, a smaller n or window, smaller shares",
        "test": "hold out more: an earlier start, a longer length, larger shares; give fewer rows",
    }
    message = f"no {' rows and no '.join(empty)} rows ({listed}); {span}"
    ends = None if first is None or last is None or not split.temporal else (first, last)
    raise EmptyPartError(message, hint[empty[0]], ends)


def _format_time(time: int) -> str:
    try:
        return str(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time))
    except OverflowError:
        return f"{time} microseconds from 1970, outside the calendar"


# ------------------------------------------------------------------------------------ facts


def _count_facts(sums: Counter[Any], request: AuditRequest, parts: Parts) -> list[Fact]:
    """Return overlap, and each part's rows, users and items."""
    facts = [Fact("log", "overlap", float(sums["overlap"]), "pairs in more than one row")]
    if request.asks_repeats:
        facts.append(Fact("log", "repeats", float(sums["repeats"]), "trained pairs that are asked"))
    for name, part in parts.items():
        facts += [Fact(name, "rows", float(part.rows)), Fact(name, "content_hash", None, part.content_hash)]
    facts += [*_owner_facts(sums, "user", parts), *_owner_facts(sums, "item", parts)]
    facts += _question_facts(sums, request, parts)
    n_labelled = sum(part.rows for part in parts.values())
    return [*facts, *_suspect_facts(sums, "user", n_labelled), *_suspect_facts(sums, "item", n_labelled)]


def _owner_facts(sums: Counter[Any], owner: str, parts: Parts) -> list[Fact]:
    """Count each part's users (or items), and cold ones."""
    facts = [Fact(part, f"{owner}s", float(sums[f"{owner}s of", part])) for part in parts]
    detail = f"{owner}s without training rows"
    for part in parts:
        if part != TRAIN:
            facts.append(Fact(part, f"cold_{owner}s", float(sums[f"cold {owner}s of", part]), detail))
    return [*facts, Fact("log", f"test_only_{owner}s", float(sums[f"{owner}s", "cold"]))]


def _question_facts(sums: Counter[Any], request: AuditRequest, parts: Parts) -> list[Fact]:
    """Count each held-out part's questions, where a user may have several."""
    held_out = {name: part for name, part in parts.items() if name not in (TRAIN, GIVEN, LATER)}
    if request.in_time:
        return [
            Fact(name, "questions", float(part.rows), "held-out rows") for name, part in held_out.items()
        ]
    if not request.query and not request.by_time:
        return []
    detail = f"users' {'queries' if request.query else 'times'}, each asked alone"
    return [Fact(name, "questions", float(sums[f"questions {name}"]), detail) for name in held_out]


def _suspect_facts(sums: Counter[Any], owner: str, rows: int) -> list[Fact]:
    """Return the rows' shares of suspect ids.

    A suspect id has an extreme share of the log, or is a text for a missing id. A fact stands only if there
    is something to tell: in a log with few ids, large shares are natural.
    """
    facts = []
    for what in ("extreme", "placeholder"):
        suspects = {key[2]: n for key, n in sums.items() if key[:2] == (what, f"{owner}s")}
        few = what == "extreme" and sums[f"{owner}s", "all"] < MANY
        if suspects and not few:
            names = sorted(suspects, key=lambda name: (-suspects[name], name))[:SHOWN_SUSPECTS]
            detail = ", ".join(f"{name!r} {suspects[name]:,} rows" for name in names)
            share = max(suspects.values()) / rows if what == "extreme" else sum(suspects.values()) / rows
            facts.append(Fact("log", f"{what}_{owner}_share", share, f"{detail}, of {rows:,}"))
    return facts


SHOWN_SUSPECTS = 3
"""Number of suspect ids that a fact names."""


def check_suspects(facts: Iterable[Mapping[str, Any]]) -> list[Check]:
    """Return a warning for each fact about suspect ids."""
    whats = {"extreme": "one id has so many rows", "placeholder": "texts that often stand for a missing id"}
    names = {f"{what}_{owner}_share": (what, owner) for what in whats for owner in ("user", "item")}
    checks = []
    for row in facts:
        if row["fact"] in names:
            what, owner = names[row["fact"]]
            detail = f"{whats[what]}: {row['detail']}; {SUSPECT_HINT}"
            bound = audit.EXTREME_SHARE if what == "extreme" else 0.0
            checks.append(Check(f"log: {what} {owner} share", row["value"], bound, "warning", detail))
    return checks


SUSPECT_HINT = "rows without an id are counted as missing only where the id is empty: leave such rows out"


def _drift_facts(sums: Counter[Any], parts: Parts) -> list[Fact]:
    """Compute how far each part's popularity drifts from training.

    The drift is the total variation, 1/2 sum over items of |n_train(i) / n_train - n_part(i) / n_part|: the
    share of a part's rows that would have to move to other items to be distributed as in training. 0 means
    equal, 1 no item in common.
    """
    if TRAIN not in parts:
        return []
    detail = "total variation between item shares of this part and of train"
    # The gaps are whole numbers over the common denominator 2 n_train n_part, so that their sum does not
    # depend on row order.
    return [
        Fact(name, "popularity_drift", sums["gap", name] / (2 * parts[TRAIN].rows * part.rows), detail)
        for name, part in parts.items()
        if name != TRAIN
    ]


def _leakage_facts(sums: Counter[Any], parts: Parts) -> list[Fact]:
    """Count training rows later than the earliest held-out row.

    Two facts compare them with all users' rows, and with the same user's.
    """
    held_out = [part for name, part in parts.items() if name not in NOT_HELD_OUT]
    if TRAIN not in parts or all(part.earliest is None for part in held_out):
        return []
    late = "later than the earliest held-out row"
    own = "training rows later than the user's own earliest held-out row"
    return [
        Fact(TRAIN, "future_rows", float(sums["later"]), f"training rows {late}"),
        Fact(TRAIN, "future_share", sums["later"] / parts[TRAIN].rows, f"share of training rows {late}"),
        Fact(TRAIN, "own_future_rows", float(sums["own_later"]), own),
    ]


# ----------------------------------------------------------------------------------- text


def format_manifest(facts: Sequence[dict[str, Any]]) -> str:
    """Format the manifest for a terminal.

    The table has a row per fact, a column per part, and texts below.
    """
    numbers = [row for row in facts if row["value"] is not None and row["fact"] not in TEXT_FACTS]
    order = {part: place for place, part in enumerate(PART_ORDER)}
    parts = sorted({row["part"] for row in numbers}, key=lambda part: (order.get(part, len(order)), part))
    names = sorted({row["fact"] for row in numbers})
    cells = {(row["fact"], row["part"]): row["value"] for row in facts}
    lines = [["", *parts]]
    lines += [[name, *(_format_value(cells.get((name, part))) for part in parts)] for name in names]
    texts = [f"{row['part']} {row['fact']} {row['detail']}" for row in facts if row["fact"] in TEXT_FACTS]
    return "\n".join([*align_cells(lines), *sorted(texts)])


TEXT_FACTS = ("content_hash", *TIME_FACTS)
"""Facts to read as text."""


PART_ORDER = ("log", TRAIN, GIVEN, "valid", "probe", "quiz", "test", "open_loop", LATER)


def _format_value(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value == int(value) else f"{value:.4f}"
