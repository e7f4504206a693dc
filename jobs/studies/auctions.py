"""Replay generated auction logs to test intervals and bias.

    python jobs/studies/auctions.py --worlds 200                 # unseen pairs below 1 %
    python jobs/studies/auctions.py --worlds 200 --unseen        # about a seventh of the ads shown
    python jobs/studies/auctions.py --worlds 200 --users 5000    # users are drawn
    python jobs/studies/auctions.py --worlds 200 --folder FOLDER # resumed: FOLDER keeps each world

How often do intervals hold a new model's true lift? The true lift divides its expected clicks by the
logging policy's on the same auctions, minus 1. One line for each curve: worlds, coverage by 95 %
intervals, mean lift, mean true lift, the errors' standard deviation beside the mean standard error, and
the share of worlds whose bounds (unseen pairs at 0 and as predicted) hold the truth. A world takes two to
five seconds and two thirds of a GiB.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from recbench_spark import cli
from recbench_spark.auctions.auction_log import make_parts, match_probabilities
from recbench_spark.auctions.auctions import check_auctions
from recbench_spark.auctions.replay import LOGGED as LOGGED_POLICY
from recbench_spark.auctions.replay import replay_models
from recbench_spark.auctions.settings import AuctionLog, AuctionWorld, ReplaySettings
from recbench_spark.auctions.worlds import LOGGED, SLOTS, make_auctions
from recbench_spark.config import digest
from recbench_spark.storage.publish import replace_text

CURVES = ("conditional", "plain")
NOISE = 0.3

REVISION = 1
"""Revision of the kept numbers.

Raise it when a world, an estimate or its interval changes.
"""

Results = dict[str, dict[str, float]]
"""One world's numbers for each curve."""


def parser() -> cli.Parser:
    """Make the flag parser."""
    flags = cli.Parser(__doc__ or "")
    flags.add_argument("--worlds", type=int, default=200, help="generated logs (200)")
    flags.add_argument("--auctions", type=int, default=100_000, help="auctions of each (100,000)")
    flags.add_argument("--queries", type=int, default=5000, help="queries of each (5,000)")
    flags.add_argument("--zipf", type=float, default=0.5, help="exponent of the law of queries (.5)")
    flags.add_argument("--unseen", action="store_true", help="more ads and losers: many unseen pairs")
    flags.add_argument(
        "--users", type=int, help="each auction has one of so many users; the bootstrap draws them"
    )
    flags.add_argument("--replicates", type=int, default=500, help="bootstrap replicates (500)")
    flags.add_argument(
        "--folder", type=Path, help="keeps a file for each world, so that the study is resumed"
    )
    return flags


def main(args: argparse.Namespace) -> int:
    """Replay the worlds and print a line for each curve."""
    results = measure_worlds(args)
    for curve in CURVES:
        print_results(curve, [world[curve] for world in results])
    return 0


def measure_worlds(args: argparse.Namespace) -> list[Results]:
    """Replay the worlds the folder lacks, and return all."""
    results = []
    for seed in range(args.worlds):
        world = describe_world(args, seed)
        kept = args.folder / f"{name_world(world, args)}.json" if args.folder else None
        if kept and kept.exists():
            results.append(json.loads(kept.read_text(encoding="utf-8")))
            continue
        results.append(measure_world(world, args.replicates, args.users))
        print(f"world {seed}: {results[-1]}", file=sys.stderr)
        if kept:
            args.folder.mkdir(parents=True, exist_ok=True)
            replace_text(kept, json.dumps(results[-1]))
    return results


def name_world(world: AuctionWorld, args: argparse.Namespace) -> str:
    """Name a world's file, which identifies its numbers."""
    settings = {"world": world.model_dump(), "replicates": args.replicates, "users": args.users}
    return digest({**settings, "revision": REVISION})


def describe_world(args: argparse.Namespace, seed: int) -> AuctionWorld:
    """Return a world's settings."""
    ads, participants = (200, 13) if args.unseen else (10, 8)
    return AuctionWorld(
        auctions=args.auctions, queries=args.queries, zipf=args.zipf, seed=seed,
        ads=ads, participants=participants,
    )  # fmt: skip


def measure_world(world: AuctionWorld, replicates: int, users: int | None) -> Results:
    """Replay one world under each curve.

    Returns lift, bounds, truth and share of unseen pairs.
    """
    generated = make_auctions(world)
    logged = add_users(generated.log, world, users) if users else generated.log
    log = check_auctions(logged, AuctionLog(world=world), "log")
    probability = generated.predict(NOISE, 0)
    table = generated.log.select(["auction_id", "ad_id"]).append_column(
        "probability", pa.array(probability)
    )
    parts = make_parts(log, {"new": match_probabilities(log, table, "model")}, 1)
    base = generated.true_clicks(generated.log.column("probability").to_numpy(), LOGGED)
    truth = generated.true_clicks(probability, LOGGED) / base - 1
    results = {}
    for curve in CURVES:
        document = {"points": [vars(LOGGED)], "curve": curve, "bootstrap": {"replicates": replicates}}
        unit = "user" if users else "query"
        settings = ReplaySettings.model_validate({**document, "resample": unit})
        rows, _ = replay_models(parts, ["new"], settings)
        results[curve] = {"truth": truth, **read_lift(rows)}
    return results


def add_users(log: pa.Table, world: AuctionWorld, users: int) -> pa.Table:
    """Give each auction a user by chance."""
    user_a = np.random.default_rng([world.seed, 3]).integers(users, size=world.auctions)
    return log.append_column("user_id", pa.array(user_a[log.column("auction_id").to_numpy()]))


def read_lift(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the click lift over the logged policy, as shares.

    The interval and bounds of the lift come along.
    """
    by_metric: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_metric.setdefault(row["metric"], []).append(row)
    clicks = by_metric["clicks"]
    logged = next(row["value"] for row in clicks if row["model"] == LOGGED_POLICY)
    own = {row["unseen"]: row["value"] for row in clicks if row["model"] == "new" and not row.get("other")}
    (lift,), (share,) = by_metric["click_lift"], by_metric["share_unseen"]
    (curve,) = [row for row in by_metric["position_curve"] if row["slot"] == f"main {SLOTS.main}"]
    bounds = [own[name] for name in ("zero", "probability")]
    return {
        "lift": lift["value"],
        "stderr": lift["stderr"],
        "low": lift["ci_low"],
        "high": lift["ci_high"],
        "least": min(bounds) / logged - 1,
        "most": max(bounds) / logged - 1,
        "unseen": share["value"],
        "last_slot": curve["value"],
    }


def print_results(curve: str, worlds: list[dict[str, float]]) -> None:
    """Print what the worlds say about one curve."""
    column = {name: np.array([world[name] for world in worlds]) for name in worlds[0]}
    covered = (column["low"] <= column["truth"]) & (column["truth"] <= column["high"])
    bounded = (column["least"] <= column["truth"]) & (column["truth"] <= column["most"])
    errors = column["lift"] - column["truth"]
    bias = errors.mean()
    print(
        f"{curve}: {len(worlds)} worlds, coverage {covered.mean():.1%}, lift {column['lift'].mean():.2%} "
        f"for {column['truth'].mean():.2%} (bias {bias / column['truth'].mean():+.1%} of it), "
        f"errors {errors.std():.2%} for a standard error of {column['stderr'].mean():.2%}, "
        f"unseen {column['unseen'].mean():.2%}, bounds hold {bounded.mean():.1%}, "
        f"last slot of the main line {column['last_slot'].mean():.3f}"
    )


if __name__ == "__main__":
    cli.run(main, parser())
