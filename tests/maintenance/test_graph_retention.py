"""Retention of the files of graphs and of models over them."""

from __future__ import annotations

import json
import os
import tempfile
import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from recbench_spark import cli
from recbench_spark.commands import embed, maintain
from recbench_spark.graphs.folders import NIGHT_NOTE
from recbench_spark.maintenance.retention import (
    MAX_NIGHT_SECONDS,
    OldGraphs,
    RetentionRule,
    Upkeep,
    find_old_fits,
    find_old_graphs,
    find_old_layouts,
    remove_folders,
    remove_private_files,
)
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.leases import DEAD_SECONDS, Lease, hold_lease
from recbench_spark.storage.makers import Maker, private_name
from recbench_spark.storage.marks import end_runs, mark_used, note_run

NOW = datetime.now(UTC)
LONG_AGO = NOW - timedelta(days=40)


class Warehouse(ArrowStore):
    """A warehouse in which some splits exist."""

    def __init__(self, folder: Path, *splits: str) -> None:
        super().__init__(str(folder), any_version=True)
        self.splits = splits

    def exists(self, _: str) -> bool:
        return True

    def list_values(self, *_: Any) -> set[str]:
        return set(self.splits)


def read_rule(store: Warehouse, before: date, keep: Any = (), doomed: Any = ()) -> RetentionRule:
    return Upkeep(store).read_rule(before, keep, doomed)


def find_graphs(store: Warehouse, *rule: Any) -> OldGraphs:
    return find_old_graphs(store.root, read_rule(store, *rule))


def find_fits(store: Warehouse, *rule: Any) -> list[Path]:
    return list(map(Path, find_old_fits(store.root, read_rule(store, *rule))))


def find_layouts(store: Warehouse, *rule: Any) -> list[Path]:
    return list(map(Path, find_old_layouts(store.root, read_rule(store, *rule))))


def remove(store: Warehouse, places: list[Path]) -> None:
    remove_folders(map(str, places), store.find_use_time(MAX_NIGHT_SECONDS))


def make_folder(root: Path, folder: str, mark: str | None, used: datetime) -> None:
    place = root / "graph_files" / folder
    place.mkdir(parents=True)
    for name in ("data.npy", *([mark] if mark else [])):
        (place / name).write_text("{}")
        os.utime(place / name, (used.timestamp(),) * 2)
    os.utime(place, (used.timestamp(),) * 2)


def test_a_folder_goes_with_its_split_or_when_nothing_uses_it(tmp_path) -> None:
    fresh = NOW - timedelta(hours=2)
    for folder, mark, used in (
        ("s1-aaa-4", "graph.json", LONG_AGO),  # of a kept split, however old
        ("s2.1-bbb-4", "graph.json", LONG_AGO),  # of one that goes
        ("s3-ccc-4", "graph.json", LONG_AGO),  # of one that is gone
        ("s3-ddd-4", "graph.json", fresh),  # a night may be running
        ("eee-4", "graph.json", LONG_AGO),  # of an edge list that nobody uses
        ("fff-4", "graph.json", NOW - timedelta(days=3)),  # used since
        ("ggg-4", None, LONG_AGO),  # a layout that was killed
        ("hhh-4", None, fresh),  # one that may be at work
        ("models/s1-m", NIGHT_NOTE, LONG_AGO),
        ("models/s2.1-m", NIGHT_NOTE, LONG_AGO),
        ("models/nnn", NIGHT_NOTE, LONG_AGO),
        ("models/ooo", None, LONG_AGO),  # killed: no layers of it are anybody's
        ("models/ppp", None, fresh),
    ):
        make_folder(tmp_path, folder, mark, used)
    store = Warehouse(tmp_path, "s1", "s2.1")
    before = (NOW - timedelta(days=30)).date()
    old = find_graphs(store, before, (), ["s2.1"])
    wanted = ["eee-4", "ggg-4", "models/nnn", "models/ooo", "models/s2.1-m", "s2.1-bbb-4", "s3-ccc-4"]
    assert list(old.folders) == wanted
    assert old.models == ("nnn",) and old.size == 7 * 2 + 5 * 2
    kept = find_graphs(store, before, [LONG_AGO.date()], ["s2.1"])
    assert list(kept.folders) == ["models/s2.1-m", "s2.1-bbb-4", "s3-ccc-4"]


