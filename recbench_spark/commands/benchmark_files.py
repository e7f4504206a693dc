"""Write benchmark files with comments explaining each line and value."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from recbench_spark.config import Split, make_age_gate
from recbench_spark.sources.column_names import TARGET_NAMES, strip_name
from recbench_spark.sources.log_columns import ChosenColumns
from recbench_spark.sources.log_files import LogFile
from recbench_spark.sources.log_values import ColumnFacts


@dataclass(frozen=True)
class LogDescription:
    """A log and the facts seen in it.

    A benchmark file is written from them.

    Attributes:
        name: the benchmark's name.
        output: path for the benchmark file.
        log: the file and its reader.
        rows: number of rows.
        broken: number of lines which are no rows.
        columns: facts about all columns.
        chosen: the columns for users, items, ratings and times; None for a folder already divided.
        known_users: share of users with earlier rows among those in the last fifth by time; None without
            times.
        time_zone: the caller's zone for times without an offset.
        no_rating: a value which usually means "no rating", and its rows.
        events: a column with events, and each of them with its rows, the most frequent first.
    """

    name: str
    output: str
    log: LogFile
    rows: int = 0
    broken: int = 0
    columns: tuple[ColumnFacts, ...] = ()
    chosen: ChosenColumns | None = None
    known_users: float | None = None
    time_zone: str | None = None
    no_rating: tuple[float, int] | None = None
    events: tuple[str, tuple[tuple[str, int], ...]] | None = None


FEW_KNOWN = 0.5
"""Share of known users below which a cut at one time would measure little but unknown users."""

RANKS = """\
models: # every kind and its settings: docs of the models in recbench_spark/models/settings.py
  - {name: random, kind: random}
  - {name: popular, kind: popular}
  - {name: item_knn, kind: item_knn, neighbours: 100}
  - {name: als, kind: als, rank: 32, iterations: 15, regularization: 0.05, alpha: 10}
"""


def night_command(name: str, output: str) -> str:
    """Return the command line which runs a benchmark file's night."""
    paths = f"--config {shlex.quote(output)} --warehouse warehouse/{name}"
    return f"recbench nightly {paths} --logical-date {date.today()}"


def write_benchmark(described: LogDescription) -> str:
    """Return the text for a benchmark file."""
    name, log = described.name, described.log
    head = [
        f"# Written by `recbench init` for {log.path}",
        f"# A night of it: {night_command(name, described.output)}",
        f"name: {_text(name)}",
        f"description: {_text(_describe(described))}",
        "dataset:",
        f"  name: {_text(name)}",
        f"  reader: {log.reader}",
        f"  path: {_text(log.path)}",
        *_write_dataset(described),
        *_write_split(described),
    ]
    return "\n".join([*head, RANKS + _write_evaluation(described) + _write_gates(described)])


def _text(text: str) -> str:
    """Return a text as YAML, in double quotes."""
    return json.dumps(text, ensure_ascii=False)


def _describe(described: LogDescription) -> str:
    if described.chosen is None:
        return f"the parts of {described.log.reader} as its files give them"
    return f"{described.rows:,} rows of {described.log.path.rsplit('/', 1)[-1]}"


def _write_dataset(described: LogDescription) -> list[str]:
    """Return the lines on columns, options, times and missing values."""
    chosen, log = described.chosen, described.log
    if chosen is None:
        return []
    lines = ["  columns:"]
    lines += [f"    {role}: {_text(one.name)} # {_comment(one)}" for role, one in chosen.columns.items()]
    lines += [f'    {role}: "" # none: a column of this name is not read' for role in chosen.unread]
    if "rating" not in chosen.columns:
        lines.append("    # no rating: every row counts as 1")
    if described.no_rating:
        lines.append(f"    # {describe_no_rating(*described.no_rating)}")
    lines += _propose_events(*described.events) if described.events else []
    if log.note:
        lines.append(f"  # {log.note}")
    if log.options:
        lines.append("  options: # of Spark's reader")
        lines += [f"    {key}: {_text(value)}" for key, value in log.options.items()]
    lines += _write_times(described, chosen)
    bad = _count_bad_rows(described, chosen)
    if bad:
        lines.append(f"  bad_rows: reject # {bad}: left out, counted, kept in the table rejects")
    taken = {one.name for one in chosen.columns.values()}
    others = (one for one in described.columns if 1 < one.distinct <= 20 and not one.numbers)
    if one := next((one for one in others if one.name not in taken), None):
        lines.append(f"  # attributes: [{_text(one.name)}] # kept for slices; it has {_comment(one)}")
    return lines


