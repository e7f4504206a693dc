"""Study whether models change places by the rows which a test asks, and by its candidates.

    python -m jobs.studies.targets --folder FOLDER --logs DIR/ml-100k/u.data,DIR/ml-latest-small/ratings.csv
    python -m jobs.studies.targets --folder FOLDER --logs ... --rules none,first_seen --page PAGE.md

One cut in time holds out the last fifth of the rows; users without a row before it are `later`. The five
`split.targets` ask for the rows of the others (Gusak et al. 2025, Time to Split), and each of --rules says
which items are candidates. Models and settings are those of benchmark file
movielens_latest_small_sequences. A cell has a model's rank by NDCG@10 and the 95 % interval of its
difference from the best model. A pair turns round if its interval is above 0 in one cell of a log, and
below 0 in another. With --page the table replaces the one on a page. Finished nights stay in FOLDER. No
Java starts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from jobs.studies.histories import read_ratings
from recbench_spark import cli
from recbench_spark.config import Benchmark, load_benchmark
from recbench_spark.errors import FAILED, OK
from recbench_spark.night.run_night import run_night
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import COMPARISONS
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.publish import replace_text

SHARE = 0.8
"""Share of the rows before the cut."""

DAY = date(2026, 11, 30)
TARGETS = ("all", "first", "last", "random", "successive")
MODELS = ("popular", "item_knn", "item_knn_mean", "als_64", "als_8", "ials_64")
"""Models of the file, and two more settings of them; those that descend gradients take hours."""

RULES = {
    "none": (),
    "first_seen": ("candidates_as_of=first_seen",),
    "in_train": ("candidates_as_of=first_seen", "first_seen_in=train"),
}
"""Axes of the definition by rule."""

LEGEND = """
    python -m jobs.studies.targets --folder DIR --logs DIR/ml-100k/u.data,DIR/ml-latest-small/ratings.csv \\
        --rules none,first_seen,in_train --page docs/measured/targets.md

