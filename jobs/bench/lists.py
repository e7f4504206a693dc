"""Time list metrics beside other libraries, in turns.

    tools/library_envs.sh replay-spark rectools ranx
    python jobs/bench/lists.py                                       in one process, a few minutes
    python jobs/bench/lists.py --systems ours-spark,replay-spark --rounds 1

Each library has its own environment. The job measures six metrics at six cut-offs, on generated lists
with 100 items, stored as Parquet. Every run is a process of its own. Reading the rows, starting a session
and a first pass over all users are not counted. `ours`, `replay-polars`, `rectools` and `ranx` start from
rows in memory. `ours-spark` starts from one row per user on disk and ends with the values in a Delta
table. `ours-spark-rows` and `replay-spark` start from rows, so they group them too. Values must agree to
1e-9 with this package's preset for the library, else the job fails.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from jobs.bench import harness
from recbench_spark import cli
from recbench_spark.errors import OK, ConfigError, DataError
from recbench_spark.evaluation.in_process import evaluate_frames

METRICS = ("hit", "precision", "recall", "map", "mrr", "ndcg")
KS = (1, 5, 10, 20, 50, 100)
LENGTH, ITEMS = 100, 20_011
"""Items in a list, and in the catalogue.

The second is a prime, so no step size repeats an item.
"""

ENVIRONMENTS = {"replay-polars": "replay-spark"} | {n: n for n in ("replay-spark", "rectools", "ranx")}
"""Each system's environment; this package runs in the current one."""


def parser() -> cli.Parser:
    """Make the flag parser."""
    flags = cli.Parser(__doc__ or "")
    harness.add_counts(flags, users=50_000, rounds=2)
    flags.add_argument("--systems", default="ours,replay-polars,rectools,ranx")
    flags.add_argument("--shuffled", action="store_true", help="rows in no order, not user by user")
    flags.add_argument("--folder", type=Path, help="where the rows stay; default: a temporary folder")
    harness.add_output_flag(flags)
    flags.add_argument("--environments", type=Path, default=harness.ROOT / ".venv-libraries")
    return flags


def generate(users: int, *, shuffled: bool = False) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Make truth and lists without ties, as rows.

    Each user has 1 to 19 truth items, a third of them listed.
    """
    draws = np.random.default_rng(42)
    first, step = draws.integers(0, ITEMS, users), draws.integers(1, ITEMS, users)
    place_ul = np.broadcast_to(np.arange(LENGTH), (users, LENGTH))
    score = (LENGTH - place_ul + draws.random((users, LENGTH))).ravel()
    # At most one item from every 16 places on the user's walk through the catalogue, so no item repeats.
    held_out_up = np.arange(19) * 16 + draws.integers(0, 16, (users, 19))
    kept_up = draws.random((users, 19)) < 0.5
    kept_up[:, 0] = True
    lists = _rows(first, step, place_ul, np.ones(place_ul.shape, dtype=bool)).assign(score=score)
    truth = _rows(first, step, held_out_up, kept_up)
    if shuffled:
        order = draws.permutation(len(lists))
        lists = lists.iloc[order].reset_index(drop=True)
    return truth, lists


def _rows(
    first: npt.NDArray[np.int64],
    step: npt.NDArray[np.int64],
    place_up: npt.NDArray[np.int64],
    kept_up: npt.NDArray[np.bool_],
) -> pd.DataFrame:
    items = (first[:, None] + place_up * step[:, None]) % ITEMS
    return pd.DataFrame({"user_id": np.nonzero(kept_up)[0], "item_id": items[kept_up]})


def compute_expected(truth: pd.DataFrame, lists: pd.DataFrame, preset: str) -> dict[str, float]:
    """Compute this package's values under a library's definition.

    Values are named `metric@k`.
    """
    metrics = evaluate_frames(truth, lists, k=KS, metrics=METRICS, preset=preset).dropna(subset="k")
    return {
        f"{name}@{k}": value
        for name, k, value in zip(metrics.metric, metrics.k, metrics.value, strict=True)
    }


def system_preset(system: str) -> str:
    """Return the preset a system follows.

    This package's own systems follow RePlay.
    """
    library = system.split("-", maxsplit=1)[0]
    return "replay" if library == "ours" else library


def largest_difference(values: dict[str, float], reference: dict[str, float]) -> float:
    """Return the largest difference in a value.

    Raises:
        DataError: a metric or a cut-off is missing.
    """
    if values.keys() != reference.keys():
        raise DataError(f"values of {sorted(values)}", f"expected {sorted(reference)}")
    return max(abs(values[name] - value) for name, value in reference.items())


def time_system(system: str, folder: Path, environments: Path) -> harness.Row:
    """Run a system once, in a process of its own."""
    python = find_interpreter(system, environments)
    script = str(harness.ROOT / "jobs" / "bench" / "time_lists.py")
    command = [python, script, system, str(folder), ",".join(map(str, KS))]
    # Workers use their own environment's interpreter.
    run = harness.run_process(command, environment={"PYSPARK_PYTHON": python})
    if run.code:
        raise ConfigError(f"{system} failed", run.errors[-800:])
    return harness.parse_rows(run)[-1]


def find_interpreter(system: str, environments: Path) -> str:
    """Return the Python of a system's environment."""
    if system.startswith("ours"):
        return sys.executable
    if system not in ENVIRONMENTS:
        raise ConfigError(f"unknown system '{system}'", f"ours, ours-spark, {', '.join(ENVIRONMENTS)}")
    return cli.find_library_python(ENVIRONMENTS[system], environments)


