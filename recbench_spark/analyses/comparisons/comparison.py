"""A comparison of models as its caller sees it: rows, a table for a paper, a picture, a record in JSON."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import date
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recbench_spark import __version__
from recbench_spark.core.checks import Check
from recbench_spark.core.extras import explain_missing
from recbench_spark.metrics.result import ShownTable
from recbench_spark.metrics.result_views import (
    escape_latex,
    name_figure,
    save_figure,
    wrap_latex,
    write_text,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = (
    *("part", "metric", "k", "model", "other", "value", "other_value", "difference", "ci_low", "ci_high"),
    *("p_t", "p_holm", "p_randomisation", "p_bootstrap", "p_wilcoxon", "detectable", "verdict"),
    *(
        "users",
        "wins",
        "ties",
        "losses",
        "only_model",
        "only_other",
        "effect",
        "stderr",
        "p_bh",
        "definition",
    ),
)
"""Columns of a comparison in the order in which they are shown."""

BETTER, WORSE = "+", "-"
"""Marks of a table for a paper."""


@dataclass(frozen=True, repr=False)
class Comparison:
    """Paired differences between models, each over the users of both.

    Attributes:
        differences: a row for each model, part, metric and cut-off: values, difference, interval,
            p-values, `p_holm` over the family, wins, ties and losses of users, users of one side, and
            `detectable`: the true difference that such a test finds four times in five.
        slices: the same differences by slices of users (`local_comparisons.OUTCOMES`).
        family: the tests over which `p_holm` is adjusted, in words.
        checks: facts about the inputs, such as users of one side alone.
        baseline: the model that all others are compared with.
        lower: metrics that are best when small.
        settings: level, replicates, seed and the smallest difference that matters.
    """

    differences: ShownTable
    slices: ShownTable
    family: str
    checks: list[Check]
    baseline: str
    lower: tuple[str, ...]
    settings: Mapping[str, Any]

    def to_pandas(self) -> pd.DataFrame:
        """Return the differences, one row each."""
        frame: pd.DataFrame = self.differences.select(SHOWN).to_pandas().astype({"k": "Int64"})
        return frame

    def is_certain(self) -> pd.Series[bool]:
        """Return for each difference whether its p by Holm is below 1 - level."""
        certain: pd.Series[bool] = self.to_pandas()["p_holm"] < 1 - self.settings["level"]
        return certain

    def find_marks(self) -> list[str]:
        """Return the mark of each difference: + better, - worse than the baseline, or none."""
        frame = self.to_pandas()
        sign = np.where(frame.metric.isin(self.lower), -1.0, 1.0)
        better = frame.difference * sign > 0
        marks = np.where(better, BETTER, WORSE)
        shown: list[str] = np.where(self.is_certain(), marks, "").tolist()
        return shown

    def describe_test(self) -> str:
        """Return the test, its family and the number of users in one sentence."""
        users = self.to_pandas().users
        n = f"{users.min():,}" if users.min() == users.max() else f"{users.min():,} to {users.max():,}"
        alpha = f"{1 - self.settings['level']:.3g}"
        return f"Two-sided paired t-test over {n} users, p by Holm below {alpha} over {self.family}."

    def to_latex(self, path: str | PathLike[str] | None = None, digits: int = 4) -> str:
        """Return a table of values for a paper, with marks that its caption explains; it needs booktabs.

        Where a model was compared on other users than another, its cells hold the value of the baseline on
        these users in parentheses.

        Args:
            path: file that the text is also written to.
            digits: digits behind the point.
        """
        frame = self._add_cells(digits)
        columns = list(dict.fromkeys(frame.figure))
        # A baseline with one value in each column has a row of its own.
        alone = bool((frame.groupby("figure").other_value.nunique(dropna=False) == 1).all())
        lines = []
        if alone:
            first = frame.drop_duplicates("figure").set_index("figure").other_value
            lines.append(self._write_line(self.baseline, [f"{first[name]:.{digits}f}" for name in columns]))
        for model in dict.fromkeys(frame.model):
            own = frame[frame.model == model].set_index("figure")
            cells = [
                (own.cell[name] if alone else own.cell[name] + f" ({own.other_value[name]:.{digits}f})")
                if name in own.index
                else "--"
                for name in columns
            ]
            lines.append(self._write_line(str(model), cells))
        legend = (
            rf"$^{{{BETTER}}}$ better, $^{{{WORSE}}}$ worse than {escape_latex(self.baseline)}. "
            + escape_latex(self.describe_test())
        )
        return write_text(wrap_latex(columns, lines, legend), path)

    def _add_cells(self, digits: int) -> pd.DataFrame:
        frame = self.to_pandas()
        parts = frame.part.nunique() > 1
        keys = zip(frame["metric"], frame["k"], frame["part"], strict=True)
        figures = [name_figure(metric, k) + (f" {part}" if parts else "") for metric, k, part in keys]
        marks = self.find_marks()
        cells = [
            f"{value:.{digits}f}" + (f"$^{{{mark}}}$" if mark else "")
            for value, mark in zip(frame.value, marks, strict=True)
        ]
        return frame.assign(figure=figures, cell=cells)

    @staticmethod
    def _write_line(model: str, cells: list[str]) -> str:
        return " & ".join([escape_latex(model), *cells]) + r" \\"

    def plot(self, path: str | PathLike[str] | None = None) -> Figure:
        """Draw each difference with its interval, beside 0 and the smallest difference that matters.

        Args:
            path: file that the picture is also written to; its ending decides the format.
        """
        with explain_missing():
            from matplotlib.figure import Figure as Canvas  # noqa: PLC0415

        frame = self._add_cells(4).assign(certain=self.is_certain())
        names = list(dict.fromkeys(frame.figure))
        models = list(dict.fromkeys(frame.model))
        figure = Canvas(figsize=(3.4 * len(names), 1.2 + 0.35 * len(models)), layout="constrained")
        panels = figure.subplots(1, len(names), squeeze=False, sharey=True)[0]
        minimum = self.settings["minimum_difference"]
        for panel, name in zip(panels, names, strict=True):
            own = frame[frame.figure == name]
            at = [models.index(model) for model in own.model]
            mean, low, high = (own[c].to_numpy(dtype=float) for c in ("difference", "ci_low", "ci_high"))
            reach = np.nan_to_num(np.stack([mean - low, high - mean])).clip(min=0)
            panel.axvline(0, color="0.6", linewidth=1)
            if minimum:
                panel.axvspan(-minimum, minimum, color="0.92")
            panel.errorbar(mean, at, xerr=reach, fmt="none", ecolor="C0", capsize=3)
            colours = np.where(own.certain.to_numpy(dtype=bool), "C0", "white")
            panel.scatter(mean, at, c=colours, edgecolors="C0", zorder=3)
            panel.set_title(str(name))
            panel.set_xlabel(f"difference from {self.baseline}")
        panels[0].set_yticks(range(len(models)), [str(model) for model in models])
        panels[0].invert_yaxis()
        return save_figure(figure, path)

    def to_record(self) -> dict[str, Any]:
        """Return the comparison as values that JSON holds; numbers keep all their digits."""
        return {
            "version": __version__,
            "baseline": self.baseline,
            "family": self.family,
            "settings": dict(self.settings),
            "differences": [_make_plain(row) for row in self.differences.select(SHOWN).to_pylist()],
            "slices": [_make_plain(row) for row in self.slices.to_pylist()],
            "checks": [{**asdict(check), "passed": check.passed} for check in self.checks],
        }

    def save(self, folder: str | PathLike[str]) -> list[Path]:
        """Write the differences and slices as Parquet, all of it as JSON, and the table for a paper.

        Args:
            folder: it is made where it does not exist; files of these names are replaced.
        """
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        pq.write_table(self.differences.table, place / "differences.parquet")
        pq.write_table(self.slices.table, place / "slices.parquet")
        text = json.dumps(self.to_record(), indent=2)
        (place / "comparison.json").write_text(text, encoding="utf-8")
        self.to_latex(place / "comparison.tex")
        names = ("differences.parquet", "slices.parquet", "comparison.json", "comparison.tex")
        return [place / name for name in names]

    def describe(self) -> list[str]:
        """Return the table, the family and the checks as lines for a terminal."""
        names = [
            *("part", "metric", "k", "model", "other", "value", "other_value", "difference", "ci_low"),
            *("ci_high", "p_t", "p_holm", "p_randomisation", "p_bootstrap", "p_wilcoxon", "detectable"),
            *("verdict", "users", "wins", "ties", "losses"),
        ]
        frame = self.to_pandas()[names]
        frame = frame.assign(k=frame["k"].astype("string").fillna(""))
        text = frame.to_string(index=False, na_rep="", float_format="{:.4g}".format)
        marks = [("", "warning: ")[not check.passed] + check.summary_line() for check in self.checks]
        return [text, self.describe_test(), *marks]

    def __repr__(self) -> str:
        """Return the table, the family and the checks as text."""
        return "\n".join(self.describe())

    def _repr_html_(self) -> str:
        """Return the differences, their family, the checks and the slices, as a notebook shows them."""
        frame = self.to_pandas()
        shown = frame.assign(k=frame["k"].astype("string").fillna(""))
        number = "{:.4g}".format
        slices = self.slices.table.filter(pc.is_valid(self.slices.column("slice_key"))).to_pandas()
        notes = [self.describe_test(), *(check.summary_line() for check in self.checks)]
        return "\n".join(
            [
                shown.to_html(index=False, float_format=number, na_rep="", border=0),
                *(f"<p>{html.escape(note)}</p>" for note in notes),
                "<details><summary>by slices of users</summary>",
                slices.to_html(index=False, float_format=number, na_rep="", border=0),
                "</details>",
            ]
        )


def _make_plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with dates as text and numbers that are none as None."""
    plain = {name: str(value) if isinstance(value, date) else value for name, value in row.items()}
    return {
        name: None if isinstance(value, float) and not np.isfinite(value) else value
        for name, value in plain.items()
    }
