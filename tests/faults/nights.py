"""Run whole nights of mutated benchmark files on a log of text, in this process, against a slow reading of
it.

The campaign writes the log, so it knows every row. For a night that ends well it checks that each row of
the log is in `splits` once, in a part that the protocol allows; that the values of the most popular items,
user by user, follow from that split by `tests/oracles.py`; and that nothing is published twice. Any other
end must be a sentence with a hint and one of the documented exit codes.
"""

from __future__ import annotations

import copy
import math
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from recbench_spark.config import load_benchmark, make_benchmark
from recbench_spark.core.definitions import axis_values
from recbench_spark.errors import ConfigError
from tests import oracles
from tests.faults import configs
from tests.faults.campaign import Case, Verdict
from tests.faults.in_process import job

DAY = "2026-02-01"

SPLITS: tuple[dict[str, Any], ...] = (
    {"protocol": "RO_RS"}, {"protocol": "RO_RS", "ratio": [0.6, 0.2, 0.2]}, {"protocol": "TO_RS"},
    {"protocol": "RO_LS"}, {"protocol": "TO_LS"}, {"protocol": "TO_LS", "valid": True},
    {"holdout": "last_n", "n": 2}, {"order": "temporal", "holdout": "last_n", "n": 3, "valid": True},
    {"holdout": "n_given", "n": 4}, {"holdout": "folds", "folds": 4},
    {"holdout": "folds", "folds": 5, "fold": 4},
    {"holdout": "period", "length": "30d"}, {"holdout": "period", "start": "2025-06-01T00:00:00+00:00"},
    {"order": "random", "holdout": "ratio", "group": "global"},
    {"order": "temporal", "holdout": "ratio", "group": "global", "ratio": [0.7, 0.1, 0.2]},
    {"protocol": "netflix", "parts": ["test", "quiz"], "n": 4},
    {"protocol": "TO_RS", "held_out": {"of": "users", "test": 0.3}},
    {"protocol": "RO_RS", "held_out": {"of": "items", "test": 0.3}},
)  # fmt: skip
METRICS = ("hit", "precision", "recall", "calibrated_recall", "f1", "map", "mrr", "ndcg", "auc",
           "r_precision", "rbp", "percentile_rank", "coverage", "gini", "novelty",
           "mean_popularity")  # fmt: skip
MODELS: tuple[dict[str, Any], ...] = (
    {"name": "knn", "kind": "item_knn", "neighbours": 5}, {"name": "random", "kind": "random"},
    {"name": "als", "kind": "als", "rank": 2, "iterations": 1},
    {"name": "paper", "kind": "published", "figures": {"ndcg@10": 0.2}},
)  # fmt: skip


FIT = {"epochs": 1, "batch": 32, "rate": 0.02, "validation": 0.2}
HASHED = {"features": {"kind": "hashed", "dims": 4}, "width": 3}
GRAPH_MODELS: tuple[dict[str, Any], ...] = (
    {"name": "lightgcn", "kind": "lightgcn", **FIT, "dims": 3, "layers": 1},
    {"name": "graphsage", "kind": "graphsage", **FIT, **HASHED, "samples": [3, 2]},
    {"name": "pinsage", "kind": "pinsage", **FIT, **HASHED, "top": 3, "walks": 5, "negatives": 5},
)  # fmt: skip
"""Models over the graph of the training part, which the rules of files do not describe."""

SLICES = ({"key": "popularity", "of": "popularity"}, {"key": "cold", "of": "cold_user"},
          {"key": "land", "of": "log", "column": "country"})  # fmt: skip
MORE: tuple[dict[str, Any], ...] = (
    {}, {}, {"user_metrics": False}, {"curve": True}, {"uncut": False},
    {"exposure": {"propensities": {"method": "relative_frequency"}}},
)  # fmt: skip


def draw_log(chance: random.Random) -> list[tuple[str, str, float, int, str]]:
    """Draw user, item, rating, seconds, country: some pairs twice, some users with one row."""
    users, items, style = chance.randint(8, 30), chance.randint(6, 20), chance.choice(["{}", "u{}", "0{}"])
    rows = []
    for user in range(users):
        for item in chance.sample(range(items), chance.randint(1, min(9, items))):
            when = 1735689600 + chance.randrange(400) * 86_400
            rows.append(
                (style.format(user), style.format(item), float(chance.randint(1, 5)), when, "ab"[user % 2])
            )
    for user, item, _, when, country in chance.sample(rows, chance.choice([0, 0, 3])):
        rows.append((user, item, float(chance.randint(1, 5)), when + 60, country))
    chance.shuffle(rows)
    return rows