def test_files_of_a_fit_go_with_its_split_or_when_nothing_writes_to_them(tmp_path) -> None:
    for folder, used in (
        ("fits/_delta_log", LONG_AGO),  # a table, however old
        ("fit_files/s1-m", LONG_AGO),
        ("fit_files/s1-m-f", LONG_AGO),  # of a model with a table of features
        ("fit_files/s2.1-m-f", LONG_AGO),
        ("fit_files/s2.1-m", LONG_AGO),
        ("fit_files/s2.1-n", NOW),  # a night may be running
        ("fit_files/abc", LONG_AGO),  # of jobs/benchmark.py
        ("fit_files/def", NOW - timedelta(days=3)),
        ("fit_files/logs/xyz", LONG_AGO),
        ("fit_files/bundles/uvw", LONG_AGO),
    ):
        make_folder(tmp_path, f"../{folder}", None, used)
    store = Warehouse(tmp_path, "s1", "s2.1")
    before = (NOW - timedelta(days=30)).date()
    old = find_fits(store, before, (), ["s2.1"])
    wanted = [
        "fit_files/abc",
        "fit_files/bundles/uvw",
        "fit_files/logs/xyz",
        "fit_files/s2.1-m",
        "fit_files/s2.1-m-f",
    ]
    assert [str(folder.relative_to(tmp_path)) for folder in old] == wanted
    remove(store, old)
    assert find_fits(store, before, (), ["s2.1"]) == [] and (tmp_path / "fit_files/def/data.npy").is_file()


def test_files_may_lie_on_another_disk_and_names_of_digests_are_no_private_folders(tmp_path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "fit_files").symlink_to(tmp_path / "disk")
    digest = "0123456789abcdef" * 2
    make_folder(tmp_path, "../fit_files/abc", None, LONG_AGO)
    make_folder(tmp_path, f"../fit_files/s1-m/{digest}", None, LONG_AGO)
    store = Warehouse(tmp_path, "s1")
    assert [path.name for path in find_fits(store, BEFORE)] == ["abc"]
    assert remove_private_files(str(tmp_path), time.time()) == 0
    remove(store, find_fits(store, BEFORE))
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["s1-m"]
    assert (tmp_path / "disk" / "s1-m" / digest / "data.npy").is_file()


def test_a_log_of_auctions_goes_when_no_replay_has_used_it(tmp_path) -> None:
    """A layout and its counts each have a mark of use; the age of other files says nothing."""
    for folder, mark, used in (
        ("aaa", "layout.json", LONG_AGO),
        ("aaa-after-all", "facts.json", LONG_AGO),
        ("bbb", "layout.json", NOW - timedelta(days=3)),
        ("bbb-after--5", "facts.json", LONG_AGO),  # counts after another time than now
        ("bbb-after-7", "facts.json", NOW - timedelta(days=3)),
        ("ccc", None, LONG_AGO),  # killed by hand in the middle of a removal
        ("ddd", "layout.json", NOW),
    ):
        make_folder(tmp_path, f"../auction_logs/{folder}", mark, used)
    mark_used(tmp_path / "auction_logs" / "ccc" / "layout.json")  # there is none: no error
    store, root = Warehouse(tmp_path), tmp_path / "auction_logs"
    with hold_lease(root / "eee", lambda: False) as lease:
        assert lease is not None
        age(lease.work)
        old = find_layouts(store, (NOW - timedelta(days=30)).date())
        assert [path.name for path in old] == ["aaa", "aaa-after-all", "bbb-after--5", "ccc"]
        assert find_layouts(store, BEFORE, [LONG_AGO.date()]) == []
        mark_used(root / "aaa" / "layout.json")  # a replay has just begun
        remove(store, old)
    left = {path.name for path in root.iterdir() if not path.name.startswith(".")}
    assert left == {"aaa", "bbb", "bbb-after-7", "ddd"}


BEFORE = (NOW - timedelta(days=30)).date()


@pytest.mark.parametrize("days", [-2, 2])
def test_a_host_whose_clock_is_wrong_removes_no_more_and_no_less(tmp_path, monkeypatch, days: int) -> None:
    make_folder(tmp_path, "s9-aaa-4", "graph.json", NOW)  # of a split that is being made
    make_folder(tmp_path, "s9-bbb-4", "graph.json", LONG_AGO)
    make_folder(tmp_path, "../fit_files/s9-m", None, NOW)
    make_folder(tmp_path, "../fit_files/s9-n", None, NOW - timedelta(hours=30))
    wrong = time.time() + days * 86400
    monkeypatch.setattr(time, "time", lambda: wrong)
    store = Warehouse(tmp_path)
    assert find_graphs(store, BEFORE).folders == ("s9-bbb-4",)
    assert [path.name for path in find_fits(store, BEFORE)] == ["s9-n"]


def age(*paths: Path, days: float = 40) -> None:
    for path in paths:
        for place in (*path.rglob("*"), path):
            os.utime(place, (time.time() - days * 86400,) * 2)


