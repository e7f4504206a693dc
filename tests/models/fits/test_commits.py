"""Rows that are written beside what makes them: none lost, none twice, and nobody waits."""

from __future__ import annotations

import threading

import pytest

from recbench_spark.models.fits.table import BackgroundCommits


def test_a_commit_that_takes_long_holds_up_no_row() -> None:
    written: list[list[dict[str, int]]] = []
    begun, may_end = threading.Event(), threading.Event()

    def write(rows: list[dict[str, int]]) -> None:
        begun.set()
        assert may_end.wait(30)
        written.append(rows)

    with BackgroundCommits(write, every=-1.0) as commits:
        commits.add({"n": 0})
        assert begun.wait(30)
        for n in range(1, 4):
            commits.add({"n": n})
        assert not written
        may_end.set()
    assert written == [[{"n": 0}], [{"n": 1}, {"n": 2}, {"n": 3}]]


def test_rows_wait_until_it_is_time() -> None:
    written: list[list[dict[str, int]]] = []
    with BackgroundCommits(written.append, every=3600.0) as commits:
        for n in range(3):
            commits.add({"n": n})
        assert not written
    assert written == [[{"n": 0}, {"n": 1}, {"n": 2}]]


def test_a_commit_that_fails_is_reported_and_what_breaks_off_writes_no_more() -> None:
    def write(_rows: list[dict[str, int]]) -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"), BackgroundCommits(write, every=-1.0) as commits:
        commits.add({"n": 0})
    written: list[list[dict[str, int]]] = []
    with pytest.raises(KeyboardInterrupt), BackgroundCommits(written.append, every=3600.0) as commits:
        commits.add({"n": 0})
        raise KeyboardInterrupt
    assert not written
