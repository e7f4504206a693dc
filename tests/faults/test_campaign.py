"""The campaign against versions that were broken on purpose: each check catches its fault."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recbench_spark.commands import nightly
from recbench_spark.config import Benchmark, Dataset, Evaluation, Split, load_yaml, loading, make_benchmark
from recbench_spark.errors import ConfigError
from recbench_spark.metrics import accuracy
from recbench_spark.ranking.kernels import lists as ranked_lists
from recbench_spark.sources import arrow_rows
from tests.cluster.processes import start_process
from tests.faults import campaign, configs, frames, input_tables, kills, scores
from tests.faults.campaign import FAILED, Case, Part, Verdict
from tests.faults.config_properties import list_changed_values
from tests.faults.parts import PARTS
from tests.faults.undisturbed import Reference
from tools import planted

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[2]


def failures(
    part: str, run: Callable[[Case], Verdict], count: int, place: Path, seed: int = 1
) -> list[str]:
    return list(try_cases(part, run, count, place, seed))


def try_cases(
    part: str, run: Callable[[Case], Verdict], count: int, place: Path, seed: int = 1
) -> Iterator[str]:
    """Yield the message of each case that fails, as soon as it has failed."""
    place.mkdir(exist_ok=True)
    for n in range(count):
        verdict = campaign.try_case(Part(part, "", run, 1, 1), Case(part, seed, n, place))
        if verdict.status == FAILED:
            yield verdict.message


# ------------------------------------------------------------------------------------------- configs


def without_unknown_keys(document: dict[str, Any]) -> dict[str, Any]:
    known = {k: v for k, v in document.items() if k in Benchmark.model_fields}
    for name, model in {"dataset": Dataset, "split": Split, "evaluation": Evaluation}.items():
        if isinstance(known.get(name), dict):
            known[name] = {k: v for k, v in known[name].items() if k in model.model_fields}
    return known


def with_other_numbers(document: dict[str, Any]) -> dict[str, Any]:
    changed = dict(document)
    for section, number in {"split": {"seed": 43}, "evaluation": {"k": [3]}}.items():
        if isinstance(document.get(section), dict):
            changed[section] = {**document[section], **number}
    return changed


def without_parts(document: dict[str, Any]) -> dict[str, Any]:
    raise KeyError("parts")


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (without_unknown_keys, "was taken, and is no setting"),
        (with_other_numbers, "was loaded as"),
        (without_parts, "internal error"),
    ],
)
def test_a_broken_loader_is_caught(monkeypatch, tmp_path: Path, broken: Any, message: str) -> None:
    def load(source: str, overrides: Any = ()) -> Any:
        document = load_yaml(Path(source).read_text(encoding="utf-8"), source)
        return make_benchmark(broken(document), overrides, source)

    assert failures("configs", configs.run, 60, tmp_path) == []
    monkeypatch.setattr(nightly, "load_benchmark", load)
    monkeypatch.setattr(configs, "load_benchmark", load)
    assert any(message in one for one in try_cases("configs", configs.run, 1_000, tmp_path))


@pytest.mark.parametrize(
    ("document", "values"),
    [
        ({"seed": "x"}, {"seed": 1}),
        ({"seed": "0x10"}, {"seed": 16}),
        ({"seed": None}, {"seed": 1.0}),
        ({"seed": [1]}, {"seed": 1}),
        ({"seed": {}}, {"seed": 1}),
        ({"seed": True}, {"seed": 1}),
        ({"dataset": {"world": {"users": 5}}}, {"dataset": {"world": {"users": 6}}}),
    ],
)
def test_a_changed_value_is_named_whatever_its_kind(document: Any, values: Any) -> None:
    (problem,) = list_changed_values(document, values)
    assert re.match(r"(seed|dataset\.world\.users): .* was loaded as", problem)


def test_a_message_without_its_key_is_caught(monkeypatch, tmp_path: Path) -> None:
    def load(source: str, overrides: Any = ()) -> Any:
        try:
            return loading.load_benchmark(source, overrides)
        except ConfigError as error:
            raise ConfigError("something is wrong", error.hint) from None

    monkeypatch.setattr(nightly, "load_benchmark", load)
    assert any("does not name the key" in one for one in failures("configs", configs.run, 80, tmp_path))


# -------------------------------------------------------------------------------------------- frames


KNOWN = {"rank_lists": ranked_lists.rank_lists, "measure": accuracy.measure, "cost": ranked_lists._cost}


def nan_is_worst(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drop the checks of scores in both places."""

    def cost(lists: Any) -> Any:
        if lists.rank is not None:
            return KNOWN["cost"](lists)
        return -np.nan_to_num(lists.score, nan=-1e300)

    monkeypatch.setattr(ranked_lists, "_cost", cost)
    monkeypatch.setattr(arrow_rows, "mask_unusable", lambda name, column: np.zeros(len(column), bool))


