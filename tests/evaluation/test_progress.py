"""Reports of progress during a pass over all models."""

from __future__ import annotations

from pathlib import Path

import pytest

from recbench_spark.evaluation import progress
from tests.waiting import wait_until


def test_a_second_attempt_counts_once_and_half_written_files_not_at_all(tmp_path: Path) -> None:
    progress.record_progress(str(tmp_path), 0, 10)
    progress.record_progress(str(tmp_path), 1, 4)
    progress.record_progress(str(tmp_path), 0, 20)
    (tmp_path / "2.half").write_text("99")
    (tmp_path / "3").write_text("")
    assert progress.sum_progress(tmp_path) == 24


def test_nothing_is_noted_without_a_folder_or_where_it_is_gone(tmp_path: Path) -> None:
    progress.record_progress("", 0, 10)
    progress.record_progress(str(tmp_path / "gone"), 0, 10)
    assert list(tmp_path.iterdir()) == []


def test_time_left() -> None:
    assert (
        progress.format_progress(250, 1000, 10.0) == "ranked 250 of 1,000 (users x models), about 30 s left"
    )
    assert progress.format_progress(199, 1000, 90.0) == "ranked 199 of 1,000 (users x models)"
    assert "about 5 min left" in progress.format_progress(500, 1000, 300.0)
    # What came first also waited for the compiler: 100 pairs after 60 s, then 250 in 10 s.
    assert "about 26 s left" in progress.format_progress(350, 1000, 10.0, 100)
    assert "left" not in progress.format_progress(299, 1000, 10.0, 100)
    assert "about 0 s left" in progress.format_progress(1001, 1000, 300.0)


def test_progress_is_reported_during_the_run_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(progress, "TELL_SECONDS", 0.0)
    said: list[str] = []
    with progress.watch_progress(tmp_path / "notes", 100, said.append):
        progress.record_progress(str(tmp_path / "notes"), 0, 50)
        wait_until(lambda: bool(said))
    assert said[0].startswith("ranked 50 of 100")
    assert list(tmp_path.iterdir()) == []


def test_a_bar_gets_the_numbers_in_place_of_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(progress, "TELL_SECONDS", 0.0)
    said: list[str] = []
    drawn: list[tuple[int, int]] = []
    with progress.watch_progress(tmp_path, 100, said.append, lambda n, total: drawn.append((n, total))):
        progress.record_progress(str(tmp_path), 0, 50)
        wait_until(lambda: (50, 100) in drawn)
    assert said == []