def test_work_of_a_living_owner_stays_and_that_of_an_ended_one_goes_with_time(tmp_path) -> None:
    room, store = tmp_path / "fit_files", Warehouse(tmp_path, "s1")
    with hold_lease(room / "s9-live", lambda: False) as lease:
        assert lease is not None
        (lease.work / "checkpoint").write_text("7")
        ended = []
        for name in ("s9-ended", "s9-fresh", "s1-kept", "abc"):
            with pytest.raises(ValueError, match="x"), hold_lease(room / name, lambda: False) as other:
                assert other is not None
                (other.work / "checkpoint").write_text("7")
                raise ValueError("x")
            ended.append(other)
        age(*(one.work for one in (lease, *ended) if not one.target.endswith("s9-fresh")))
        age(*(Path(one.file) for one in ended if not one.target.endswith("s9-fresh")))
        old = find_fits(store, BEFORE)
        assert {path.name for path in old} == {
            f".{name}.{kind}-0001" for name in ("s9-ended", "abc") for kind in ("work", "lease")
        }
        remove(store, old)
        left = {path.name for path in room.iterdir()}
        names = ("s9-live", "s9-fresh", "s1-kept")
        assert left == {f".{name}.{kind}-0001" for name in names for kind in ("work", "lease")}
        with hold_lease(room / "s1-kept", lambda: False) as again:
            assert again is not None and (again.work / "checkpoint").read_text() == "7"


def test_a_graph_in_which_another_host_works_stays_until_that_is_dead(tmp_path) -> None:
    make_folder(tmp_path, "aaa-4", "graph.json", LONG_AGO)
    make_folder(tmp_path, "models/nnn", NIGHT_NOTE, LONG_AGO)
    graph, store = tmp_path / "graph_files" / "aaa-4", Warehouse(tmp_path)
    inner, outer = Lease(str(graph / "degrees"), 1), Lease(f"{tmp_path}/graph_files/models/nnn", 2)
    elsewhere = Maker("elsewhere", "another boot", "pid:[1]", 1, "5")
    for lease in (inner, outer):
        Path(lease.file).write_text(json.dumps(elsewhere.to_json()))
    assert find_graphs(store, BEFORE).folders == ()
    for lease in (inner, outer):
        age(Path(lease.file), days=(DEAD_SECONDS + 1) / 86400)
    assert find_graphs(store, BEFORE).folders == ("aaa-4", "models/nnn")


def test_what_a_run_takes_between_the_look_and_the_removal_stays(tmp_path) -> None:
    make_folder(tmp_path, "aaa-4", "graph.json", LONG_AGO)
    make_folder(tmp_path, "bbb-4", "graph.json", LONG_AGO)
    make_folder(tmp_path, "ccc-4", "graph.json", LONG_AGO)
    root, store = tmp_path / "graph_files", Warehouse(tmp_path)
    old = find_graphs(store, BEFORE)
    assert old.folders == ("aaa-4", "bbb-4", "ccc-4")
    os.utime(root / "aaa-4" / "graph.json")
    with hold_lease(root / "bbb-4", lambda: False):
        Upkeep(store).drop_old_graphs(old)
    assert (root / "aaa-4").is_dir() and not (root / "ccc-4").exists()
    assert (root / ".bbb-4.work-0001" / "graph.json").is_file(), "its new owner has it"


def test_what_was_used_since_the_longest_run_at_work_began_stays(tmp_path) -> None:
    make_folder(tmp_path, "../fit_files/s9-m", None, NOW - timedelta(days=3))
    store = Warehouse(tmp_path)
    assert len(find_fits(store, BEFORE)) == 1
    note_run(tmp_path, "20260101T000000-x")
    (mark,) = (tmp_path / "_at_work").iterdir()
    first, *rest = mark.read_text().splitlines()
    since = (NOW - timedelta(days=4)).timestamp()
    mark.write_text("\n".join([json.dumps({**json.loads(first), "since": since}), *rest]) + "\n")
    assert find_fits(store, BEFORE) == []
    end_runs(tmp_path)
    assert len(find_fits(store, BEFORE)) == 1


def test_private_files_of_killed_processes_go_after_a_day_and_no_published_folder_is_halved(
    tmp_path, monkeypatch
) -> None:
    room = tmp_path / "graph_files" / "models"
    room.mkdir(parents=True)
    old, fresh = room / private_name("old"), room / private_name("fresh")
    for folder in (old, fresh):
        folder.mkdir()
        (folder / "part").write_text("x")
    age(old, days=1.1)
    make_folder(tmp_path, "models/nnn", NIGHT_NOTE, LONG_AGO)
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)  # killed in the middle of it
    remove(Warehouse(tmp_path), [room / "nnn"])
    assert not (room / "nnn").exists(), "its name goes first"
    monkeypatch.undo()
    assert remove_private_files(str(tmp_path), time.time() - MAX_NIGHT_SECONDS) == 2
    assert [path.name for path in room.iterdir()] == [fresh.name]


