"""Time rating models' steps beside other libraries.

    tools/library_envs.sh surprise myfm
    python jobs/bench/ratings.py                                 1 million ratings, 64 factors
    python jobs/bench/ratings.py --rows 1000000,10000000 --rounds 2 --output runs.jsonl

Systems take turns with one thread each. The log is generated, with planted factors and items with very
unequal popularity. Each system fits it in its own process, round after round. Reading, building and
compiling are not counted: this package's time is the difference between a long and a short fit. An SGD
step is an epoch over all ratings, with biases and factors; this package shuffles them in each epoch,
surprise goes through them user by user. A Gibbs step draws both sides. The table also has the RMSE on a
held-out tenth, and the seconds this package needs for the library's RMSE.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from jobs.bench import harness
from recbench_spark import cli
from recbench_spark.errors import OK, DataError
from recbench_spark.models.rating.interface import Ratings, check_ratings, rmse
from recbench_spark.models.rating.registry import fit, make_settings

SYSTEMS = ("ours-sgd", "surprise", "ours-gibbs", "myfm")
LIBRARIES = ("surprise", "myfm")
COMPARED_PAIRS = (("ours-sgd", "surprise"), ("ours-gibbs", "myfm"))
MAX_STEPS_RATIO = 3
"""Most steps this package takes to reach a library's RMSE.

