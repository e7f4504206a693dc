"""Read boards with published results.

The file is this package's or a user's.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from recbench_spark.config import Name, Strict, load_yaml, parse
from recbench_spark.errors import ConfigError, nearest

PUBLISHED_FILE = Path(__file__).resolve().parent / "published.yaml"

RanBy = Literal["inventor", "rival", "rerun", "ours"]
"""A method's inventor, authors of a rival, authors of a careful rerun, or this project."""


class BoardRun(Strict):
    """One number on a board. None: not known.

    Attributes:
        method: its name in the table.
        value: its value in the board's metric.
        spread: standard deviation over folds, as printed.
        ran_by: the people who ran the method.
        year: the source's year.
        dims: number of factors.
        part: part of the Netflix protocol.
        by_fold: each fold's value, as a mean over seeds, if known.
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
    """All known runs on one benchmark.

    Attributes:
        name: the board's name.
        data: description of the data set.
        protocol: description of the split.
        metric: the metric's name.
        lower_is_better: true for errors.
        source: publication with the table.
        aliases: a method's canonical name to its other names.
        runs: the table.
        beside: further numbers in the source that are not rows of its table.
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
            raise ValueError(f"alias '{wrong[0]}' is not a row of the board, or belongs to two methods")
        return self

    def canonical(self, method: str) -> str:
        """Return a method's canonical name."""
        return next((name for name, names in self.aliases.items() if method in names), method)

    def improvement(self, value: float, than: float) -> float:
        """Return how much better a value is than another.

        The result is negative if the value is worse.
        """
        return than - value if self.lower_is_better else value - than


class _BoardFile(Strict):
    boards: tuple[Board, ...]


@cache
def load_published_boards(path: Path = PUBLISHED_FILE) -> dict[str, Board]:
    """Read all boards in a file, by name.

    Raises ConfigError with file, key and nearest known key.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a readable file: {error}", "see boards/published.yaml") from None
    document = load_yaml(text, str(path))
    return {board.name: board for board in parse(_BoardFile, document, str(path)).boards}


def load_published_board(name: str) -> Board:
    """Return one board of this package. Raises ConfigError if unknown."""
    boards = load_published_boards()
    if name not in boards:
        raise ConfigError(f"there is no published board '{name}'", nearest(name, boards))
    return boards[name]
