#!/usr/bin/env python3
"""Compute the losses of a night on Gowalla by hand, and hold the tables of the night against them.

    python tools/check_losses.py --warehouse WAREHOUSE --data FOLDER_OF_GOWALLA

No module of the package is imported. The night of `conf/benchmarks/gowalla_retrieval.yaml` leaves vectors
of ALS and files of indexes in its warehouse. The script reads the files of Gowalla itself, searches the
files of faiss by faiss, finds the candidates of `lsh` by comparing all tokens, and sorts the candidates of
each user by a float64 product. From these lists it computes hit, recall, NDCG and the recall of the lists,
and their differences to exact lists. It prints both sides, and ends with 1 where a number differs by more
than 1e-9.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow.parquet as pq
from deltalake import DeltaTable

LENGTH, CUTS, BLOCK = 100, (10, 20, 50), 256
TOLERANCE = 1e-9
Sets = list[np.ndarray]
Search = Callable[[np.ndarray, np.ndarray], Sets]


def main() -> int:
    """Print a line for each number; return 1 where one differs."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    flags.add_argument("--warehouse", type=Path, required=True)
    flags.add_argument("--data", type=Path, required=True)
    args = flags.parse_args()
    faiss.omp_set_num_threads(1)
    faiss.cvar.distance_compute_blas_threshold = 2**31 - 1
    by_hand = measure_night(args.warehouse, args.data)
    stored = dict(read_stored(args.warehouse))
    worst = 0.0
    for key in sorted(stored, key=str):
        difference = abs(stored[key] - by_hand[key])
        worst = max(worst, difference)
        print(f"{' '.join(map(str, key)):45s} {stored[key]: .9f} by hand {by_hand[key]: .9f}")
    print(f"{len(stored)} numbers; the largest difference is {worst:.3g}")
    return int(not stored or not worst <= TOLERANCE)


# ------------------------------------------------------------------------------------------ inputs


def read_users(path: Path) -> dict[str, list[str]]:
    """Return the items of each user of a file with one user a line."""
    with gzip.open(path, "rt") as lines:
        rows = (line.split() for line in lines)
        return {row[0]: sorted(set(row[1:])) for row in rows if len(row) > 1}


def read_vectors(warehouse: Path, side: str) -> tuple[list[str], np.ndarray]:
    """Return ids and vectors of a side."""
    rows = DeltaTable(warehouse / "embeddings").to_pyarrow_table(filters=[("side", "=", side)])
    vectors = np.array(rows["vector"].combine_chunks().values, np.float32)
    return rows["id"].to_pylist(), vectors.reshape(rows.num_rows, -1)


def read_stored(warehouse: Path) -> Iterator[tuple[tuple[Any, ...], float]]:
    """Yield metrics, their differences to exact lists, and the recall of lists, by index and name."""
    runs = DeltaTable(warehouse / "runs").to_pandas()
    names = dict(zip(runs.run_id, runs.model, strict=True))
    metrics = DeltaTable(warehouse / "metrics").to_pandas()
    for row in metrics[metrics.slice_key.isna()].itertuples():
        if (model := names[row.run_id]) != "als" and row.metric in ("hit", "recall", "ndcg"):
            yield (model, row.metric, int(row.k)), row.value
    pairs = DeltaTable(warehouse / "comparisons").to_pandas()
    for row in pairs[pairs.other == "als.exact"].itertuples():
        if row.model not in ("als", "als.exact"):
            yield (row.model, f"loss of {row.metric}", int(row.k)), row.difference
    for row in DeltaTable(warehouse / "retrieval_runs").to_pandas().itertuples():
        yield (names[row.run_id], "recall of lists", int(row.k)), row.recall


# ------------------------------------------------------------------------------------------ candidates


def open_indexes(warehouse: Path, items: np.ndarray) -> dict[str, Search]:
    """Return a search for each index of the night: exact, by faiss, or by tokens."""
    opened: dict[str, Search] = {"als.exact": lambda queries, _: [np.arange(len(items))] * len(queries)}
    runs = DeltaTable(warehouse / "retrieval_runs").to_pandas()
    folders = sorted(warehouse.glob("fit_files/*-index-*"))
    for text in sorted(set(runs.settings_json)):
        settings = json.loads(text)
        if settings["kind"] == "lsh":
            (folder,) = (folder for folder in folders if (folder / "directions.npy").exists())
            opened["als." + settings["name"]] = open_tokens(folder, items, settings)
        elif settings["kind"] != "flat":
            opened["als." + settings["name"]] = open_faiss(folders, settings)
    return opened


def open_faiss(folders: list[Path], settings: dict[str, Any]) -> Search:
    """Return a search of one file of faiss, as deep as the list and the user's training items."""
    kind = {"ivf": faiss.IndexIVFFlat, "hnsw": faiss.IndexHNSWFlat}[settings["kind"]]
    files = (folder / "index.faiss" for folder in folders if (folder / "index.faiss").exists())
    (index,) = (one for one in (faiss.read_index(str(file)) for file in files) if isinstance(one, kind))

    def search(queries: np.ndarray, depth_u: np.ndarray) -> Sets:
        sets_u = []
        for query, depth in zip(np.hstack([queries, np.ones((len(queries), 1))]), depth_u, strict=True):
            if settings["kind"] == "ivf":
                more = faiss.SearchParametersIVF(nprobe=settings["probes"])
            else:
                more = faiss.SearchParametersHNSW(efSearch=max(settings["candidates"], int(depth)))
            rows = index.search(query[None].astype(np.float32), int(depth), params=more)[1][0]
            sets_u.append(rows[rows >= 0])
        return sets_u

    return search


