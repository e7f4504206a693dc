"""Odd names of folders: every name of the list, through every job.

Name and job follow from the number of a case, so that each 26 cases meet all names, and all cases together
every job under every name. On even turns the warehouse alone lies under the name, on odd ones also its
inputs.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from recbench_spark.config import load_benchmark
from tests.faults import nights, warehouses
from tests.faults.campaign import Case, Verdict
from tests.faults.in_process import job as job_here
from tests.faults.inputs import inputs_of, write_inputs
from tests.faults.jobs import NAMED, READERS, Job
from tests.faults.jobs import nights as nights_before
from tests.faults.starting import bad_end
from tests.faults.undisturbed import alone

ODD_NAMES = ("a b", "é日本", "100%20x", "%2F", "a+b", "it's", "x;y", "#h", "a,b", "a=b", "-dash", "a:b",
             "a&b", "~", "$HOME", "`id`", "[z]", "{q}", "a*b", "a?b", "a\\b", '"q"', "a" * 200, "_hidden",
             ".hidden", "w\tx")  # fmt: skip
GLOBS = set("[]{}*?\\")


ALL: tuple[Job, ...] = (*NAMED.values(), *READERS)


def drawn(number: int) -> tuple[str, Job, bool]:
    """Name, job, and whether the inputs lie under the name too."""
    turn = number // len(ODD_NAMES)
    return ODD_NAMES[number % len(ODD_NAMES)], ALL[(number + turn) % len(ALL)], turn % 2 == 1


def run(case: Case) -> Verdict:
    """A job under the name whose turn it is."""
    inputs, (name, job, theirs) = inputs_of(case), drawn(case.number)
    folder = case.place / f"case{case.number}"
    place = folder / name
    shutil.rmtree(folder, ignore_errors=True)
    place.mkdir(parents=True)
    files = place / "in" if theirs else inputs
    if theirs:
        write_inputs(files)
    warehouse = place / "warehouse"
    job.before(inputs if job.before is nights_before else files, warehouse)  # a copy needs no files
    code, said = job_here(job.name, job.flags(files, warehouse))
    beside, plain = strays(folder, name), folder / "plain"
    place.rename(plain)  # the campaign reads tables by `deltalake` alone, which takes few names
    wrong = wrong_of(name, job, code or 0, said, inputs, plain / "warehouse", theirs) or beside
    told = f"{job.told} under {name[:30]!r}{', its inputs too' if theirs else ''}"
    if not wrong:
        shutil.rmtree(folder)
    return Verdict.of(f"{wrong} [{folder}]" if wrong else None, told, f"{job.told}: exit code {code}")


def wrong_of(name: str, job: Job, code: int, said: str, inputs: Path, warehouse: Path, theirs: bool) -> Any:
    """A name with signs of patterns may be refused; under any other the job is as everywhere."""
    if wrong := bad_end(code, said):
        return wrong
    if code:
        return None if GLOBS & set(name) else f"refused: {said[-500:]!r}"
    known = alone(job, inputs)
    found = warehouses.shown(warehouse, known.varying)
    if theirs:  # paths, and what is derived from them, stand in the rows
        return amounts_differ(known.rows, found)
    return warehouses.differences(known.rows, found) or job.rule(inputs, warehouse)


def amounts_differ(wanted: dict[str, Counter[str]], found: dict[str, Counter[str]]) -> str | None:
    """Tables that have more or fewer rows."""
    counts = [{name: rows.total() for name, rows in side.items()} for side in (wanted, found)]
    odd = sorted(name for name in {*wanted, *found} if counts[0].get(name) != counts[1].get(name))
    return (
        f"other numbers of rows: {[(name, *(c.get(name) for c in counts)) for name in odd]}"
        if odd
        else None
    )


def strays(folder: Path, name: str) -> str | None:
    """What a job wrote beside the folder that it was given."""
    found = sorted(path.name for path in folder.iterdir() if path.name != name)
    return f"wrote {found}" if found else None


def odd_paths(case: Case, chance: random.Random, folder: Path) -> Verdict:
    """A night whose log, file and warehouse lie in folders of odd names, or behind a link."""
    name = ODD_NAMES[case.number // 17 % len(ODD_NAMES)]
    place = folder / name
    place.mkdir()
    way = chance.choice(["plain", "link", "dots", "slash"])
    if way == "link":
        (folder / "real").mkdir()
        place.rmdir()
        place.symlink_to(folder / "real")
    rows = nights.the_log(chance)
    log = place / "log.csv"
    nights.write_log(rows, log)
    document = {"name": "odd", "dataset": {"name": "own", "reader": "csv", "path": str(log)},
                "models": [{"name": "popular", "kind": "popular"}],
                "evaluation": {"metrics": ["ndcg", "recall"], "k": [3]}}  # fmt: skip
    (place / "night.yaml").write_text(yaml.safe_dump(document))
    warehouse = str(place / "warehouse")
    warehouse = f"{folder}/./{name}/../{name}/warehouse" if way == "dots" else warehouse
    warehouse += "/" if way == "slash" else ""
    argv = [f"--config={place / 'night.yaml'}", f"--warehouse={warehouse}", "--logical-date", nights.DAY]
    code, err = job_here("nightly", argv)
    strays = sorted(path.name for path in folder.iterdir() if path.name not in (name, "real"))
    wrong = nights.ended_badly(code, err) or (f"wrote {strays}" if strays else None)
    if not wrong and code == 0:
        loaded = load_benchmark(str(place / "night.yaml"))
        wrong = nights.night_is_wrong(loaded, rows, place / "warehouse")
    elif not wrong and not GLOBS & set(name):
        wrong = f"refused: {err[-400:]!r}"
    told = f"{name[:30]!r} ({way})"
    return Verdict.of(wrong, f"{told}", f"path {name[:12]!r}: exit code {code}")
