"""Plot many fits with their spreads over folds.

Errors are drawn against dimension, steps, cost and a setting. Each function takes rows of `fits` (model,
kind, dims, settings_json, fold, seed, rmse, rmse_by_step, cpu_seconds) and draws all of them; the caller
selects the fits.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from recbench_spark.boards.fold_statistics import summarise_folds
from recbench_spark.core.extras import explain_missing, has_module, install_command

if TYPE_CHECKING:  # pages without drawings need no matplotlib
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE = (7.2, 4.2)
SPREAD = "bars and bands: standard deviation over folds"


def summarise_fits(fits: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Summarise each group: mean, spreads, folds and core-hours.

    The folds' means are averaged. `of_all_folds` is the mean after a correction for how hard the group's
    own folds are. This is measured by fits with the same first key and all folds. Without it, a mean over
    three folds could not be compared with one over ten.
    """
    rows = []
    for key, group in _even_out_folds(fits, keys).groupby(list(keys), dropna=False, sort=True):
        values = zip(group.fold, group.seed, group.rmse, strict=True)
        fold_summary = summarise_folds(
            {(None if pd.isna(fold) else int(fold), seed): rmse for fold, seed, rmse in values}
        )
        facts = dict(zip(keys, key if isinstance(key, tuple) else (key,), strict=True))
        hours = group.cpu_seconds.sum() / 3600
        even = {"of_all_folds": group.groupby("fold", dropna=False).even.mean().mean()}
        cost = {"core_hours": hours, "hours_a_fit": hours / len(group)}
        spreads = {name: value for name, value in fold_summary._asdict().items() if name != "by_fold"}
        rows.append({**facts, **spreads, **even, **cost})
    return pd.DataFrame(rows)


