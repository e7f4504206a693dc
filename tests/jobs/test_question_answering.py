"""`jobs/studies/question_answering.py` in small: lines, tables, and a study that goes on."""

from __future__ import annotations

import json

import pytest

from jobs.studies import question_answering as study
from recbench_spark.errors import DataError

pytestmark = pytest.mark.full

FLAGS = [
    *("--tasks", "1,joint", "--questions", "40", "--hops", "1", "--tyings", "layer_wise"),
    *("--seeds", "2", "--epochs", "2", "--dims", "4"),
]


@pytest.fixture(autouse=True)
def few_test_questions(monkeypatch) -> None:
    monkeypatch.setattr(study, "TEST_QUESTIONS", 20)


def run(*flags: str) -> int:
    return study.main(study.parser().parse_args(list(flags)))


def test_a_study_goes_on_where_it_was_stopped(tmp_path, capsys) -> None:
    path = tmp_path / "runs.jsonl"
    assert run(*FLAGS, "--output", str(path)) == 0
    printed, lines = capsys.readouterr(), path.read_text(encoding="utf-8").splitlines()
    assert printed.err.count(" of 4: ") == 4 and len(lines) == 4
    path.write_text("\n".join(lines)[:-9], encoding="utf-8")  # as a kill may leave it
    assert run(*FLAGS, "--output", str(path)) == 0
    again = capsys.readouterr()
    assert again.err.count(" of 1: ") == 1 and again.out == printed.out
    assert len(path.read_text(encoding="utf-8").splitlines()) == 4
    joint = [line for line in map(json.loads, lines) if line["task"] == "joint"]
    assert set(joint[0]["test_errors"]) == {"1", "2", "6", "12", "15"}
    assert run("--tables", *FLAGS, "--output", str(path)) == 0
    assert capsys.readouterr().out == printed.out
    with pytest.raises(DataError, match="no fit"):
        run("--tables", *FLAGS)


def test_tables_show_the_best_by_training_and_the_median(capsys) -> None:
    facts = {"task": "6", "questions": 1000, "tying": "adjacent", "hops": 3, "guesses": {"6": 0.5}}
    errors = [(0.2, 0.01), (0.0, 0.3), (0.1, 0.05)]
    lines = [{**facts, "train_error": train, "test_errors": {"6": test}} for train, test in errors]
    (table,) = study.make_tables(lines)
    assert table.splitlines()[-1] == "| adjacent | 3 | 3 | 30.0, 5.0 (1.0 to 30.0) |"
    assert "| guess |  |  | 50.0 |" in table


def test_no_story_of_the_test_trains() -> None:
    alone, joint = (study.make_world(task, 40, 1) for task in ("2", study.JOINT))
    assert len(alone.train.query) == 40 and len(joint.train.query) == 5 * 40
    for world in (alone, joint):
        assert len(world.tests["2"].query) == 20
        trained = {tuple(row) for row in world.train.memory.tolist()}
        assert not trained & {tuple(row) for row in world.tests["2"].memory.tolist()}
    tests = [
        [[w.numbered.words[t] for t in w.numbered.entries[n]] for n in w.tests["2"].query]
        for w in (alone, joint)
    ]
    assert tests[0] == tests[1]
    assert joint.guesses["2"] == alone.guesses["2"] > 0.5


def test_the_quick_study_runs(capsys) -> None:
    assert run("--quick") == 0
    assert "300 questions of each task, each task alone" in capsys.readouterr().out
