"""The source's tables: as many rows as printed, the numbers, and what a file of one's own may not say."""

from __future__ import annotations

from pathlib import Path

import pytest

from recbench_spark.boards.published import load_published_board, load_published_boards
from recbench_spark.boards.verdicts import judge_run
from recbench_spark.errors import ConfigError


def test_the_tables_are_whole() -> None:
    ml10m, netflix = load_published_board("ml10m_rmse"), load_published_board("netflix_rmse")
    assert len(ml10m.runs) == 26 and len(netflix.runs) == 10
    assert sum(run.ran_by == "rerun" for run in ml10m.runs) == 6
    printed = """.8256 .823 .8197 .8101 .8067 .803 .8012 .7907 .7830 .782 .7815 .7769 .7754 .771 .7712 .7682
        .7672 .7670 .7644 .7634 .7720 .7633 .7587 .7563 .7523 .7485"""
    assert [run.value for run in ml10m.runs] == [float(value) for value in printed.split()]
    printed = ".94 .93 .9227 .9190 .9094 .9088 .9028 .9018 .8998 .8985"
    assert [run.value for run in netflix.runs] == [float(value) for value in printed.split()]
    assert len({run.method for run in ml10m.runs}) == 26
    assert all(board.source for board in load_published_boards().values())


def test_the_source_s_verdict_on_movielens() -> None:
    """Under-tuned: RSVD, Biased MF, BPMF; no re-run."""
    board = load_published_board("ml10m_rmse")
    result = [judge_run(run, board) for run in board.runs]
    flagged = {verdict.method for verdict in result if verdict.under_tuned}
    assert flagged == {"RSVD", "Biased MF", "BPMF"}
    bpmf = next(verdict for verdict in result if verdict.method == "BPMF")
    assert [reason.code for reason in bpmf.reasons] == ["better_run_known"]
    assert "Bayesian MF (rerun) reached 0.7633 against 0.8197" in bpmf.reasons[0].text


def test_vanilla_matrix_factorisation_took_the_netflix_prize_years() -> None:
    """All runs but the best one, and those within .2 % of it, were improved on by others."""
    board = load_published_board("netflix_rmse")
    result = [judge_run(run, board) for run in board.runs]
    fine = [verdict.method for verdict in result if not verdict.under_tuned]
    assert fine == ["BellKor", "Zhou et al."]


BOARD = """
boards:
  - {name: b, data: d, protocol: p, metric: rmse, lower_is_better: true, source: s, runs: [{RUN}]MORE}
"""


@pytest.mark.parametrize(
    ("run", "more", "message"),
    [
        ("method: [x", "", "not valid YAML"),
        ("method: x, value: .nan", "", r"boards.0.runs.0.value: Input should be a finite number"),
        ("method: x, value: 1, vale: 1", "", r"vale: Extra(.|\n)*did you mean 'value'"),
        ("method: x, value: 1, ran_by: owner", "", r"ran_by(.|\n)*known: inventor, ours"),
        ("method: x, value: 1", ", aliases: {m: [y]}", "alias 'y' is not a row of the board"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, run: str, more: str, message: str) -> None:
    path = tmp_path / "boards.yaml"
    path.write_text(BOARD.replace("RUN", run).replace("MORE", more))
    with pytest.raises(ConfigError, match=message):
        load_published_boards(path)


def test_unknown_boards_and_files() -> None:
    with pytest.raises(ConfigError, match=r"no published board 'ml10m'(.|\n)*did you mean 'ml10m_rmse'"):
        load_published_board("ml10m")
    with pytest.raises(ConfigError, match="not a readable file"):
        load_published_boards(Path("nowhere.yaml"))
