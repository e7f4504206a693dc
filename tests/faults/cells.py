"""Put one value that is no number into each column of numbers that a job reads; it must never be computed
with.

NaN sorts, adds and compares silently, so every entry point needs a check. The cases go through all columns
and values in turn. A control with a number in the same cell must be accepted, or the case proves nothing.
"""

from __future__ import annotations

import math
import random
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from tests.faults.campaign import Case, Verdict
from tests.faults.in_process import job

IDS = {"user_id": [u for u in range(8) for _ in range(6)], "item_id": [*range(6), *range(2, 8)] * 4}
N = len(IDS["user_id"])
VALUES = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf, "NULL": None, "a number": 1.0}

Place = tuple[str, str, str]
PLACES: tuple[Place, ...] = (
    ("lists", "lists", "score"), ("lists", "lists", "rank"), ("lists", "truth", "relevance"),
    ("scores", "scores", "score"), ("scores", "truth", "relevance"),
    ("embeddings", "users", "vector"), ("embeddings", "items", "vector"), ("embeddings", "items", "bias"),
    ("predictions", "predictions", "prediction"), ("predictions", "predictions", "outcome"),
    ("parquet", "log", "rating"), ("csv", "log", "rating"),
)  # fmt: skip
"""The kind of input, and a column of one of its tables."""
MISSING = {("items", "bias"), ("log", "rating")}
"""Columns in which NULL has its own meaning: no bias, or a rating by the log's own rule."""
WHOLE = [
    (place, value_name)
    for value_name in VALUES
    for place in PLACES
    if value_name != "NULL" or place[1:] not in MISSING
]
LOCAL = [(place, value_name) for place, value_name in WHOLE if place[1] != "log"]
CASES = [(place, value_name, "local") for place, value_name in LOCAL] + [(*pair, "spark") for pair in WHOLE]
"""All cases, first those without a JVM; logs are read by Spark."""


def run(case: Case) -> Verdict:
    """Run the next of all places and values."""
    place, value_name, engine = CASES[case.number % len(CASES)]
    folder = case.place / f"case{case.number}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write(place, VALUES[value_name], case.draw(), folder)
    code, err = job(*job_flags(place[0], engine, folder))
    what = f"{value_name} as {'.'.join(place[1:])} of {place[0]} on {engine}"
    wrong = find_problem(value_name == "a number", code, err)
    shutil.rmtree(folder)
    return Verdict.judge(wrong, what, f"{value_name}, {engine}")


def find_problem(number: bool, code: Any, err: str) -> str | None:
    if "Traceback" in err or "internal error" in err or code not in (0, 1, 2):
        return f"a trace, exit code {code}: {err[-500:]!r}"
    if number:
        return f"a number is refused: {err[-400:]!r}" if code else None
    if not code:
        return "taken"
    return None if "error: " in err and "hint: " in err else f"no sentence with a hint: {err[-300:]!r}"


def write(place: Place, value: float | None, chance: random.Random, folder: Path) -> None:
    """Write all tables of the kind, with the value in one row of the column."""
    kind, wrong, column = place
    for name, table in tables(kind, chance).items():
        if name == wrong:
            cells, row = table[column], chance.randrange(len(table[column]))
            if column == "vector":
                cells[row][chance.randrange(2)] = value
            else:
                cells[row] = value
        if name == "lists":
            table.pop("score" if column == "rank" else "rank", None)
        write_table(pa.table(table), folder / f"{name}.{'csv' if kind == 'csv' else 'parquet'}")


def write_table(table: pa.Table, file: Path) -> None:
    if file.suffix == ".csv":
        pyarrow.csv.write_csv(table, file)
    else:
        pq.write_table(table, file)


def tables(kind: str, chance: random.Random) -> dict[str, dict[str, Any]]:
    numbers = {name: [float(chance.randint(1, 5)) for _ in range(N)] for name in ("score", "relevance")}
    truth = {**IDS, "relevance": numbers["relevance"]}
    if kind == "lists":
        ranks = [float(1 + n % 6) for n in range(N)]
        return {"lists": {**IDS, "score": numbers["score"], "rank": ranks}, "truth": truth}
    if kind == "scores":
        return {"scores": {**IDS, "score": numbers["score"]}, "truth": truth}
    if kind == "embeddings":
        users, items = sorted(set(IDS["user_id"])), sorted(set(IDS["item_id"]))
        bias = [float(chance.randint(1, 5)) for _ in items]
        return {
            "users": {"user_id": users, "vector": [[chance.random(), 1.0] for _ in users]},
            "items": {"item_id": items, "vector": [[chance.random(), 1.0] for _ in items], "bias": bias},
            "truth": IDS,
        }
    if kind == "predictions":
        chances = {name: [float(chance.random() < 0.5) for _ in range(N)] for name in ("p", "y")}
        return {"predictions": {**IDS, "prediction": chances["p"], "outcome": chances["y"]}}
    return {"log": {**IDS, "rating": numbers["score"], "event_time": [1_700_000_000 + n for n in range(N)]}}


def job_flags(kind: str, engine: str, folder: Path) -> tuple[str, list[str]]:
    """Return the job and its flags."""
    warehouse = ["--warehouse", str(folder / "w")]
    if kind in ("csv", "parquet"):
        return "split", ["--log", f"{folder}/log.{kind}", *warehouse, "--protocol", "RO_RS"]
    names = ["users", "items"] if kind == "embeddings" else [kind]
    flags = [f"--{kind}", *(f"{folder}/{name}.parquet" for name in names), *warehouse, "--model", "m"]
    flags += [] if kind == "predictions" else ["--truth", f"{folder}/truth.parquet", "--k", "2"]
    return "evaluate", [*flags, "--bootstrap", "0", "--engine", engine]