A cell has a model's rank by NDCG@10, then its value (the best model) or the 95 % interval of its difference
from the best model. Rules with equal cells share a row. Users have rows before the cut and after it. A pair
turns round if its interval is above 0 in one row of a log, and below 0 in another."""

BLOCK = re.compile(r"<!-- written by jobs/studies/targets\.py -->.*?<!-- end -->", re.DOTALL)


def parser() -> cli.Parser:
    """Make the flag parser."""
    flags = cli.Parser(__doc__ or "")
    flags.add_argument("--folder", type=Path, required=True, help="warehouse of the nights")
    flags.add_argument("--logs", required=True, help="files that `histories.py` reads, comma-separated")
    flags.add_argument("--rules", default="none", help=f"candidates, of {', '.join(RULES)} (none)")
    flags.add_argument("--page", type=Path, help="page whose table is replaced")
    return flags


def main(args: argparse.Namespace) -> int:
    """Run a night for each log, rule and choice of targets; print ranks."""
    store, failed = ArrowStore(str(args.folder)), dict[str, str]()
    lines = [f"| targets: candidates | {' | '.join(MODELS)} |", f"|---|{'---|' * len(MODELS)}"]
    for path in map(Path, cli.parse_names(args.logs, "--logs")):
        log = args.folder / f"{path.parent.name}.parquet"
        start, users = write_log(path, log)
        table, columns = list[str](), list[Differences]()
        for targets in TARGETS:
            rules_of = defaultdict[str, list[str]](list)
            for rule in cli.parse_names(args.rules, "--rules"):
                night = make_benchmark(log, start, rule, targets)
                failed.update(run_night(store, night, DAY, Journal()).failed)
                columns.append(read_differences(store, night.name))
                cells = list_cells(columns[-1])
                rules_of[" | ".join(cells[model] for model in MODELS)].append(rule)
            table += [f"| {targets}: {', '.join(rules)} | {cells} |" for cells, rules in rules_of.items()]
        turns = f"{count_turns(columns)} pairs turn round"
        lines += [f"| **{log.stem}**: {users} users, {turns} |{' |' * len(MODELS)}", *table]
    print(page := "\n".join(lines))
    if args.page:
        block = f"<!-- written by jobs/studies/targets.py -->\n{LEGEND}\n\n{page}\n\n<!-- end -->"
        replace_text(args.page, BLOCK.sub(lambda _: block, args.page.read_text()))
    return FAILED if failed else OK


def write_log(source: Path, log: Path) -> tuple[datetime, int]:
    """Write a log whose users without a row before the cut are `later`.

    Returns:
        The time of the cut, and the number of users with rows on both sides.
    """
    rows = read_ratings(source)
    start = int(rows["time"].quantile(SHARE, interpolation="higher"))
    late = rows["time"] >= start
    known = rows["user"].isin(rows["user"][~late])
    rows["part"] = "later"
    rows["part"] = rows["part"].where(late & ~known)
    log.parent.mkdir(parents=True, exist_ok=True)
    rows.to_parquet(log)
    return datetime.fromtimestamp(start, UTC), rows["user"][late & known].nunique()


def make_benchmark(log: Path, start: datetime, rule: str, targets: str) -> Benchmark:
    """Return the file's models under a cut in time."""
    columns = {"user_id": "user", "item_id": "item", "event_time": "time", "part": "part"}
    dataset = {"name": log.stem, "reader": "parquet", "path": str(log.resolve()), "time_unit": "s"}
    split = {"holdout": "period", "start": start.isoformat(), "targets": targets}
    changes = [
        f"name={log.stem}-{rule}-{targets}",
        f"dataset={json.dumps({**dataset, 'columns': columns})}",
        f"split={json.dumps(split)}",
        "evaluation.metrics=[ndcg]",
        "comparisons={}",
        "search=null",
        *(f"evaluation.definition.{axis}" for axis in RULES[rule]),
    ]
    made = load_benchmark("movielens_latest_small_sequences", changes)
    models = {model.name: model for model in made.models}
    models |= {
        name: models[of].model_copy(update={"name": name, **change})
        for name, of, change in (
            ("item_knn_mean", "item_knn", {"scores": "centred_mean"}),
            ("als_8", "als_64", {"rank": 8}),
        )
    }
    chosen = [models[name] for name in MODELS]
    trained = [
        one.model_copy(update={"items": "trained"} if hasattr(one, "items") else {}) for one in chosen
    ]
    return made.model_copy(update={"models": tuple(trained)})


Differences = list[dict[str, Any]]
"""Rows of `comparisons` of one night: NDCG@10 of two models."""


def read_differences(store: ArrowStore, suite: str) -> Differences:
    """Return the differences of all pairs of models in a night."""
    rows = store.rows(COMPARISONS, [("suite", "=", suite)])
    return [row for row in rows if (row["metric"], row["k"]) == ("ndcg", 10)]


def list_cells(rows: Differences) -> dict[str, str]:
    """Return each model's rank and interval, and the best model's value."""
    best = [row for row in rows if row["with_baseline"]]
    cells = {row["other"]: f"1: {row['other_value']:.3f}" for row in best}
    for row in best:
        rank = 1 + (row["difference"] < 0) + sum(one["difference"] > row["difference"] for one in best)
        ends = [f"{row[end]:+.3f}" for end in ("ci_low", "ci_high") if row[end] is not None]
        cells[row["model"]] = f"{rank}: {' '.join(ends) or '-'}"
    return cells


def count_turns(columns: Sequence[Differences]) -> int:
    """Count pairs with an interval above 0 in one column, and below 0 in another."""
    signs = defaultdict[frozenset[str], set[bool]](set)
    for row in itertools.chain.from_iterable(columns):
        if row["ci_low"] is not None and (row["ci_low"] > 0 or row["ci_high"] < 0):
            turned = row["model"] > row["other"]
            signs[frozenset((row["model"], row["other"]))].add((row["ci_low"] > 0) != turned)
    return sum(len(both) == 2 for both in signs.values())


if __name__ == "__main__":
    cli.run(main, parser())
