"""Frames that calls of other libraries return, measured as they are: the numbers of the plain form.

The documented shapes are rows of our own. The frames of the libraries themselves are made in their own
environments (`make libraries`), by `recommend.py`.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import recbench_spark
from recbench_spark import cli
from recbench_spark.commands import evaluate
from recbench_spark.schemas import METRICS
from recbench_spark.storage.arrow_store import ArrowStore
from tests.libraries.test_presets import ENVIRONMENTS

KS = (1, 3, 5)


def draw(seed: int, each: int) -> pd.DataFrame:
    """Draw items for 20 users, each once."""
    rng = np.random.default_rng(seed)
    rows = [
        (user, item, int(rng.integers(1, 6))) for user in range(20) for item in rng.permutation(15)[:each]
    ]
    return pd.DataFrame(rows, columns=["user_id", "item_id", "rating"])


TRUTH = draw(1, 4)[["user_id", "item_id"]]


def measure(truth: Any, lists: Any) -> list[tuple[str, int, float]]:
    result = recbench_spark.evaluate(
        truth, lists=lists, k=KS, metrics=("ndcg", "recall", "hit"), bootstrap=0
    )
    return [(row["metric"], row["k"], row["value"]) for row in result.metrics.to_pylist() if row["k"]]


def measure_files(folder: Path, lists: Path, truth: pd.DataFrame) -> list[tuple[str, int, float]]:
    """Measure by the command, as rows of its warehouse."""
    truth.to_parquet(folder / "truth.parquet", index=False)
    words = ["--warehouse", folder / "w", "--model", "own", "--lists", lists, "--engine", "local"]
    words += ["--truth", folder / "truth.parquet", "--k", "1,3,5", "--metrics", "ndcg,recall,hit", "--cut"]
    with pytest.raises(SystemExit) as end:
        cli.run(evaluate.main, evaluate.parser(), [*map(str, words), "--bootstrap", "0"])
    assert end.value.code == 0
    rows = ArrowStore(str(folder / "w"), read_only=True).rows(METRICS)
    return [(row["metric"], row["k"], row["value"]) for row in rows if row["k"] and not row["slice_key"]]


# ------------------------------------------------------------------------------- documented shapes


def make_shape(library: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return lists in the shape that a library documents, and the plain form of them."""
    rows = draw(2, 6)
    rows["score"] = np.linspace(9, 1, len(rows)).astype(np.float32)
    rows["rank"] = rows.groupby("user_id").cumcount() + 1
    shapes = {
        "lenskit": rows[["user_id", "item_id", "score", "rank"]].astype({"rank": "int32"}),
        "rectools": rows[["user_id", "item_id", "score", "rank"]],
        "replay": rows[["user_id", "item_id", "score"]].set_axis(["query_id", "item_id", "rating"], axis=1),
        "implicit": rows[["user_id", "item_id", "score"]].set_axis(["user", "item", "score"], axis=1),
        "ranx": rows[["user_id", "item_id", "score"]].set_axis(["q_id", "doc_id", "score"], axis=1),
        "recbole": rows[["user_id", "item_id", "score"]].set_axis(
            ["user_id:token", "item_id:token", "score:float"], axis=1
        ),
    }
    return shapes[library], rows[["user_id", "item_id", "rank"]]


@pytest.mark.parametrize("library", ["lenskit", "rectools", "replay", "implicit", "ranx", "recbole"])
def test_documented_shapes(library: str, tmp_path: Path) -> None:
    own, plain = make_shape(library)
    expected = measure(TRUTH, plain)
    assert measure(TRUTH, own) == expected
    own.to_parquet(tmp_path / "own.parquet", index=False)
    assert sorted(measure_files(tmp_path, tmp_path / "own.parquet", TRUTH)) == sorted(expected)


# ------------------------------------------------------------------------------- libraries themselves


ENVIRONMENT_OF = {"replay": "replay-spark"}
"""Environments that have another name than the library."""


@pytest.fixture(params=["lenskit", "rectools", "ranx", "implicit", "replay", "recbole"])
def library_lists(request: pytest.FixtureRequest, tmp_path: Path, own_jvm: None) -> Path:
    """Folder with the frame that a library returns, and its plain form; RePlay starts a JVM."""
    python = ENVIRONMENTS / ENVIRONMENT_OF.get(request.param, request.param) / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no environment of {request.param} under {ENVIRONMENTS}: run `make libraries`")
    draw(3, 8).to_parquet(tmp_path / "log.parquet", index=False)
    script = Path(__file__).with_name("recommend.py")
    words = [python, "-W", "ignore", script, request.param, tmp_path / "log.parquet", tmp_path]
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return tmp_path


@pytest.mark.slow
def test_frames_of_the_libraries(library_lists: Path) -> None:
    own, plain = (pd.read_parquet(library_lists / f"{name}.parquet") for name in ("own", "plain"))
    truth = TRUTH.astype(str) if plain.user_id.dtype == object else TRUTH
    expected = measure(truth, plain)
    assert any(0 < value < 1 for *_, value in expected)
    assert measure(truth, own) == expected
    assert sorted(measure_files(library_lists, library_lists / "own.parquet", truth)) == sorted(expected)
    if (library_lists / "own.trec").exists():
        assert measure(truth, library_lists / "own.trec") == expected
        assert measure(truth, json.loads((library_lists / "own.json").read_text())) == expected
