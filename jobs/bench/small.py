"""Time small jobs, each in its own process.

    python jobs/bench/small.py                 five rounds; with the nights it needs, a few minutes
    python jobs/bench/small.py --rounds 1 --only evaluate

The inputs are generated: 6,000 rows of lists and scores, vectors for 300 users and 500 items, a truth,
and two nights in a small world, the second with a regression. Each job runs once before it is measured,
so kernels are compiled and files are cached. The job prints medians with their extremes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from jobs.bench.harness import ROOT, Seconds, add_output_flag, append_rows, run_process, take_turns
from recbench_spark import cli
from recbench_spark.errors import OK, REGRESSION, DataError

USERS, ITEMS, LENGTH, DIMS = 300, 500, 20, 32

NIGHT = """
name: small
dataset:
  name: world
  reader: world
  world: {{users: 200, items: 100, interactions: 6000, open_loop: 500, seed: 42}}
split: {{protocol: RO_RS, ratio: [0.8, 0.0, 0.2]}}
models: [{{name: candidate, kind: {kind}}}]
evaluation: {{k: [5, 10]}}
regressions: [{{metric: ndcg, k: 10, drop: 0.01}}]
"""
"""Benchmark file for a night with one model.

On the second night another model has its name.
"""


class Case(NamedTuple):
    """A job: command, goal in seconds, and exit code."""

    name: str
    goal: float
    argv: list[str]
    code: int = OK


def parser() -> cli.Parser:
    """Make the flag parser."""
    flags = cli.Parser(__doc__ or "")
    flags.add_argument("--rounds", type=cli.parse_count, default=5)
    flags.add_argument("--only", default="", help="cases whose name holds this word")
    flags.add_argument("--folder", type=Path, help="where inputs and the warehouse stay")
    add_output_flag(flags)
    return flags


def main(args: argparse.Namespace) -> int:
    """Make the inputs, run the jobs in turns, print medians."""
    with tempfile.TemporaryDirectory(prefix="small-") as temporary:
        folder = args.folder or Path(temporary)
        cases = [case for case in list_cases(folder) if args.only in case.name]
        make_inputs(folder)
        if any("night" in case.name or "query" in case.name for case in cases):
            make_nights(folder)
        runs = take_turns({case.name: partial(time_case, case) for case in cases}, args.rounds, warm_ups=1)
    for name, turns in runs.items():
        rows = [{"job": name, "round": n, **turn._asdict()} for n, turn in enumerate(turns)]
        append_rows(args.output, [{"benchmark": "small", **row} for row in rows])
    print("\n".join(format_table(cases, runs)))
    return OK


# ------------------------------------------------------------------------------------ what is run


def list_cases(folder: Path) -> list[Case]:
    """List all jobs with a goal in seconds."""
    truth, train, warehouse = (str(folder / n) for n in ("truth.parquet", "train.parquet", "warehouse"))
    evaluate = ["evaluate", "--warehouse", warehouse, "--model", "m", "--truth", truth]
    lists = [*evaluate, "--lists", str(folder / "lists.parquet")]
    scores = [*evaluate, "--train", train, "--scores", str(folder / "scores.parquet")]
    vectors = [str(folder / f"{side}.parquet") for side in ("users", "items")]
    night = ["nightly", "--warehouse", warehouse, "--config", str(folder / "random.yaml")]
    second, dry = ["--logical-date", "2026-01-02"], ["--dry-run"]
    rating = [
        "--config",
        "movielens_1m_rating",
        "--set",
        f"dataset.path={folder}",
        "--warehouse",
        warehouse,
    ]
    demo = ["--config", "demo", "--warehouse", warehouse]
    query = ["query", "--warehouse", warehouse]
    jobs = sorted(path.stem for path in (ROOT / "jobs").glob("*.py"))
    return [
        Case("evaluate lists", 3, lists),
        Case("evaluate scores", 3, scores),
        Case("evaluate embeddings", 3, [*evaluate, "--train", train, "--embeddings", *vectors]),
        Case("evaluate dry run", 1.5, [*lists, *dry]),
        Case("query leaderboard", 2, [*query, "leaderboard"]),
        Case("query which_model_is_best", 2, [*query, "which_model_is_best"]),
        Case("night done before, exit code 4", 2, [*night, *second], REGRESSION),
        Case("nightly dry run", 1.5, [*night, *second, *dry]),
        Case("split dry run", 1.5, ["split", *demo, *dry]),
        Case("benchmark dry run", 1.5, ["benchmark", *rating, *dry]),
        Case("tune dry run", 1.5, ["tune", *rating, *dry]),
        Case("multiverse dry run", 1.5, ["multiverse", *demo, *second, *dry]),
        *(Case(f"{job} --help", 0.5, [job, "--help"]) for job in jobs),
    ]


def make_inputs(folder: Path) -> None:
    """Write the tables and the two benchmark files."""
    folder.mkdir(parents=True, exist_ok=True)
    draws = np.random.default_rng(42)
    user_r = np.repeat(np.arange(USERS), LENGTH)
    item_r = np.concatenate([draws.permutation(ITEMS)[:LENGTH] for _ in range(USERS)])
    pairs = {"user_id": user_r, "item_id": item_r}
    held_out = {"user_id": user_r[::4], "item_id": item_r[::4]}
    tables = {
        "lists": {**pairs, "rank": np.tile(np.arange(1, LENGTH + 1), USERS)},
        "scores": {**pairs, "score": draws.random(len(user_r))},
        "truth": held_out,
        "train": {**held_out, "item_id": (held_out["item_id"] + 1) % ITEMS},
        "users": {"user_id": np.arange(USERS), "vector": list(draws.random((USERS, DIMS), np.float32))},
        "items": {"item_id": np.arange(ITEMS), "vector": list(draws.random((ITEMS, DIMS), np.float32))},
    }
    for name, columns in tables.items():
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    for kind in ("popular", "random"):
        (folder / f"{kind}.yaml").write_text(NIGHT.format(kind=kind))


def make_nights(folder: Path) -> None:
    """Run two nights by Spark, unless they exist.

    The second model is worse than the first.
    """
    for kind, day, code in (("popular", "2026-01-01", OK), ("random", "2026-01-02", REGRESSION)):
        argv = [
            "nightly",
            "--config",
            str(folder / f"{kind}.yaml"),
            "--warehouse",
            str(folder / "warehouse"),
        ]
        time_case(Case(f"night of {day}", 0, [*argv, "--logical-date", day], code))


def time_case(case: Case) -> Seconds:
    """Run a job once.

    Raises:
        DataError: its exit code is unexpected.
    """
    job, *flags = case.argv
    command = [sys.executable, str(ROOT / "jobs" / f"{job}.py"), *flags]
    run = run_process(command)
    if run.code != case.code:
        raise DataError(f"{case.name} ended with {run.code}", run.errors[-500:])
    return run.seconds


def format_table(cases: list[Case], runs: dict[str, list[Seconds]]) -> list[str]:
    """Format medians as Markdown; walls beyond their goal are bold."""
    lines = ["| job | wall, s (smallest, largest) | goal | CPU, s |", "|---|---|---|---|"]
    for case in cases:
        walls = [run.wall for run in runs[case.name]]
        median = statistics.median(walls)
        cell = f"{median:.2f}" if median <= case.goal else f"**{median:.2f}**"
        cpu = statistics.median(run.cpu for run in runs[case.name])
        lines.append(
            f"| {case.name} | {cell} ({min(walls):.2f}, {max(walls):.2f}) | {case.goal:g} | {cpu:.2f} |"
        )
    return lines


if __name__ == "__main__":
    cli.run(main, parser())