def ties_by_larger_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reverse the keys."""

    def rank_lists(lists: Any, truth: Any, *rest: Any, **more: Any) -> Any:
        turned = replace(lists, keys=-lists.keys), replace(truth, keys=-truth.keys)
        return KNOWN["rank_lists"](*turned, *rest, **more)

    monkeypatch.setattr(ranked_lists, "rank_lists", rank_lists)


def one_more_at_the_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use k + 1 instead of k."""

    def measure(rankings: Any, metrics: Any, ks: Any, *rest: Any) -> Any:
        return KNOWN["measure"](rankings, metrics, [k + 1 for k in ks], *rest)

    monkeypatch.setattr(accuracy, "measure", measure)


@pytest.mark.parametrize("broken", [nan_is_worst, ties_by_larger_id, one_more_at_the_cut])
def test_a_broken_evaluation_of_frames_is_caught(monkeypatch, tmp_path: Path, broken: Any) -> None:
    assert failures("frames", frames.run, 60, tmp_path) == []
    broken(monkeypatch)
    messages = failures("frames", frames.run, 200, tmp_path)
    assert any("SILENTLY WRONG" in one or "taken, and" in one for one in messages), messages[:5]


def test_training_items_that_stay_are_caught(monkeypatch, tmp_path: Path) -> None:
    assert failures("scores", scores.run, 40, tmp_path) == []
    monkeypatch.setattr(ranked_lists._ListBlock, "remove_train", lambda *_: None)
    messages = failures("scores", scores.run, 40, tmp_path)
    assert any("SILENTLY WRONG" in one for one in messages), messages[:5]


# ------------------------------------------------------------------------------------ the campaign itself


def test_a_stopped_campaign_goes_on_where_it_stood(tmp_path: Path, capsys) -> None:
    tried: list[int] = []

    def run(case: Case) -> Verdict:
        tried.append(case.number)
        return Verdict.fail("odd") if case.number == 3 else Verdict(about=["even"])

    part = Part("some", "", run, 9, 9)
    assert campaign.run_part(part, 1, range(3), tmp_path, 1e12)
    (tmp_path / "faults.jsonl").open("a").write('{"code": "torn')
    assert not campaign.run_part(part, 1, range(6), tmp_path, 1e12)
    assert not campaign.run_part(part, 1, range(6), tmp_path, 1e12) and tried == [0, 1, 2, 3, 4, 5]
    output = capsys.readouterr().out
    assert "FAILED some/1/3: odd\n  python -m tests.faults some --seed 1 --only 3\n" in output
    assert "some: 6 cases, seed 1: 5 passed, 1 failed, 0 skipped" in output
    rows = [
        json.loads(line) for line in (tmp_path / "faults.jsonl").read_text().splitlines() if "case" in line
    ]
    assert len({row["case"] for row in rows}) == len(rows) >= 5
    assert campaign.run_part(part, 1, [2, 4], tmp_path, 1e12, resumed=False) and tried[6:] == [2, 4]


