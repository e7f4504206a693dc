"""The core alone: numbers, tables, queries and a page in a process that can import no extra."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recbench_spark
from recbench_spark.core import extras
from tests.nights import TINY
from tools.platforms.environments import MissingError, find_python

ROOT = Path(__file__).resolve().parent.parent

WITHOUT = f"""
import sys

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {sorted(extras.MODULES)!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, NotInstalled())
"""
COMMAND = WITHOUT + "from recbench_spark.commands.dispatch import main\nmain()\n"


def run_python(code: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def run_command(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `recbench` without the extras."""
    return run_python(COMMAND, *words)


FRAMES = """
import json
import numpy as np, pandas as pd, pyarrow as pa
import recbench_spark

def make_frames():
    truth = pd.DataFrame({"user_id": [1, 1, 2, 3], "item_id": [10, 11, 12, 13]})
    lists = pd.DataFrame({"user_id": [1, 1, 2, 3], "item_id": [10, 12, 12, 11], "rank": [1, 2, 1, 1]})
    cells = [(u, i, (7 * u + 3 * i) % 5) for u in (1, 2, 3) for i in (10, 11, 12, 13)]
    scores = pd.DataFrame(cells, columns=["user_id", "item_id", "score"]).astype({"score": float})
    predictions = scores.rename(columns={"score": "prediction"}).assign(
        prediction=scores.score / 5 + 0.1, outcome=(scores.score > 1).astype(float)
    )
    vectors = np.random.default_rng(3).normal(size=(7, 5)).astype(np.float32).tolist()
    users = pa.table({"user_id": [1, 2, 3], "vector": vectors[:3]})
    items = pa.table({"item_id": [10, 11, 12, 13], "vector": vectors[3:]})
    return truth, lists, scores, predictions, (users, items)

def read_values(result):
    return [[row["metric"], row["k"], repr(row["value"])] for row in result.metrics.to_pylist()]

def measure():
    truth, lists, scores, predictions, embeddings = make_frames()
    frame = recbench_spark.evaluate_frames(truth, lists, k=(1, 2))
    values = [[name, repr(value)] for name, value in zip(frame.metric, frame.value)]
    values += read_values(recbench_spark.evaluate(truth, scores=scores, k=(1, 2)))
    values += read_values(recbench_spark.evaluate(truth, embeddings=embeddings, k=(1, 2)))
    values += read_values(recbench_spark.evaluate_predictions(predictions))
    return values
"""
"""Functions that both processes run: with every extra, and with none."""

PLOT = """
truth, lists, *_ = make_frames()
recbench_spark.evaluate(truth, lists=lists, k=2).plot()
"""


def describe_missing(package: str, extra: str) -> list[str]:
    """Last lines of a call of Python that lacks a package."""
    return [
        f"recbench_spark.core.extras.MissingPackageError: this needs {package}, which is not installed",
        f"  hint: {extras.install_command(extra)}",
    ]


def test_lists_scores_embeddings_and_predictions_have_the_numbers_of_a_whole_installation() -> None:
    """Then the same process lacks a package for a drawing."""
    done = run_python(WITHOUT + FRAMES + "print(json.dumps(measure()))" + PLOT)
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-2:] == describe_missing("matplotlib", "plots")
    names: dict[str, Any] = {"json": json, "np": np, "pd": pd, "pa": pa, "recbench_spark": recbench_spark}
    exec(FRAMES, names)
    values = names["measure"]()
    assert json.loads(done.stdout.splitlines()[-1]) == values and len(values) > 40


REPORT = """
from datetime import date
from recbench_spark import reports
from recbench_spark.query.local_engine import run_query
from recbench_spark.storage.arrow_store import ArrowStore
folder, page = sys.argv[1:]
store = ArrowStore(folder, read_only=True)
frames = [
    run_query(store, f"SELECT * FROM {name}", 10_000).to_pandas()
    for name in ("latest_metrics", "runs", "checks", "manifests")
]
report = reports.make_report(*frames, "ndcg@2", sql_lines=["recbench query leaderboard"])
print(reports.leaderboard_text(report))
print(reports.write_report(report, page))
"""


@pytest.mark.full
def test_a_warehouse_is_filled_queried_and_shown(tmp_path: Path) -> None:
    (tmp_path / "truth.csv").write_text("user_id,item_id\n1,10\n2,12\n3,13\n")
    (tmp_path / "lists.csv").write_text("user_id,item_id,rank\n1,10,1\n1,12,2\n2,11,1\n2,12,2\n3,11,1\n")
    warehouse = tmp_path / "w"
    tables = ["--lists", tmp_path / "lists.csv", "--truth", tmp_path / "truth.csv", "--k", "1,2"]
    done = run_command("evaluate", "--warehouse", warehouse, "--model", "mine", *tables)
    assert done.returncode == 0, done.stderr
    by_hand = "SELECT value FROM metrics WHERE metric = 'recall' AND k = 2 AND slice_key IS NULL"
    done = run_command("query", "--warehouse", warehouse, "--format", "csv", by_hand)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["value", str(2 / 3)]
    assert done.stderr == "engine local: pyspark is not installed, so this is SQL of DuckDB\n"
    done = run_command("query", "--warehouse", warehouse, "leaderboard")
    assert done.returncode == 0 and "mine" in done.stdout, done.stderr
    done = run_python(WITHOUT + REPORT, warehouse, tmp_path / "report.html")
    assert done.returncode == 0 and "mine" in done.stdout, done.stderr
    page = (tmp_path / "report.html").read_text()
    assert "<html" in page and "mine" in page


