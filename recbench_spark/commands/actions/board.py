"""Update and print the board of a benchmark: the work of `jobs/board.py`."""

from __future__ import annotations

import argparse
from functools import partial

import pandas as pd

from recbench_spark import reports
from recbench_spark.commands.runners import run_job
from recbench_spark.commands.warehouses import require_warehouse
from recbench_spark.config import Benchmark, load_benchmark
from recbench_spark.config.placeholders import fill_placeholders
from recbench_spark.errors import OK, ConfigError
from recbench_spark.night.benchmark_checks import check_benchmark
from recbench_spark.night.runners import choose_job_runner, count_log, count_no_log
from recbench_spark.reports.fits import draw_figures
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import BOARDS, VERDICTS
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.storage.uris import join_uri, link_place
from recbench_spark.tuning.board_update import BoardState, read_shown_fits, read_views, update_board
from recbench_spark.tuning.folds import open_folded_log


def run(args: argparse.Namespace) -> int:
    """Update the board of a benchmark and print it."""
    if not args.warehouse:
        raise ConfigError(
            "--config needs --warehouse", "give the directory that jobs/benchmark.py wrote to"
        )
    benchmark = fill_placeholders(load_benchmark(args.config, args.set), args.logical_date)
    check_benchmark(benchmark)
    require_warehouse(args.warehouse)
    tables = (BOARDS, VERDICTS)
    count = partial(count_log, benchmark) if benchmark.evaluation.task == "rating" else count_no_log
    chosen = choose_job_runner(args.engine, args.warehouse, count, tables)
    return run_job(f"board {benchmark.name}", args, chosen, partial(show_board, args, benchmark))


def show_board(args: argparse.Namespace, benchmark: Benchmark, store: FileTables) -> int:
    """Update the board in a warehouse, print it and write its page."""
    rating = benchmark.evaluation.task == "rating"
    log = open_folded_log(store, benchmark, Journal()) if rating else None
    fits = read_shown_fits(store, log) if log else pd.DataFrame()
    board = update_board(store, benchmark, log)
    facts = board_facts(store, board, fits)
    print(reports.board_text(facts))
    if args.paired:
        print(f"\n{reports.pairs_text(board.name, board.entries)}")
    if store.is_file_storage:
        place = join_uri(store.root, "reports", f"board-{facts.name}.html")
        reports.write_page(reports.render_board(facts), place)
        print(f"report: {link_place(place)}")
    return OK


def board_facts(store: FileTables, board: BoardState, fits: pd.DataFrame) -> reports.BoardFacts:
    """Return the content of the board page."""
    trials = {model: one.to_search_trials() for model, one in board.searches.items()}
    searches = {model: search for model, search in trials.items() if search is not None}
    views, figures = read_views(store, board.name), draw_figures(fits)
    return reports.make_board(
        board.name, board.entries, board.verdicts, searches, views, figures=figures, held_back=board.held
    )
