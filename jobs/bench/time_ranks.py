# ruff: noqa: PLC0415 (each environment has only one of the libraries)
"""Time one system's ranks or lists, for `jobs/bench/ranking.py`.

    python jobs/bench/time_ranks.py SYSTEM FOLDER K ROUNDS

FOLDER holds users.npy, items.npy (float32) and lists.npz (written by `jobs/bench/ranking.py`). Prints a
JSON line per round: users, seconds, and the bare product's users a second; it takes turns with the system
in one thread. Starting the session, a first pass (of MLlib: over some users) and making the inputs are
not counted.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from jobs.bench.harness import time_call

System = tuple[Callable[[int], float | None], int]
"""A function of the pass number, with the users in a pass.

It may return the commit's time.
"""

MAX_LIST_USERS = 4096
"""Most users for whom slow systems make lists.

Their speed does not depend on the number.
"""


def _store_factors(folder: Path) -> Any:
    """Store user blocks and vectors in a warehouse.

    Returns it, its folder and the source rows.
    """
    from recbench_spark import schemas
    from recbench_spark.runtime.session import get_session
    from recbench_spark.storage.store import Store

    spark, root = get_session(), tempfile.mkdtemp(prefix="warehouse-", dir=folder)
    store = Store(spark, root)
    results = (schemas.METRICS, schemas.RANKINGS, schemas.USER_METRICS)
    store.create(schemas.EMBEDDINGS, schemas.USER_BLOCKS, *results)
    write_parquet(folder)
    rows = spark.read.parquet(f"{folder}/users.parquet")
    store.append(rows.selectExpr(*BLOCK), schemas.USER_BLOCKS)
    store.append(rows.selectExpr(*VECTOR), schemas.EMBEDDINGS)
    return store, root, rows


def run_own(folder: Path, k: int) -> System:
    """Time a night's work for a model.

    The work goes from stored blocks and vectors to committed results, with 1,000 bootstrap replicates; the
    items were shared with workers before.
    """
    from pyspark.sql import functions as F

    from jobs.bench.rank import rank
    from recbench_spark import schemas
    from recbench_spark.config import Evaluation
    from recbench_spark.evaluation.shuffle import PassInputs
    from recbench_spark.night.measure_checks import make_metric_plan
    from recbench_spark.ranking import part_users
    from recbench_spark.ranking.inputs import ScoredModel
    from recbench_spark.ranking.sources import DotSource
    from recbench_spark.storage.frame_blocks import FrameRows, share_rows

    store, root, rows = _store_factors(folder)
    n_users = rows.count()
    items = store.spark.read.parquet(f"{folder}/items.parquet")
    source = DotSource(share_rows(root, items), *np.load(folder / "items.npy", mmap_mode="r").shape)
    metrics = ("hit", "precision", "recall", "map", "mrr", "ndcg")
    evaluation = Evaluation(metrics=metrics, k=(10, k), uncut=False, slices=())
    plan = make_metric_plan(evaluation, evaluation.resolve())

    def run(turn: int) -> float:
        started = time.perf_counter()
        select = partial(part_users.select_part_users, parts=("test",), threshold=None, keep_empty=True)
        users = part_users.map_user_blocks(store, "bench", select, part_users.PART_USERS.names)
        vectors = store.read(schemas.EMBEDDINGS).where("model_id = 'bench' AND side = 'user'")
        known = vectors.select(F.col("id").alias("user_id"), "vector")
        inputs = PassInputs(users, [ScoredModel(source, FrameRows(known))], n_users)
        ranked = rank(store.spark, inputs, plan.request())
        run_id = f"run-{turn}"
        store.append(ranked.withColumn("run_id", F.lit(run_id)), schemas.RANKINGS)
        ranked_after = time.perf_counter() - started
        _write_metrics(store, plan, run_id)
        return ranked_after

    return run, n_users


def _write_metrics(store: Any, plan: Any, run_id: str) -> None:
    """Measure a run's rankings like a one-model night."""
    import pyarrow as pa
    from pyspark.sql import functions as F

    from recbench_spark import schemas
    from recbench_spark.evaluation.run_measures import make_measures, map_user_values
    from recbench_spark.metrics.accuracy import RANKING_COLUMNS
    from recbench_spark.ranking.batch_schemas import USER_VALUES, to_ddl
    from recbench_spark.storage.frame_blocks import reduce_frame

    rankings = store.read_partition(schemas.RANKINGS, "run_id", run_id)
    work = partial(map_user_values, plan, None)
    values = rankings.select(*RANKING_COLUMNS, "top_items").mapInArrow(work, to_ddl(USER_VALUES))
    store.append(values.withColumn("run_id", F.lit(run_id)), schemas.USER_METRICS)
    rows = reduce_frame(make_measures(plan, None), rankings)["ranks"]
    store.append(rows.append_column("run_id", pa.repeat(run_id, rows.num_rows)), schemas.METRICS)


