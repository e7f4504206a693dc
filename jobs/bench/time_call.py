# ruff: noqa: PLC0415 (each environment has only one of the systems)
"""Call one system's metrics for each line, for `jobs/bench/call.py`.

    python jobs/bench/time_call.py SYSTEM FOLDER K,K,...

The calls run in this process. FOLDER holds users.npy and items.npy (vectors in float32) and truth.npy
(each user's held-out items). Each output line is JSON: first the imports' CPU seconds, then each call's
seconds and values.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from jobs.bench.harness import measure_own_cpu, time_call

METRICS = ("ndcg", "recall", "precision", "map", "mrr", "hit")
LISTED = 50
"""Items in a list."""
BATCH = 1024
"""Users at once in WarpRec."""

Values = dict[str, float]
Prepare = Callable[[Path, list[int]], Callable[[], Values]]


def import_own() -> None:
    """Import what this package's call imports."""
    import numpy as np  # noqa: F401
    import pandas as pd  # noqa: F401

    from recbench_spark.evaluation import evaluation, in_process  # noqa: F401


def prepare_lists(folder: Path, ks: list[int]) -> Callable[[], Values]:
    """Prepare this package's call with lists of 50 items.

    The lists are made before.
    """
    import numpy as np
    import pandas as pd

    users, items, truth = (np.load(folder / f"{name}.npy") for name in ("users", "items", "truth"))
    top = np.argsort(-(users @ items.T), axis=1, kind="stable")[:, :LISTED]
    rank = np.tile(np.arange(1, LISTED + 1), len(users))
    pairs = {"user_id": np.repeat(np.arange(len(users)), LISTED), "item_id": top.ravel()}
    lists = pd.DataFrame({**pairs, "rank": rank})
    return partial(_call_own, _make_truth(truth), ks, lists=lists)


def prepare_vectors(folder: Path, ks: list[int]) -> Callable[[], Values]:
    """Prepare this package's call with vectors.

    The call computes all scores, and exact ranks.
    """
    import numpy as np
    import pandas as pd

    users, items, truth = (np.load(folder / f"{name}.npy") for name in ("users", "items", "truth"))
    sides = [
        pd.DataFrame({name: np.arange(len(vectors)), "vector": list(vectors)})
        for name, vectors in (("user_id", users), ("item_id", items))
    ]
    return partial(_call_own, _make_truth(truth), ks, embeddings=tuple(sides))


def _make_truth(truth: Any) -> Any:
    import numpy as np
    import pandas as pd

    user = np.repeat(np.arange(len(truth)), truth.shape[1])
    return pd.DataFrame({"user_id": user, "item_id": truth.ravel()})


def _call_own(truth: Any, ks: list[int], **system: Any) -> Values:
    from recbench_spark import evaluate

    result = evaluate(truth, k=ks, metrics=METRICS, engine="local", **system)
    rows = result.metrics.to_pandas().dropna(subset="k")
    return {f"{row.metric}@{int(row.k)}": float(row.value) for row in rows.itertuples()}


def import_warprec() -> None:
    """Import WarpRec's metrics without its packages.

    The packages' initialisation imports Ray.
    """
    place = importlib.util.find_spec("warprec")
    assert place is not None and place.submodule_search_locations is not None
    root = Path(place.submodule_search_locations[0])
    for name in ("", ".data", ".data.entities", ".evaluation", ".utils"):
        package = types.ModuleType(f"warprec{name}")
        package.__path__ = [str(root.joinpath(*name.split(".")))]
        sys.modules[package.__name__] = package
    importlib.import_module("warprec.evaluation.metrics.accuracy")


def prepare_warprec(folder: Path, ks: list[int]) -> Callable[[], Values]:
    """Prepare WarpRec's metric code on a score matrix.

    The matrix is made before.
    """
    import numpy as np
    import torch

    users, items, truth = (
        torch.from_numpy(np.load(folder / f"{n}.npy")) for n in ("users", "items", "truth")
    )
    return partial(_call_warprec, users @ items.T, truth, ks)


def _call_warprec(scores: Any, truth: Any, ks: list[int]) -> Values:
    """Measure all users in batches, like its evaluator.

    Ties, shared blocks and relevance are as there.
    """
    import torch

    registry = importlib.import_module("warprec.utils.registry").metric_registry
    names = dict(zip(METRICS, ("nDCG", "Recall", "Precision", "MAP", "MRR", "HitRate"), strict=True))
    shape = {"num_users": len(scores), "num_items": scores.shape[1]}
    metrics = {f"{ours}@{k}": registry.get(name, k=k, **shape) for ours, name in names.items() for k in ks}
    with torch.inference_mode():
        for start in range(0, len(scores), BATCH):
            _update_warprec(metrics, scores[start : start + BATCH], truth[start : start + BATCH], start)
    return {
        name: float(next(iter(metric.compute().values())).nanmean()) for name, metric in metrics.items()
    }


def _update_warprec(metrics: dict[str, Any], scores: Any, truth: Any, start: int) -> None:
    import torch

    base = importlib.import_module("warprec.evaluation.metrics.base_metric").BaseMetric
    ranking = importlib.import_module("warprec.data.ranking")
    grades = torch.zeros(scores.shape).scatter_(1, truth, 1.0)
    binary, discounted = base.binary_relevance(grades), base.discounted_relevance(grades)
    shared = {"ground": grades, "binary_relevance": binary, "discounted_relevance": discounted}
    users = torch.arange(start, start + len(scores))
    shared |= {"valid_users": base.valid_users(grades), "user_indices": users}
    ks = sorted({metric.k for metric in metrics.values()})
    generator = torch.Generator().manual_seed(42)
    values, top = ranking.top_k_breaking_ties(scores, ks[-1], generator, users)
    blocks = {k: {f"top_{k}_values": values[:, :k], f"top_{k}_indices": top[:, :k]} for k in ks}
    for k, block in blocks.items():
        block[f"top_{k}_binary_relevance"] = torch.gather(binary, 1, top[:, :k])
        block[f"top_{k}_discounted_relevance"] = torch.gather(discounted, 1, top[:, :k])
    for metric in metrics.values():
        metric.update(scores, **shared, **blocks[metric.k])


SYSTEMS: dict[str, tuple[Callable[[], None], Prepare]] = {
    "lists": (import_own, prepare_lists),
    "vectors": (import_own, prepare_vectors),
    "warprec": (import_warprec, prepare_warprec),
}
"""Each system's imports, and what makes its inputs."""


def answer_lines(system: str, folder: Path, ks: list[int]) -> None:
    """Import and prepare; then call once for each line."""
    load, prepare = SYSTEMS[system]
    print(json.dumps({"cpu": measure_own_cpu(load)}), flush=True)
    call = prepare(folder, ks)
    for _ in sys.stdin:
        started = time.process_time()
        wall, values = time_call(call)
        cpu = time.process_time() - started
        print(json.dumps({"wall": wall, "cpu": cpu, "values": values}), flush=True)


if __name__ == "__main__":
    answer_lines(sys.argv[1], Path(sys.argv[2]), [int(k) for k in sys.argv[3].split(",")])