def _even_out_folds(fits: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Add `even`: the error less its fold's difficulty.

    The difficulty is measured in groups with all folds.
    """
    fold = [keys[0], "fold"]
    fold_means = fits.groupby([*keys, "fold"], dropna=False).rmse.mean().reset_index()
    fold_means["has"] = fold_means.groupby(list(keys), dropna=False).rmse.transform("size")
    most = fold_means.groupby(keys[0], dropna=False).has.transform("max")
    level = fold_means[fold_means.has == most].groupby(fold, dropna=False).rmse.mean().reset_index()
    level["harder"] = level.rmse - level.groupby(keys[0], dropna=False).rmse.transform("mean")
    merged = fits.merge(level[[*fold, "harder"]], on=fold, how="left")
    return merged.assign(even=merged.rmse - merged.harder)


def plot_dimensions(fits: pd.DataFrame) -> Figure:
    """Plot RMSE against factors, with a line for each model."""
    table = summarise_fits(fits[fits.dims.notna()], ["model", "dims"])
    figure, axes = _axes("factors", "RMSE against dimension")
    _lines(axes, table, "dims")
    axes.set_xscale("log", base=2)
    dims = sorted(table.dims.unique())
    axes.set_xticks(dims, [f"{value:.0f}" for value in dims])
    axes.minorticks_off()
    return figure


def plot_steps(fits: pd.DataFrame) -> Figure:
    """Plot RMSE after each epoch, sweep or sample.

    Each model and dimension has a line, with a band over folds.
    """
    figure, axes = _axes("steps", "RMSE against epochs and sampling steps")
    several = fits.groupby("model").dims.nunique().to_dict()
    for (model, dims), group in fits.groupby(["model", "dims"], dropna=False):
        curves = [np.asarray(curve, float) for curve in group.rmse_by_step if len(curve)]
        if not curves:
            continue
        n = min(map(len, curves))
        whole = np.array([curve[:n] for curve in curves])
        steps = np.arange(1, n + 1)
        label = f"{model} ({dims:.0f})" if several[model] > 1 else str(model)
        (line,) = axes.plot(steps, whole.mean(axis=0), label=label)
        if len(whole) > 1:
            spread = whole.std(axis=0, ddof=1)
            low, high = whole.mean(axis=0) - spread, whole.mean(axis=0) + spread
            axes.fill_between(steps, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    axes.set_xscale("log")
    axes.legend(frameon=False)
    return figure


def plot_costs(fits: pd.DataFrame) -> Figure:
    """Plot RMSE against core-hours for one fit.

    Each model has a line over its dimensions.
    """
    table = summarise_fits(fits, ["model", "dims"]).sort_values("hours_a_fit")
    figure, axes = _axes("core-hours a fit", "Quality against core-hours")
    _lines(axes, table, "hours_a_fit")
    axes.set_xscale("log")
    return figure


def plot_setting(fits: pd.DataFrame, name: str) -> Figure:
    """Plot RMSE against one setting, a line per dimension.

    The plot shows if the best value for a small model is the best for a large one too.
    """
    table = summarise_fits(add_setting_column(fits, name), ["dims", "setting"])
    table["model"] = [f"{dims:.0f} factors" for dims in table.pop("dims")]
    figure, axes = _axes(name, f"Can {name} be carried from a small model to a large one?")
    _lines(axes, table, "setting")
    for _, line in table.groupby("model"):
        best = line.loc[line.of_all_folds.idxmin()]
        axes.plot([best.setting], [best.of_all_folds], "o", color="black", markersize=4, zorder=3)
    return figure


def add_setting_column(fits: pd.DataFrame, name: str) -> pd.DataFrame:
    """Add a setting's value as a column.

    For a section it is the value all its parts share.
    """
    return fits.assign(setting=[_read_setting(json.loads(text), name) for text in fits.settings_json])


def _read_setting(settings: Mapping[str, Any], name: str) -> float:
    value: Any = settings
    for step in name.split("."):
        value = value[step]
    if isinstance(value, dict):
        (value,) = set(value.values())
    return float(value)


FIGURES: dict[str, Callable[[pd.DataFrame], Figure]] = {
    "dimensions": plot_dimensions,
    "steps": plot_steps,
    "cost": plot_costs,
}


def draw_figures(fits: pd.DataFrame) -> list[tuple[str, str]]:
    """Draw every figure there are enough fits for.

    Returns titles and SVGs.
    """
    figures: list[tuple[str, str]] = []
    if not can_draw():
        return figures
    varied = fits.groupby("model").dims.nunique().max() if len(fits) else 0
    for name, draw in FIGURES.items():
        if len(fits) and (name != "dimensions" or varied > 1):
            figures.append((name, render_svg(draw(fits))))
    return figures


def render_svg(figure: Figure) -> str:
    """Return the figure as text: same fits, same text."""
    from matplotlib import rc_context  # noqa: PLC0415

    buffer = io.StringIO()
    with rc_context({"svg.hashsalt": "recbench-spark"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue().partition("<svg")[1] + buffer.getvalue().partition("<svg")[2]


def can_draw() -> bool:
    """Tell whether matplotlib is installed.

    Where it is not, standard error says how to install it.
    """
    if has_module("matplotlib"):
        return True
    print(f"note: a page without drawings: {install_command('plots')} brings matplotlib", file=sys.stderr)
    return False


def make_figure(size: tuple[float, float]) -> Figure:
    """Make an empty figure of this size in inches.

    Raises:
        MissingPackageError: matplotlib is not installed.
    """
    with explain_missing():
        from matplotlib.figure import Figure  # noqa: PLC0415

    return Figure(figsize=size, layout="constrained")


def _axes(label: str, title: str) -> tuple[Figure, Axes]:
    figure = make_figure(SIZE)
    axes = figure.add_subplot()
    axes.set_xlabel(f"{label}\n{SPREAD}")
    axes.set_ylabel("RMSE")
    axes.set_title(title, loc="left", fontsize=11)
    axes.grid(alpha=0.25)
    return figure, axes


def _lines(axes: Axes, table: pd.DataFrame, x: str) -> None:
    for model, line in table.groupby("model", sort=False):
        ordered = line.sort_values(x)
        bars = ordered.over_folds.fillna(0.0)
        axes.errorbar(ordered[x], ordered.of_all_folds, yerr=bars, marker="o", capsize=2, label=str(model))
        few = ordered[ordered.folds < table.folds.max()]
        for at, value, folds in zip(few[x], few.of_all_folds, few.folds, strict=True):
            note = f"{folds} fold{'s' if folds > 1 else ''}, made even"
            axes.annotate(note, (at, value), (4, 6), textcoords="offset points", fontsize=7)
    axes.legend(frameon=False)