def open_tokens(folder: Path, items: np.ndarray, settings: dict[str, Any]) -> Search:
    """Return a search that compares the tokens of all items with those of a query, and counts."""
    directions = np.load(folder / "directions.npy").astype(np.float64)[:, :-1]  # the bias is 0 in ALS
    last = np.load(folder / "directions.npy").astype(np.float64)[:, -1]
    shape = (settings["bands"], settings["bits"])
    powers = 2 ** np.arange(settings["bits"], dtype=np.int64)[::-1]

    def make_tokens(vectors: np.ndarray, bias: float) -> np.ndarray:
        bits = vectors.astype(np.float64) @ directions.T + bias * last >= 0.0
        return (bits.reshape(len(vectors), *shape) @ powers).astype(np.int32)

    tokens = np.ascontiguousarray(make_tokens(items, 0.0).T)
    length = np.linalg.norm(items.astype(np.float64), axis=1)
    always = np.argsort(-length, kind="stable")[: round(settings["always"] * len(items))]

    def search(queries: np.ndarray, _: np.ndarray) -> Sets:
        sets_u = []
        for own in make_tokens(queries, 1.0):
            counts = (tokens == own[:, None]).sum(axis=0, dtype=np.int16)
            counts[always] = settings["bands"]
            sets_u.append(np.flatnonzero(counts >= settings["theta"]))
        return sets_u

    return search


# ------------------------------------------------------------------------------------------ metrics


def sort_items(user: np.ndarray, candidates: np.ndarray, items: np.ndarray) -> tuple[Any, Any]:
    """Return the first items of a list by float64 product, then smaller place, and their scores."""
    scores = items[candidates] @ user
    if len(scores) > LENGTH:
        kept = scores >= np.partition(scores, len(scores) - LENGTH)[len(scores) - LENGTH]
        candidates, scores = candidates[kept], scores[kept]
    order = np.lexsort((candidates, -scores))[:LENGTH]
    return candidates[order], scores[order]


def measure_list(listed: np.ndarray, truth: np.ndarray) -> dict[tuple[str, int], float]:
    """Return hit, recall and NDCG of a list at each cut-off."""
    hits = np.isin(listed, truth)
    values = {}
    for k in CUTS:
        gains = [1 / math.log2(place + 2) for place in np.flatnonzero(hits[:k])]
        best = sum(1 / math.log2(place + 2) for place in range(min(k, len(truth))))
        values |= {("hit", k): float(hits[:k].any()), ("recall", k): hits[:k].sum() / len(truth)}
        values["ndcg", k] = sum(gains) / best
    return values


def measure_night(warehouse: Path, data: Path) -> dict[tuple[Any, ...], float]:
    """Return the mean of each number over the users with test items."""
    train, test = (read_users(data / f"{name}.txt.gz") for name in ("train", "test"))
    names, items = read_places(warehouse)
    users, vectors = read_vectors(warehouse, "user")
    chosen = [u for u, name in enumerate(users) if name in test]
    searches, wide = open_indexes(warehouse, items), items.astype(np.float64)
    sums: dict[tuple[Any, ...], float] = {}
    for start in range(0, len(chosen), BLOCK):
        block = chosen[start : start + BLOCK]
        hidden = [np.array([names[i] for i in train.get(users[u], ())], np.int64) for u in block]
        truth = [np.array([names.get(i, -1) for i in test[users[u]]]) for u in block]
        depths = np.array([LENGTH + (2 ** math.ceil(math.log2(len(h))) if len(h) else 0) for h in hidden])
        exact: list[np.ndarray] = []
        for model, search in searches.items():
            sets_u = search(vectors[block], depths)
            for n, u in enumerate(block):
                left = sets_u[n][~np.isin(sets_u[n], hidden[n])]
                listed, scores = sort_items(vectors[u].astype(np.float64), left, wide)
                if model == "als.exact":
                    exact.append(scores)
                values = measure_list(listed, truth[n])
                for k in (10, LENGTH):
                    values["recall of lists", k] = (scores[:k] >= exact[n][k - 1]).sum() / k
                for key, value in values.items():
                    sums[model, *key] = sums.get((model, *key), 0.0) + value / len(chosen)
    losses = {
        (model, f"loss of {metric}", k): value - sums["als.exact", metric, k]
        for (model, metric, k), value in sums.items()
    }
    return sums | losses


def read_places(warehouse: Path) -> tuple[dict[str, int], np.ndarray]:
    """Return the place of each item in the indexes, and the vectors in this order."""
    folder = sorted(warehouse.glob("fit_files/*-index-*"))[0]
    rows = pq.read_table(folder / "items.parquet")
    names = dict(zip(rows["item_id"].to_pylist(), rows["item_index"].to_pylist(), strict=True))
    ids, vectors = read_vectors(warehouse, "item")
    ordered = np.empty_like(vectors)
    ordered[[names[i] for i in ids]] = vectors
    return names, ordered


if __name__ == "__main__":
    sys.exit(main())
