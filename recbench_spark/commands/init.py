"""Look at a log and write a benchmark file for it.

    recbench init --log ratings.csv
    recbench init --log events.csv --dry-run
    recbench init --log reviews.jsonl --item-column parent_asin --time-unit ms --output books.yaml

CSV, TSV and other separators (compressed or not), blanks, `::`, RecBole's .inter, an object of JSON in each
line, Parquet, Delta, formats of packages; folders of these, of MovieLens, Coat, Yahoo R3, LightGCN and NCF.
It prints which columns it took for users, items, ratings and times, with their values. Where two columns or
two units of time are plausible it chooses none, and names the flag that does. What may be a rating or a
time is taken, or asked for by a flag. It needs no Spark.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from recbench_spark import cli
from recbench_spark.config import make_benchmark
from recbench_spark.errors import OK, ConfigError, DataError

if __name__ != "flags":
    from recbench_spark.commands.benchmark_files import (
        LogDescription,
        describe_events,
        describe_no_rating,
        night_command,
        write_benchmark,
    )
    from recbench_spark.commands.logs import name_log
    from recbench_spark.core.documents import load_yaml
    from recbench_spark.core.text_tables import align_cells
    from recbench_spark.sources.column_names import EVENT_NAMES, strip_name
    from recbench_spark.sources.log_columns import FLAGS, ChosenColumns, choose_columns, may_be_rating
    from recbench_spark.sources.log_files import LogFile, open_log_file
    from recbench_spark.sources.log_values import (
        ColumnFacts,
        count_values,
        find_no_ratings,
        profile_columns,
        share_known_users,
    )


def parser() -> cli.Parser:
    """Make the command's parser."""
    flags = cli.Parser(__doc__ or "")
    add = flags.add_argument
    add("--log", required=True, metavar="PATH", help="interactions: a file, or a folder")
    add("--user-column", metavar="NAME", help="column of user_id")
    add("--item-column", metavar="NAME", help="column of item_id")
    add("--rating-column", metavar="NAME", help="column of rating, or none")
    add("--time-column", metavar="NAME", help="column of event_time, or none")
    add("--time-unit", choices=["s", "ms", "us", "timestamp"], help="unit of the times")
    add("--time-zone", help="zone of times without an offset, such as Europe/Rome (UTC)")
    add("--time-format", metavar="PATTERN", help="pattern of times as text, such as 'MM/dd/yyyy HH:mm'")
    add("--separator", metavar="TEXT", help="separator of fields, such as ';', '\\t' or blanks")
    add("--encoding", help="encoding of text that is not UTF-8, such as cp1252")
    add("--header", choices=["yes", "no"], help="whether the first line has names")
    add("--name", help="name of the benchmark (default: that of the file)")
    add("--output", metavar="FILE", help="benchmark file (default: NAME.yaml)")
    add("--force", action="store_true", help="write over an existing file")
    cli.add_flags(flags, "dry-run", help="print the benchmark file, write nothing")
    return flags


def main(args: argparse.Namespace) -> int:
    """Look at the log, print the choices, write a benchmark.

    The benchmark is a file which runs as it is.
    """
    name = args.name or name_log(args.log)
    cli.check_name(name)
    output = Path(args.output or f"{name}.yaml")
    if output.exists() and not args.force and not args.dry_run:
        raise ConfigError(f"{output} exists", "--force writes over it, --output names another file")
    text = write_benchmark(describe_log(args, name, str(output)))
    make_benchmark(load_yaml(text, str(output)), (), str(output))
    if args.dry_run:
        print(text, end="")
        return OK
    output.write_text(text, encoding="utf-8")
    print(f"wrote {output}; a night of it:")
    print(f"  {night_command(name, str(output))}")
    return OK


