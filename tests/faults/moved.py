"""Move or copy a warehouse: the next job finds everything in it, and nothing at the old place.

A case is a warehouse of a first job, brought to another place in one of several ways, and a next job there.
The expected result is that of the next job at the old place, undisturbed.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.faults import jobs, warehouses
from tests.faults.campaign import Case, Verdict
from tests.faults.in_process import job as job_here
from tests.faults.inputs import prepare_inputs
from tests.faults.jobs import NAMED, Job
from tests.faults.starting import find_bad_end, run_job
from tests.faults.warehouses import Rows

Flags = Callable[[Path, Path], list[str]]


@dataclass(frozen=True)
class Step:
    """A next job, after the one that made the warehouse. `more`: additional flags of the next job."""

    first: Job
    name: str
    argv: Flags
    more: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Jobs and flags as text, different for all steps, since it names a folder."""
        return " ".join((self.first.title, "then", self.name, self.argv.__name__, *self.more))

    def flags(self, inputs: Path, warehouse: Path) -> list[str]:
        return [*self.argv(inputs, warehouse), *self.more]


def second_night(inputs: Path, warehouse: Path) -> list[str]:
    return jobs.night(inputs, warehouse, "2026-01-02")


def second_graph_night(inputs: Path, warehouse: Path) -> list[str]:
    return jobs.graph_night(inputs, warehouse, "2026-01-02")


def local_question(inputs: Path, warehouse: Path) -> list[str]:
    return ["--engine", "local", "--warehouse", str(warehouse), "SELECT count(*) FROM current_metrics"]


BENCHMARK, NIGHT, EMBED = NAMED["benchmark"], NAMED["nightly"], NAMED["embed"]
LOCAL = NAMED["evaluate-local"]
STEPS = (
    Step(BENCHMARK, "benchmark", jobs.benchmark, ("--seeds", "1,2")),
    Step(EMBED, "embed", jobs.embed_other),
    Step(NAMED["nightly-graphs"], "nightly", second_graph_night),
    Step(BENCHMARK, "bundle", jobs.pack),
    Step(NAMED["tune"], "tune", jobs.benchmark, ("--budget", "4")),
    Step(NIGHT, "nightly", second_night),
    Step(NAMED["tune-nights"], "tune", jobs.tune_nights, ("--budget", "3")),
    Step(BENCHMARK, "tune", jobs.benchmark),
    Step(EMBED, "embed", jobs.embed),
    Step(NAMED["maintain"], "maintain", jobs.maintain),
    Step(NAMED["nightly-graphs"], "maintain", jobs.maintain),
    Step(BENCHMARK, "benchmark", jobs.benchmark),
    Step(NIGHT, "nightly", jobs.night, ("--force",)),
    Step(BENCHMARK, "board", jobs.board),
    Step(NAMED["neighbourhoods"], "neighbourhoods", jobs.neighbourhoods),
    Step(NIGHT, "report", jobs.report),
    Step(LOCAL, "evaluate", jobs.evaluate, ("--engine", "local")),
    Step(LOCAL, "query", local_question),
)
assert len({step.title for step in STEPS}) == len(STEPS)


