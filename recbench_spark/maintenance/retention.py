"""Find and remove old shared folders, on any storage.

Data stays while a living run may use it: if it was used within a day or since the longest running job
began, or if it has a lease whose owner may be alive. All times are by the storage's clock. Work left by
ended owners follows the same rule as the folder they were making.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

from recbench_spark.auctions.log_layout import LAYOUTS
from recbench_spark.auctions.log_layout import MANIFEST as LAYOUT_MANIFEST
from recbench_spark.auctions.part_files import FACTS
from recbench_spark.graphs.folders import FOLDER, MANIFEST, NIGHT_NOTE
from recbench_spark.models.fits.tasks import FIT_FILES
from recbench_spark.schemas import SPLITS
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.storage.leases import find_target, is_held_within, list_abandoned, remove_work
from recbench_spark.storage.made_folders import CURRENT, find_private_form, stat_folders, stat_whole
from recbench_spark.storage.objects import (
    StoredObject,
    list_drafts,
    read_bytes,
    remove_objects,
)
from recbench_spark.storage.uris import arrow_uri, join_uri

MAX_NIGHT_SECONDS = 24 * 3600
"""Seconds after which a night is over: a day."""

SHARED_FOLDERS = (
    FOLDER, f"{FOLDER}/models", FIT_FILES, f"{FIT_FILES}/logs", f"{FIT_FILES}/bundles", LAYOUTS,
)  # fmt: skip
"""Warehouse folders whose subfolders are each a graph, a model, a fit, a log, a bundle, or an auction log
in its stored layout.
"""

USE_MARKS = (MANIFEST, NIGHT_NOTE, LAYOUT_MANIFEST, FACTS)
"""Files which each use touches in such a folder."""

NO_SPLIT = 1 << 30
"""More dashes than any name has, for places where no folder belongs to a split."""


@dataclass(frozen=True)
class RetentionRule:
    """The rule for which folders are old.

    Attributes:
        splits: splits that stay, and with them their folders.
        before: the first night to keep.
        keep: earlier nights to keep, too.
        in_use: seconds since 1970 by the storage's clock; data used later may be in use.
    """

    splits: frozenset[str]
    before: date
    keep: tuple[date, ...]
    in_use: float

    @classmethod
    def read(
        cls, store: FileTables, before: date, keep: Sequence[date], doomed: Collection[str]
    ) -> RetentionRule:
        """Return a warehouse's rule; the splits in `doomed` will go."""
        existing = store.list_values(SPLITS, "split_id") if store.exists(SPLITS.name) else set()
        in_use = store.find_use_time(MAX_NIGHT_SECONDS)
        return cls(frozenset(existing - set(doomed)), before, tuple(keep), in_use)

    def is_old(self, name: str, last_use: float, dashes: int) -> bool:
        """Return whether nobody needs a folder.

        A name with `dashes` or more is a split's folder, and begins with the split's id.
        """
        if last_use > self.in_use:
            return False
        if name.count("-") >= dashes:
            return name.partition("-")[0] not in self.splits
        day = datetime.fromtimestamp(last_use, UTC).date()
        return day < self.before and day not in self.keep


@dataclass
class FolderUse:
    """A folder's last use, and its size.

    Attributes:
        marked: time on its newest mark of use, in seconds since 1970; 0 without a mark.
        written: time on its newest file.
        size: bytes in its files.
    """

    marked: float = 0.0
    written: float = 0.0
    size: int = 0

    def add(self, name: str, entry: StoredObject) -> FolderUse:
        """Add a file by its name below the folder."""
        if name in USE_MARKS:
            self.marked = max(self.marked, entry.written)
        self.written, self.size = max(self.written, entry.written), self.size + entry.size
        return self

    @property
    def last(self) -> float:
        """Time of last use; without marks, of the newest file."""
        return self.marked or self.written


def read_use(*places: str) -> FolderUse:
    """Return the last use among places, which need not exist."""
    use = FolderUse()
    for entry in (entry for place in places for entry in stat_whole(place)):
        use.add(entry.name, entry)
    return use


