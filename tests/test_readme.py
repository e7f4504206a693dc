"""The README and the pages with its details: every line of their blocks runs, or a reason stands here."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from nbclient import NotebookClient
from nbformat import read as read_notebook

from recbench_spark import cli
from recbench_spark.commands import benchmark, board, compare, embed, evaluate, nightly, query, tune
from recbench_spark.config import load_benchmark
from tools.notebooks import NOTEBOOKS, needs_warehouse

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    "README.md",
    *(f"docs/{page}.md" for page in ("how_to/install", "how_to/evaluate_tables", "how_to/night_options")),
)
README = "\n\n".join((ROOT / page).read_text() for page in PAGES)
FENCED = re.findall(r"^```(\w*)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
INDENTED = re.findall(r"(?<=\n\n)((?: {4}\S.*\n)+)", re.sub(r"(?ms)^```.*?^```$", "", README))
LINES = [
    line.strip()
    for kind, text in [*FENCED, *(("", text) for text in INDENTED)]
    for line in text.splitlines()
    if kind == "" and line.strip()
]
NOT_RUN = {
    "make demo-spark": "a JVM of its own; tests/night/test_local_nights.py compares both runners",
    "make demo ": "its night runs below, and CI runs its command dry (.ci/run)",
    "make test ": "these tests are it",
    "python3 -m venv": "it installs an environment, as tools/setup.sh does before these tests",
    "make package ": "it fetches the build's packages; tests/test_core.py compares what the wheel takes",
    "pip install ": "it installs an environment; tests/test_core.py runs without the extras",
    "recbench --": "tests/test_dispatch.py runs it",
    ".venv/bin/spark-submit": "a JVM of its own; tests/cluster submits jobs with spark-submit",
}
"""First words of lines that no test here runs, each with the reason."""

JOBS = {
    job.__name__.rpartition(".")[2]: job
    for job in (benchmark, board, compare, embed, evaluate, nightly, query, tune)
}
SMALL = ["users=150", "items=80", "interactions=4000", "open_loop=1200"]
QUICK = [f"--set=dataset.world.{one}" for one in SMALL] + ["--set=evaluation.bootstrap.replicates=20"]


def run(line: str, *more: str) -> int | str | None:
    """Run a line of the README in this process, with its job's own parser; further flags make it small."""
    words = shlex.split(line, comments=True)
    if words[:2] == ["make", "sql"]:  # the target hands Q and WAREHOUSE over: tests/test_cli.py
        words = ["recbench", "query", words[2].removeprefix("Q=")]
    assert Path(words[0]).name == "recbench"
    job = JOBS[words[1]]
    with pytest.raises(SystemExit) as end:
        cli.run(job.main, job.parser(), [*words[2:], *more])
    return end.value.code


def line_with(*parts: str) -> str:
    """The one line of the README's blocks that has all of these parts."""
    (match,) = {line for line in LINES if all(part in line for part in parts)}
    return match


RUN = (
    "recbench evaluate", "recbench nightly --config demo",
    "recbench nightly --config movielens_1m ", "recbench benchmark",
    "recbench tune", "recbench board", "recbench embed", "make sql Q=",
    "recbench compare",
)  # fmt: skip
"""Parts of the lines that tests of this file run."""


def test_every_line_is_run_or_says_why_not() -> None:
    assert len(LINES) >= 16
    for line in LINES:
        skipped = [start for start in NOT_RUN if line.startswith(start)]
        assert len(skipped) == 1 or any(part in line for part in RUN), line
    # Blocks of bash run in tests/test_start.py.
    assert {kind for kind, _ in FENCED} == {"", "python", "yaml", "bash", "text"}
    for start in NOT_RUN:
        assert any(line.startswith(start) for line in LINES), start


def test_python_is_said_to_be_that_of_the_environment() -> None:
    assert "`python` is `.venv/bin/python`, and `recbench` is `.venv/bin/recbench`" in README


