"""Keep a warehouse small: old results, graphs and shared folders; compaction.

Data stays while a living run may use it: if it was used within a day or since the longest running job
began, or if it has a lease whose owner may be alive. All times are by the storage's clock. Work left by
ended owners follows the same rule as the folder they were making.

A split's graph goes with its split. A graph from an edge list goes if nothing has used it since the first
kept night: each use updates the time on the graph's manifest and on a model's note.
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
from recbench_spark.graphs.folders import FOLDER, MANIFEST, NIGHT_NOTE, read_note
from recbench_spark.models.fits.tasks import FIT_FILES
from recbench_spark.night.split import drop_splits
from recbench_spark.schemas import GRAPH_RUNS, GRAPH_VECTORS, RUNS, SPLITS, TABLES
from recbench_spark.storage import objects
from recbench_spark.storage.file_tables import FileTables
from recbench_spark.storage.leases import find_target, is_held_within, list_abandoned, remove_work
from recbench_spark.storage.made_folders import CURRENT, find_private_form, stat_folders, stat_whole
from recbench_spark.storage.object_access import map_together
from recbench_spark.storage.uris import arrow_uri, join_uri, relative_place

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

    def add(self, name: str, entry: objects.StoredObject) -> FolderUse:
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
            objects.remove_objects(place)
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
        newest |= {join_uri(place, entry.name): entry.written for entry in objects.list_drafts(place)}
    for room in SHARED_FOLDERS:
        newest |= {place: use.written for place, use in list_uses(root, room, *form).items()}
    old = [place for place, written in newest.items() if written <= in_use and not _is_named(place)]
    for place in old:
        objects.remove_objects(place)
    return len(old)


def _is_named(place: str) -> bool:
    """Return whether `current.txt` beside a private folder names it."""
    folder, _, name = place.rpartition("/")
    return (objects.read_bytes(join_uri(folder, CURRENT)) or b"").decode() == name


# ---------------------------------------- graphs


@dataclass(frozen=True)
class OldGraphs:
    """Graph files and vectors for retention to remove.

    Attributes:
        folders: folders of graphs and models, in `graph_files`.
        models: models on edge lists whose layers are removed; their embeddings stay.
        size: bytes in the folders.
    """

    folders: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    size: int = 0


def find_old_graphs(root: str, rule: RetentionRule) -> OldGraphs:
    """Return the warehouse's graph folders which no kept night needs."""
    files = join_uri(root, FOLDER)
    sizes = find_old_folders(root, FOLDER, 2, rule)
    names = tuple(relative_place(place, files) for place in sizes)
    models = [name.removeprefix("models/") for name in names if name.startswith("models/")]
    notes = {name: read_note(join_uri(files, "models", name)) for name in models if "-" not in name}
    lists = tuple(name for name, note in notes.items() if note is not None)
    return OldGraphs(names, lists, sum(sizes.values()))


def _last_layer(place: str) -> int:
    """Return a model's output layer, which is kept like embeddings."""
    note = read_note(place)
    assert note is not None
    return int(note["layers"]) + int(note["output"] == "embeddings")


# ---------------------------------------- results, compaction

LARGE_RESULTS = ("rankings", "user_metrics", "curve_values", "curve_rankings")
"""Tables with a row for each user and run. Metrics and checks are small and stay, however old the night."""


@dataclass(frozen=True)
class OldResults:
    """Runs and splits for retention to remove."""

    runs: tuple[str, ...]
    splits: tuple[str, ...]


class Upkeep:
    """Retention and compaction of one warehouse."""

    def __init__(self, store: FileTables) -> None:
        self.store = store

    def find_old_results(self, before: date, keep: Sequence[date] = ()) -> OldResults:
        """Return earlier runs with user rows, and their own splits.

        Such a split has no kept run. The driver holds names of runs and splits, and no row for a user.
        """
        known, kept, used = set[str](), set[str](), dict[str, bool]()
        for row in self.store.rows(RUNS, [], ["run_id", "split_id", "logical_date"]):
            is_kept = row["logical_date"] >= before or row["logical_date"] in keep
            used[row["split_id"]] = used.get(row["split_id"], False) or is_kept
            kept |= {row["run_id"]} if is_kept else set()
            known.add(row["run_id"])
        large = [TABLES[name] for name in LARGE_RESULTS]
        stored = map_together(self.store.root, lambda table: self.store.list_values(table, "run_id"), large)
        run_ids = (known - kept) & set().union(*stored)
        unused = {name for name, is_kept in used.items() if not is_kept}
        splits = self.store.list_values(SPLITS, "split_id") & unused
        return OldResults(tuple(sorted(run_ids)), tuple(sorted(splits)))

    def read_rule(self, before: date, keep: Sequence[date], doomed: Collection[str]) -> RetentionRule:
        """Return the rule for folders; the splits in `doomed` will go."""
        splits = self.store.list_values(SPLITS, "split_id") - set(doomed)
        in_use = self.store.find_use_time(MAX_NIGHT_SECONDS)
        return RetentionRule(frozenset(splits), before, tuple(keep), in_use)

    def drop_old_results(self, old: OldResults) -> None:
        """Delete old results."""
        for name in filter(self.store.exists, LARGE_RESULTS):
            if old.runs:
                self.store.delete(name, "run_id", old.runs)
        if old.splits:
            drop_splits(self.store, old.splits, "removed by retention")

    def drop_old_graphs(self, old: OldGraphs) -> None:
        """Delete old graphs, except those a run now uses.

        Layer rows go first, so that a model without files never looks complete.
        """
        in_use, root = self.store.find_use_time(MAX_NIGHT_SECONDS), self.store.root
        places = find_unused((join_uri(root, FOLDER, name) for name in old.folders), in_use)
        if old.models and self.store.exists(GRAPH_VECTORS.name):
            for name in old.models:
                place = join_uri(root, FOLDER, "models", name)
                if place in places:
                    vectors = f"CASE WHEN layer < {_last_layer(place)} THEN model_id END"
                    self.store.delete(GRAPH_VECTORS.name, vectors, [name])
        remove_folders(places, in_use)

    def compact_table(self, name: str) -> bool:
        """OPTIMIZE a table; return False if its files must stay.

        A run over a graph recognises finished blocks by file name. So vectors from graph models are never
        compacted, not even in `embeddings`.
        """
        if name == GRAPH_VECTORS.name:
            return False
        models = self.store.list_values(GRAPH_RUNS, "model_id") if name == "embeddings" else ()
        self.store.optimize(name, without=("model_id", sorted(models)))
        return True