def describe_log(args: argparse.Namespace, name: str, output: str) -> LogDescription:
    """Look at the log, and print the columns chosen.

    The chosen columns hold users, items, ratings and times.
    """
    separator = args.separator.replace("\\t", "\t") if args.separator else None
    header = None if args.header is None else args.header == "yes"
    log = open_log_file(args.log, separator, header=header, encoding=args.encoding)
    if not log.names and log.reader != "json":
        print(f"{log.path}: a folder of the reader {log.reader}, divided already")
        return LogDescription(name, output, log)
    rows, broken, columns = profile_columns(log)
    if not rows:
        raise DataError(f"{log.path}: no rows", "check the path")
    flags = {role: getattr(args, flag[2:].replace("-", "_")) for role, flag in FLAGS.items()}
    names = {role: one for role, one in flags.items() if one}
    chosen = choose_columns(log, columns, names, args.time_unit, args.time_format)
    print(describe_choice(log.path, rows, columns, chosen))
    if broken:
        print(f"{broken:,} lines are no rows of {len(columns)} fields")
    if log.note:
        print(log.note)
    rating = chosen.columns.get("rating")
    no_rating = find_no_ratings(log, rating.name) if rating else None
    if no_rating:
        print(f"{describe_no_rating(*no_rating)} Where it does, leave these rows out of the file.")
    known = None
    if time := chosen.columns.get("event_time"):
        known = share_known_users(log, chosen.columns["user_id"].name, time.name, chosen.time_format)
    if chosen.time_format:
        log = replace(log, options={**log.options, "timestampFormat": chosen.time_format})
    return LogDescription(
        name,
        output,
        log,
        rows,
        broken,
        tuple(columns),
        chosen,
        known_users=known,
        no_rating=no_rating,
        time_zone=args.time_zone,
        events=find_events(log, columns, chosen),
    )


def find_events(
    log: LogFile, columns: Sequence[ColumnFacts], chosen: ChosenColumns
) -> tuple[str, tuple[tuple[str, int], ...]] | None:
    """Find a column of few texts which is called like events, and print its counts."""
    taken = {column.name for column in chosen.columns.values()}
    for column in columns:
        few = 1 < column.distinct <= MOST_EVENTS and not column.hundredths
        if column.name not in taken and few and strip_name(column.name) in EVENT_NAMES:
            counts = count_values(log, column.name)
            print(describe_events(column.name, counts))
            return column.name, counts
    return None


MOST_EVENTS = 20
"""Most kinds of events for which lines are proposed."""


def describe_choice(path: str, rows: int, columns: Sequence[ColumnFacts], chosen: ChosenColumns) -> str:
    """Return the evidence for the chosen columns.

    Each chosen column has a row. The other columns are named as well.
    """
    table: list[tuple[str, ...]] = [("", "column", "values", "distinct", "from", "to", "such as")]
    for role in FLAGS:
        column = chosen.columns.get(role)
        table.append((role, *_describe_column(column)) if column else (role, "none", *[""] * 5))
    taken = {column.name for column in chosen.columns.values()}
    rest = [_describe_rest(column, chosen) for column in columns if column.name not in taken]
    notes = [f"unit of times: {chosen.unit}; {chosen.unit_reason}"] if chosen.unit else []
    notes += [f"not taken: {', '.join(rest[:20])}"] if rest else []
    if not chosen.unit:
        notes.append("no times: rows are split at random, by hash")
    return "\n".join([f"{path}: {rows:,} rows", *align_cells(table, right=()), *notes])


def _describe_rest(column: ColumnFacts, chosen: ChosenColumns) -> str:
    """Return the name of a column which was not chosen.

    The flag for ratings follows where the column's values may be ratings.
    """
    if "rating" in chosen.columns or not may_be_rating(column):
        return column.name
    ends = f"{_format(column.lowest)} to {_format(column.highest)}"
    return f"{column.name} ({ends}; as ratings: {FLAGS['rating']} {column.name})"


def _describe_column(column: ColumnFacts) -> tuple[str, ...]:
    is_time = column.first is not None
    lowest = column.first if is_time else _format(column.lowest)
    highest = column.last if is_time else _format(column.highest)
    samples = ", ".join(text[:30] for text in column.samples)
    counts = (f"{column.present:,}", f"{column.distinct:,}")
    return (column.name, *counts, lowest or "", highest or "", samples)


def _format(number: float | None) -> str:
    return "" if number is None else f"{number:.15g}"