# ------------------------------------------------------------------------------- no JVM


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, pd.DataFrame]:
    """The files that the README's evaluations name, in the working folder."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(3)
    users, items = (a.ravel() for a in np.meshgrid(np.arange(12), np.arange(15), indexing="ij"))
    every = pd.DataFrame({"user_id": users, "item_id": items, "score": rng.random(len(users))})
    kind = rng.choice(["train", "truth", "none"], len(every), p=[0.3, 0.2, 0.5])
    ids = ["user_id", "item_id"]
    outcomes = every.assign(prediction=every.score, outcome=rng.integers(0, 2, len(every)))
    frames = {
        "truth": every[kind == "truth"][ids],
        "train": every[kind == "train"][ids],
        "lists": every[kind != "train"].assign(
            rank=lambda t: t.groupby("user_id").score.rank().astype(int)
        )[[*ids, "rank"]],
        "scores": every,
        "users": pd.DataFrame({"user_id": range(12), "vector": list(rng.random((12, 4)))}),
        "items": pd.DataFrame({"item_id": range(15), "vector": list(rng.random((15, 4)))}),
        "predictions": outcomes[[*ids, "prediction", "outcome"]],
    }
    for name, frame in frames.items():
        frame.to_parquet(f"{name}.parquet", index=False)
    return frames


# A stored model is evaluated by tests/jobs/test_pyg_lesson.py.
EVALUATIONS = [line for line in LINES if "recbench evaluate" in line and "--model-id" not in line]


@pytest.mark.parametrize("line", EVALUATIONS, ids=["lists", "scores", "embeddings", "predictions"])
def test_an_evaluation_runs(
    line: str, tables: dict[str, pd.DataFrame], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(line.replace("DIR", str(tmp_path / "w")).replace("NAME", "mine"), "--engine", "local") == 0
    assert "mine" in capsys.readouterr().out


@pytest.mark.parametrize("block", [text for kind, text in FENCED if kind == "python"])
def test_a_python_block_runs_with_frames_of_pandas(
    block: str, tables: dict[str, pd.DataFrame], capsys: pytest.CaptureFixture[str]
) -> None:
    exec(block, {**tables, "als": tables["lists"], "popular": tables["lists"].assign(rank=1)})
    printed = capsys.readouterr().out
    assert "ci_low" in printed and "definition" in printed
    assert ("only the first 20 of" in printed and "user_id" in printed) == ("user_metrics" in block)


def test_the_board_of_published_results_needs_no_warehouse(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(line_with("recbench board", "--published")) == 0
    assert "ml10m" in capsys.readouterr().out


def test_the_list_of_questions_needs_no_warehouse(capsys: pytest.CaptureFixture[str]) -> None:
    assert "recbench query --list" in README
    assert run("recbench query --list") == 0
    assert "leaderboard" in capsys.readouterr().out
    assert run("recbench query leaderboard") == 2
    assert "--warehouse" in capsys.readouterr().err


@pytest.mark.parametrize("block", [text for kind, text in FENCED if kind == "yaml"])
def test_sections_fit_into_a_benchmark_file(block: str, tmp_path: Path) -> None:
    assert load_benchmark(str(with_sections(tmp_path, block)), []).name == "demo"


def with_sections(folder: Path, *blocks: str) -> Path:
    """The demo's file with sections of the README; what a section lacks stays as the demo has it."""
    document = yaml.safe_load((ROOT / "conf/benchmarks/demo.yaml").read_text())
    for section, value in (pair for block in blocks for pair in yaml.safe_load(block).items()):
        inner = {**document.get(section, {}), **value} if isinstance(value, dict) else value
        document[section] = inner
    path = folder / "demo.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


# ------------------------------------------------------------------------------- the demo's warehouse


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The README's own command on a small world, without Spark."""
    folder = tmp_path_factory.mktemp("readme") / "demo"
    line = line_with("recbench nightly --config demo").replace("warehouse/demo", str(folder))
    assert run(line, *QUICK) == 0
    return folder


Printed = pytest.CaptureFixture[str]


QUESTIONS = [line for line in LINES if line.startswith("make sql")]


@pytest.mark.full
@pytest.mark.parametrize("line", [line for line in QUESTIONS if "SELECT" not in line])
def test_questions_are_answered(line: str, demo: Path, capsys: Printed) -> None:
    check_answer(line, demo, capsys)


@pytest.mark.full
@pytest.mark.parametrize("line", [line for line in QUESTIONS if "SELECT" in line])
def test_queries_of_ones_own_are_answered(spark: Any, line: str, demo: Path, capsys: Printed) -> None:
    check_answer(line, demo, capsys)


def check_answer(line: str, demo: Path, capsys: Printed) -> None:
    assert run(line, "--warehouse", str(demo)) == 0
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) > 1 and "definition" in printed.splitlines()[0]


@pytest.mark.full
def test_a_question_without_an_answer_names_the_missing_lines(demo: Path, capsys: Printed) -> None:
    assert "`make sql Q=which_differences_hold`" in README
    assert run(f"recbench query which_differences_hold --warehouse {demo}") == 0
    errors = capsys.readouterr().err
    assert "the table comparisons is empty" in errors and "comparisons: {baseline: popular}" in errors
    assert f"recbench compare --warehouse {demo} --suite demo" in errors


