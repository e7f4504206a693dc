"""The file of a night says that it runs and how it ended; an earlier end stands for no later attempt."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from recbench_spark import cli
from recbench_spark.cli import read_error
from recbench_spark.commands import multiverse, nightly
from recbench_spark.commands import multiverse as multiverse_work
from recbench_spark.errors import ConfigError, Interrupted
from recbench_spark.night import run_night as benchmark_night
from recbench_spark.night.night_states import record_state
from recbench_spark.night.night_status import night_file
from recbench_spark.night.result_files import NightStateRecord

DAY = date(2026, 1, 2)


def read_state(root: Path, suite: str = "shop") -> dict[str, Any]:
    record: dict[str, Any] = json.loads(Path(night_file(str(root), suite, DAY)).read_text())
    NightStateRecord.model_validate(record)
    return record


def test_an_earlier_end_is_marked_when_a_night_begins(tmp_path: Path) -> None:
    place = Path(night_file(str(tmp_path), "shop", DAY))
    place.parent.mkdir()
    place.write_text('{"exit_code": 0, "state": "finished"}')
    with record_state(str(tmp_path), "shop", DAY, read_error):
        begun = read_state(tmp_path)
        assert (begun["state"], begun["exit_code"], begun["error"]) == ("running", None, None)
        place.write_text('{"exit_code": 4, "state": "finished"}')  # the night ends
    assert json.loads(place.read_text())["exit_code"] == 4


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (ConfigError("no model 'x'", "models: y"), 2, "no model 'x'\n  hint: models: y"),
        (Interrupted(15), 143, "interrupted"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (OSError(28, "No space left on device"), 1, "No space left"),
    ],
)
def test_an_error_is_recorded_with_its_code(
    tmp_path: Path, error: BaseException, code: int, words: str
) -> None:
    with pytest.raises(type(error)), record_state(str(tmp_path), "shop", DAY, read_error):
        raise error
    ended = read_state(tmp_path)
    assert (ended["state"], ended["exit_code"]) == ("failed", code) and words in ended["error"]


def test_what_another_attempt_wrote_stays(tmp_path: Path) -> None:
    place = Path(night_file(str(tmp_path), "shop", DAY))
    with pytest.raises(ConfigError), record_state(str(tmp_path), "shop", DAY, read_error):
        place.write_text('{"exit_code": 3, "state": "finished"}')
        raise ConfigError("a gate that recorded its night")
    assert json.loads(place.read_text())["exit_code"] == 3


def test_no_folder_is_made_for_a_night_that_never_began(tmp_path: Path) -> None:
    root = tmp_path / "typo"
    with pytest.raises(ConfigError), record_state(str(root), "shop", DAY, read_error):
        raise ConfigError("no")
    assert not root.exists()


NIGHT = """
name: shop
dataset: {name: shop, reader: parquet, path: LOG}
split: {protocol: RO_RS}
models: [{name: popular, kind: popular}]
"""


def test_a_broken_file_of_the_log_is_recorded(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.parquet"
    log.write_bytes(b"PAR1 and nothing else")
    config = tmp_path / "shop.yaml"
    config.write_text(NIGHT.replace("LOG", str(log)))
    words = ["--config", str(config), "--warehouse", str(tmp_path / "w"), "--logical-date", str(DAY)]
    with pytest.raises(SystemExit) as end:
        cli.run(nightly.main, nightly.parser(), words)
    ended = read_state(tmp_path / "w")
    assert (ended["state"], ended["exit_code"]) == ("failed", end.value.code)
    assert ended["error"].splitlines()[0] in capsys.readouterr().err


def test_a_night_of_a_multiverse_records_how_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        assert read_state(tmp_path, "shop-RO_RS-unseen")["state"] == "running"
        raise ConfigError("no model 'x'")

    monkeypatch.setattr(benchmark_night, "run_night", fail)
    (tmp_path / "shop.yaml").write_text(WORLD)
    flags = ["--config", tmp_path / "shop.yaml", "--warehouse", tmp_path, "--logical-date", DAY]
    words = [*map(str, flags), "--protocols=RO_RS", "--candidates=unseen"]
    with pytest.raises(ConfigError):
        multiverse_work.main(multiverse.parser().parse_args(words))
    ended = read_state(tmp_path, "shop-RO_RS-unseen")
    assert (ended["state"], ended["exit_code"]) == ("failed", 2)


WORLD = """
name: shop
dataset: {name: w, reader: world, world: {users: 60, items: 30, interactions: 1200, open_loop: 0, seed: 3}}
models: [{name: popular, kind: popular}, {name: item_knn, kind: item_knn}]
evaluation: {metrics: [ndcg], k: [5], slices: [], bootstrap: {replicates: 10}}
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("word", "number"), [("starting Spark", signal.SIGTERM), ("model 1/2", signal.SIGINT)]
)
def test_a_signal_ends_a_running_night_with_its_state(
    own_jvm: None, tmp_path: Path, word: str, number: signal.Signals
) -> None:
    """The process is a real one; an earlier attempt has ended well."""
    (tmp_path / "shop.yaml").write_text(WORLD)
    place = Path(night_file(str(tmp_path), "shop", DAY))
    place.parent.mkdir()
    place.write_text('{"exit_code": 0, "state": "finished"}')
    words = ["--config", tmp_path / "shop.yaml", "--warehouse", tmp_path, "--logical-date", DAY]
    words += ["--engine=spark"] if word == "starting Spark" else []
    job = [sys.executable, "-m", "recbench_spark", "nightly", *map(str, words)]
    own = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "JAVA_HOME")}
    lines: list[str] = []
    with subprocess.Popen(job, stderr=subprocess.PIPE, text=True, env=own) as process:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            if word in line:
                break
        assert word in lines[-1], "".join(lines)
        assert read_state(tmp_path)["state"] == "running"
        process.send_signal(number)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + number and "interrupted, nothing published" in said
    ended = read_state(tmp_path)
    assert (ended["state"], ended["exit_code"]) == ("failed", 128 + number)
