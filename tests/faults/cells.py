"""One cell that is no number, in each column of numbers that a job takes: it is never computed with.

NaN sorts, adds and compares silently, so every door needs its check. The cases go through all columns and
values in turn; a control with a number in the same cell must be taken, or the case says nothing.
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
"""What is handed over, and a column of one of its tables."""
MISSING = {("items", "bias"), ("log", "rating")}
"""Where NULL has a meaning of its own: no bias; a log with its own rule."""
WHOLE = [(place, told) for told in VALUES for place in PLACES if told != "NULL" or place[1:] not in MISSING]
LOCAL = [(place, told) for place, told in WHOLE if place[1] != "log"]
CASES = [(place, told, "local") for place, told in LOCAL] + [(*pair, "spark") for pair in WHOLE]
"""First those without a JVM; logs are Spark's."""


def run(case: Case) -> Verdict:
    """The next of all places and values."""
    place, told, engine = CASES[case.number % len(CASES)]
    folder = case.place / f"case{case.number}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write(place, VALUES[told], case.draw(), folder)
    code, err = job(*argv(place[0], engine, folder))
    what = f"{told} as {'.'.join(place[1:])} of {place[0]} on {engine}"
    wrong = wrong_of(told == "a number", code, err)
    shutil.rmtree(folder)
    return Verdict.of(wrong, what, f"{told}, {engine}")


def wrong_of(number: bool, code: Any, err: str) -> str | None:
    if "Traceback" in err or "internal error" in err or code not in (0, 1, 2):
        return f"a trace, exit code {code}: {err[-500:]!r}"
    if number:
        return f"a number is refused: {err[-400:]!r}" if code else None
    if not code:
        return "taken"
    return None if "error: " in err and "hint: " in err else f"no sentence with a hint: {err[-300:]!r}"


def write(place: Place, value: float | None, chance: random.Random, folder: Path) -> None:
    """All tables of the kind, with the value in one row of the column."""
    kind, wrong, column = place
    for name, table in tables(kind, chance).items():
        if name == wrong:
            held, row = table[column], chance.randrange(len(table[column]))
            if column == "vector":
                held[row][chance.randrange(2)] = value
            else:
                held[row] = value
        if name == "lists":
            table.pop("score" if column == "rank" else "rank", None)
        stored(pa.table(table), folder / f"{name}.{'csv' if kind == 'csv' else 'parquet'}")


def stored(table: pa.Table, file: Path) -> None:
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


def argv(kind: str, engine: str, folder: Path) -> tuple[str, list[str]]:
    """The job, and its flags."""
    warehouse = ["--warehouse", str(folder / "w")]
    if kind in ("csv", "parquet"):
        return "split", ["--log", f"{folder}/log.{kind}", *warehouse, "--protocol", "RO_RS"]
    given = ["users", "items"] if kind == "embeddings" else [kind]
    found = [f"--{kind}", *(f"{folder}/{name}.parquet" for name in given), *warehouse, "--model", "m"]
    found += [] if kind == "predictions" else ["--truth", f"{folder}/truth.parquet", "--k", "2"]
    return "evaluate", [*found, "--bootstrap", "0", "--engine", engine]