@pytest.mark.full
def test_a_log_is_split(tmp_path: Path) -> None:
    rows = {
        "user_id": [1, 1, 2, 2],
        "item_id": [5, 6, 5, 7],
        "event_time": [1_600_000_000 + n for n in range(4)],
    }
    pq.write_table(pa.table(rows), tmp_path / "log.parquet")
    warehouse, flags = tmp_path / "w", ["--log", tmp_path / "log.parquet", "--protocol", "TO_LS"]
    done = run_command("split", *flags, "--warehouse", warehouse)
    assert done.returncode == 0 and "engine local: 4 rows" in done.stderr, done.stderr
    query = "SELECT part, count(*) AS n FROM splits GROUP BY part ORDER BY part"
    done = run_command("query", "--warehouse", warehouse, "--format", "csv", query)
    assert done.stdout.split() == ["part,n", "test,2", "train,2"], done.stderr
    done = run_command("split", *flags, "--warehouse", warehouse, "--engine", "spark")
    assert done.returncode == 2 and "hint: pip install 'pyspark" in done.stderr, done.stderr


@pytest.mark.full
def test_protocols_are_compared_and_a_warehouse_is_kept(tmp_path: Path) -> None:
    flags = ["--warehouse", tmp_path / "w", "--logical-date", "2026-01-01"]
    (tmp_path / "tiny.yaml").write_text(json.dumps(TINY))
    words = ["--config", tmp_path / "tiny.yaml", "--protocols", "RO_RS", "--candidates", "unseen"]
    for done in (
        run_command("multiverse", *flags, *words),
        run_command("maintain", *flags, "--optimize", "--vacuum-hours", "24"),
    ):
        assert done.returncode == 0 and "engine local" in done.stderr, done.stderr


@pytest.mark.full
def test_a_matrix_and_rounds_are_estimated(tmp_path: Path) -> None:
    tables = {
        "matrix": "user_id,item_id,prediction\n1,10,4\n1,11,2\n2,10,3\n2,11,3\n",
        "log": "user_id,item_id,rating\n1,10,5\n2,11,1\n",
        "chances": "item_id,propensity\n10,0.5\n11,0.25\n",
        "rounds": ",timestamp,item_id,position,click,propensity_score\n0,2019-11-24,7,1,1,0.25\n"
        "1,2019-11-25,8,1,0,0.5\n",
    }
    for name, text in tables.items():
        (tmp_path / f"{name}.csv").write_text(text)
    matrix, log, chances, rounds = (tmp_path / f"{name}.csv" for name in tables)
    for model, flags in {
        "known": ("--matrix", matrix, "--log", log, "--propensities", chances),
        "uniform": ("--rounds", rounds, "--reader", "open_bandit", "--uniform", "4"),
    }.items():
        done = run_command("estimate", "--warehouse", tmp_path / "w", "--model", model, *flags)
        assert done.returncode == 0 and "engine local: " in done.stderr, done.stderr
    by_hand = "SELECT value FROM metrics WHERE estimator = 'snips' AND metric <> 'mae' ORDER BY value"
    done = run_command("query", "--warehouse", tmp_path / "w", "--format", "csv", by_hand)
    assert done.stdout.split() == ["value", str(2 / 3), str(18 / 6)], done.stderr


@pytest.mark.full
def test_a_replay_has_a_page_without_drawings(tmp_path: Path) -> None:
    done = run_command("replay", "--config", "demo", "--warehouse", tmp_path / "w")
    assert done.returncode == 0, done.stderr
    assert "note: a page without drawings: pip install 'matplotlib>=3.9' brings" in done.stderr
    (file,) = (tmp_path / "w" / "reports").glob("*.html")
    page = file.read_text()
    assert "click_yield" in page and "Ad clicks a page view" not in page


