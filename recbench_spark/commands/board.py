"""Rank published and own results, with verdicts on baselines.

    recbench board --config movielens_10m_rating --set dataset.path=DIR --warehouse DIR
    recbench board --config movielens_1m_rating --set dataset.path=DIR --warehouse DIR --paired
    recbench board --published ml10m_rmse

The job adds results of `recbench benchmark` that cover all folds (or, for a benchmark that ranks, the
headlines of `recbench nightly`) and the published rows of the board that the file names. It judges every
row and writes a page (WAREHOUSE/reports/board-NAME.html if the warehouse is local).
--paired compares every two rows over the same folds: differences by fold, Student's t, p with Holm's
correction.
--published judges a published table alone, without Spark.
"""

from __future__ import annotations

import argparse
from functools import partial

from recbench_spark import cli
from recbench_spark.config import Benchmark, load_benchmark
from recbench_spark.errors import OK, ConfigError

if __name__ != "flags":
    import pandas as pd

    from recbench_spark import reports
    from recbench_spark.boards.entries import judge_entries, make_published_entries
    from recbench_spark.boards.published import load_published_board
    from recbench_spark.commands.runners import run_job
    from recbench_spark.commands.warehouses import require_warehouse
    from recbench_spark.config.placeholders import fill_placeholders
    from recbench_spark.night.benchmark_checks import check_benchmark
    from recbench_spark.night.runners import choose_job_runner, count_log, count_no_log
    from recbench_spark.reports.fits import draw_figures
    from recbench_spark.runtime.journal import Journal
    from recbench_spark.schemas import BOARDS, VERDICTS
    from recbench_spark.storage.file_tables import FileTables
    from recbench_spark.storage.uris import link_place
    from recbench_spark.tuning.board_update import BoardState, read_shown_fits, read_views, update_board
    from recbench_spark.tuning.folds import open_folded_log


def parser() -> cli.Parser:
    """Make the command's parser."""
    flags = cli.Parser(__doc__ or "")
    add = flags.add_argument
    source = flags.add_mutually_exclusive_group(required=True)
    cli.add_flags(source, "config", required=False)
    source.add_argument("--published", metavar="BOARD", help="a published board, without a warehouse")
    cli.add_flags(flags, "warehouse", required=False)
    add("--paired", action="store_true", help="compare every two rows fold by fold as well")
    cli.add_flags(flags, "set", "logical-date", "engine")
    return flags


def main(args: argparse.Namespace) -> int:
    """Judge a published table or update a board; print it."""
    if args.published:
        return print_published_board(args.published, paired=args.paired)
    if not args.warehouse:
        raise ConfigError(
            "--config needs --warehouse", "give the directory that recbench benchmark wrote to"
        )
    benchmark = fill_placeholders(load_benchmark(args.config, args.set), args.logical_date)
    check_benchmark(benchmark)
    require_warehouse(args.warehouse)
    tables = (BOARDS, VERDICTS)
    count = partial(count_log, benchmark) if benchmark.evaluation.task == "rating" else count_no_log
    chosen = choose_job_runner(args.engine, args.warehouse, count, tables)
    return run_job(f"board {benchmark.name}", args, chosen, partial(show_board, args, benchmark))


def show_board(args: argparse.Namespace, benchmark: Benchmark, store: FileTables) -> int:
    """Update a warehouse's board, print it and write its page."""
    rating = benchmark.evaluation.task == "rating"
    log = open_folded_log(store, benchmark, Journal()) if rating else None
    fits = read_shown_fits(store, log) if log else pd.DataFrame()
    board = update_board(store, benchmark, log)
    facts = board_facts(store, board, fits)
    print(reports.board_text(facts))
    if args.paired:
        print(f"\n{reports.pairs_text(board.name, board.entries)}")
    if place := store.file_place("reports", f"board-{facts.name}.html"):
        reports.write_page(reports.render_board(facts), place)
        print(f"report: {link_place(place)}")
    return OK


def board_facts(store: FileTables, board: BoardState, fits: pd.DataFrame) -> reports.BoardFacts:
    """Return the board page's content."""
    trials = {model: one.to_search_trials() for model, one in board.searches.items()}
    searches = {model: search for model, search in trials.items() if search is not None}
    views, figures = read_views(store, board.name), draw_figures(fits)
    return reports.make_board(
        board.name, board.entries, board.verdicts, searches, views, figures=figures, held_back=board.held
    )


def print_published_board(name: str, *, paired: bool) -> int:
    """Print a published board with its verdicts.

    Raises:
        ConfigError: no such board, or `paired`.
    """
    if paired:
        raise ConfigError("--paired needs --config: a published table has no values of folds", "see --help")
    entries = make_published_entries(load_published_board(name))
    entries.sort(key=lambda one: (one.part or "", one.value if one.lower_is_better else -one.value))
    facts = reports.make_board(name, entries, judge_entries(entries, {}, {}), {}, {})
    print(reports.board_text(facts))
    return OK