def write_log(rows: list[tuple[str, str, float, int, str]], file: Path) -> None:
    lines = [",".join(map(str, row)) for row in rows]
    file.write_text("\n".join(["user_id,item_id,rating,event_time,country", *lines, ""]), encoding="utf-8")


def draw_document(chance: random.Random, log: Path) -> dict[str, Any]:
    """Draw a benchmark of this log that loads; a draw that does not is repeated.

    It shares no object with its templates, because mutations change it in place.
    """
    while True:
        drawn = copy.deepcopy(any_document(chance, log))
        try:
            make_benchmark(copy.deepcopy(drawn), (), "a drawn file")
        except ConfigError:
            continue
        if chance.random() < 0.15:
            drawn["models"].append(copy.deepcopy(chance.choice(GRAPH_MODELS)))
        return drawn


def any_document(chance: random.Random, log: Path) -> dict[str, Any]:
    """Draw any split, definition, slices and sections."""
    split = dict(chance.choice(SPLITS), seed=chance.randrange(99))
    evaluation: dict[str, Any] = {
        "metrics": chance.sample(METRICS, chance.randint(1, 5)),
        "k": sorted(chance.sample(range(1, 12), chance.randint(1, 3))),
        "bootstrap": {"replicates": chance.choice([0, 10])},
        "slices": chance.sample(SLICES, chance.randint(0, 3)),
    }
    axes = {
        axis: chance.choice(axis_values(axis)) for axis in chance.sample(AXES, chance.choice([0, 1, 2]))
    }
    # Trained models have no hashed ties.
    axes |= {"ties": "id"} if axes.get("ties") == "hashed" else {}
    axes |= {"threshold": chance.choice([2, 3, 4])} if chance.random() < 0.4 else {}
    evaluation |= {"definition": axes} if axes else {}
    evaluation |= {"parts": ["test", "valid"]} if chance.random() < 0.1 else {}
    evaluation |= chance.choice(MORE)
    own = {"name": "own", "reader": "csv", "path": str(log), "attributes": ["country"]}
    benchmark: dict[str, Any] = {
        "name": "night",
        "dataset": {**own, "duplicates": chance.choice(["keep_last", "keep_first", "keep_last", "error"])},
        "split": split,
        "models": [
            {"name": "popular", "kind": "popular"},
            *chance.sample(MODELS, chance.choice([0, 0, 1])),
        ],
        "evaluation": evaluation,
    }
    more = {"comparisons": {"replicates": 10}, "paradoxes": {"replicates": 10},
            "gates": [{"fact": "rows", "part": "test", "below": 1}],
            "regressions": [{"metric": "ndcg", "k": 5, "drop": 0.01}]}  # fmt: skip
    for name in chance.sample(sorted(more), chance.choice([0, 0, 1, 2])):
        benchmark[name] = more[name]
    return benchmark


AXES = ("empty_users", "gain", "discount", "ideal", "precision_by", "recall_by", "ap", "ap_by", "map_cut",
        "mrr_cut", "hit", "auc_ties", "auc_by", "ties", "candidates", "users",
        "negative_grades")  # fmt: skip


def run(case: Case) -> Verdict:
    """Write log and file, run the night, and check its tables against the log."""
    chance = case.draw()
    folder = case.place / f"case{case.number}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rows, log, file = draw_log(chance), folder / "log.csv", folder / "night.yaml"
    write_log(rows, log)
    mutant = configs.Mutant(chance)
    mutant.document, mutant.base = draw_document(chance, log), "night"
    for change in [chance.choice(configs.CHANGES) for _ in range(chance.choice([0, 0, 0, 0, 1]))]:
        change(mutant)
        mutant.kinds.append(change.__name__)
    file.write_text(configs.dump(mutant.document), encoding="utf-8")
    warehouse = folder / "warehouse"
    code, err = job(
        "nightly", ["--config", str(file), "--warehouse", str(warehouse), "--logical-date", DAY]
    )
    about = [f"exit code {code}", *mutant.kinds, f"split {split_name(mutant.document)}"]
    wrong = find_bad_exit(code, err) or find_needless_failure(code, err, mutant)
    if not wrong and code in (0, 4):
        wrong = night_is_wrong(load_benchmark(str(file)), rows, warehouse)
        if not wrong and chance.random() < 0.25:
            about.append("retention")
            wrong = retention_is_wrong(warehouse)
    if wrong:
        return Verdict.fail(f"{wrong} [{file}]", *about)
    shutil.rmtree(folder)
    return Verdict(about=about)