def list_uses(root: str, room: str, pattern: re.Pattern[str], depth: int = 1) -> dict[str, FolderUse]:
    """Return a room's folders by place, with their use.

    Args:
        root: the warehouse's folder or URI.
        room: one of SHARED_FOLDERS.
        pattern: what folder names match.
        depth: 1 for its own folders; 2 for those one level deeper.
    """

    def counts(names: Sequence[str]) -> bool:
        return f"{room}/{names[0]}" not in SHARED_FOLDERS and bool(pattern.fullmatch(names[-1]))

    uses = dict[str, FolderUse]()
    for folder, entry in stat_folders(join_uri(root, room), counts, depth):
        uses.setdefault(folder, FolderUse()).add(entry.name, entry)
    return uses


def find_old_folders(root: str, top: str, dashes: int, rule: RetentionRule) -> dict[str, int]:
    """Return old folders and their bytes, sorted by place.

    Among them are leases and work folders whose owners have ended. On remote storage, so are private
    folders, which their owners may only read for long.

    Args:
        root: the warehouse's folder or URI.
        top: name of the folder to search. It holds fits, graphs or logs, and each of SHARED_FOLDERS holds
            folders.
        dashes: dashes in the folder name of a split (`RetentionRule.is_old`); 1 in the folders inside.
        rule: says which are old.
    """
    old = {}
    pattern = re.compile(".+" if find_private_form(root).depth > 1 else r"[^.].*")
    for room in (one for one in SHARED_FOLDERS if f"{one}/".startswith(f"{top}/")):
        at = dashes if room == top else 1
        for place, use in list_uses(root, room, pattern).items():
            if rule.is_old(place.rpartition("/")[2], use.last, at) and not is_held_within(place):
                old[place] = use.size
        for target, remains in list_abandoned(join_uri(root, room)).items():
            if rule.is_old(target.name, read_use(*map(str, remains)).last, at):
                old |= {str(path): read_use(str(path)).size for path in remains}
    return dict(sorted(old.items()))


def find_old_fits(root: str, rule: RetentionRule) -> tuple[str, ...]:
    """Return fit, log and bundle folders no kept night needs.

    Files from a night's fits are removed with its split. Files from `recbench benchmark`, `recbench tune`
    and bundles are removed if nothing has written to them since the first kept night. Rows in `fits` and
    `trials` stay.
    """
    return tuple(find_old_folders(root, FIT_FILES, 1, rule))


def find_old_layouts(root: str, rule: RetentionRule) -> tuple[str, ...]:
    """Return folders of auction logs without recent replays.

    Folders with their counts are among them.
    """
    return tuple(find_old_folders(root, LAYOUTS, NO_SPLIT, rule))


def find_unused(places: Iterable[str], in_use: float) -> list[str]:
    """Return folders unused after `in_use` which nobody makes now."""
    return [place for place in places if read_use(place).last <= in_use and not is_held_within(place)]


def remove_folders(places: Iterable[str], in_use: float) -> None:
    """Remove old folders, except those in use since then.

    `find_old_folders` returned the places.
    """
    for place in find_unused(places, in_use):
        target = find_target(Path(place))
        if target is None:
            remove_objects(place)
        elif Path(place).exists():  # else a run has taken the work over
            remove_work(target)


def remove_private_files(root: str, in_use: float) -> int:
    """Remove private files and folders of killed runs; count them.

    Runs which came second left some, too. On object storage, `current.txt` (`made_folders`) names the one
    private folder beside it that counts.

    Args:
        root: the warehouse's folder or URI.
        in_use: seconds since 1970 by the storage's clock; what was written later stays.
    """
    root, newest = arrow_uri(root), dict[str, float]()
    rooms = [join_uri(root, room) for room in SHARED_FOLDERS]
    form = find_private_form(root)
    for place in [root] if form.depth > 1 else rooms:
        newest |= {join_uri(place, entry.name): entry.written for entry in list_drafts(place)}
    for room in SHARED_FOLDERS:
        newest |= {place: use.written for place, use in list_uses(root, room, *form).items()}
    old = [place for place, written in newest.items() if written <= in_use and not _is_named(place)]
    for place in old:
        remove_objects(place)
    return len(old)


def _is_named(place: str) -> bool:
    """Return whether `current.txt` beside a private folder names it."""
    folder, _, name = place.rpartition("/")
    return (read_bytes(join_uri(folder, CURRENT)) or b"").decode() == name
