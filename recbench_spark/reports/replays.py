"""Show a replay of auctions as a page.

It has yield against operating point, and below it the share of cases. The frame has rows of the table
`replays`, for one run of each model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from recbench_spark.reports.fits import can_draw, make_figure, render_svg

if TYPE_CHECKING:  # pages without drawings need no matplotlib
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE = (8.6, 6.4)
SETTINGS = ("exponent", "main_floor", "main_slots", "reserve", "side_slots")
CASES = {
    "share_same_slot": "same slot: the pair's own click rate",
    "share_other_slot": "another slot: moved along the curve",
    "share_unseen": "unseen pair: the slot's reference rate",
}
YIELDS = {
    "click_yield": "Ad clicks a page view",
    "main_line_yield": "Main-line clicks a page view",
}
"""Metrics to draw, with their titles."""
TABLE = ("model", "other", "point", "metric", "unseen", "value", "ci_low", "ci_high")


@dataclass(frozen=True)
class ReplayFacts:
    """Everything a replay's page shows.

    Attributes:
        name: the replay file's name.
        figures: title and SVG of each figure.
        table: rows of `replays` by operating point.
        slots: reference rates and position curve by slot.
        notes: the checks' sentences.
    """

    name: str
    figures: tuple[tuple[str, str], ...]
    table: pd.DataFrame
    slots: pd.DataFrame
    notes: tuple[str, ...]


def make_replay_facts(name: str, rows: pd.DataFrame, notes: Sequence[str]) -> ReplayFacts:
    """Make a page's content from rows of `replays`."""
    drawn = YIELDS.items() if can_draw() else ()
    figures = [
        (title, render_svg(plot_yields(rows, metric)))
        for metric, title in drawn
        if ((rows.metric == metric) & rows.point.notna()).any()
    ]
    table = rows[rows.slot.isna()].reindex(columns=list(TABLE))
    columns = ["metric", "slot", "reference_slot", "value", "ci_low", "ci_high"]
    slots = rows[rows.slot.notna()].reindex(columns=columns)
    return ReplayFacts(name, tuple(figures), table, slots, tuple(notes))


def plot_yields(rows: pd.DataFrame, metric: str) -> Figure:
    """Plot a yield against the operating point.

    Each model has a curve with a band, and the cases stand below. The logged policy is a grey line.
    Points are in the order of their settings.
    """
    own = rows[rows.other.isna() & (rows.unseen.isna() | (rows.unseen == "reference"))]
    points = own[own.point.notna()].drop_duplicates("point").sort_values(list(SETTINGS))
    place = {point: n for n, point in enumerate(points.point)}
    figure = make_figure(SIZE)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    _draw_curves(above, own[own.metric == metric], place)
    unit = "users" if own.definition.str.contains("resample=user").any() else "queries"
    above.set_ylabel(f"{metric.replace('_', ' ')}\nbands: bootstrap intervals over {unit}")
    _draw_cases(below, own, place)
    below.set_xticks(range(len(place)), _label_points(points), rotation=30, ha="right", fontsize=8)
    return figure


def _draw_curves(axes: Axes, rows: pd.DataFrame, place: dict[str, int]) -> None:
    logged = rows[rows.point.isna()]
    for value in logged.value.dropna():
        axes.axhline(value, color="grey", linewidth=1, linestyle="--", label="logged")
    for model, curve in rows[rows.point.notna()].groupby("model", sort=True):
        at = curve.assign(place=curve.point.map(place)).sort_values("place")
        (line,) = axes.plot(at.place, at.value.astype(float), "o-", markersize=4, label=str(model))
        low, high = (at[name].astype(float) for name in ("ci_low", "ci_high"))
        axes.fill_between(at.place, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    axes.legend(frameon=False)
    axes.grid(alpha=0.25)


def _draw_cases(axes: Axes, rows: pd.DataFrame, place: dict[str, int]) -> None:
    """Draw stacked bars of the cases, models side by side."""
    shares = rows[rows.metric.isin(list(CASES))]
    models = sorted(shares.model.unique())
    width = 0.8 / max(len(models), 1)
    for n, model in enumerate(models):
        bottom = np.zeros(len(place))
        for c, (case, label) in enumerate(CASES.items()):
            mine = shares[(shares.model == model) & (shares.metric == case)].set_index("point").value
            height = np.array([float(mine.get(point, np.nan)) for point in place])
            where = np.arange(len(place)) + (n - (len(models) - 1) / 2) * width
            style: dict[str, Any] = {"color": f"C{c + 4}", "label": None if n else label}
            axes.bar(where, height, 0.92 * width, bottom=bottom, **style)
            bottom += np.nan_to_num(height)
    axes.set_ylim(0, 1)
    axes.set_ylabel(f"share of ads shown\n{', '.join(models)}")
    axes.legend(framealpha=0.9, fontsize=8, loc="lower right")


def _label_points(points: pd.DataFrame) -> list[str]:
    """Name each point by the settings that vary."""
    varied = [name for name in SETTINGS if points[name].nunique() > 1] or ["exponent"]
    return [
        ", ".join(f"{name.replace('_', ' ')} {row[name]:g}" for name in varied)
        for row in points[list(SETTINGS)].astype(float).to_dict("records")
    ]