USER_TABLES = ("rankings", "user_metrics", "splits")
"""Tables that retention empties once no kept night needs their rows."""
PERMANENT_TABLES = ("runs", "metrics", "comparisons", "paradoxes")
"""Tables from which retention never removes rows."""


def retention_is_wrong(warehouse: Path) -> str | None:
    """Run `maintain --keep-days` a year later: rows per user are gone, and all other rows are unchanged."""
    names = [
        name for name in (*USER_TABLES, *PERMANENT_TABLES) if (warehouse / name / "_delta_log").exists()
    ]
    before = {name: Counter(map(repr, table(warehouse, name))) for name in names}
    flags = ["--warehouse", str(warehouse), "--keep-days", "30", "--logical-date", "2027-02-01"]
    code, err = job("maintain", flags)
    if code:
        return f"maintain {flags[2:]}: exit code {code}: {err[-500:]!r}"
    for name in names:
        wanted = Counter[str]() if name in USER_TABLES else before[name]
        if (rows := Counter(map(repr, table(warehouse, name)))) != wanted:
            return f"after retention {name} has {rows.total()} rows, and {wanted.total()} should be there"
    return None


def split_name(document: Any) -> str:
    split = document.get("split") if isinstance(document, dict) else None
    name = (split.get("protocol") or split.get("holdout")) if isinstance(split, dict) else None
    return str(name)[:20]


def find_bad_exit(code: Any, err: str) -> str | None:
    if "Traceback" in err or "internal error" in err or code not in (0, 1, 2, 3, 4):
        return f"a trace, exit code {code}: {err[-700:]!r}"
    if code in (1, 2, 3) and "error: " not in err:
        return f"exit code {code} without a sentence: {err[-300:]!r}"
    return None


def find_needless_failure(code: Any, err: str, mutant: configs.Mutant) -> str | None:
    """Report a failure of a file that loads, on a log that can be split in this way."""
    if code == 2 and not mutant.kinds:
        return f"exit code 2, and the file loads: {err[-400:]!r}"
    if code == 1 and not mutant.kinds and not any(reason in err for reason in REASONS):
        return f"failed for no reason that a log can give: {err[-500:]!r}"
    return None


REASONS = ("duplicate", "is empty", "no test", "no train", "no rows to split", "is not a row", "alike")
"""Valid reasons for a night to fail on a small log."""


# ---------------------------------------------------------------------------------- the slow reading


def table(warehouse: Path, name: str) -> list[dict[str, Any]]:
    return list(DeltaTable(str(warehouse / name)).to_pyarrow_table().to_pylist())


def night_is_wrong(
    benchmark: Any, rows: list[tuple[str, str, float, int, str]], warehouse: Path
) -> str | None:
    splits = table(warehouse, "splits")
    wrong = rows_are_wrong(benchmark, rows, splits) or labels_are_wrong(benchmark.split, splits)
    if wrong or benchmark.evaluation.task != "ranking":
        return wrong
    runs = [run for run in table(warehouse, "runs") if run["status"] == "succeeded"]
    if len({run["model"] for run in runs}) < len(runs):
        return "a model was published twice"
    for run in (run for run in runs if run["model_kind"] == "popular"):
        metrics = [row for row in table(warehouse, "metrics") if row["run_id"] == run["run_id"]]
        if wrong := popular_is_wrong(benchmark, splits, metrics, table(warehouse, "items")):
            return wrong
    return None