@pytest.mark.full
def test_two_models_of_the_demo_are_compared(
    demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(line_with("recbench compare").replace("DIR", str(demo)), "--bootstrap=20") == 0
    assert "als_32 with popular on ndcg@10" in capsys.readouterr().out
    assert (tmp_path / "table.tex").is_file() and (tmp_path / "differences.pdf").is_file()


@pytest.mark.full
@pytest.mark.parametrize(
    "path", [path for path in NOTEBOOKS if needs_warehouse(path)], ids=lambda path: path.stem
)
def test_a_notebook_runs_on_the_demo(path: Path, demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECBENCH_WAREHOUSE", str(demo))
    monkeypatch.delenv("RECBENCH_SUITE", raising=False)
    notebook = read_notebook(path, as_version=4)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(path.parent)}}).execute()
    assert "image/png" in "".join(str(cell.get("outputs")) for cell in notebook.cells)


@pytest.mark.full
def test_lines_that_a_night_prints_name_what_they_rank(demo: Path, capsys: Printed) -> None:
    (result_file,) = (demo / "results").glob("night-demo-*.json")
    _, by_query, by_deltalake = json.loads(result_file.read_text())["sql_lines"]
    assert run(by_query, "--engine", "local", "--format", "csv") == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "part,estimator,definition,position,model,value"
    rows = {tuple(line.split(",")[i] for i in (0, 2, 4)) for line in printed[1:] if line}
    assert len(rows) == len(printed) - 1 == 12 and len({row[1] for row in rows}) == 1
    done = subprocess.run(by_deltalake, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 13 and all("2026-01-01" in line for line in lines[1:])


@pytest.mark.full
def test_sections_of_the_readme_fill_their_tables(demo: Path, tmp_path: Path, capsys: Printed) -> None:
    """A second night with these sections: comparisons, falls, corrected values, paradoxes."""
    blocks = [text for kind, text in FENCED if kind == "yaml"]
    few = "models=[{name: random, kind: random}, {name: popular, kind: popular}]"
    file = with_sections(tmp_path, *blocks)
    flags = ["--config", str(file), "--warehouse", str(demo), "--logical-date", "2026-01-02", "--set", few]
    assert run(f"recbench nightly {shlex.join(flags)}", *QUICK) in (0, 4)
    capsys.readouterr()
    for question in ("which_differences_hold", "current_paradoxes", "why_did_the_number_move"):
        assert run(f"recbench query {question} --warehouse {demo}") == 0
        output = capsys.readouterr()
        assert len(output.out.splitlines()) > 1 and "no rows" not in output.err, question


def test_the_line_about_a_graph_runs(spark: Any, tmp_path: Path, capsys: Printed) -> None:
    pairs = [f"{n},{(n * 7 + step) % 30}" for n in range(30) for step in (1, 2, 5)]
    (tmp_path / "edges.csv").write_text("\n".join(["src,dst", *pairs]) + "\n")
    line = line_with("recbench embed").replace("edges.csv", str(tmp_path / "edges.csv"))
    assert run(line.replace("DIR", str(tmp_path / "w")).replace("NAME", "mine")) == 0
    assert "30 nodes, 90 edges" in (output := capsys.readouterr().out) and "core-hours" in output


def tiny_movielens(folder: Path) -> Path:
    """Ratings as MovieLens 1M writes them, of 40 users."""
    rng = np.random.default_rng(5)
    rows = [
        f"{user}::{item}::{rng.integers(1, 6)}::{978300000 + user * 1000 + item}\n"
        for user in range(1, 41)
        for item in sorted(rng.choice(np.arange(1, 61), 25, replace=False))
    ]
    folder.mkdir()
    (folder / "ratings.dat").write_text("".join(rows))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "more"),
    [
        ("nightly", ["--set=evaluation.bootstrap.replicates=20", "--set=evaluation.slices=[]"]),
        ("benchmark", ["--models", "means", "--folds", "0,1"]),
        ("tune", ["--models", "means", "--budget", "2"]),
    ],
)
def test_lines_about_a_log_of_ones_own_run(
    job: str, more: list[str], spark: Any, tmp_path: Path, capsys: Printed
) -> None:
    data = tiny_movielens(tmp_path / "ml-1m")
    line = line_with(f"recbench {job}", "/data/ml-1m").replace("/data/ml-1m", str(data))
    assert run(line.replace("DIR", str(tmp_path / "w")), *more) == 0
    assert "means" in (output := capsys.readouterr().out) or "als_64" in output
