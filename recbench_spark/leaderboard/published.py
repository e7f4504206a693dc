"""Boards of published results, from a file of the package or one's own: who ran what, with what outcome."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from recbench_spark.config import Name, Strict, load_yaml, parse
from recbench_spark.errors import ConfigError, nearest

PUBLISHED_FILE = Path(__file__).resolve().parent / "published.yaml"

RanBy = Literal["inventor", "rival", "rerun", "ours"]
"""The inventor; someone who needed a baseline; someone who ran it again with care; this project."""


class BoardRun(Strict):
    """One number on a board; what is not known of it is None.

    Attributes:
        method: the name it goes by.
        value: of the board's metric.
        spread: standard deviation over folds, as printed.
        ran_by: who ran it.
        year: of the work it is quoted from.
        dims: factors, where a method was run with several.
        part: of the Netflix protocol.
        by_fold: value of each fold, mean over seeds, where it is known.
    """

    method: Annotated[str, Field(min_length=1)]
    value: Annotated[float, Field(allow_inf_nan=False)]
    spread: Annotated[float, Field(ge=0)] | None = None
    ran_by: RanBy | None = None
    year: Annotated[int, Field(ge=1990, le=2100)] | None = None
    dims: Annotated[int, Field(ge=1)] | None = None
    part: Literal["probe", "quiz", "test"] | None = None
    by_fold: dict[int, float] = Field(default={})


class Board(Strict):
    """All known runs of one benchmark.

    Attributes:
        name: of the board.
        data: the data set in words.
        protocol: how it is split, in words.
        metric: what is measured.
        lower_is_better: true of errors.
        source: the work the table is from.
        aliases: one method under several names.
        runs: the table.
        beside: further numbers of the source that are not rows of its table.
    """

    name: Name
    data: str
    protocol: str
    metric: str
    lower_is_better: bool
    source: str
    aliases: dict[str, tuple[str, ...]] = Field(default={})
    runs: Annotated[tuple[BoardRun, ...], Field(min_length=1)]
    beside: tuple[BoardRun, ...] = ()

    @model_validator(mode="after")
    def _check_aliases(self) -> Board:
        known = {run.method for run in self.runs}
        names = [name for group in self.aliases.values() for name in group]
        wrong = [name for name in names if name not in known or names.count(name) > 1]
        if wrong:
            raise ValueError(f"alias '{wrong[0]}' is no row of the board, or of two methods")
        return self

    def canonical(self, method: str) -> str:
        """The one name of a method that has several."""
        return next((name for name, names in self.aliases.items() if method in names), method)

    def improvement(self, value: float, than: float) -> float:
        """By how much a value is better; negative if it is worse."""
        return than - value if self.lower_is_better else value - than

    def best_runs(self) -> dict[str, BoardRun]:
        """The best run of each method, under its one name, best method first."""
        sign = 1 if self.lower_is_better else -1
        best: dict[str, BoardRun] = {}
        for run in sorted(self.runs, key=lambda run: sign * run.value):
            best.setdefault(self.canonical(run.method), run)
        return best


class _BoardFile(Strict):
    boards: tuple[Board, ...]


@cache
def load_published_boards(path: Path = PUBLISHED_FILE) -> dict[str, Board]:
    """All boards of a file by name. Raises ConfigError with file, key and nearest known key."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} is no readable file: {error}", "see leaderboard/published.yaml"
        ) from None
    document = load_yaml(text, str(path))
    return {board.name: board for board in parse(_BoardFile, document, str(path)).boards}


def load_published_board(name: str) -> Board:
    """One board of the package's file. Raises ConfigError for a name that is not there."""
    boards = load_published_boards()
    if name not in boards:
        raise ConfigError(f"there is no published board '{name}'", nearest(name, boards))
    return boards[name]
