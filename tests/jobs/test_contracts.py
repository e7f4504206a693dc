"""Entries in the warehouse of the shared night: each runs, prints what it did and leaves its rows.

Other entries have their contract test in test_odd_folder.py and beside the tests of what they do.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from recbench_spark import cli
from recbench_spark.commands import compare, maintain, multiverse, nightly, query, report
from recbench_spark.storage import delta_files
from tests.nights import SMALL, Ran, models

DAY = "--logical-date=2026-01-01"
NAMES = ("random", "popular")

Printed = pytest.CaptureFixture[str]


def run(job: ModuleType, *flags: str) -> int | str | None:
    with pytest.raises(SystemExit) as end:
        cli.run(job.main, job.parser(), list(flags))
    return end.value.code


@pytest.fixture
def place(small_night: Ran, tmp_path: Path) -> list[str]:
    """Flags of a benchmark of two quick models over the split of the small night."""
    file = tmp_path / "contract.yaml"
    evaluation = {**SMALL["evaluation"], "metrics": ["ndcg"], "k": [5], "bootstrap": {"replicates": 10}}
    settings = {**SMALL, "name": "contract", "models": models(*NAMES), "evaluation": evaluation}
    file.write_text(yaml.safe_dump(settings))
    return [f"--config={file}", f"--warehouse={small_night.store.root}"]


def read_runs(ran: Ran, suite: str) -> dict[str, str]:
    """The run of each model of a suite."""
    rows = delta_files.read_rows(ran.store.location("runs"), [("suite", "=", suite)]).to_pylist()
    return {row["model"]: row["run_id"] for row in rows if row["status"] == "succeeded"}


@pytest.mark.contract("nightly", "report", "query", "maintain")
def test_a_night_and_the_jobs_that_read_it(
    spark, small_night: Ran, place: list[str], capsys: Printed
) -> None:
    assert run(nightly, *place, DAY) == 0
    said = capsys.readouterr()
    assert f"split {small_night.night.split_id}: already made" in said.err
    assert set(read_runs(small_night, "contract")) == set(NAMES)

    page = Path(said.out.partition("report: file://")[2].split()[0])
    page.unlink()
    assert run(report, *place, DAY) == 0
    assert all(name in page.read_text() for name in NAMES)

    question = "SELECT model, value FROM current_metrics WHERE suite = 'contract' ORDER BY model, value"
    capsys.readouterr()
    for engine in ("local", "spark"):
        assert run(query, question, place[1], f"--engine={engine}", "--format=csv") == 0
    half = capsys.readouterr().out
    lines = half.splitlines()
    assert lines[: len(lines) // 2] == lines[len(lines) // 2 :] and "popular" in half

    assert run(maintain, place[1], "--migrate") == 0
    assert run(maintain, place[1], "--keep-days=4000", "--logical-date=2026-01-02") == 0
    assert set(read_runs(small_night, "contract")) == set(NAMES)


@pytest.mark.contract("multiverse")
def test_a_benchmark_under_a_protocol(small_night: Ran, place: list[str], capsys: Printed) -> None:
    assert run(multiverse, *place, DAY, "--protocols=RO_RS", "--candidates=unseen") == 0
    runs = read_runs(small_night, "contract-RO_RS-unseen")
    assert set(runs) == set(NAMES)
    rows = delta_files.read_rows(small_night.store.location("multiverse")).to_pylist()
    worlds = [{row["definition"] for row in rows if row["run_id"] == run_id} for run_id in runs.values()]
    assert worlds[0] == worlds[1] and len(worlds[0]) > 1
    assert "worlds a pair in which the row wins" in capsys.readouterr().out
    assert (Path(small_night.store.root) / "reports" / "contract-multiverse.html").is_file()


@pytest.mark.contract("compare")
def test_two_models_of_a_night_and_two_files(small_night: Ran, tmp_path: Path, capsys: Printed) -> None:
    flags = [
        f"--warehouse={small_night.store.root}",
        "--suite=small",
        "--metrics=ndcg@10",
        "--bootstrap=50",
    ]
    out = tmp_path / "out"
    more = ["--baseline=random", f"--plot={tmp_path / 'p.png'}", f"--latex={tmp_path / 't.tex'}"]
    assert run(compare, *flags, *more, f"--out={out}", "random", "popular", "truth") == 0
    said = capsys.readouterr().out
    assert "2 t-tests of popular, truth with random on ndcg@10 of open_loop" in said
    assert "detectable" in said.splitlines()[0] and (tmp_path / "p.png").is_file()
    record = json.loads((out / "comparison.json").read_text())
    assert {row["other"] for row in record["differences"]} == {"random"}
    assert r"\toprule" in (tmp_path / "t.tex").read_text()

    files = {"truth": "user,item\na,1\nb,2\n", "als": "user,item,rank\na,1,1\nb,2,1\n"}
    files |= {"pop": "user,item,rank\na,1,1\nb,1,1\n"}
    for name, text in files.items():
        (tmp_path / f"{name}.csv").write_text(text)
    lists = [f"--lists={name}={tmp_path / name}.csv" for name in ("als", "pop")]
    assert run(compare, *lists, f"--truth={tmp_path / 'truth.csv'}", "--metrics=HR@1", "--format=json") == 0
    (row,) = json.loads(capsys.readouterr().out)["differences"]
    assert (row["value"], row["other_value"], row["wins"], row["ties"]) == (1.0, 0.5, 1, 1)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "give either --warehouse with runs, or --lists"),
        (["--lists=als=a.csv", "--lists=als=b.csv", "--truth=t.csv"], "als is given twice"),
        (["--lists=als"], "--truth is missing"),
        (["--lists=als", "--truth=t.csv"], "expected NAME=PATH"),
        (["--lists=als=a.csv", "--truth=t.csv", "als"], "RUN has no effect without --warehouse"),
        (
            ["--lists=als=a.csv", "--truth=t.csv", "--plot=nowhere/p.png"],
            "--plot: there is no folder nowhere",
        ),
        (["--warehouse=nowhere", "als", "popular"], "there is no such folder"),
    ],
)
def test_wrong_flags_of_a_comparison_are_refused(flags: list[str], message: str, capsys: Printed) -> None:
    assert run(compare, *flags) == 2
    assert message in capsys.readouterr().err
