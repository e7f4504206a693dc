"""Draw the five questions of docs/how_to/bi.md: python -m tools.bi_pictures results.duckdb [FOLDER].

The file is an export of the demo's warehouse after two nights (`make demo`, `make demo-night`). The
questions are the blocks of SQL of the page, in their order; one without rows gets no picture.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "how_to" / "bi.md"
METADATA_KEYS = ("Creator", "Date", "Format", "Type")
"""Keys of the metadata that matplotlib writes into an SVG file. The pictures have none of them."""

BLUE, ORANGE = "#0b62d6", "#c2410c"

Draw = Callable[[Any, pd.DataFrame], None]


def main(file: str, folder: str = str(ROOT / "docs" / "how_to" / "bi")) -> None:
    """Write one picture for each question."""
    mpl.use("agg")
    # Equal tables give equal bytes.
    mpl.rcParams |= {
        "svg.hashsalt": "bi",
        "svg.fonttype": "none",
        "font.size": 11,
        "axes.spines.top": False,
    }
    questions = read_questions()
    target = Path(folder)
    target.mkdir(exist_ok=True, parents=True)
    with duckdb.connect(file, read_only=True) as connection:
        for (name, draw), sql in zip(PICTURES.items(), questions, strict=True):
            rows = connection.sql(sql).to_df()
            if rows.empty:
                print(f"{name}: no rows, no picture")
                continue
            figure, axis = plt.subplots(figsize=(7, 3))
            draw(axis, rows)
            figure.tight_layout()
            figure.savefig(target / f"{name}.svg", metadata=dict.fromkeys(METADATA_KEYS))
            plt.close(figure)
            print(target / f"{name}.svg")


def read_questions() -> list[str]:
    """Return the blocks of SQL of the page."""
    return re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def draw_best(axis: Any, rows: pd.DataFrame) -> None:
    """Draw a bar and its interval for each model of the last part."""
    rows = rows[rows.part == "test"].iloc[::-1]
    axis.barh(rows.model, rows.value, color=BLUE)
    errors = [rows.value - rows.ci_low, rows.ci_high - rows.value]
    axis.errorbar(rows.value, rows.model, xerr=errors, fmt="none", ecolor="black", capsize=3)
    axis.set(xlabel="ndcg@10 on test", title="Which model is best, and by how much?")


def draw_nights(axis: Any, rows: pd.DataFrame) -> None:
    """Draw a line for each model over the nights."""
    for model, part in rows.groupby("model"):
        axis.plot(part.logical_date.astype(str), part.value, "o-", label=model)
    axis.set(ylabel="ndcg@10 on test", title="How did each model move over the nights?")
    axis.legend(fontsize=9, loc="center left", bbox_to_anchor=(1, 0.5))


def draw_falls(axis: Any, rows: pd.DataFrame) -> None:
    """Draw each regression as its difference and interval."""
    names = [f"{row.model}, {row.part}: {row.metric}@{row.k}" for row in rows.itertuples()]
    _draw_differences(axis, names, rows)
    axis.set(xlabel="change since the night before", title="What fell, and how sure is it?")


def draw_winners(axis: Any, rows: pd.DataFrame) -> None:
    """Draw each difference with the baseline."""
    rows = rows[rows.part == "test"].iloc[::-1]
    _draw_differences(axis, [f"{row.model} - {row.baseline}" for row in rows.itertuples()], rows)
    axis.set(xlabel="difference of ndcg@10 on test", title="Which models beat the baseline for certain?")


def _draw_differences(axis: Any, names: list[str], rows: pd.DataFrame) -> None:
    colours = [ORANGE if high < 0 else BLUE for high in rows.ci_high]
    axis.hlines(names, rows.ci_low, rows.ci_high, colors=colours, linewidth=3)
    axis.scatter(rows.difference, names, c=colours, zorder=3)
    axis.axvline(0, color="black", linewidth=0.8)
    axis.margins(y=0.3)


def draw_slices(axis: Any, rows: pd.DataFrame) -> None:
    """Draw models by slices as a table of colours."""
    table = rows.pivot(index="model", columns="items", values="value")
    table = table[[name for name in ("head", "torso", "tail", "cold") if name in table.columns]]
    axis.imshow(table, cmap="Blues", aspect="auto", vmin=0)
    for y, x in ((y, x) for y in range(len(table)) for x in range(table.shape[1])):
        value = table.iloc[y, x]
        dark = value > 0.6 * table.max(axis=None)
        axis.text(x, y, f"{value:.3f}", ha="center", va="center", color="white" if dark else "black")
    axis.set_xticks(range(table.shape[1]), table.columns)
    axis.set_yticks(range(len(table)), table.index)
    axis.set(title="Who is each model good for? ndcg@10 by popularity of items")


PICTURES: dict[str, Draw] = {
    "best": draw_best,
    "nights": draw_nights,
    "falls": draw_falls,
    "winners": draw_winners,
    "slices": draw_slices,
}
"""Name of the picture of each question of the page, and what draws it."""


if __name__ == "__main__":
    main(*sys.argv[1:])
