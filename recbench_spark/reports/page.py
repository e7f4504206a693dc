"""Render reports and boards as self-contained HTML pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

import jinja2

from recbench_spark.metrics.kernels.about import FAMILIES
from recbench_spark.reports import phrases
from recbench_spark.reports.advice import group_findings, split_notes
from recbench_spark.reports.boards import BoardFacts, format_spread
from recbench_spark.reports.facts import MultiverseFacts, PairFacts, Report
from recbench_spark.reports.glossary import explain_term, explain_users, list_terms, name_counted
from recbench_spark.reports.leaderboards import list_columns
from recbench_spark.reports.opening import make_opening
from recbench_spark.reports.replays import ReplayFacts
from recbench_spark.reports.scales import Axis, axis_for, find_log_ticks, spread_labels
from recbench_spark.reports.sections import VISIBLE
from recbench_spark.storage.objects import write_text

Place = TypeVar("Place", str, Path)


def render_html(report: Report) -> str:
    """Render a report as one page.

    The page has no scripts and no remote files; equal reports give equal bytes.
    """
    findings, notes = split_notes(report)
    models = dict.fromkeys([*report.models, *(one.model for one in report.compared)])
    colours = {model: f"c{i}" if i < 8 else "c8" for i, model in enumerate(models)}
    return _template("report.html").render(
        report=report,
        colours=colours,
        opening=make_opening(report),
        advice=group_findings(report),
        findings=findings,
        notes=notes,
        terms=list_terms(report),
        user_counts=explain_users(report),
    )


def render_multiverse(title: str, facts: Sequence[MultiverseFacts], pairs: Sequence[PairFacts]) -> str:
    """Render a page about one dataset's protocols."""
    return _template("multiverse.html").render(title=title, multiverse=facts, pairs=pairs)


def render_board(board: BoardFacts) -> str:
    """Render a page about a board."""
    return _template("board.html").render(board=board)


def render_replay(replay: ReplayFacts) -> str:
    """Render a page about a replay of auctions."""
    return _template("replay.html").render(replay=replay)


def _cell(value: object) -> str:
    """Format a table cell.

    A missing value gives an empty cell; a number that is not whole has four decimals.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return (
        phrases.format_decimals(value)
        if isinstance(value, float) and not value.is_integer()
        else str(value)
    )


@cache
def _template(name: str) -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("recbench_spark", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "estimate": phrases.format_estimate,
        "value": phrases.format_value,
        "decimals": phrases.format_decimals,
        "number": phrases.format_number,
        "signed": phrases.format_signed,
        "term": explain_term,
        "counted": name_counted,
        "level": phrases.level_in_words,
        "spread": format_spread,
        "cell": _cell,
        "columns": list_columns,
    }
    environment.globals |= {
        "axis": Axis,
        "axis_for": axis_for,
        "spread": spread_labels,
        "log": math.log,
        "not_shipped": phrases.NOT_SHIPPED,
        "log_ticks": find_log_ticks,
        "isfinite": math.isfinite,
        "visible": VISIBLE,
        "families": FAMILIES,
        "zip": zip,
    }
    return environment.get_template(name)


def write_report(report: Report, place: Place) -> Place:
    """Write a report's page on any storage.

    A reader never sees a half-written file.
    """
    return write_page(render_html(report), place)


def write_page(page: str, place: Place) -> Place:
    """Write a page on any storage, and return its place.

    A reader never sees a half-written file.
    """
    write_text(place, page)  # on a disk, the umask sets who may read it
    return place
