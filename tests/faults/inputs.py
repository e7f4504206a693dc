"""Files that the campaign's jobs read: benchmark files, tables, Spark's settings."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from tests.cluster.processes import properties
from tests.faults import jobs
from tests.faults.campaign import PRODUCT, Case, code_digest
from tests.faults.in_process import SETTINGS
from tests.faults.jobs import night
from tests.faults.starting import PATIENCE, start_job
from tests.nights import TINY as NIGHT

TINY: dict[str, Any] = {
    **NIGHT,
    "evaluation": {
        **NIGHT["evaluation"],
        "metrics": ["ndcg", "recall"],
        "slices": [{"key": "popularity", "of": "popularity"}],
        "exposure": {"propensities": {"method": "relative_frequency"}, "estimators": ["ips"]},
    },
    "comparisons": {"replicates": 10},
    "paradoxes": {"replicates": 10, "by": ["popularity"], "metrics": ["ndcg"], "k": [5]},
}
"""The smallest night that writes every kind of rows."""


FIT = {"epochs": 2, "batch": 64, "rate": 0.02, "validation": 0.2}
HASHED = {"features": {"kind": "hashed", "dims": 6}, "width": 5}
GRAPH_MODELS: tuple[dict[str, Any], ...] = (
    {"name": "lightgcn", "kind": "lightgcn", **FIT, "dims": 4, "layers": 2},
    {"name": "graphsage", "kind": "graphsage", **FIT, **HASHED, "samples": [4, 3]},
    {"name": "pinsage", "kind": "pinsage", **FIT, **HASHED, "hidden": 5, "final": [4], "top": 5,
     "walks": 20, "negatives": 20},
)  # fmt: skip
FACTORS = {"name": "mf_bpr", "kind": "mf_bpr", **FIT, "dims": 4}
RATES = {"low": 0.0001, "high": 0.01, "log": True}


def documents(inputs: Path) -> dict[str, dict[str, Any]]:
    """Return the benchmark files: a night, one of models over graphs, ratings over folds, a search of
    rankings.
    """
    stars = {
        "name": "stars",
        "dataset": {"name": "stars", "reader": "csv", "path": str(inputs / "stars.csv")},
        "split": {"holdout": "folds", "folds": 2},
        "models": [{"name": "sgd", "kind": "sgd_mf", "dims": 2, "epochs": 3},
                   {"name": "means", "kind": "means"}],
        "evaluation": {"task": "rating", "metrics": ["rmse"], "bootstrap": {"replicates": 5}},
        "search": {"budget": 2, "share": 0.2, "spaces": {"sgd": {"rates": RATES}}},
    }  # fmt: skip
    spaces = {"item_knn": {"neighbours": {"low": 1, "high": 30}}, "mf_bpr": {"rate": RATES}}
    popular = {"name": "popular", "kind": "popular"}
    evaluation = {"metrics": ["ndcg"], "k": [5], "bootstrap": {"replicates": 10}}
    graphs = {**NIGHT, "name": "graphs", "models": [popular, *GRAPH_MODELS], "evaluation": evaluation}
    knn = {"name": "item_knn", "kind": "item_knn", "neighbours": 10}
    search = {**NIGHT, "name": "search", "models": [popular, knn, FACTORS], "headline": "ndcg@5"}
    search |= {"search": {"budget": 2, "share": 0.25, "spaces": spaces}, "evaluation": evaluation}
    return {"tiny": TINY, "graphs": graphs, "stars": stars, "search": search}


def write_ratings(inputs: Path) -> None:
    """Write ratings of 20 users as a log, predictions for all cells, and the propensities of the cells."""
    rows = [(u, i, 1 + (u * i + i) % 5) for u in range(20) for i in range(12)]
    observed = [f"{u},{i},{r},{u * 9 + i}" for u, i, r in rows if (u + i) % 3]
    (inputs / "stars.csv").write_text("\n".join(["user_id,item_id,rating,event_time", *observed, ""]))
    cells = [f"{u},{i},{3 + (u + i) % 2},{r if (u + i) % 3 else ''}" for u, i, r in rows]
    (inputs / "matrix.csv").write_text("\n".join(["user_id,item_id,prediction,rating", *cells, ""]))
    chances = [f"{u},{i},0.5" for u, i, _ in rows]
    (inputs / "chances.csv").write_text("\n".join(["user_id,item_id,propensity", *chances, ""]))


def write_inputs(inputs: Path) -> None:
    inputs.mkdir(parents=True, exist_ok=True)
    for name, document in documents(inputs).items():
        (inputs / f"{name}.yaml").write_text(yaml.safe_dump(document))
    write_settings(inputs)
    users, items = range(60), range(25)
    wanted = [(u, i) for u in users for i in items if (u * 7 + i * 5) % 11 == 0]
    listed = [(u, i, float((u * 3 + i * 13) % 17)) for u in users for i in items if (u + i) % 3]
    table = {"user_id": [r[0] for r in wanted], "item_id": [r[1] for r in wanted]}
    pq.write_table(pa.table(table), inputs / "truth.parquet")
    rows = {name: [row[n] for row in listed] for n, name in enumerate(("user_id", "item_id", "score"))}
    pq.write_table(pa.table(rows), inputs / "lists.parquet")
    write_ratings(inputs)
    edges = "".join(f"{n},{(n * 7 + j * 3) % 90}\n" for n in range(90) for j in range(1, 5))
    (inputs / "edges.csv").write_text("src,dst\n" + edges)


def write_settings(inputs: Path) -> Path:
    """Write the settings of the tests."""
    return properties(inputs / "spark.conf", spark_driver_memory="1g", **SETTINGS)


def keep_classes(inputs: Path) -> None:
    """Put Delta's jars and an archive of a night's Java classes on the class path.

    A hundred kills start a hundred JVMs, which start faster with it. It needs the jars in Ivy's folder.
    """
    conf, archive = inputs / "spark.conf", inputs.parent / "classes.jsa"
    settings = write_settings(inputs).read_text()
    jars = sorted(map(str, Path.home().glob(".ivy2*/jars/*.jar")))
    if not any("delta-spark" in jar for jar in jars):
        return
    if not archive.exists():
        conf.write_text(with_java(settings, jars, f"-XX:ArchiveClassesAtExit={archive}"))
        with start_job("nightly", night(inputs, inputs / "archived"), inputs) as process:
            process.popen.wait(PATIENCE)
            until = time.monotonic() + PATIENCE  # Java writes it once the job is gone
            while process.children("java") and time.monotonic() < until:
                time.sleep(0.1)
    conf.write_text(with_java(settings, jars, f"-XX:SharedArchiveFile={archive} -Xshare:auto"))


def with_java(settings: str, jars: list[str], flag: str) -> str:
    """Return the settings with these jars on the class path, and another flag of Java."""
    lines = [line for line in settings.splitlines() if not line.startswith("spark.jars.")]
    more = f" -XX:+UseSerialGC -Xlog:disable {flag}"
    lines = [line + more if line.startswith("spark.driver.extraJavaOptions") else line for line in lines]
    return "\n".join([*lines, f"spark.driver.extraClassPath {os.pathsep.join(jars)}", ""])


def prepare_inputs(case: Case) -> Path:
    """Write the inputs of the jobs; all parts that run jobs share them, and the results of undisturbed
    runs.
    """
    mine = b"".join(Path(file).read_bytes() for file in (__file__, jobs.__file__))
    name = f"{code_digest(PRODUCT)}-{hashlib.sha256(mine).hexdigest()[:8]}"
    inputs = case.place.parent / "inputs" / name
    if not (inputs / "whole").exists():
        shutil.rmtree(inputs, ignore_errors=True)
        write_inputs(inputs)
        (inputs / "whole").touch()
    return inputs