BLOCK = (
    "'bench' AS split_id",
    "CAST(user_id AS STRING) AS user_id",
    "xxhash64(CAST(user_id AS STRING)) AS user_key",
    "masked AS train_items",
    "transform(masked, x -> 1.0D) AS train_ratings",
    "map('test', named_struct('item_ids', transform(truth, x -> CAST(x AS STRING)), 'items', truth, "
    "'relevance', transform(truth, x -> 1.0D), 'slices', map())) AS held_out",
)
VECTOR = (
    "'bench' AS model_id",
    "'user' AS side",
    "CAST(user_id AS STRING) AS id",
    "vector",
    "0.0D AS bias",
)


def write_parquet(folder: Path) -> None:
    """Write users with vectors and lists, and the catalogue."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from recbench_spark.metrics.list_rows import make_lists

    users_ud, items_id = np.load(folder / "users.npy"), np.load(folder / "items.npy")
    lists = np.load(folder / "lists.npz")
    columns = {"user_id": pa.array(np.arange(len(users_ud))), "vector": make_lists(users_ud)}
    for name in ("masked", "truth"):
        offsets = pa.array(lists[f"{name}_offsets"], pa.int32())
        columns[name] = pa.ListArray.from_arrays(offsets, pa.array(lists[name], pa.int32()))
    pq.write_table(pa.table(columns), folder / "users.parquet", row_group_size=10_000)
    index = np.arange(len(items_id), dtype=np.int32)
    item_ids = pa.array(map(str, index), pa.string())
    bias = pa.array(np.zeros(len(index)))
    catalogue = {"item_id": item_ids, "item_index": index, "vector": make_lists(items_id), "bias": bias}
    pq.write_table(pa.table(catalogue), folder / "items.parquet", row_group_size=10_000)


def mllib(folder: Path, k: int) -> System:
    """Time lists of the first k by `recommendForAllUsers`.

    All items are included; factors are cached. They are the starting values of ALS, since time does not
    depend on values.
    """
    from pyspark.ml.recommendation import ALS

    from recbench_spark.runtime.session import get_session

    spark = get_session()
    n_users = len(np.load(folder / "users.npy", mmap_mode="r"))
    n_items, dims = np.load(folder / "items.npy", mmap_mode="r").shape
    rows = spark.range(0, max(n_users, n_items)).selectExpr(
        f"CAST(id % {n_users} AS INT) AS user", f"CAST(id % {n_items} AS INT) AS item", "1.0F AS rating"
    )
    model = ALS(rank=dims, maxIter=0, seed=1).fit(rows)
    users = model.userFactors.selectExpr("id AS user").limit(MAX_LIST_USERS)

    def run(turn: int) -> None:
        lists = model.recommendForUserSubset(users, k) if turn < 0 else model.recommendForAllUsers(k)
        lists.write.format("noop").mode("overwrite").save()

    return run, n_users


def faiss(folder: Path, k: int) -> System:
    """Time lists of the first k by a flat index.

    The run has one thread, all items, and starts from the index.
    """
    import faiss as theirs

    theirs.omp_set_num_threads(1)
    items_id, users_ud = np.load(folder / "items.npy"), np.load(folder / "users.npy")[:MAX_LIST_USERS]
    index = theirs.IndexFlatIP(items_id.shape[1])
    index.add(items_id)

    def run(turn: int) -> None:
        index.search(users_ud, k)

    return run, len(users_ud)


def product(folder: Path) -> Callable[[], None] | None:
    """Time the bare blocked product in one thread.

    The result is None without torch.
    """
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(1)
    users, items = (torch.from_numpy(np.load(folder / f"{name}.npy")) for name in ("users", "items"))
    out = torch.empty((256, 1000))

    def run() -> None:
        for start in range(0, min(MAX_LIST_USERS, len(users)), 256):
            block = users[start : start + 256]
            for first in range(0, len(items), 1000):
                tile = items[first : first + 1000]
                torch.mm(block, tile.T, out=out[: len(block), : len(tile)])

    return run


def main(system: str, folder: Path, k: int, rounds: int) -> None:
    """Run a warm-up, then rounds with the product before each."""
    run, users = SYSTEMS[system](folder, k)
    bare = product(folder)
    run(-1)
    if bare:
        bare()
    multiplied = min(MAX_LIST_USERS, len(np.load(folder / "users.npy", mmap_mode="r")))
    for turn in range(rounds):
        speed = multiplied / time_call(bare)[0] if bare else None
        seconds, ranked = time_call(partial(run, turn))
        record = {"users": users, "seconds": seconds, "ranked": ranked, "product": speed}
        print(json.dumps(record), flush=True)


SYSTEMS: dict[str, Callable[[Path, int], System]] = {"spark": run_own, "mllib": mllib, "faiss": faiss}

if __name__ == "__main__":
    name, where, k, rounds = sys.argv[1:]
    main(name, Path(where), int(k), int(rounds))
