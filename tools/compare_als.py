#!/usr/bin/env python3
"""Fit `als` and MLlib's ALS in turns, on the same rows with the same settings; print errors and seconds.

    python tools/compare_als.py --data ml-1m/ratings.tsv.gz --explicit --rank 32 --iterations 10
    python tools/compare_als.py --data gowalla --rank 32 --iterations 10 --alpha 10

`--data` is the file of MovieLens 1M (a fifth of its rows, by a draw, is tested) or the folder of Gowalla.
Metrics are plain numpy: RMSE, or NDCG@10 and recall@20 of all items without those of training. CPU seconds
are those of the JVM, or of this process; MLlib gets integer columns that are cached, in two blocks.
"""

from __future__ import annotations

import argparse
import gzip
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pyspark.ml.recommendation import ALS
from pyspark.sql import SparkSession

from recbench_spark.models.rating.als import ProductAlsSettings, fit_product_als
from recbench_spark.models.rating.interface import check_ratings

BLOCK = 512
NAMES = ["user", "item", "rating"]


class Data(NamedTuple):
    """Rows (user, item, rating) by dense numbers."""

    train: pd.DataFrame
    test: pd.DataFrame


class Factors(NamedTuple):
    """Vectors of both sides, zeros where there is none, and what they took."""

    users: np.ndarray
    items: np.ndarray
    seconds: float
    cpu: float


def main() -> None:
    """Print a line for each fit."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    flags.add_argument("--data", type=Path, required=True)
    flags.add_argument("--explicit", action="store_true")
    flags.add_argument("--rank", type=int, default=32)
    flags.add_argument("--iterations", type=int, default=10)
    flags.add_argument("--regularization", type=float, default=0.05)
    flags.add_argument("--alpha", type=float, default=1.0)
    flags.add_argument("--seeds", type=int, default=3)
    args = flags.parse_args()
    data = read_data(args.data)
    if not args.explicit:
        data.train["rating"] = 1.0  # as a night takes pairs
    settings = ProductAlsSettings(
        rank=args.rank, iterations=args.iterations, regularization=args.regularization, alpha=args.alpha,
        implicit=not args.explicit,
    )  # fmt: skip
    spark, rows = start_spark(data, settings)
    fit_own(Data(data.train[:100], data.test), settings, 0)  # compiles
    fits: dict[str, Callable[[int], Factors]] = {
        "MLlib": lambda seed: fit_mllib(spark, rows, settings, seed),
        "als": lambda seed: fit_own(data, settings, seed),
    }
    for seed in range(1, args.seeds + 1):
        for name, fit in fits.items():
            factors = fit(seed)
            numbers = rate(data, factors) if args.explicit else rank(data, factors)
            words = " ".join(f"{key} {value:.4f}" for key, value in numbers.items())
            spent = f"{factors.seconds:.1f} s, CPU {factors.cpu:.1f} s, load {os.getloadavg()[0]:.1f}"
            print(f"{name} seed {seed}: {words}; {spent}", flush=True)


def read_data(place: Path) -> Data:
    """Read the file of MovieLens or the folder of Gowalla."""
    if place.is_dir():
        return Data(*(read_lists(place / f"{part}.txt.gz") for part in ("train", "test")))
    rows = pd.read_csv(place, sep="\t")[NAMES]
    for name in NAMES[:2]:
        rows[name] = rows[name].factorize()[0]
    tested = np.random.default_rng(42).random(len(rows)) < 0.2
    return Data(rows[~tested].copy(), rows[tested])


def read_lists(path: Path) -> pd.DataFrame:
    """Read a file with a user and its items in each line."""
    with gzip.open(path, "rt") as lines:
        numbers = (list(map(int, line.split())) for line in lines)
        pairs = [(user, item, 1.0) for user, *items in numbers for item in items]
    return pd.DataFrame(pairs, columns=NAMES)


def count_sides(data: Data) -> tuple[int, int]:
    """Return the numbers of users and items."""
    both = pd.concat(data)
    return int(both.user.max()) + 1, int(both.item.max()) + 1


# ------------------------------------------------------------------------------------------- fits


def fit_own(data: Data, settings: ProductAlsSettings, seed: int) -> Factors:
    """Fit `als` on one thread."""
    n_users, n_items = count_sides(data)
    columns = (data.train[name].to_numpy() for name in NAMES)
    ratings = check_ratings(*columns, n_users=n_users, n_items=n_items)
    started, cpu = time.monotonic(), time.process_time()
    model: Any = fit_product_als(ratings, settings, seed).model
    return Factors(model.p_ud, model.q_id, time.monotonic() - started, time.process_time() - cpu)


def start_spark(data: Data, settings: ProductAlsSettings) -> tuple[SparkSession, Any]:
    """Start Spark on two cores, and make one small fit there."""
    builder = SparkSession.builder.master("local[2]").config("spark.driver.memory", "2g")
    spark = (
        builder.config("spark.sql.shuffle.partitions", 2).config("spark.ui.enabled", False).getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.sparkContext.setCheckpointDir(tempfile.mkdtemp())
    rows = spark.createDataFrame(data.train).repartition(2).cache()
    fit_mllib(spark, rows.limit(1000), settings.model_copy(update={"iterations": 1}), 0)
    rows.count()
    return spark, rows


def fit_mllib(spark: SparkSession, rows: Any, settings: ProductAlsSettings, seed: int) -> Factors:
    """Fit MLlib's ALS in two blocks."""
    als = ALS(
        rank=settings.rank, maxIter=settings.iterations, regParam=settings.regularization,
        alpha=settings.alpha, implicitPrefs=settings.implicit, seed=seed, userCol="user", itemCol="item",
        ratingCol="rating", numUserBlocks=2, numItemBlocks=2, checkpointInterval=3,
    )  # fmt: skip
    started, cpu = time.monotonic(), read_jvm_seconds(spark)
    model = als.fit(rows)
    tables = [make_table(side.toPandas()) for side in (model.userFactors, model.itemFactors)]
    return Factors(*tables, time.monotonic() - started, read_jvm_seconds(spark) - cpu)


