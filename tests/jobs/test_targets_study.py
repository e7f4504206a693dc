"""`jobs/studies/targets.py` in small: who is asked, and a page with its table."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from jobs.studies import targets as study
from recbench_spark.errors import OK

MARK = "<!-- written by jobs/studies/targets.py -->"


def write_ratings(folder: Path) -> Path:
    """Eight users rate all along, the last two after the cut alone."""
    rows = [(user, (item + user) % 15, 4, 66 * item + user) for user in range(6) for item in range(15)]
    rows += [(user, item, 4, 990 + item) for user in (6, 7) for item in range(3)]
    folder.mkdir()
    pd.DataFrame(rows).to_csv(folder / "u.data", sep="\t", header=False, index=False)
    return folder / "u.data"


def test_a_small_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    source, page = write_ratings(tmp_path / "small"), tmp_path / "page.md"
    page.write_text(f"# Title\n\n{MARK}\nold\n<!-- end -->\nend\n")
    monkeypatch.setattr(study, "TARGETS", ("first", "successive"))
    monkeypatch.setattr(study, "MODELS", ("popular", "als_8"))
    flags = ["--folder", str(tmp_path / "w"), "--logs", str(source), "--rules", "none", "--page", str(page)]
    assert study.main(study.parser().parse_args(flags)) == OK
    table = capsys.readouterr().out.splitlines()
    assert table[0] == "| targets: candidates | popular | als_8 |"
    assert table[2] == "| **small**: 6 users, 0 pairs turn round | | |"
    cells = [[cell.strip() for cell in line.split("|")[2:4]] for line in table[3:5]]
    for row in cells:
        assert re.fullmatch(
            r"1: (0\.\d{3}\|[12]: ([+-]\d\.\d{3} [+-]\d\.\d{3}|-))", "|".join(sorted(row, key=len))
        )
    assert [line.split(" | ")[0] for line in table[3:]] == ["| first: none", "| successive: none"]
    assert (
        page.read_text()
        == f"# Title\n\n{MARK}\n{study.LEGEND}\n\n" + "\n".join(table) + "\n\n<!-- end -->\nend\n"
    )
    log = pq.read_table(tmp_path / "w" / "small.parquet").to_pandas()
    late = log[log["part"] == "later"]
    assert set(late["user"]) == {6, 7} and len(late) == 6


def make_row(
    model: str, other: str, low: float | None, high: float | None, best: bool = False
) -> dict[str, Any]:
    return {
        "model": model, "other": other, "ci_low": low, "ci_high": high, "with_baseline": best,
        "difference": (low or 0) + (high or 0), "other_value": 0.25,
    }  # fmt: skip


def test_equal_models_share_a_rank_and_only_certain_pairs_turn() -> None:
    rows = [make_row("a", "d", -0.2, -0.1, True), make_row("b", "d", None, None, True)]
    rows += [make_row("c", "d", -0.2, -0.1, True), make_row("a", "b", 0.1, 0.2)]
    assert study.list_cells(rows) == {
        "d": "1: 0.250", "b": "1: -", "a": "3: -0.200 -0.100", "c": "3: -0.200 -0.100",
    }  # fmt: skip
    other = [make_row("b", "a", 0.1, 0.2), make_row("d", "a", -0.1, 0.2), make_row("d", "c", 0.1, 0.2)]
    assert study.count_turns([rows, other]) == 1 and study.count_turns([rows, rows]) == 0


def test_each_rule_is_a_definition() -> None:
    assert [*study.RULES] == ["none", "first_seen", "in_train"]