@pytest.mark.full
def test_a_log_is_looked_at_and_a_published_board_judged(tmp_path: Path) -> None:
    rows = [f"{user},{item},3,{1_262_304_000 + item}" for user in range(5) for item in range(4)]
    (tmp_path / "log.csv").write_text("\n".join(["userId,movieId,rating,timestamp", *rows]) + "\n")
    done = run_command("init", "--log", tmp_path / "log.csv", "--output", tmp_path / "own.yaml")
    assert done.returncode == 0 and "20 rows" in done.stdout, done.stderr
    assert 'event_time: "timestamp"' in (tmp_path / "own.yaml").read_text()
    done = run_command("board", "--published", "ml10m_rmse")
    assert done.returncode == 0 and "0.7" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("words", "package", "extra"),
    [
        (
            ("nightly", "--config", "demo", "--engine", "spark", "--logical-date", "2026-01-01"),
            "pyspark",
            "spark",
        ),
        (("split", "--config", "demo", "--engine", "spark"), "pyspark", "spark"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_what_an_extra_lacks_is_one_sentence_with_the_command(
    words: tuple[str, ...], package: str, extra: str, tmp_path: Path
) -> None:
    done = run_command(*words, "--warehouse", tmp_path / "w")
    assert done.returncode == 2 and done.stdout == ""
    said = f"error: this needs {package}, which is not installed\n  hint: {extras.install_command(extra)}\n"
    assert done.stderr.endswith(said) and len(done.stderr.splitlines()) <= 3


SPARK = """
import recbench_spark
recbench_spark.evaluate("truth.csv", lists="lists.csv", engine="spark")
"""


def test_a_call_of_python_lacks_a_package_with_the_same_sentence() -> None:
    done = run_python(WITHOUT + SPARK)
    assert done.stderr.splitlines()[-2:] == describe_missing("pyspark", "spark")


def test_other_missing_modules_are_left_as_they_are() -> None:
    error = ModuleNotFoundError("No module named 'mine'", name="mine")
    assert extras.explain(error) is error


OLDER = """
from importlib import metadata
versions = {"pandas": "1.4.0", "numpy": "1.23.5", "pydantic": "1.10.6"}
installed = metadata.version
metadata.version = lambda name: versions.get(name) or installed(name)
"""


@pytest.mark.parametrize("name", ["evaluate", "nightly", "query"])
def test_packages_of_an_older_runtime_are_named_before_work(name: str, tmp_path: Path) -> None:
    start = f"import runpy\nrunpy.run_path({str(ROOT / 'jobs' / 'recbench.py')!r}, run_name='__main__')"
    done = run_python(OLDER + start, name, "--no-such-flag")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: recbench-spark cannot run here: numpy 1.23.5, pandas 1.4.0, pydantic 1.10.6\n"
        "  hint: pip install 'numpy>=2.0' 'pandas>=2.2' 'pydantic>=2.9'; "
        "or take a newer runtime of docs/how_to/platforms.md\n"
    )


def test_calls_of_python_name_old_packages_too() -> None:
    done = run_python(OLDER + "import recbench_spark\nrecbench_spark.evaluate")
    assert done.returncode == 1
    assert "OldPackageError: recbench-spark cannot run here: numpy 1.23.5" in done.stderr


def test_a_missing_package_of_the_core_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    extras.check_core()
    monkeypatch.setitem(extras.CORE, "no-such-package", "1.0")
    with pytest.raises(extras.OldPackageError, match="cannot run here: no no-such-package") as error:
        extras.check_core()
    assert error.value.exit_code == 2


@pytest.mark.parametrize("version", ["3.9", "3.10"])
def test_an_older_python_is_named_before_work(version: str) -> None:
    try:
        python = find_python(version)
    except MissingError as error:
        pytest.skip(str(error))
    words = [python, ROOT / "jobs" / "recbench.py", "nightly"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        f"error: recbench-spark needs Python 3.11 or newer, and this is {version}."
    )


def name_packages(lines: list[str]) -> list[str]:
    return [line.partition("=")[0].rstrip("<>!~").partition(">")[0] for line in lines]


def test_pyproject_has_the_packages_that_messages_name() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    assert dict(line.split(">=") for line in project["dependencies"]) == extras.CORE
    assert {name: tuple(optional[name]) for name in extras.EXTRAS} == extras.EXTRAS
    assert all(name_packages(optional[name]) == extras.list_packages(name) for name in extras.EXTRAS)
    assert {extra for extra, _ in extras.MODULES.values()} == set(extras.EXTRAS)
    assert project["scripts"] == {"recbench": "recbench_spark.commands.dispatch:main"}
    assert optional["all"] == [f"recbench-spark[{','.join(extras.EXTRAS)}]"]


def test_the_wheel_takes_every_file_that_is_no_code() -> None:
    package = ROOT / "recbench_spark"
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    patterns = tool["setuptools"]["package-data"]["recbench_spark"]
    taken = {path for pattern in patterns for path in package.glob(pattern) if path.is_file()}
    walked = os.walk(package, followlinks=True)
    files = {Path(folder, name) for folder, _, names in walked for name in names}
    assert {path for path in files if path.suffix not in (".py", ".pyc", ".nbi", ".nbc")} == taken
    assert package / "conf" / "benchmarks" / "demo.yaml" in taken


def test_no_page_or_message_installs_a_name_that_no_registry_has() -> None:
    """Two lines of the page on installing are left: its warning, and the form of Git."""
    files = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *ROOT.glob("docs/**/*.md")]
    files += ROOT.glob("recbench_spark/**/*.py")
    lines = [line for file in files for line in file.read_text().splitlines()]
    named = [line for line in lines if re.search(r"pip install '?recbench", line)]
    assert [("Do not run" in line, " @ git+" in line) for line in named] == [(True, False), (False, True)]