def test_work_that_a_run_takes_over_between_the_look_and_the_removal_stays(tmp_path) -> None:
    store, target = Warehouse(tmp_path), tmp_path / "fit_files" / "s9-m"
    for _ in range(2):
        with pytest.raises(ValueError, match="x"), hold_lease(target, lambda: False) as lease:
            assert lease is not None
            (lease.work / "checkpoint").write_text("7")
            raise ValueError("x")
        if lease.epoch == 1:
            age(lease.work, Path(lease.file))
            old = find_fits(store, BEFORE)
    remove(store, old)
    assert (lease.work / "checkpoint").read_text() == "7" and lease.epoch == 2


def test_rooms_and_folders_may_be_links_and_empty_folders_go_too(tmp_path) -> None:
    for folder in ("disk/logs/xyz", "disk/logs/fresh", "disk/abc"):
        make_folder(tmp_path, f"../{folder}", None, NOW if folder.endswith("fresh") else LONG_AGO)
    killed = [tmp_path / "disk" / "logs" / private_name(name) for name in ("empty", "draft")]
    for folder in (*killed, tmp_path / "fit_files" / "empty", tmp_path / "fit_files" / "new"):
        folder.mkdir(parents=True)
    (killed[1] / private_name("part")).write_text("x")
    for name in ("logs", "abc"):
        (tmp_path / "fit_files" / name).symlink_to(tmp_path / "disk" / name)
        os.utime(tmp_path / "fit_files" / name, (0, 0), follow_symlinks=False)
    age(*killed, tmp_path / "fit_files" / "empty")
    store = Warehouse(tmp_path)
    old = find_fits(store, BEFORE)
    assert [path.name for path in old] == ["abc", "empty", "xyz"]
    remove(store, old)
    remove_private_files(str(tmp_path), time.time() - MAX_NIGHT_SECONDS)
    assert {path.name for path in (tmp_path / "fit_files").iterdir()} == {"logs", "new"}
    assert [path.name for path in (tmp_path / "disk" / "logs").iterdir()] == ["fresh"]


def test_folders_that_this_user_cannot_read_stop_nothing() -> None:
    with tempfile.TemporaryDirectory() as place:
        make_folder(Path(place), "../fit_files/abc", None, LONG_AGO)
        hidden = [Path(place, room, "lost+found") for room in ("", "fit_files", "fit_files/logs")]
        for folder in hidden:
            folder.mkdir(parents=True)
            folder.chmod(0)
        (killed := Path(place, "fit_files", private_name("old"))).mkdir()
        for folder in (Path(place), killed.parent):
            folder.chmod(0o777)
        user = os.geteuid()
        os.seteuid(user or 65534)  # root may read anything
        try:
            assert "abc" in [path.name for path in find_fits(Warehouse(Path(place)), BEFORE)]
            assert remove_private_files(place, time.time()) == 1 and not killed.exists()
        finally:
            os.seteuid(user)


def run(job: Any, *flags: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.run(job.main, job.parser(), flags)
    return int(ended.value.code or 0)


def test_old_layers_go_and_what_is_made_stays_made(spark, tmp_path, capsys) -> None:
    place = ("--warehouse", str(tmp_path / "w"))
    (tmp_path / "edges.csv").write_text("1,2\n2,3\n")
    model = (*place, "--edges", str(tmp_path / "edges.csv"), "--widths", "3,2", "--blocks", "1")
    assert run(embed, *model) == 0
    name = capsys.readouterr().out.split("model ", 1)[1].split(maxsplit=1)[0]
    vectors = DeltaTable(tmp_path / "w" / "embeddings").file_uris()

    # Compaction leaves alone what is known by its files' names.
    assert run(maintain, *place, "--optimize") == 0
    assert DeltaTable(tmp_path / "w" / "embeddings").file_uris() == vectors
    flags = (*place, "--keep-days", "5", "--logical-date", str(date.today() + timedelta(days=1)))
    assert run(maintain, *flags) == 0
    assert "graph_files: 0 folders" in capsys.readouterr().out

    root = tmp_path / "w" / "graph_files"
    for file in root.rglob("*"):
        os.utime(file, (time.time() - 10 * 86400,) * 2)
    assert run(maintain, *flags, "--dry-run") == 0
    output = capsys.readouterr().out
    assert "graph_files: 2 folders" in output and f"models/{name}" in output
    assert (root / "models" / name).is_dir()
    assert run(maintain, *flags) == 0
    assert not (root / "models" / name).exists() and not list(root.glob("*/graph.json"))
    assert not DeltaTable(tmp_path / "w" / "graph_vectors").file_uris()
    assert DeltaTable(tmp_path / "w" / "embeddings").file_uris() == vectors

    capsys.readouterr()
    assert run(embed, *model) == 0
    output = capsys.readouterr()
    assert "already made" in output.err and name in output.out
