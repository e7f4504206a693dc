"""Odd names of folders: run every job under every name of the list.

The number of a case chooses name and job, so that each 26 cases meet all names, and all cases together
every job under every name. On even turns only the warehouse is under the name, on odd ones also its
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
from tests.faults.inputs import prepare_inputs, write_inputs
from tests.faults.jobs import NAMED, READERS, Job
from tests.faults.jobs import prepare_nights as nights_before
from tests.faults.starting import find_bad_end
from tests.faults.undisturbed import run_alone

ODD_NAMES = ("a b", "é日本", "100%20x", "%2F", "a+b", "it's", "x;y", "#h", "a,b", "a=b", "-dash", "a:b",
             "a&b", "~", "$HOME", "`id`", "[z]", "{q}", "a*b", "a?b", "a\\b", '"q"', "a" * 200, "_hidden",
             ".hidden", "w\tx")  # fmt: skip
GLOBS = set("[]{}*?\\")


ALL: tuple[Job, ...] = (*NAMED.values(), *READERS)


def choose_job(number: int) -> tuple[str, Job, bool]:
    """Return name, job, and whether the inputs are under the name, too."""
    turn = number // len(ODD_NAMES)
    return ODD_NAMES[number % len(ODD_NAMES)], ALL[(number + turn) % len(ALL)], turn % 2 == 1


def run(case: Case) -> Verdict:
    """Run a job under the name whose turn it is."""
    inputs, (name, job, own_inputs) = prepare_inputs(case), choose_job(case.number)
    folder = case.place / f"case{case.number}"
    place = folder / name
    shutil.rmtree(folder, ignore_errors=True)
    place.mkdir(parents=True)
    files = place / "in" if own_inputs else inputs
    if own_inputs:
        write_inputs(files)
    warehouse = place / "warehouse"
    job.before(inputs if job.before is nights_before else files, warehouse)  # a copy needs no files
    code, output = job_here(job.name, job.flags(files, warehouse))
    beside, plain = find_strays(folder, name), folder / "plain"
    place.rename(plain)  # the campaign reads tables by `deltalake` alone, which takes few names
    wrong = find_problem(name, job, code or 0, output, inputs, plain / "warehouse", own_inputs) or beside
    case_text = f"{job.title} under {name[:30]!r}{', its inputs too' if own_inputs else ''}"
    if not wrong:
        shutil.rmtree(folder)
    return Verdict.judge(
        f"{wrong} [{folder}]" if wrong else None, case_text, f"{job.title}: exit code {code}"
    )


def find_problem(
    name: str, job: Job, code: int, output: str, inputs: Path, warehouse: Path, own_inputs: bool
) -> Any:
    """Check a job's result: a name with pattern characters may be refused; other names change nothing."""
    if wrong := find_bad_end(code, output):
        return wrong
    if code:
        return None if GLOBS & set(name) else f"refused: {output[-500:]!r}"
    reference = run_alone(job, inputs)
    rows = warehouses.read_rows(warehouse, reference.varying)
    if own_inputs:  # the rows contain paths, and values derived from them
        return amounts_differ(reference.rows, rows)
    return warehouses.find_differences(reference.rows, rows) or job.rule(inputs, warehouse)


def amounts_differ(wanted: dict[str, Counter[str]], actual: dict[str, Counter[str]]) -> str | None:
    """Find tables that have more or fewer rows."""
    counts = [{name: rows.total() for name, rows in side.items()} for side in (wanted, actual)]
    odd = sorted(name for name in {*wanted, *actual} if counts[0].get(name) != counts[1].get(name))
    return (
        f"other numbers of rows: {[(name, *(c.get(name) for c in counts)) for name in odd]}"
        if odd
        else None
    )


def find_strays(folder: Path, name: str) -> str | None:
    """Find files that a job wrote beside its folder."""
    names = sorted(path.name for path in folder.iterdir() if path.name != name)
    return f"wrote {names}" if names else None


def odd_paths(case: Case, chance: random.Random, folder: Path) -> Verdict:
    """A night whose log, file and warehouse are in folders of odd names, or behind a link."""
    name = ODD_NAMES[case.number // 17 % len(ODD_NAMES)]
    place = folder / name
    place.mkdir()
    way = chance.choice(["plain", "link", "dots", "slash"])
    if way == "link":
        (folder / "real").mkdir()
        place.rmdir()
        place.symlink_to(folder / "real")
    rows = nights.draw_log(chance)
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
    wrong = nights.find_bad_exit(code, err) or (f"wrote {strays}" if strays else None)
    if not wrong and code == 0:
        loaded = load_benchmark(str(place / "night.yaml"))
        wrong = nights.night_is_wrong(loaded, rows, place / "warehouse")
    elif not wrong and not GLOBS & set(name):
        wrong = f"refused: {err[-400:]!r}"
    case_text = f"{name[:30]!r} ({way})"
    return Verdict.judge(wrong, f"{case_text}", f"path {name[:12]!r}: exit code {code}")