def describe_events(column: str, counts: Sequence[tuple[str, int]]) -> str:
    """Return a sentence on the events of a column."""
    return f"{column}: {', '.join(f'{name} {rows:,}' for name, rows in counts)} rows; all count alike."


def _propose_events(column: str, counts: Sequence[tuple[str, int]]) -> list[str]:
    """Return lines to choose from: one event alone, or a weight for each."""
    names = [name for name, _ in counts]
    known = (name for usual in TARGET_NAMES for name in names if usual in strip_name(name))
    target = next(known, names[-1])
    weights = [*(name for name in names if name != target), target]
    worth = ", ".join(f"{_text(name)}: {n}" for n, name in enumerate(weights, 1))
    return [
        f"  # {describe_events(column, counts)} Choose one of these lines:",
        f"  # where: [{{column: {_text(column)}, in: [{_text(target)}]}}] # no other rows count",
        f"  # events: {{column: {_text(column)}, weights: {{{worth}}}, targets: [{_text(target)}]}}"
        " # only targets are asked, all train",
    ]


def describe_no_rating(code: float, rows: int) -> str:
    """Return a sentence on a value usually meaning "no rating"."""
    return f"Rating {code:g} ({rows:,} rows) usually means no rating; it counts as any other."


def _count_bad_rows(described: LogDescription, chosen: ChosenColumns) -> str:
    """Return the counts of broken lines and incomplete rows.

    Rows with missing values are incomplete. Without such rows, the text is empty.
    """
    rows, broken = described.rows, described.broken
    parts = [f"{broken:,} lines that are no rows"] if broken else []
    gaps = [one for one in chosen.columns.values() if one.present < rows]
    return ", ".join([*parts, *(f"{rows - one.present:,} rows without {one.name}" for one in gaps)])


def _comment(column: ColumnFacts) -> str:
    """Return a one-line comment on a column."""
    samples = " ".join(", ".join(text[:30] for text in column.samples).split())
    return f"{column.distinct:,} values such as {samples}"


def _write_times(described: LogDescription, chosen: ChosenColumns) -> list[str]:
    if chosen.unit is None:
        return []
    lines = [f"  time_unit: {chosen.unit} # {chosen.unit_reason}"]
    zoneless = chosen.unit == "timestamp" and not chosen.has_offsets
    if zoneless or described.time_zone:
        reason = " # of times without an offset" if zoneless else ""
        lines.append(f"  time_zone: {_text(described.time_zone or 'UTC')}{reason}")
    return lines


def _write_split(described: LogDescription) -> list[str]:
    """Return the section `split`.

    A log with times is split by time, another log by hash. A folder already divided keeps its parts.
    """
    if described.chosen is None:
        return ["split:", "  protocol: given # the files name the part of each row"]
    if described.known_users is None:
        lines = ["  protocol: RO_RS # no times: rows are put in order by hash, in each user's rows"]
    elif described.known_users < FEW_KNOWN:
        share = f"{described.known_users:.0%}"
        lines = [
            f"  # Of the users of the last fifth, by time, {share} have earlier rows: one cut for all",
            "  # would measure unknown users. Each user's last rows are held out; others' may be later.",
            "  protocol: TO_RS",
        ]
    else:
        share = f"{described.known_users:.0%}"
        lines = [
            "  # One cut for all users: nothing of the future trains a model. Of the users after it",
            f"  # {share} are known.",
            "  order: temporal",
            "  holdout: ratio",
            "  group: global",
        ]
    return ["split:", *lines, "  ratio: [0.8, 0.0, 0.2] # train, valid, test", "  seed: 42"]


