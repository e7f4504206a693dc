"""Inputs of a job, pinned from the first look to the last read: what was identified is what is read.

A job opens `pin_inputs`. Inside it a path is looked at once: later looks return the same `PinnedInput`, and
readers ask `find_pinned` for the version of a Delta table that was identified. Plain files have no versions, so
`require_unchanged` looks again before results are published. Outside, each look is a new one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from recbench_spark.errors import DataError

TIME_TRAVEL = frozenset({"versionasof", "timestampasof"})
"""Options of a Delta reader, in small letters, that name another version than the latest."""

OLD_IDENTITY = re.compile(r"delta:(\d+|empty)|files:\d+:\d+:[0-9a-f]{12}")
"""Identities by version, or by names, sizes and times: what rows of `runs` hold of older code."""

Options = Mapping[str, str]
Key = tuple[str, tuple[tuple[str, str], ...], bool]


@dataclass(frozen=True)
class PinnedInput:
    """A log or table as a job looked at it first.

    Attributes:
        path: as the settings give it.
        identity: a text that is equal for equal content.
        version: of a Delta table; None: plain files.
        sign_now: returns the sign of what lies there now, which is `sign` as long as nothing changed.
        sign: as `sign_now` returned it at the first look.
    """

    path: str
    identity: str
    version: int | None = None
    read_fingerprint: Callable[[], str] | None = field(default=None, compare=False, repr=False)
    sign: str = ""

    def require_unchanged(self) -> None:
        """Look again. Raises DataError where the content is not the identified one any more."""
        if self.read_fingerprint is not None and self.read_fingerprint() != self.sign:
            raise change_error(self.path)


_pinned: ContextVar[dict[Key, PinnedInput] | None] = ContextVar("pinned inputs", default=None)


@contextmanager
def pin_inputs() -> Iterator[None]:
    """Pin every input that is looked at inside; joins the pins of a caller that has opened them."""
    if _pinned.get() is not None:
        yield
        return
    token = _pinned.set({})
    try:
        yield
    finally:
        _pinned.reset(token)


def look_once(path: str, options: Options, named: bool, look: Callable[[], PinnedInput]) -> PinnedInput:
    """Return the pinned input of a path; `look` makes it at the first call.

    Args:
        path: of the input.
        options: of its reader; those of TRAVEL choose a version.
        named: whether names of files count.
        look: returns the input as it lies there now.
    """
    known = _pinned.get()
    if known is None:
        return look()
    key = _key(path, options, named)
    if key not in known:
        known[key] = look()
    return known[key]


def find_pinned(path: str, options: Options | None = None) -> PinnedInput | None:
    """Return the pinned input of a path; None where nobody has looked at it."""
    known = _pinned.get() or {}
    found = (known.get(_key(path, options or {}, named)) for named in (False, True))
    return next((one for one in found if one is not None), None)


def find_version(path: str, options: Options | None = None) -> int | None:
    """Return the version of a Delta table that a job has identified; None: read the latest."""
    found = find_pinned(path, options)
    return found.version if found else None


def require_unchanged() -> None:
    """Look at every pinned input again, before what was read of it is published.

    Raises:
        DataError: one is not what it was at the first look.
    """
    for found in list((_pinned.get() or {}).values()):
        found.require_unchanged()


def change_error(path: str) -> DataError:
    """Return the error for an input that another process writes to while a job reads it."""
    return DataError(f"{path} changed while it was read", "run again, when nothing writes to it any more")


def time_travel_options(options: Options) -> dict[str, str]:
    """Return the options that choose a version of a Delta table, with their names as given."""
    return {name: value for name, value in options.items() if name.lower() in TIME_TRAVEL}


def normalise_path(path: str) -> str:
    """Return a path without `file:`, absolute where it is one of this machine."""
    bare = re.sub(r"^file:/*(?=/)", "", path)
    return bare if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", bare) else str(Path(bare).absolute())


def _key(path: str, options: Options, named: bool) -> Key:
    travel = {name.lower(): value for name, value in time_travel_options(options).items()}
    return normalise_path(path), tuple(sorted(travel.items())), named