def run(case: Case) -> Verdict:
    """Bring the warehouse to its new place, run the next job, and check both places."""
    inputs, chance, step = prepare_inputs(case), case.draw(), STEPS[case.number % len(STEPS)]
    way = WAYS[(case.number + case.number // len(STEPS)) % len(WAYS)]
    base = Base(inputs / "moved" / step.title.replace(" ", "-"), step, inputs)
    reference, varying = base.known()
    base.restore()
    new = case.place / f"case{case.number}" / chance.choice(("w", "deep/er/w", "a b", "é"))
    shutil.rmtree(case.place / f"case{case.number}", ignore_errors=True)
    new.parent.mkdir(parents=True)
    left = way(base.origin, new, chance)
    code, output = job_here(step.name, step.flags(inputs, new))
    wrong = find_bad_end(code or 0, output) or (f"exit code {code}: {output[-500:]!r}" if code else None)
    rows = mask_origin(warehouses.read_rows(new, varying), base.origin)
    wrong = wrong or "; ".join(warehouses.find_differences(reference, rows))
    wrong = wrong or find_writes(base.origin, left)
    remove(base.origin)
    about = f"{step.title}, {way.__name__}"
    if not wrong:
        shutil.rmtree(case.place / f"case{case.number}")
    return Verdict.judge(f"{wrong} [{new}]" if wrong else None, about, about)


class Base:
    """A stored warehouse of a first job, and the result of the next job at the same place."""

    def __init__(self, folder: Path, step: Step, inputs: Path) -> None:
        self.folder, self.step, self.inputs = folder, step, inputs
        self.origin, self.saved = folder / "origin", folder / "saved"

    def known(self) -> tuple[dict[str, Rows], set[str]]:
        """Return the rows after the next job, and the columns that differ between any two runs; computed
        once.
        """
        folders = [self.folder / f"unmoved{n}" for n in range(2)]
        if not (self.folder / "whole").exists():
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
            self.step.first.before(self.inputs, self.origin)
            run_job(self.step.first.name, self.step.first.flags(self.inputs, self.origin))
            copy_as_is(self.origin, self.saved)
            for folder in folders:
                self.restore()
                run_job(self.step.name, self.step.flags(self.inputs, self.origin))
                self.origin.rename(folder)
            (self.folder / "whole").touch()
        gone = warehouses.find_varying_columns(*folders)
        return mask_origin(warehouses.read_rows(folders[0], gone), self.origin), gone

    def restore(self) -> None:
        """Restore the warehouse of the first job at its place."""
        remove(self.origin)
        remove(self.folder / "origin-bundle")
        copy_as_is(self.saved, self.origin)


def mask_origin(tables: dict[str, Rows], origin: Path) -> dict[str, Rows]:
    """Replace the old place in the rows by a constant, since a row may say where it was made."""
    return {
        name: Counter(row.replace(str(origin), "WAREHOUSE") for row in rows.elements())
        for name, rows in tables.items()
    }


def remove(place: Path) -> None:
    """Remove a file or a folder, if it exists."""
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)


def copy_as_is(folder: Path, to: Path) -> None:
    subprocess.run(["cp", "-a", folder, to], check=True)


# ------------------------------------------------------------ ways; each returns the files at the old place


def rename_folder(origin: Path, new: Path, chance: random.Random) -> dict[str, bytes]:
    """Rename the folder; nothing is at the old place."""
    origin.rename(new)
    return {}


def copy_and_poison(origin: Path, new: Path, chance: random.Random) -> dict[str, bytes]:
    """Copy with `cp -r`: times are new; the files at the old place get random bytes."""
    subprocess.run(["cp", "-r", origin, new], check=True)
    return poison(origin, chance)


def restore_archive(origin: Path, new: Path, chance: random.Random) -> dict[str, bytes]:
    """Copy as from an archive: times are old; nothing is at the old place."""
    copy_as_is(origin, new)
    shutil.rmtree(origin)
    return {}


def replace_by_file(origin: Path, new: Path, chance: random.Random) -> dict[str, bytes]:
    """Copy with times; a file takes the old place."""
    copy_as_is(origin, new)
    shutil.rmtree(origin)
    origin.write_bytes(b"somebody else's")
    return {"": b"somebody else's"}


WAYS = (copy_and_poison, rename_folder, restore_archive, replace_by_file)


def poison(folder: Path, chance: random.Random) -> dict[str, bytes]:
    """Replace every file's bytes by as many random bytes."""
    left = {}
    for place, _, names in os.walk(folder):
        for name in names:
            file = Path(place, name)
            left[str(file.relative_to(folder))] = raw = chance.randbytes(file.stat().st_size)
            file.write_bytes(raw)
    return left


def find_writes(origin: Path, left: dict[str, bytes]) -> str | None:
    """Find changes of a job at the old place, where it must not write."""
    if origin.is_file():
        return None if origin.read_bytes() == left.get("") else "the file at the old place was changed"
    files = {
        str(file.relative_to(origin)): file.read_bytes() for file in origin.rglob("*") if file.is_file()
    }
    changed = sorted(name for name in {*files, *left} if files.get(name) != left.get(name))
    return f"wrote at the old place: {changed[:3]}" if changed else None
