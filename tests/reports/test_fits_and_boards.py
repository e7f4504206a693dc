"""Pictures of fits and the page of a board: what is drawn is what the rows say."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from recbench_spark import reports
from recbench_spark.boards.entries import judge_entries, make_published_entries
from recbench_spark.boards.published import load_published_board
from recbench_spark.boards.searches import SearchTrials
from recbench_spark.reports import fits as pictures


def rows() -> pd.DataFrame:
    fits = [
        {
            "model": model, "dims": dims, "fold": fold, "seed": 1, "cpu_seconds": 36.0 * dims,
            "rmse": 1 - 0.01 * np.log2(dims) - 0.02 * (model == "gibbs") + 0.001 * fold,
            "rmse_by_step": [1.1, 1.0, 0.9 + 0.01 * fold],
            "settings_json": json.dumps({"regularisers": {"a": 0.1 * dims, "b": 0.1 * dims}}),
        }
        for model in ("sgd", "gibbs") for dims in (2, 4) for fold in ((0, 1, 2) if dims == 2 else (0,))
    ]  # fmt: skip
    return pd.DataFrame(fits)


def test_a_line_a_model_with_its_spread() -> None:
    axes = pictures.plot_dimensions(rows()).axes[0]
    lines = {c.get_label(): c.lines[0].get_xydata() for c in axes.containers}
    assert set(lines) == {"sgd", "gibbs"}
    assert lines["sgd"] == pytest.approx(np.array([[2, 1 - 0.01 + 0.001], [4, 1 - 0.02 + 0.001]]))
    assert [text.get_text() for text in axes.texts] == ["1 fold, made even"] * 2, "fewer folds are said"
    table = pictures.summarise_fits(rows(), ["model", "dims"])
    assert table["mean"].tolist() == pytest.approx([0.971, 0.96, 0.991, 0.98]), "the table has both"
    assert table.of_all_folds.tolist() == pytest.approx([0.971, 0.961, 0.991, 0.981])
    assert table.over_folds.dropna().tolist() == pytest.approx([0.001, 0.001])
    assert table.core_hours.tolist() == pytest.approx([0.06, 0.04, 0.06, 0.04])


def test_curves_over_steps_and_over_a_setting() -> None:
    axes = pictures.plot_steps(rows()).axes[0]
    assert sorted(line.get_label() for line in axes.lines) == [
        "gibbs (2)",
        "gibbs (4)",
        "sgd (2)",
        "sgd (4)",
    ]
    assert axes.lines[0].get_ydata() == pytest.approx([1.1, 1.0, 0.91])
    table = pictures.add_setting_column(rows(), "regularisers")
    assert sorted(table.setting.unique()) == pytest.approx([0.2, 0.4])
    assert len(pictures.plot_setting(rows(), "regularisers").axes[0].containers) == 2


def test_fits_without_factors_or_folds_are_a_group_too() -> None:
    first = rows()[:1].assign(dims=np.nan, fold=np.nan, setting=0.1)
    table = pictures.summarise_fits(first, ["dims", "setting"])
    assert table.of_all_folds.tolist() == table["mean"].tolist() == pytest.approx([0.99])


@pytest.mark.full
def test_pictures_are_the_same_text_for_the_same_fits() -> None:
    first, second = (dict(pictures.draw_figures(rows())) for _ in range(2))
    assert first == second and set(first) == {"dimensions", "steps", "cost"}
    assert all(text.startswith("<svg") for text in first.values())
    assert pictures.draw_figures(rows()[:0]) == []


def test_a_board_as_text_and_page() -> None:
    entries = sorted(
        make_published_entries(load_published_board("ml10m_rmse")), key=lambda entry: entry.value
    )
    search = SearchTrials(
        space={"reg": (0.1, 0.3)},
        trials=[{"settings": {"reg": x}, "value": 1 - x} for x in (0.1, 0.2, 0.3)],
    )
    views = {
        "board_gaps": pd.DataFrame({"method": ["a & b"], "gap": [0.05]}),
        "board_looks": pd.DataFrame(),
    }
    facts = reports.make_board(
        "ml10m_rmse", entries, judge_entries(entries, {}, {}), {"sgd": search}, views
    )
    assert [row.position for row in facts.rows][:13] == list(range(1, 14))
    beside = next(row for row in facts.rows if row.entry.value == 0.7756)
    assert beside.position is None
    text = reports.board_text(facts)
    assert "because Bayesian MF (rerun) reached 0.7633 against 0.8197" in text
    assert "search of sgd: expected best 0.8000 of 1" in text
    page = reports.render_board(facts)
    assert "a &amp; b" in page and "0.0500" in page and "Looks at hidden" not in page
    assert page == reports.render_board(facts)