def make_table(factors: pd.DataFrame) -> np.ndarray:
    """Return the vectors by number, zeros where there is none."""
    table = np.zeros((factors.id.max() + 1, len(factors.features.iloc[0])), np.float32)
    table[factors.id.to_numpy()] = np.stack(factors.features.to_list())
    return table


def read_jvm_seconds(spark: SparkSession) -> float:
    """Return the CPU seconds of the JVM so far."""
    process = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# ---------------------------------------------------------------------------------------- metrics


def rate(data: Data, factors: Factors) -> dict[str, float]:
    """Return the RMSE of products, and of products within 1 to 5; unknown pairs get the mean."""
    mean = data.train.rating.mean()
    users, items = (pad(factors[at], size) for at, size in enumerate(count_sides(data)))
    known = data.test.user.isin(data.train.user) & data.test.item.isin(data.train.item)
    products = (users[data.test.user] * items[data.test.item]).sum(axis=1)
    predicted, ratings = np.where(known, products, mean), data.test.rating
    clipped = np.clip(predicted, 1, 5)
    errors = {"rmse": predicted - ratings, "clipped": clipped - ratings}
    return {name: float(np.sqrt((error**2).mean())) for name, error in errors.items()}


def pad(table: np.ndarray, size: int) -> np.ndarray:
    """Add zeros for rows that training lacks at the end."""
    return np.vstack([table, np.zeros((size - len(table), table.shape[1]), table.dtype)]).astype(np.float64)


def rank(data: Data, factors: Factors) -> dict[str, float]:
    """Return means over users with test rows of NDCG@10 and recall@20."""
    users, items = (pad(factors[at], size) for at, size in enumerate(count_sides(data)))
    seen, truth = (rows.groupby("user").item.agg(list) for rows in data)
    gains, values = 1 / np.log2(np.arange(2, 22)), []
    for begin in range(0, len(truth), BLOCK):
        chosen = truth.index[begin : begin + BLOCK]
        scores = users[chosen] @ items.T
        for row, user in zip(scores, chosen, strict=True):
            row[seen.get(user, [])] = -np.inf
            top = np.argpartition(-row, 20)[:20]
            hits = np.isin(top[np.argsort(-row[top], kind="stable")], truth[user])
            ideal = gains[: min(10, len(truth[user]))].sum()
            values.append(((hits * gains)[:10].sum() / ideal, hits.sum() / len(truth[user])))
    ndcg, recall = np.mean(values, axis=0)
    return {"ndcg@10": float(ndcg), "recall@20": float(recall)}


if __name__ == "__main__":
    main()