OPEN_LOOPS = ("coat", "yahoo_r3")
"""Readers of logs whose items were shown at random in the tested part."""

RULES = """\
gates: # each warns; `action: fail` ends the night with exit code 3
  # The log against that of the night before:
  - {fact: rows, moved: 0.1, action: warn}
  - {fact: users, moved: 0.1, action: warn}
  - {fact: items, moved: 0.1, action: warn}
"""

TIME_RULES = """\
  # No new row, times read in another way (not for a log that loses its oldest rows), rows of the future:
  - {fact: newest_event, part: log, still: true, action: warn}
  - {fact: oldest_event, part: log, moved: 0, action: warn}
  - {fact: newest_age_days, part: log, below: 0, action: warn}
"""

REGRESSIONS = """\
# Each model against its night before: a certain fall ends the job with exit code 4, a large rise is
# called too good.
comparisons: {{}}
regressions:
  - {{metric: ndcg, k: 10, {part}drop: 0.002, certain: true, rise: 0.05}}
  - {{metric: recall, k: 20, {part}drop: 0.002, certain: true}}
"""

INTERVALS = """\
  # A certain fall has an interval below 0. Each of {models} models is compared by each of {rules} rules: at
  # this level, 1 - 0.05 / {comparisons}, at most one of 40 nights without a fall alarms.
  bootstrap: {{level: {level}}}
"""


def write_intervals(models: int) -> str:
    """Return the lines that bound a night's false alarms.

    Alarms are one-sided; their probabilities add up to at most .025, however models depend (Bonferroni).

    >>> print(write_intervals(4).splitlines()[-1])
      bootstrap: {level: 0.9938}
    """
    rules = REGRESSIONS.count("certain: true")
    level = math.ceil(1e4 - 5e2 / (models * rules)) / 1e4
    return INTERVALS.format(models=models, rules=rules, comparisons=models * rules, level=level)


def _write_gates(described: LogDescription) -> str:
    """Return the sections `gates`, `comparisons` and `regressions`.

    A log with times may have stopped: a gate warns about this.
    """
    rules = REGRESSIONS.format(part="part: open_loop, " if described.log.reader in OPEN_LOOPS else "")
    if described.known_users is None:
        return RULES + rules
    gate = make_age_gate(Split())
    age = (
        f"  - {{fact: {gate.fact}, part: {gate.part}, above: {gate.above:g}, action: {gate.action}}} "
        "# days from the newest row to the end of the night's day; raise it for a log that does not grow\n"
    )
    return RULES + TIME_RULES + age + rules


def _write_evaluation(described: LogDescription) -> str:
    reader, chosen = described.log.reader, described.chosen
    lines = ["evaluation:", "  metrics: [hit, mrr, ndcg, recall]", "  k: [5, 10, 20]"]
    if reader in OPEN_LOOPS:
        lines.append("  parts: [open_loop] # items that were shown at random")
    if reader == "ncf":
        lines.append("  definition: {candidates: given} # the negatives that the files list")
    rating = chosen.columns.get("rating") if chosen else None
    if rating is not None and rating.distinct > 1:
        middle = _choose_threshold(rating, described.no_rating)
        lines.append(f"  # definition: {{threshold: {middle:g}}} # only ratings from here on are relevant")
    lines += ["  slices:", "    - {key: popularity, of: popularity}"]
    lines += [f"{write_intervals(RANKS.count('kind: '))}headline: ndcg@10", ""]
    return "\n".join(lines)


def _choose_threshold(rating: ColumnFacts, no_rating: tuple[float, int] | None) -> float:
    """Return a comment's threshold, near four fifths of the scale."""
    assert rating.lowest is not None and rating.highest is not None
    highest = 10.0 if no_rating and no_rating[0] == rating.highest else rating.highest  # Jester's 99
    return round(2 * (0.8 * highest + 0.2 * max(rating.lowest, 0))) / 2