def rows_are_wrong(benchmark: Any, rows: list[Any], splits: list[dict[str, Any]]) -> str | None:
    """Check that no row is lost or doubled, and that the right row of each pair stays."""
    first = benchmark.dataset.duplicates == "keep_first"
    rows_by_pair: dict[tuple[str, str], tuple[float, int]] = {}
    for user, item, rating, when, _ in sorted(rows, key=lambda row: row[3], reverse=first):
        rows_by_pair[user, item] = (rating, when)
    wanted = Counter((u, i, r, t) for (u, i), (r, t) in rows_by_pair.items())
    split_rows = Counter(
        (row["user_id"], row["item_id"], row["rating"], row["event_time"] // 1_000_000) for row in splits
    )
    lost, new = wanted - split_rows, split_rows - wanted
    return f"{lost.total()} rows lost, {new.total()} new, e.g. {[*lost, *new][0]}" if lost or new else None


def labels_are_wrong(split: Any, splits: list[dict[str, Any]]) -> str | None:
    """Check the promises of the protocol for every user, row by row."""
    owners: dict[Any, list[dict[str, Any]]] = {}
    for row in splits:
        owners.setdefault(row["user_id"] if split.group == "user" else None, []).append(row)
    held_out = set(split.parts) | {"valid"}
    for owner, mine in owners.items():
        late = [row["event_time"] for row in mine if row["part"] in held_out]
        early = [row["event_time"] for row in mine if row["part"] in ("train", "given")]
        if split.temporal and late and early and min(late) < max(early):
            return f"{owner}: a row of train is later than a held-out one"
        test = sum(row["part"] in split.parts for row in mine)
        if split.held_out is None and (wrong := amount_is_wrong(split, len(mine), test)):
            return f"{owner}: {wrong}"
    return None


def amount_is_wrong(split: Any, n: int, test: int) -> str | None:
    """Check the number of tested rows among n; at least one stays to train on."""
    if split.holdout == "ratio" and split.group == "user":
        wanted = min(max(math.floor(n * split.ratio[2] + 1e-9), 1), n - 1)
    elif split.holdout == "leave_one_out":
        wanted = min(1, n - 1)
    elif split.holdout == "last_n":
        wanted = min(split.n, n - 1)
    elif split.holdout == "n_given":
        wanted = max(n - split.n, 0)
    else:
        return None
    return None if test == wanted else f"{test} of {n} rows are tested, and {wanted} should be"


def popular_is_wrong(
    benchmark: Any, splits: list[dict[str, Any]], metrics: list[dict[str, Any]], items: list[dict[str, Any]]
) -> str | None:
    """Compute the values of the most popular items by counting."""
    definition = benchmark.evaluation.resolve()
    if definition.candidates in ("uniform", "popularity", "given"):
        return None
    count = Counter(row["item_id"] for row in splits if row["part"] == "train")
    every = [item["item_id"] for item in items]
    whole = all(i.isdigit() and str(int(i)) == i for i in every)
    place = {item: n for n, item in enumerate(sorted(every, key=int if whole else str.encode))}
    for part in benchmark.evaluation.parts:
        users = list_users(part, splits, count, place, definition)
        for row in metrics:
            mine = row["part"] == part and row["slice_key"] is None and row["estimator"] == "holdout"
            if not mine or (row["metric"] not in oracles.METRICS and row["metric"] != "auc"):
                continue
            if wrong := value_is_wrong(row, users, definition):
                return f"{part}: {wrong}"
    return None


Users = list[tuple[dict[int, float], dict[int, float]]]


def list_users(
    part: str, splits: Any, count: Counter[str], place: dict[str, int], definition: Any
) -> Users:
    """Return scores of each user's candidates, and the truth; rows held out for validation are known by the
    test.
    """
    known = {"train", "given"} | ({"valid"} if part != "valid" else set())
    seen: dict[str, set[str]] = {}
    truth: dict[str, dict[int, float]] = {}
    for row in splits:
        if row["part"] in known:
            seen.setdefault(row["user_id"], set()).add(row["item_id"])
        if row["part"] == part:
            truth.setdefault(row["user_id"], {})[place[row["item_id"]]] = row["rating"]
    users = []
    for user, mine in truth.items():
        hidden = seen.get(user, set()) if definition.candidates == "unseen" else set()
        scores = {place[item]: float(count[item]) for item in place if item not in hidden}
        if definition.candidates == "rated":
            scores = {item: score for item, score in scores.items() if item in mine}
        users.append((scores, mine))
    return users


def value_is_wrong(row: dict[str, Any], users: Users, definition: Any) -> str | None:
    """Check one metric at one cut-off; ties without an order of ids are left to the tests of kernels."""
    metric = row["metric"]
    raw = metric == "auc" or (metric == "map" and definition.ap_ties == "last_rank")
    if not raw and definition.ties not in ("id", "id_descending"):
        return None
    sign = 1 if definition.ties == "id" else -1
    values = []
    for scores, truth in users:
        strict = scores if raw else {i: s - sign * i / 10_000 for i, s in scores.items()}
        values.append(oracles.value(metric, strict, truth, row["k"], definition))
    defined = [value for value in values if not math.isnan(value)]
    right = math.fsum(defined) / len(defined) if defined else math.nan
    got = math.nan if row["value"] is None else row["value"]
    same = (math.isnan(right) and math.isnan(got)) or abs(right - got) < 1e-9 * max(1.0, abs(right))
    if same and row["n"] == len(defined):
        return None
    values_text = f"{got} over {row['n']}, and right is {right} over {len(defined)}"
    return f"SILENTLY WRONG: {metric}@{row['k']} is {values_text}"
