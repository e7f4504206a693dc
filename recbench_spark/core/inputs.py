"""Pinned inputs: a job reads exactly what it identified.

A job opens `pin_inputs`. Inside it each path is looked at once: later looks return the same `PinnedInput`,
and readers ask `find_version` for a Delta table's identified version. Plain files have no versions, so
`require_unchanged` looks again before results are published. Outside `pin_inputs` each look is a new one.
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
"""A Delta reader's options, in small letters, for another version than the latest."""

OLD_IDENTITY = re.compile(r"delta:(\d+|empty)|files:\d+:\d+:[0-9a-f]{12}")
"""Identities by version, or by names, sizes and times, as older code wrote them to `runs`."""

Options = Mapping[str, str]
Key = tuple[str, tuple[tuple[str, str], ...], bool]


@dataclass(frozen=True)
class PinnedInput:
    """A log or table, fixed at a job's first look.

    Attributes:
        path: as in the settings.
        identity: a text, equal for equal content.
        version: version of a Delta table; None: plain files.
        read_fingerprint: returns the present content's fingerprint.
        fingerprint: the content's fingerprint at the first look; another one later means a change.
    """

    path: str
    identity: str
    version: int | None = None
    read_fingerprint: Callable[[], str] | None = field(default=None, compare=False, repr=False)
    fingerprint: str = ""

    def require_unchanged(self) -> None:
        """Look again.

        Raises:
            DataError: the content has changed since the first look.
        """
        if self.read_fingerprint is not None and self.read_fingerprint() != self.fingerprint:
            raise change_error(self.path)


_pinned: ContextVar[dict[Key, PinnedInput] | None] = ContextVar("pinned inputs", default=None)


@contextmanager
def pin_inputs() -> Iterator[None]:
    """Pin every input looked at inside this block.

    Inner calls share the outer one's pins.
    """
    if _pinned.get() is not None:
        yield
        return
    token = _pinned.set({})
    try:
        yield
    finally:
        _pinned.reset(token)


def look_once(path: str, options: Options, named: bool, look: Callable[[], PinnedInput]) -> PinnedInput:
    """Return a path's pinned input; the first call makes it.

    Args:
        path: path of the input.
        options: options of its reader; those in TIME_TRAVEL choose a version.
        named: file names belong to the identity.
        look: returns the input with its present content.
    """
    pins = _pinned.get()
    if pins is None:
        return look()
    key = _key(path, options, named)
    if key not in pins:
        pins[key] = look()
    return pins[key]


def find_version(path: str, options: Options | None = None) -> int | None:
    """Return a Delta table's identified version; None: read the latest."""
    pins = _pinned.get() or {}
    matches = (pins.get(_key(path, options or {}, named)) for named in (False, True))
    return next((match.version for match in matches if match is not None), None)


def require_unchanged() -> None:
    """Look at all pinned inputs again, before publishing results.

    Raises:
        DataError: an input has changed since the first look.
    """
    for pin in list((_pinned.get() or {}).values()):
        pin.require_unchanged()


def change_error(path: str) -> DataError:
    """Return the error for an input changed during its reading."""
    return DataError(f"{path} changed while it was read", "run again, when nothing writes to it any more")


def time_travel_options(options: Options) -> dict[str, str]:
    """Return the options to choose a Delta table's version.

    Names keep the letters of the caller.
    """
    return {name: value for name, value in options.items() if name.lower() in TIME_TRAVEL}


def normalise_path(path: str) -> str:
    """Return a path without `file:`; local paths become absolute."""
    bare = re.sub(r"^file:/*(?=/)", "", path)
    return bare if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", bare) else str(Path(bare).absolute())


def _key(path: str, options: Options, named: bool) -> Key:
    travel = {name.lower(): value for name, value in time_travel_options(options).items()}
    return normalise_path(path), tuple(sorted(travel.items())), named
