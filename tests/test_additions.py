"""Additions: each is made in a copy of the package, in as few files as ARCHITECTURE says."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
IGNORED = shutil.ignore_patterns("__pycache__")

METRIC = '''

@metric(
    "first_share",
    about=About(title="first hit's share", formula="1 / first hit's rank, or 0.", edges=EDGE, wide=True),
)
def first_share(chunk: Chunk) -> Floats:
    """1 / rank of the first relevant item among the first k."""
    return chunk.first_hit[1]
'''

MODEL = '''"""Recommends items by their ratings' sum."""

from typing import Literal

import numpy as np

from recbench_spark.models.rating.interface import Ratings
from recbench_spark.models.rating.kinds import VectorModel
from recbench_spark.models.rating.own import Vectors


class RatingSums(VectorModel):
    """Items by the sum of their ratings."""

    kind: Literal["rating_sums"]

    def fit(self, ratings: Ratings, seed: int) -> Vectors:
        """Return the same vector for all users."""
        sums = np.bincount(ratings.items_r, ratings.ratings_r, ratings.n_items)
        return Vectors(np.ones((ratings.n_users, 1)), sums[:, None])
'''

LISTS = {"user_id": ["u", "u", "v"], "item_id": ["a", "b", "a"], "rank": [1, 2, 1]}
TRUTH = {"user_id": ["u", "v"], "item_id": ["b", "c"]}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The package and its tools, which a test may change."""
    for name in ("recbench_spark", "tools", "tests/libraries", "conf", "docs/reference"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=IGNORED)
    return tmp_path


def change(file: Path, *changes: tuple[str, str]) -> None:
    text = file.read_text(encoding="utf-8")
    for before, after in changes:
        assert text.count(before) == 1, f"{file.name}: {before}"
        text = text.replace(before, after)
    file.write_text(text, encoding="utf-8")


def run_in(copy: Path, *words: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(copy)}
    done = subprocess.run(
        [sys.executable, *words], cwd=copy, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


EVALUATE = f"""
import json, pandas as pd
from recbench_spark import evaluate_frames
rows = evaluate_frames(pd.DataFrame({TRUTH}), pd.DataFrame({LISTS}), metrics=METRICS, k=[2], bootstrap=0)
print(rows.to_json(orient="records"))
"""


def evaluate_in(copy: Path, *metrics: str) -> list[dict[str, Any]]:
    """Rows that the copy computes for two users: u has its item at rank 2, v has none."""
    printed = run_in(copy, "-W", "ignore", "-c", EVALUATE.replace("METRICS", str(list(metrics))))
    rows: list[dict[str, Any]] = json.loads(printed)
    return rows


@pytest.mark.full
def test_a_metric_is_added_in_one_file_and_its_test(copy: Path) -> None:
    with (copy / "recbench_spark/metrics/kernels/accuracy.py").open("a", encoding="utf-8") as file:
        file.write(METRIC)
    (row,) = evaluate_in(copy, "first_share")
    assert (row["metric"], row["k"], row["value"], row["n"]) == ("first_share", 2, 0.25, 2)
    run_in(copy, "-m", "tools.reference")
    assert "1 / first hit's rank, or 0." in (copy / "docs/reference/metrics.md").read_text(encoding="utf-8")
    sql = copy / "recbench_spark" / "sql"
    assert "('first_share', 'large', 0.0, 1.0, FALSE)" in (sql / "metric_facts.sql").read_text()
    assert "AS first_share_10," in (sql / "metrics_wide.sql").read_text()


@pytest.mark.full
def test_a_column_of_metrics_is_added_in_three_files(copy: Path) -> None:
    package = copy / "recbench_spark"
    change(
        package / "metrics/tables.py",
        (
            '`weigh=rows`) averaged.", False),\n    ),\n    con',
            '`weigh=rows`) averaged.", False),\n'
            '        TableColumn("total", DOUBLE, "Sum over the averaged users."),\n    ),\n    con',
        ),
    )
    change(
        package / "ranking/batch_schemas.py",
        ('        "n": pa.int64(),\n    }\n)\n"""One row per metric', '        "n": pa.int64(),\n        '
         '"total": pa.float64(),\n    }\n)\n"""One row per metric'),
    )  # fmt: skip
    change(
        package / "metrics/accuracy.py",
        (
            '            **named,\n            "n": pa.array(n),\n',
            '            **named,\n            "n": pa.array(n),\n            "total": pa.array'
            "(numbers[0] * n),\n",
        ),
    )
    words = ["--warehouse", str(copy / "w"), "--model", "m", "--k", "2", "--metrics", "mrr", "--lists"]
    for name, columns in (("lists", LISTS), ("truth", TRUTH)):
        lines = [
            ",".join(columns),
            *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True)),
        ]
        (copy / f"{name}.csv").write_text("\n".join([*lines, ""]), encoding="utf-8")
    run_in(copy, "-m", "recbench_spark", "evaluate", *words, "lists.csv", "--truth", "truth.csv")
    answer = run_in(copy, "-m", "recbench_spark", "query", "metrics", "--warehouse", "w", "--format", "csv")
    (row,) = (row for row in csv.DictReader(answer.splitlines()) if row["k"] == "2")
    assert (row["value"], row["n"], row["total"]) == ("0.25", "2", "0.5")


@pytest.mark.full
def test_a_model_of_a_known_family_is_added_in_one_file_and_its_test(copy: Path) -> None:
    (copy / "recbench_spark/models/rating_sums.py").write_text(MODEL, encoding="utf-8")
    night = ["-m", "recbench_spark", "nightly", "--config", "demo", "--warehouse", "w", "--engine", "local"]
    night += ["--logical-date", "2026-01-01", "--set", "models=[{name: sums, kind: rating_sums}]"]
    assert "sums" in run_in(copy, *night)
    run_in(copy, "-m", "tools.reference")
    assert "rating_sums" in (copy / "docs/reference/models.md").read_text(encoding="utf-8")
