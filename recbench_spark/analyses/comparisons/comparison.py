"""A comparison of models, for callers to read and store.

It gives rows, a table for a paper, a picture and a JSON record.
"""

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
from recbench_spark.metrics import result_views as views
from recbench_spark.metrics.result import ShownTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = (
    *("part", "metric", "k", "model", "other", "value", "other_value", "difference", "ci_low", "ci_high"),
    *("p_t", "p_holm", "p_randomisation", "p_bootstrap", "p_wilcoxon", "detectable", "verdict"),
    *("users", "wins", "ties", "losses", "only_model", "only_other", "effect", "stderr", "p_bh"),
    "definition",
)
"""Columns of a comparison in the order shown."""

BETTER, WORSE = "+", "-"
"""Marks in a table for a paper."""


@dataclass(frozen=True, repr=False)
class Comparison:
    """Paired differences between models, each over the users of both.

    Attributes:
        differences: a row for each model, part, metric and cut-off: values, difference, interval, p-values,
            `p_holm` over the family, wins, ties and losses by user, users of one side, and `detectable`:
            the true difference shown by such a test four times in five.
        slices: the same differences by user slices (`local_comparisons.OUTCOMES`).
        family: the tests over which `p_holm` is adjusted, in words.
        checks: facts about the inputs, such as users of one side alone.
        baseline: all other models are compared with this one.
        lower: metrics best when small.
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
        """Tell for each difference whether Holm's p is below 1 - level."""
        certain: pd.Series[bool] = self.to_pandas()["p_holm"] < 1 - self.settings["level"]
        return certain

    def find_marks(self) -> list[str]:
        """Return each difference's mark: + better, - worse, or none.

        The other side is the baseline.
        """
        frame = self.to_pandas()
        better = frame.difference * np.where(frame.metric.isin(self.lower), -1.0, 1.0) > 0
        shown: list[str] = np.where(self.is_certain(), np.where(better, BETTER, WORSE), "").tolist()
        return shown

    def describe_test(self) -> str:
        """Return test, family and number of users in one sentence."""
        users = self.to_pandas().users
        n = f"{users.min():,}" if users.min() == users.max() else f"{users.min():,} to {users.max():,}"
        alpha = f"{1 - self.settings['level']:.3g}"
        return f"Two-sided paired t-test over {n} users, p by Holm below {alpha} over {self.family}."

    def to_latex(self, path: str | PathLike[str] | None = None, digits: int = 4) -> str:
        """Return a LaTeX table of values, with marks.

        The caption explains the marks; the table needs the package booktabs. Where models were compared on
        different users, a cell adds the baseline's value on the same users in parentheses.

        Args:
            path: file to write the text to.
            digits: digits behind the point.
        """
        frame = self._add_cells(digits)
        columns = list(dict.fromkeys(frame.figure))
        # A baseline with one value in each column has its own row.
        alone = bool((frame.groupby("figure").other_value.nunique(dropna=False) == 1).all())
        lines = []
        if alone:
            first = frame.drop_duplicates("figure").set_index("figure").other_value
            lines.append(self._write_line(self.baseline, [f"{first[name]:.{digits}f}" for name in columns]))
        else:
            frame["cell"] += [f" ({value:.{digits}f})" for value in frame.other_value]
        for model in dict.fromkeys(frame.model):
            cells = frame[frame.model == model].set_index("figure").cell
            lines.append(self._write_line(str(model), [cells.get(name, "--") for name in columns]))
        legend = rf"$^{{{BETTER}}}$ better, $^{{{WORSE}}}$ worse than {views.escape_latex(self.baseline)}. "
        legend += views.escape_latex(self.describe_test())
        return views.write_text(views.wrap_latex(columns, lines, legend), path)

    def _add_cells(self, digits: int) -> pd.DataFrame:
        frame = self.to_pandas()
        parts = frame.part.nunique() > 1
        keys = zip(frame["metric"], frame["k"], frame["part"], strict=True)
        figures = [views.name_figure(metric, k) + (f" {part}" if parts else "") for metric, k, part in keys]
        marks = self.find_marks()
        cells = [
            f"{value:.{digits}f}" + (f"$^{{{mark}}}$" if mark else "")
            for value, mark in zip(frame.value, marks, strict=True)
        ]
        return frame.assign(figure=figures, cell=cells)

    @staticmethod
    def _write_line(model: str, cells: list[str]) -> str:
        return " & ".join([views.escape_latex(model), *cells]) + r" \\"

    def plot(self, path: str | PathLike[str] | None = None) -> Figure:
        """Draw each difference with its interval.

        Lines mark 0 and the smallest difference that matters.

        Args:
            path: file to write the picture to; its ending decides the format.
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
        return views.save_figure(figure, path)

    def to_record(self) -> dict[str, Any]:
        """Return the comparison as JSON values, with all digits."""
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
        """Write the comparison to files; return their paths.

        Differences and slices are Parquet, all of it is JSON, and the table for a paper is LaTeX.

        Args:
            folder: created if absent; files with these names are replaced.
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
        """Return table, family and checks as lines for a terminal.

        Wilcoxon's p is not among them: with many users it finds differences where means are equal
        (Ihemelandu and Ekstrand 2023).
        """
        names = [
            *("part", "metric", "k", "model", "other", "value", "other_value", "difference", "ci_low"),
            *("ci_high", "p_t", "p_holm", "p_randomisation", "p_bootstrap", "detectable"),
            *("verdict", "users", "wins", "ties", "losses"),
        ]
        frame = self.to_pandas()[names]
        frame = frame.assign(k=frame["k"].astype("string").fillna(""))
        text = frame.to_string(index=False, na_rep="", float_format="{:.4g}".format)
        marks = [("", "warning: ")[not check.passed] + check.summary_line() for check in self.checks]
        return [text, self.describe_test(), *marks]

    def __repr__(self) -> str:
        """Return table, family and checks as text."""
        return "\n".join(self.describe())

    def _repr_html_(self) -> str:
        """Return differences, family, checks and slices for a notebook."""
        frame = self.to_pandas()
        shown = frame.assign(k=frame["k"].astype("string").fillna("")).drop(columns="p_wilcoxon")
        slices = self.slices.table.filter(pc.is_valid(self.slices.column("slice_key"))).to_pandas()
        tables = [
            one.to_html(index=False, float_format="{:.4g}".format, na_rep="", border=0)
            for one in (shown, slices)
        ]
        notes = [self.describe_test(), *(check.summary_line() for check in self.checks)]
        texts = [f"<p>{html.escape(note)}</p>" for note in notes]
        by_slices = ["<details><summary>by slices of users</summary>", tables[1], "</details>"]
        return "\n".join([tables[0], *texts, *by_slices])


def _make_plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON row: dates as text, NaN as None."""
    plain = {name: str(value) if isinstance(value, date) else value for name, value in row.items()}
    hidden = [name for name, value in plain.items() if isinstance(value, float) and not np.isfinite(value)]
    return plain | dict.fromkeys(hidden)
