"""Study models that read histories by time.

    python jobs/studies/histories.py write --folder facts
    python jobs/studies/histories.py world --kind memn2n --set hops=3
    python jobs/studies/histories.py ratings --file ratings.csv --kind sasrec --ties id,1,2

`write`: writes the world of `jobs/studies/chained_facts.py` as the log for benchmark file
`chained_facts`. `world`: fits one model on it, and prints its values beside the best possible ones; for a
memory network also how a score changes without the item with the largest weight, and without another one.
`ratings`: ranks each user's last item among all items the user does not have, for several seeds and
several orders of rows with one time (`id`, or a number that seeds a random order). The item before the
last one chooses the epoch and is shown at the test. The file has columns user, item, rating, timestamp:
by a header (userId, movieId ...), or four columns between tabs, or between `::` where its name ends in
`.dat`. Spark is not used, and one thread computes.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from jobs.studies.chained_facts import ITEMS, LENGTH, find_best_values, generate_histories, write_log
from recbench_spark import cli
from recbench_spark.config import load_yaml
from recbench_spark.errors import OK, ConfigError
from recbench_spark.models.networks.fitting import fit
from recbench_spark.models.networks.sequence_networks import (
    HistoryMemory,
    Sequences,
    cut_newest,
    make_sequences,
    set_last_aside,
)
from recbench_spark.models.networks.sequence_tasks import (
    SequenceTask,
    compare_drops,
    count_better,
    explain_history,
    read_length,
)
from recbench_spark.models.settings import make_model

KINDS = ("popular", "sasrec", "gru4rec", "memn2n")
EXPLAINED = 200
"""Test users whose attention is tested."""


class Values(NamedTuple):
    """Means over users, and one interval.

    The means are hit@1, hit@10 and NDCG@10; the interval is half the 95 % interval of NDCG@10.
    """

    hit_at_1: float
    hit_at_10: float
    ndcg_at_10: float
    half_width: float


def measure(score_ui: torch.Tensor, shown: Sequences, last_u: Any) -> Values:
    """Measure scores on each user's last item.

    Candidates are the items that were not shown. Among equal scores the smaller item comes first.
    """
    score_ui, last = score_ui.clone(), torch.from_numpy(np.asarray(last_u, np.int64))
    truth = score_ui.gather(1, last[:, None])
    user = np.repeat(np.arange(shown.users), shown.sizes)
    score_ui[torch.from_numpy(user), torch.from_numpy(shown.item.astype(np.int64))] = -math.inf
    place = count_better(score_ui, last, truth).double().numpy()
    gain = np.where(place < 10, 1 / np.log2(place + 2), 0.0)
    half = 1.96 * gain.std(ddof=1) / math.sqrt(len(gain))
    return Values(float((place == 0).mean()), float((place < 10).mean()), float(gain.mean()), float(half))


def score_users(task: SequenceTask, shown: Sequences) -> torch.Tensor:
    """Score users after the shown items, (u, items)."""
    task.module.eval()
    rows = []
    with torch.no_grad():
        for begin in range(0, shown.users, 256):
            users = np.arange(begin, min(begin + 256, shown.users))
            state = task.network.read_last(cut_newest(shown, users, read_length(task.settings)))
            rows.append(task.score(state))
    return torch.cat(rows)


def fit_task(train: Sequences, kind: str, settings: dict[str, Any]) -> SequenceTask:
    """Fit a model, and print each epoch."""
    model = make_model({"name": kind, "kind": kind, **settings}, "--set")
    task = SequenceTask(train, model)  # type: ignore[arg-type]
    fit(task, task.settings.plan(), None, lambda text: print(f"  {text}", flush=True))
    return task


# ------------------------------------------------------------------------------- the planted world


def run_world(args: argparse.Namespace) -> int:
    """Fit one model on the planted world; print its values."""
    history_ul = generate_histories(args.users + args.test_users)
    shown = make_sequences(history_ul[args.users :, :-1].tolist(), ITEMS)
    usual = {"memory": LENGTH, "dims": 32, "dropout": 0.0, "patience": 0, "rate": 0.01, "epochs": 30}
    usual |= {"batch": 256, "noise": 0.0} if args.kind == "memn2n" else {"batch": 128, "rate": 0.003}
    started = time.process_time()
    train = make_sequences(history_ul[: args.users].tolist(), ITEMS)
    task = fit_task(train, args.kind, {**usual, **args.settings})
    seconds, best = time.process_time() - started, find_best_values()
    values = measure(score_users(task, shown), shown, history_ul[args.users :, -1])
    print(
        f"{args.kind} {args.settings}: hit@1 {values.hit_at_1:.3f} of {best.hit_at_1:.3f}, ndcg@10 "
        f"{values.ndcg_at_10:.4f} +- {values.half_width:.4f} of {best.ndcg_at_10:.4f} "
        f"({values.ndcg_at_10 / best.ndcg_at_10:.1%}); {seconds:.0f} CPU seconds"
    )
    if isinstance(task.module, HistoryMemory):
        print_drops(task, shown)
    return OK


def print_drops(task: SequenceTask, shown: Sequences) -> None:
    """Print, hop by hop, how the best item's score changes.

    Each time the item with the largest weight is left out.
    """
    length = read_length(task.settings)
    lists = np.split(shown.item, shown.indptr[1:-1])[:EXPLAINED]
    explained = [explain_history(task.module, own[-length:].astype(np.int64) + 1) for own in lists]
    for hop in range(explained[0].weight.shape[0]):
        top, other = compare_drops(explained, hop)
        print(f"  hop {hop + 1}: {top:+.3f} without the top memory, {other:+.3f} without another one")


# ------------------------------------------------------------------------------- real ratings


def read_ratings(path: Path) -> pd.DataFrame:
    """Read user, item, rating and time of each row.

    Raises:
        ConfigError: there is no time column.
    """
    with path.open(encoding="utf-8") as file:
        has_header = not file.readline()[:1].isdigit()
    separator = {".csv": ",", ".dat": "::"}.get(path.suffix, "\t")
    header, engine = 0 if has_header else None, "python" if separator == "::" else "c"
    rows: pd.DataFrame = pd.read_csv(path, sep=separator, header=header, engine=engine)  # type: ignore[call-overload]
    if rows.shape[1] < 4:
        raise ConfigError(f"{path} has no times", "columns user, item, rating, timestamp")
    rows = rows.iloc[:, :4]
    rows.columns = pd.Index(["user", "item", "rating", "time"])
    return rows


def order_rows(rows: pd.DataFrame, ties: str) -> Sequences:
    """Order users' items by time.

    Rows with one time are in the order of ids, or in a random one.
    """
    item = np.unique(rows["item"], return_inverse=True)[1]
    tie = item if ties == "id" else np.random.default_rng(int(ties)).permutation(len(rows))
    order = np.lexsort((tie, rows["time"], rows["user"]))
    sizes = rows.groupby("user").size().to_numpy()
    indptr = np.concatenate([[0], np.cumsum(sizes)])
    return Sequences(int(item.max()) + 1, indptr, item[order].astype(np.int32))


def run_ratings(args: argparse.Namespace) -> int:
    """Fit a model for each tie order and seed.

    The models' values and their spread are printed.
    """
    rows, results = read_ratings(args.file), []
    several = rows.groupby("user")["time"].agg(lambda times: (times == times.max()).sum() > 1)
    print(
        f"{len(rows):,} rows of {len(several):,} users; "
        f"{several.mean():.1%} have several of their last time"
    )
    for ties in args.ties:
        shown, last = set_last_aside(order_rows(rows, ties))
        for seed in range(42, 42 + (1 if args.kind == "popular" else args.seeds)):
            started = time.process_time()
            values = measure(score_ratings(shown, args, seed), shown, last)
            results.append(values)
            print(
                f"{args.kind} {args.settings} ties {ties} seed {seed}: hit@10 {values.hit_at_10:.4f}, "
                f"ndcg@10 {values.ndcg_at_10:.4f} +- {values.half_width:.4f}; "
                f"{time.process_time() - started:.0f} CPU seconds",
                flush=True,
            )
    table = np.array(results)
    low, high = table.min(axis=0), table.max(axis=0)
    print(f"hit@10 {low[1]:.4f} to {high[1]:.4f}, ndcg@10 {low[2]:.4f} to {high[2]:.4f}: {len(table)} fits")
    return OK


def score_ratings(shown: Sequences, args: argparse.Namespace, seed: int) -> torch.Tensor:
    """Score users after the shown items.

    The fit sets the newest of these aside.
    """
    if args.kind == "popular":
        counts = np.bincount(set_last_aside(shown)[0].item, minlength=shown.items)
        return torch.from_numpy(counts.astype(np.float64)).expand(shown.users, -1)
    return score_users(fit_task(shown, args.kind, {"seed": seed, **args.settings}), shown)


# ------------------------------------------------------------------------------- the command


def run_write(args: argparse.Namespace) -> int:
    """Write the planted world as a log."""
    write_log(args.folder, args.users, args.test_users)
    users = f"{args.users:,} users train and {args.test_users:,} further ones are tested"
    print(f"{args.folder}/log.parquet: {users}")
    return OK


def parse_ties(text: str) -> tuple[str, ...]:
    """Parse tie orders: `id`, or seeds from 0 on.

    Such an order sorts rows with one time.
    """
    ties = tuple(text.split(","))
    seeds = [tie for tie in ties if tie != "id"]
    if seeds:
        cli.parse_seeds(",".join(seeds))
    return ties


def parser() -> cli.Parser:
    """Make the flag parser."""
    flags = cli.Parser(__doc__ or "")
    flags.add_argument("action", choices=("write", "world", "ratings"))
    flags.add_argument("--kind", choices=KINDS, default="sasrec")
    flags.add_argument("--set", action="append", default=[], help="a setting: hops=3")
    flags.add_argument("--folder", type=Path, default=Path("facts"), help="of write")
    flags.add_argument("--users", type=cli.parse_count, default=3000, help="users of the world that train")
    flags.add_argument("--test-users", type=cli.parse_count, default=1000)
    flags.add_argument("--file", type=Path, help="of ratings")
    flags.add_argument("--ties", type=parse_ties, default=("id",), help="id, or seeds: id,1,2")
    flags.add_argument("--seeds", type=cli.parse_count, default=1, help="of ratings")
    return flags


def main(args: argparse.Namespace) -> int:
    """Run one part of the study."""
    torch.set_num_threads(1)
    named = [pair.partition("=") for pair in args.set]
    args.settings = {name: load_yaml(value, "--set") for name, _, value in named}
    if args.action == "ratings" and args.file is None:
        raise ConfigError("--file is missing", "a file of user, item, rating, timestamp")
    actions = {"write": run_write, "world": run_world, "ratings": run_ratings}
    return actions[args.action](args)


if __name__ == "__main__":
    cli.run(main, parser())