It is a multiple of the library's steps.
"""


def parser() -> cli.Parser:
    """Make the flag parser."""
    flags = cli.Parser(__doc__ or "")
    flags.add_argument("--rows", type=cli.parse_counts, default=(10**6,), help="ratings, comma-separated")
    harness.add_counts(flags, dims=64, rounds=2)
    flags.add_argument("--steps", type=cli.parse_count, default=10, help="a library's epochs or iterations")
    flags.add_argument("--systems", default=",".join(SYSTEMS))
    harness.add_output_flag(flags)
    flags.add_argument("--environments", type=Path, default=harness.ROOT / ".venv-libraries")
    return flags


def main(args: argparse.Namespace) -> int:
    """Run systems in turns, print medians."""
    systems = cli.parse_names(args.systems, "--systems", SYSTEMS)
    for system in set(systems) & set(LIBRARIES):
        cli.find_library_python(system, args.environments)
    for rows in args.rows:
        runs: list[harness.Row] = []
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "log.npz"
            np.savez(place, allow_pickle=False, **generate_ratings(rows))
            for number, system in harness.order_turns(systems, args.rounds):
                run = measure_system(system, place, args)
                runs.append({"rows": rows, "dims": args.dims, "round": number, "system": system, **run})
                harness.append_rows(args.output, runs[-1:])
        print(format_table(rows, runs))
    return OK


def generate_ratings(rows: int) -> dict[str, np.ndarray[Any, Any]]:
    """Generate half-star ratings for one pair in 25.

    A tenth is held out, and few items have most ratings.
    """
    rng = np.random.default_rng(42)
    users, items, dims = int(6.25 * rows**0.5), int(4 * rows**0.5), 8
    u = rng.integers(0, users, int(rows * 1.2))
    i = (items * rng.random(len(u)) ** 2).astype(np.int64)
    u, i = np.unique(np.stack([u, i]), axis=1)
    p, q = rng.normal(0, 0.4, (users, dims)), rng.normal(0, 0.4, (items, dims))
    score = 3.5 + rng.normal(0, 0.3, users)[u] + rng.normal(0, 0.3, items)[i] + np.sum(p[u] * q[i], axis=1)
    ratings = np.clip(np.round(2 * (score + rng.normal(0, 0.6, len(u)))) / 2, 0.5, 5)
    out = rng.random(len(u)) < 0.1
    arrays = {"users": u[~out], "items": i[~out], "ratings": ratings[~out]}
    return {**arrays, "test_users": u[out], "test_items": i[out], "test_ratings": ratings[out]}


def measure_system(system: str, place: Path, args: argparse.Namespace) -> harness.Row:
    """Run a system in its own process.

    Returns seconds a step, steps, and RMSE after each step.
    """
    library = system in LIBRARIES
    steps = args.steps * (1 if library else MAX_STEPS_RATIO)
    request = {"data": str(place), "dims": args.dims, "system": system, "steps": steps}
    request |= system_settings(system, steps)
    script = harness.ROOT / "tests" / "libraries" / f"run_{system}.py"
    python = cli.find_library_python(system, args.environments) if library else sys.executable
    called = [str(script)] if library else [str(Path(__file__)), "--one"]
    process = harness.run_process(
        [python, "-W", "ignore", *called], given=json.dumps(request), environment=harness.ONE_THREAD
    )
    if process.code:
        raise DataError(f"{system} failed: {process.errors.strip()[-500:]}", "run it by hand")
    run = harness.parse_rows(process)[-1]
    data = np.load(place)
    predicted = np.clip(run.pop("predicted"), 0.5, 5)
    return {**run, "steps": steps, "rmse": rmse(np.asarray(predicted), data["test_ratings"])}


def system_settings(system: str, steps: int) -> harness.Row:
    """Return settings that give compared systems the same work."""
    if system in ("ours-sgd", "surprise"):
        return {"epochs": steps, "rate": 0.01, "regulariser": 0.04, "init_sd": 0.1}
    return make_chain(steps)


def make_chain(steps: int) -> harness.Row:
    """Return a chain that draws both sides.

    The first draw is burnt if there are two.
    """
    return {"samples": max(1, steps - 1), "burn_in": min(1, steps - 1)}


def run_own(request: harness.Row) -> harness.Row:
    """Time this package's system: long fit minus one step.

    Long fit and step are compiled before.
    """
    data = np.load(request["data"])
    scale = (0.5, 5.0)
    sizes = {
        f"n_{side}": int(max(data[side].max(), data[f"test_{side}"].max())) + 1
        for side in ("users", "items")
    }
    train = check_ratings(data["users"], data["items"], data["ratings"], scale, None, **sizes)
    test = check_ratings(data["test_users"], data["test_items"], data["test_ratings"], scale, None, **sizes)
    steps = request["steps"]
    _time_fit(request, train.rows(np.arange(1000)), 2)
    short, _ = _time_fit(request, train, 1)
    long, _ = _time_fit(request, train, 1 + steps)
    result = fit(train, _settings(request, steps), 1, test)
    quality = {"predicted": result.watched_p.tolist(), "rmse_s": result.rmse_s.tolist()}
    return {"seconds": (long - short) / steps, **quality}


def _settings(request: harness.Row, steps: int) -> Any:
    if request["system"] == "ours-sgd":
        own = {
            "rates": request["rate"],
            "regularisers": request["regulariser"],
            "init_sd": request["init_sd"],
        }
        return make_settings({"kind": "sgd_mf", "dims": request["dims"], "epochs": steps, **own})
    return make_settings({"kind": "bayesian_mf", "dims": request["dims"], "keep": 1, **make_chain(steps)})


def _time_fit(request: harness.Row, train: Ratings, steps: int) -> tuple[float, Any]:
    return harness.time_call(lambda: fit(train, _settings(request, steps), 1))


def format_table(rows: int, runs: list[harness.Row]) -> str:
    """Format medians over rounds, and speeds beside the library."""
    last = {run["system"]: run for run in runs}
    seconds = {name: statistics.median(r["seconds"] for r in runs if r["system"] == name) for name in last}
    rounds = len(runs) // len(last)
    lines = [f"{rows:,} ratings, {runs[0]['dims']} factors, one thread, median of {rounds}"]
    for name, run in last.items():
        cell = f"{seconds[name]:8.4f} s a step"
        lines.append(f"{name:12} {cell}  RMSE {run['rmse']:.4f} after {run['steps']}")
    for own, other in (pair for pair in COMPARED_PAIRS if set(pair) <= set(last)):
        lines.append(f"{own} is {seconds[other] / seconds[own]:.1f} times as fast as {other}")
        lines.append(time_to_match(last[own], last[other], seconds))
    return "\n".join(lines)


def time_to_match(own: harness.Row, other: harness.Row, seconds: dict[str, float]) -> str:
    """Describe this package's seconds to the library's final RMSE."""
    names = own["system"], other["system"]
    theirs = f"RMSE {other['rmse']:.4f}: {names[1]} {other['steps'] * seconds[names[1]]:.2f} s"
    before = own["steps"] - len(own["rmse_s"]) + 1  # step of the first RMSE: burn-in steps have none
    good = (n for n, error in enumerate(own["rmse_s"], before) if error <= other["rmse"])
    steps = next(good, own["steps"] + 1)
    if steps > own["steps"]:
        return f"  {theirs}, {names[0]} not within {own['steps']} steps"
    took = steps * seconds[names[0]]
    times = other["steps"] * seconds[names[1]] / took
    return f"  {theirs}, {names[0]} {took:.2f} s ({steps} steps): {times:.1f} times sooner"


if __name__ == "__main__":
    if sys.argv[1:] == ["--one"]:
        print(json.dumps(run_own(json.load(sys.stdin))))
    else:
        cli.run(main, parser())
