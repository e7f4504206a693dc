"""Warehouses that were moved or copied: the next job finds all in them, and nothing at the old place.

A case is what a first job left, brought to another place in one of several ways, and a next job there. What
is right: what this next job makes at the old place, untouched.
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
from tests.faults.inputs import inputs_of
from tests.faults.jobs import NAMED, Job
from tests.faults.starting import bad_end, finished
from tests.faults.warehouses import Rows

Flags = Callable[[Path, Path], list[str]]


@dataclass(frozen=True)
class Step:
    """A next job, after that which made the warehouse. `more`: further flags of the next job."""

    first: Job
    name: str
    argv: Flags
    more: tuple[str, ...] = ()

    @property
    def told(self) -> str:
        """Jobs and flags in words; no two steps have the same, since a folder is named by them."""
        return " ".join((self.first.told, "then", self.name, self.argv.__name__, *self.more))

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
assert len({step.told for step in STEPS}) == len(STEPS)


def run(case: Case) -> Verdict:
    """Bring the warehouse to its new place, run the next job, and look at both places."""
    inputs, chance, step = inputs_of(case), case.draw(), STEPS[case.number % len(STEPS)]
    way = WAYS[(case.number + case.number // len(STEPS)) % len(WAYS)]
    base = Base(inputs / "moved" / step.told.replace(" ", "-"), step, inputs)
    known, gone = base.known()
    base.restore()
    new = case.place / f"case{case.number}" / chance.choice(("w", "deep/er/w", "a b", "é"))
    shutil.rmtree(case.place / f"case{case.number}", ignore_errors=True)
    new.parent.mkdir(parents=True)
    left = way(base.origin, new, chance)
    code, said = job_here(step.name, step.flags(inputs, new))
    wrong = bad_end(code or 0, said) or (f"exit code {code}: {said[-500:]!r}" if code else None)
    found = placed(warehouses.shown(new, gone), base.origin)
    wrong = wrong or "; ".join(warehouses.differences(known, found))
    wrong = wrong or touched(base.origin, left)
    remove(base.origin)
    about = f"{step.told}, {way.__name__}"
    if not wrong:
        shutil.rmtree(case.place / f"case{case.number}")
    return Verdict.of(f"{wrong} [{new}]" if wrong else None, about, about)


class Base:
    """A warehouse that a first job made, kept beside, and what the next job makes of it at its place."""

    def __init__(self, folder: Path, step: Step, inputs: Path) -> None:
        self.folder, self.step, self.inputs = folder, step, inputs
        self.origin, self.saved = folder / "origin", folder / "saved"

    def known(self) -> tuple[dict[str, Rows], set[str]]:
        """The rows after the next job, and the columns that no two runs share; made once."""
        ended = [self.folder / f"unmoved{n}" for n in range(2)]
        if not (self.folder / "whole").exists():
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
            self.step.first.before(self.inputs, self.origin)
            finished(self.step.first.name, self.step.first.flags(self.inputs, self.origin))
            copy_as_is(self.origin, self.saved)
            for folder in ended:
                self.restore()
                finished(self.step.name, self.step.flags(self.inputs, self.origin))
                self.origin.rename(folder)
            (self.folder / "whole").touch()
        gone = warehouses.varying(*ended)
        return placed(warehouses.shown(ended[0], gone), self.origin), gone

    def restore(self) -> None:
        """The warehouse as the first job left it, at its place."""
        remove(self.origin)
        remove(self.folder / "origin-bundle")
        copy_as_is(self.saved, self.origin)


def placed(found: dict[str, Rows], origin: Path) -> dict[str, Rows]:
    """Rows in which the old place is the warehouse: a row may say where it was made."""
    return {
        name: Counter(row.replace(str(origin), "WAREHOUSE") for row in rows.elements())
        for name, rows in found.items()
    }


def remove(place: Path) -> None:
    """Whatever is there, a file or a folder."""
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)


def copy_as_is(folder: Path, to: Path) -> None:
    subprocess.run(["cp", "-a", folder, to], check=True)


# -------------------------------------------------------------------- ways; each says what it left behind


def renamed(origin: Path, new: Path, chance: random.Random) -> dict[str, bytes]:
    """The old place is gone."""
    origin.rename(new)
    return {}


def copied(origin: Path, new: Path, chance: random.Random) -> dict[str, bytes]:
    """`cp -r`: times are new; what stays at the old place is spoilt."""
    subprocess.run(["cp", "-r", origin, new], check=True)
    return poisoned(origin, chance)


def restored(origin: Path, new: Path, chance: random.Random) -> dict[str, bytes]:
    """From an archive: times are old; nothing is at the old place."""
    copy_as_is(origin, new)
    shutil.rmtree(origin)
    return {}


def replaced(origin: Path, new: Path, chance: random.Random) -> dict[str, bytes]:
    """Copied with its times; a file stands where the old warehouse was."""
    copy_as_is(origin, new)
    shutil.rmtree(origin)
    origin.write_bytes(b"somebody else's")
    return {"": b"somebody else's"}


WAYS = (copied, renamed, restored, replaced)


def poisoned(folder: Path, chance: random.Random) -> dict[str, bytes]:
    """Every file holds as many bytes as before, and other ones."""
    left = {}
    for place, _, names in os.walk(folder):
        for name in names:
            file = Path(place, name)
            left[str(file.relative_to(folder))] = raw = chance.randbytes(file.stat().st_size)
            file.write_bytes(raw)
    return left


def touched(origin: Path, left: dict[str, bytes]) -> str | None:
    """What a job did at the old place, where it has no business."""
    if origin.is_file():
        return None if origin.read_bytes() == left.get("") else "the file at the old place was changed"
    found = {
        str(file.relative_to(origin)): file.read_bytes() for file in origin.rglob("*") if file.is_file()
    }
    changed = sorted(name for name in {*found, *left} if found.get(name) != left.get(name))
    return f"wrote at the old place: {changed[:3]}" if changed else None
