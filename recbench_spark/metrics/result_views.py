"""Views on a result's numbers: wide table, LaTeX, HTML, picture."""

from __future__ import annotations

import html
from collections.abc import Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from recbench_spark.core.checks import Check
from recbench_spark.core.extras import explain_missing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LATEX_SIGNS = str.maketrans(
    {sign: f"\\{sign}" for sign in "&%$#_{}"} | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}"}
)
"""Signs with another meaning in LaTeX."""


def name_figure(metric: str, k: int | None) -> str:
    """Return `ndcg@10`, or `ndcg` for the whole ranking.

    >>> name_figure("ndcg", 10), name_figure("map", None)
    ('ndcg@10', 'map')
    """
    return metric if k is None or pd.isna(k) else f"{metric}@{int(k)}"


def escape_latex(text: str) -> str:
    """Escape a text for LaTeX.

    >>> escape_latex("item_knn")
    'item\\\\_knn'
    """
    return text.translate(LATEX_SIGNS)


def add_figures(numbers: pd.DataFrame) -> pd.DataFrame:
    """Add columns `figure`, such as `ndcg@10`, and `model` where missing."""
    figures = [name_figure(*pair) for pair in zip(numbers["metric"], numbers["k"], strict=True)]
    twice = numbers.groupby("metric").definition.nunique().gt(1)
    labels = [
        f"{figure} ({definition})" if twice[metric] else figure
        for figure, metric, definition in zip(figures, numbers.metric, numbers.definition, strict=True)
    ]
    return numbers.assign(figure=labels, model=numbers.get("model", "value"))


def pivot(numbers: pd.DataFrame) -> pd.DataFrame:
    """Return a row per model and a column per figure.

    Columns are in the order of the numbers.
    """
    rows = add_figures(numbers)
    wide = rows.pivot(index="model", columns="figure", values="value")
    return wide.loc[rows["model"].unique(), rows["figure"].unique()].rename_axis(columns=None)


def to_latex(numbers: pd.DataFrame, digits: int) -> str:
    """Return a LaTeX table: models as rows, figures as columns.

    Cells hold the value and half the interval's width.
    """
    rows = add_figures(numbers)
    half = (rows["ci_high"] - rows["ci_low"]) / 2
    cells = [_format_cell(*pair, digits) for pair in zip(rows["value"], half, strict=True)]
    wide = rows.assign(cell=cells).pivot(index="model", columns="figure", values="cell")
    wide = wide.loc[rows["model"].unique(), rows["figure"].unique()].fillna("--")
    lines = [" & ".join([escape_latex(str(model)), *row]) + r" \\" for model, *row in wide.itertuples()]
    return wrap_latex(list(wide.columns), lines, "Values with half the width of their interval.")


def _format_cell(value: float, half: float, digits: int) -> str:
    if pd.isna(value):
        return "--"
    return f"{value:.{digits}f}" + ("" if pd.isna(half) else rf" $\pm$ {half:.{digits}f}")


def wrap_latex(columns: Sequence[str], lines: Sequence[str], caption: str) -> str:
    """Return a LaTeX table from head, lines and caption.

    The caption is escaped already.
    """
    head = " & ".join(["", *map(escape_latex, columns)]) + r" \\"
    layout = rf"\begin{{tabular}}{{l{'r' * len(columns)}}}"
    opening = [r"\begin{table}", r"\centering", rf"\caption{{{caption}}}", layout, r"\toprule"]
    ending = [r"\bottomrule", r"\end{tabular}", r"\end{table}", ""]
    return "\n".join([*opening, head, r"\midrule", *lines, *ending])


def to_html(numbers: pd.DataFrame, checks: Sequence[Check]) -> str:
    """Return HTML tables: values, intervals, and failed checks."""
    wide = pivot(numbers)
    shown = numbers.assign(k=numbers["k"].astype("string").fillna(""))
    parts = [wide.to_html(float_format="{:.4f}".format, na_rep="", border=0)]
    long = shown.to_html(index=False, float_format="{:.4f}".format, na_rep="", border=0)
    parts.append(f"<details><summary>intervals and definitions</summary>{long}</details>")
    parts += [f"<p><b>{html.escape(c.summary_line())}</b></p>" for c in checks if not c.passed]
    return "\n".join(parts)


def plot(numbers: pd.DataFrame) -> Figure:
    """Draw one panel per metric: values by cut-off, with intervals.

    A dashed line stands for a value without a cut-off.
    """
    with explain_missing():
        from matplotlib.figure import Figure as Canvas  # noqa: PLC0415

    rows = add_figures(numbers)
    metrics = list(rows["metric"].unique())
    figure = Canvas(figsize=(3.2 * len(metrics), 3.0), layout="constrained")
    panels = figure.subplots(1, len(metrics), squeeze=False)[0]
    for panel, metric in zip(panels, metrics, strict=True):
        of_metric = rows[rows["metric"] == metric]
        for number, model in enumerate(rows["model"].unique()):
            part = of_metric[of_metric["model"] == model]
            at_k, whole = part[part["k"].notna()], part[part["k"].isna()]
            k, value, low, high = at_k[["k", "value", "ci_low", "ci_high"]].to_numpy(dtype=float).T
            reach = np.nan_to_num(np.stack([value - low, high - value])).clip(min=0)
            style = {"marker": "o", "capsize": 2, "color": f"C{number}", "label": str(model)}
            panel.errorbar(k, value, yerr=reach, **style)
            for value in whole["value"]:
                panel.axhline(value, linestyle="--", linewidth=1, color=f"C{number}")
        panel.set_title(str(metric))
        panel.set_xlabel("k")
    if "model" in numbers:
        panels[0].legend()
    return figure


def save_figure(figure: Figure, path: str | PathLike[str] | None) -> Figure:
    """Return a picture; write it where a path is given."""
    if path is not None:
        figure.savefig(fspath(path))
    return figure


def write_text(text: str, path: str | PathLike[str] | None) -> str:
    """Return a text; write it where a path is given."""
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text