def make_record(system: str, users: int, seconds: float, turn: int) -> harness.Row:
    """Make one line for `--output`."""
    return {
        "benchmark": "lists",
        "system": system,
        "users": users,
        "items": ITEMS,
        "dims": None,
        "k": LENGTH,
        "users_per_second": users / seconds,
        "seconds": seconds,
        "round": turn,
    }


def main(args: argparse.Namespace) -> int:
    """Generate the lists, run systems in turns, and compare.

    Values are checked, medians and ratios printed.
    """
    systems = cli.parse_names(args.systems, "--systems")
    for system in systems:
        find_interpreter(system, args.environments)
    truth, lists = generate(args.users, shuffled=args.shuffled)
    references = {preset: compute_expected(truth, lists, preset) for preset in map(system_preset, systems)}
    runs: list[harness.Row] = []
    with tempfile.TemporaryDirectory(prefix="lists-") as temporary:
        folder = (args.folder or Path(temporary)) / str(args.users)
        folder.mkdir(parents=True, exist_ok=True)
        truth.to_parquet(folder / "truth.parquet", index=False)
        lists.to_parquet(folder / "lists.parquet", index=False)
        for turn, system in harness.order_turns(systems, args.rounds):
            run = time_system(system, folder, args.environments)
            off = largest_difference(run["values"], references[system_preset(system)])
            if off > 1e-9:
                raise DataError(f"{system}: values differ by {off:.1e}", "from our preset of that name")
            runs.append(make_record(system, args.users, run["seconds"], turn))
            line = f"{system:>16} {run['version']:>8} {run['seconds']:8.2f} s, values within {off:.0e}"
            print(line, flush=True)
            harness.append_rows(args.output, runs[-1:])
    sizes = f"{args.users:,} users x {LENGTH} of {ITEMS:,} items"
    print(f"\n{sizes}, {len(METRICS)} metrics x {len(KS)} cut-offs", *format_table(runs), sep="\n")
    return OK


def format_table(runs: list[harness.Row]) -> list[str]:
    """Describe each system's median speed and relative time.

    The time is relative to the first system, by round.
    """
    seconds: dict[str, list[float]] = defaultdict(list)
    for row in runs:
        seconds[row["system"]].append(row["seconds"])
    first = runs[0]["system"]
    lines = []
    for system, spent in seconds.items():
        ratios = ", ".join(f"{ratio:.1f}" for ratio in harness.divide_rounds(spent, seconds[first]))
        speed = runs[0]["users"] / statistics.median(spent)
        lines.append(f"{system:>16} {speed:10,.0f} users/s   {ratios} times the seconds of {first}")
    return lines


if __name__ == "__main__":
    cli.run(main, parser())
