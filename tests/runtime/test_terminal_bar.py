"""The bar at the foot of a terminal, on a real pseudo-terminal; and what a log gets."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator

import pytest

from recbench_spark.runtime import terminal_bar
from recbench_spark.runtime.journal import Journal
from tests.waiting import wait_until


class Terminal:
    """A pseudo-terminal: what a journal writes to it."""

    def __init__(self) -> None:
        self.reader, writer = os.openpty()
        os.set_blocking(self.reader, False)
        self.stream = os.fdopen(writer, "w", encoding="utf-8")
        self._text = b""

    def text(self) -> str:
        try:
            while chunk := os.read(self.reader, 65536):
                self._text += chunk
        except BlockingIOError:
            pass
        return self._text.decode(errors="replace")

    def has(self, pattern: str) -> bool:
        return re.search(pattern, self.text()) is not None


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(terminal_bar, "DRAWS_PER_SECOND", 50.0)
    made = Terminal()
    yield made
    made.stream.close()
    os.close(made.reader)


def test_a_stage_has_a_bar_with_its_share_and_the_night(terminal: Terminal) -> None:
    journal = Journal(terminal.stream)
    journal.count("night", 3, 5)
    with journal.stage("rankings", "rank 2 models"):
        assert journal.bar is not None
        wait_until(lambda: terminal.has(r"night 3 of 5 · .*rank 2 models +.*0:00:00"))
        journal.bar.move(1, 4)
        wait_until(lambda: terminal.has(r" 25%.* rank 2 models +.*0:00:0"))
        journal.say("a [red]line[/red]")
    assert terminal.has(r"\[ +\d\.\d s\] a \[red\]line\[/red\]")
    assert_is_gone(terminal)


def assert_is_gone(terminal: Terminal) -> None:
    """Assert that nothing is drawn after the last line was emptied."""
    before, _, last = terminal.text().rpartition("\x1b[2K")
    assert before and not re.sub(r"\x1b\[[?0-9;]*[A-Za-z]|[\r\n]", "", last)


def test_a_long_text_is_cut_to_the_width_of_the_terminal(terminal: Terminal) -> None:
    bar = terminal_bar.TerminalBar(terminal.stream)
    bar.begin("x" * 200)
    wait_until(lambda: terminal.has("x…"))
    assert max(map(len, re.findall("x+", terminal.text()))) < 80
    bar.end()


def test_an_error_takes_the_bar_away(terminal: Terminal) -> None:
    journal = Journal(terminal.stream)
    with pytest.raises(ValueError, match="no"), journal.stage("train", "train"):
        raise ValueError("no")
    assert_is_gone(terminal)


def test_work_goes_on_when_the_terminal_is_gone(terminal: Terminal) -> None:
    journal = Journal(terminal.stream)
    assert journal.bar is not None
    terminal.stream.close()
    with journal.stage("train", "train"):
        journal.bar.move(1, 2)
        journal.say("a line")


def test_a_log_gets_lines_alone(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    journal = Journal(stream)
    journal.count("night", 1, 2)
    with journal.stage("train", "train"):
        pass
    assert journal.bar is None and re.fullmatch(r"\[ +0\.\d s\] train\n", stream.getvalue())
    monkeypatch.setenv("TERM", "dumb")
    assert Journal(terminal.stream).bar is None
