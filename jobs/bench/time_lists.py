# ruff: noqa: PLC0415 (each environment has only one of the libraries)
"""Time one system's list metrics, for `jobs/bench/lists.py`.

    python jobs/bench/time_lists.py SYSTEM FOLDER K,K,...

FOLDER holds lists.parquet (user_id, item_id, score) and truth.parquet (user_id, item_id), all integers,
with each list's rows together. The second pass in this process is counted; the first pass, starting a
session and making a system's inputs (see each function) are not. Prints one line of JSON: seconds,
values, version.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from jobs.bench.harness import start_peer_session, time_call

METRICS = ("hit", "precision", "recall", "map", "mrr", "ndcg")

Values = dict[str, float]


def run_own(folder: str, ks: list[int]) -> dict[str, Any]:
    """Time this package from two pandas frames."""
    import pandas as pd

    from recbench_spark import __version__, evaluate_frames

    lists, truth = (pd.read_parquet(f"{folder}/{name}.parquet") for name in ("lists", "truth"))

    def run() -> Values:
        metrics = evaluate_frames(truth, lists, k=ks, metrics=METRICS, preset="replay").dropna(subset="k")
        return _rename_metrics(zip(metrics.metric, metrics.k, metrics.value, strict=True))

    return time_second_pass(run, __version__)


def run_own_spark(folder: str, ks: list[int]) -> dict[str, Any]:
    """Time this package from Parquet users to committed `metrics`.

    The time includes 1,000 bootstrap replicates, as usual; the other systems have no intervals.
    """
    import pyarrow as pa

    from recbench_spark import __version__
    from recbench_spark.core.definitions import make_definition
    from recbench_spark.metrics.accuracy import MetricPlan, rank_measure
    from recbench_spark.ranking.given import rank_batches
    from recbench_spark.runtime.session import get_session
    from recbench_spark.schemas import METRICS as TABLE
    from recbench_spark.storage.frame_blocks import reduce_frame
    from recbench_spark.storage.store import Store

    spark, definition = get_session(), make_definition("replay")
    stored = _store_users(folder)
    store = Store(spark, tempfile.mkdtemp(prefix="warehouse-", dir=folder))
    store.create(TABLE)
    plan = MetricPlan.checked(METRICS, ks, definition)
    measure, request = rank_measure(plan), plan.request()
    # One pass through Python ranks the lists and adds up their metrics.
    ranked = replace(measure, sums=lambda batches: measure.sums(rank_batches(request, batches)))
    run_ids = iter(("first", "second"))

    def run() -> str:
        run_id, users = next(run_ids), spark.read.parquet(stored).drop("history", "masked")
        rows = reduce_frame({"ranks": replace(ranked, needs=tuple(users.columns))}, users)["ranks"]
        store.append(rows.append_column("run_id", pa.repeat(run_id, rows.num_rows)), TABLE)
        return run_id

    def read(run_id: str) -> Values:
        overall = store.read(TABLE).where(f"run_id = '{run_id}' AND k IS NOT NULL")
        return _rename_metrics((row.metric, row.k, row.value) for row in overall.collect())

    return time_second_pass(run, __version__, read)


def _store_users(folder: str) -> str:
    """Write one row per user with truth and list, once.

    Returns the place.
    """
    import pyarrow.parquet as pq

    from recbench_spark.evaluation import task_tables
    from recbench_spark.evaluation.evaluation import start_evaluation
    from recbench_spark.evaluation.input_tables import open_place
    from recbench_spark.evaluation.options import EvaluationRequest
    from recbench_spark.evaluation.request_checks import check_request
    from recbench_spark.storage.blocks import return_rows

    stored = Path(folder, "users")
    if stored.exists():
        return str(stored)
    lists, truth = (pq.read_table(f"{folder}/{name}.parquet") for name in ("lists", "truth"))
    nothing = dict.fromkeys(("scores", "embeddings", "train", "candidates", "features"))
    plan = check_request(EvaluationRequest(metrics=METRICS, preset="replay"), lists=lists, **nothing)
    with open_place(truth, None) as place, ExitStack() as kept:
        work = start_evaluation(place, plan, {"truth": truth, **nothing}, kept)
        (task,) = work.dealt.each(return_rows)
        users = task_tables.join_lists(task, work.catalogue, plan.metric_plan.request(), mask=False)
    stored.mkdir()
    for number, start in enumerate(range(0, len(users), 1 << 16)):
        pq.write_table(users.slice(start, 1 << 16), stored / f"part-{number}.parquet")
    return str(stored)


def run_own_spark_rows(folder: str, ks: list[int]) -> dict[str, Any]:
    """Time the public call from two Spark frames on disk.

    The call makes every check.
    """
    from recbench_spark import __version__, evaluate
    from recbench_spark.runtime.session import get_session

    spark = get_session()
    lists, truth = (spark.read.parquet(f"{folder}/{name}.parquet") for name in ("lists", "truth"))
    options: dict[str, Any] = {"k": ks, "metrics": METRICS, "preset": "replay"}

    def run() -> Values:
        result = evaluate(truth, lists=lists, **options)
        rows = result.metrics.where("k IS NOT NULL").collect()
        result.release()
        return _rename_metrics((row.metric, row.k, row.value) for row in rows)

    return time_second_pass(run, __version__)


def replay_polars(folder: str, ks: list[int]) -> dict[str, Any]:
    """Time RePlay from two polars frames."""
    import polars as pl  # type: ignore[import-not-found]

    lists, truth = (pl.read_parquet(f"{folder}/{name}.parquet") for name in ("lists", "truth"))

    return time_second_pass(lambda: _replay(lists, truth, ks), version("replay-rec"))


def replay_spark(folder: str, ks: list[int]) -> dict[str, Any]:
    """Time RePlay from two Spark frames in memory."""
    spark = start_peer_session()
    lists, truth = (spark.read.parquet(f"{folder}/{name}.parquet").cache() for name in ("lists", "truth"))
    for frame in (lists, truth):
        frame.count()

    return time_second_pass(lambda: _replay(lists, truth, ks), version("replay-rec"))


def _replay(lists: Any, truth: Any, ks: list[int]) -> Values:
    from replay.metrics import (  # type: ignore[import-not-found]
        MAP,
        MRR,
        NDCG,
        HitRate,
        OfflineMetrics,
        Precision,
        Recall,
    )

    theirs = (HitRate, Precision, Recall, MAP, MRR, NDCG)
    columns = {"query_column": "user_id", "item_column": "item_id", "rating_column": "score"}
    metrics = OfflineMetrics([metric(ks) for metric in theirs], **columns)(lists, truth)
    names = dict(zip((metric.__name__ for metric in theirs), METRICS, strict=True))
    split = ((*key.split("@"), value) for key, value in metrics.items())
    return _rename_metrics((names[name], k, value) for name, k, value in split)


def rectools(folder: str, ks: list[int]) -> dict[str, Any]:
    """Time RecTools from two pandas frames with ranks.

    `calc_metrics` merges them once.
    """
    import pandas as pd
    from rectools import metrics as theirs  # type: ignore[import-not-found]

    lists, truth = (pd.read_parquet(f"{folder}/{name}.parquet") for name in ("lists", "truth"))
    lists["rank"] = lists.groupby("user_id").score.rank(ascending=False, method="first").astype(int)
    names = dict(zip(METRICS, ("HitRate", "Precision", "Recall", "MAP", "MRR", "NDCG"), strict=True))
    metrics_by_name = {
        f"{ours}@{k}": getattr(theirs, name)(k=k) for ours, name in names.items() for k in ks
    }

    def run() -> Values:
        return {name: float(v) for name, v in theirs.calc_metrics(metrics_by_name, lists, truth).items()}

    return time_second_pass(run, version("rectools"))


def ranx(folder: str, ks: list[int]) -> dict[str, Any]:
    """Time ranx from a Qrels and a Run.

    Making them from frames with text ids takes longer, uncounted.
    """
    import pandas as pd
    from ranx import Qrels, Run, evaluate  # type: ignore[import-not-found]

    lists, truth = (pd.read_parquet(f"{folder}/{name}.parquet") for name in ("lists", "truth"))
    names = dict(zip(METRICS, ("hit_rate", "precision", "recall", "map", "mrr", "ndcg"), strict=True))
    names_by_metric = {f"{ours}@{k}": f"{name}@{k}" for ours, name in names.items() for k in ks}

    ids = ("user_id", "item_id")
    text = [
        rows.astype(dict.fromkeys(ids, str)).astype(dict.fromkeys(ids, object)) for rows in (lists, truth)
    ]
    columns = {"q_id_col": "user_id", "doc_id_col": "item_id"}
    qrels = Qrels.from_df(text[1].assign(grade=1), score_col="grade", **columns)
    rank = Run.from_df(text[0], score_col="score", **columns)

    def run() -> Values:
        values = evaluate(qrels, rank, list(names_by_metric.values()))
        return {name: float(values[theirs]) for name, theirs in names_by_metric.items()}

    return time_second_pass(run, version("ranx"))


def _rename_metrics(rows: Any) -> Values:
    return {f"{metric}@{int(k)}": float(value) for metric, k, value in rows}


def time_second_pass(
    run: Callable[[], Any], number: str, read: Callable[[Any], Values] = dict
) -> dict[str, Any]:
    """Return the second pass's seconds and values."""
    run()
    seconds, values = time_call(run)
    return {"seconds": seconds, "values": read(values), "version": number}


SYSTEMS = {
    "ours": run_own,
    "ours-spark": run_own_spark,
    "ours-spark-rows": run_own_spark_rows,
    "replay-polars": replay_polars,
    "replay-spark": replay_spark,
    "rectools": rectools,
    "ranx": ranx,
}

if __name__ == "__main__":
    system, data, cuts = sys.argv[1:]
    print(json.dumps(SYSTEMS[system](data, [int(k) for k in cuts.split(",")])))