def test_an_error_of_the_campaign_and_the_end_of_time(tmp_path: Path, capsys) -> None:
    def run(case: Case) -> Verdict:
        raise RuntimeError("odd")

    part = Part("some", "", run, 9, 9)
    assert not campaign.run_part(part, 1, range(1), tmp_path, 1e12)
    assert "the campaign broke: RuntimeError: odd" in capsys.readouterr().out
    assert campaign.run_part(part, 2, range(5), tmp_path, 0.0)
    assert "0 cases of 5 asked for" in capsys.readouterr().out


def test_the_command_line() -> None:
    listed = subprocess.run(
        [sys.executable, "-m", "tests.faults", "--list"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "configs" in listed.stdout and "frames" in listed.stdout


def test_every_change_meets_every_type_of_columns(tmp_path: Path) -> None:
    met: dict[int, set[str]] = {}
    for number in range(input_tables.TURNS):
        for change in input_tables.mutate_tables(Case("spark", 1, number, tmp_path)).changes:
            names = re.findall(r" as (.+?)(?: on one side)?$", change)
            met.setdefault(number // len(input_tables.EVERY_TYPE), set()).update(names)
    assert PARTS["spark"].aim >= input_tables.TURNS
    assert len(met) == len(input_tables.ONE_CHANGE)
    for names in met.values():
        assert names >= {*input_tables.ID_TYPES, *input_tables.NO_ID_TYPES, *input_tables.NUMBER_TYPES}


@pytest.mark.parametrize("bug", planted.read_bugs(), ids=lambda bug: bug["bug"][:50])
def test_a_bug_that_is_planted_stands_where_it_is_said(bug: planted.Bug, tmp_path: Path) -> None:
    file = tmp_path / "file.py"
    file.write_text(source := (ROOT / bug["file"]).read_text(encoding="utf-8"), encoding="utf-8")
    with planted.plant_bug(file, bug):
        assert bug["now"] in file.read_text(encoding="utf-8").split("\n")
    assert file.read_text(encoding="utf-8") == source
    assert bug["seen_by"].split()[0] in PARTS


def test_a_job_that_never_comes_to_its_kill_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kills, "PATIENCE", 0.2)
    sleeping = [sys.executable, "-c", "import time; time.sleep(600)"]
    late = pytest.raises(TimeoutError, match="after commit 1 within")
    with start_process(sleeping, tmp_path / "log", tmp_path) as process, late:
        kills.kill_at(process, kills.Moment("commit", 1, 0.0), tmp_path, set())
    assert process.popen.returncode == -signal.SIGKILL


def test_a_job_that_always_ends_before_its_kill_is_started_a_few_times(tmp_path: Path) -> None:
    trial = kills.Trial(kills.JOBS[1], tmp_path, tmp_path / "w", Reference({}, set(), 1.0, {}))
    trial.starts = kills.MOST_STARTS
    verdict = trial.kill_repeatedly(campaign.Case("kills", 1, 1, tmp_path).draw())
    assert verdict is not None and verdict.message == "0 kills in 20 starts of split"


@pytest.mark.parametrize("first_line", ["", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"])
def test_cases_that_do_not_end_end_with_the_time_of_a_planted_bug(
    first_line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planted, "END_SECONDS", 0.5)
    package = tmp_path / "copy" / "tests" / "faults"
    package.mkdir(parents=True)
    (package / "__main__.py").write_text(
        f"import os, pathlib, signal, time\n{first_line}\n"
        "pathlib.Path('pid').write_text(str(os.getpid()))\ntime.sleep(20)\n"
        "pathlib.Path('end').touch()\n"
    )
    with pytest.raises(subprocess.TimeoutExpired):
        planted.failures(tmp_path / "copy", "kills", minutes=0.05)
    pid = (tmp_path / "copy" / "pid").read_text()
    assert not Path("/proc", pid).exists()
    assert not (tmp_path / "copy" / "end").exists(), "nobody has ended it"
