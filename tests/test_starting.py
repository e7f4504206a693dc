"""Start of a session of bare Python: known jars, hidden noise of Java, small nights."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest

from recbench_spark.config import Benchmark, parse
from recbench_spark.night.job_size import SMALL_BYTES, is_small
from recbench_spark.runtime import java, session
from tests.nights import small
from tests.waiting import wait_until

CONF = {java.PACKAGES: "a:b:1", "spark.master": "local[2]"}


@pytest.fixture
def jar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A jar, and a cache folder of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "a b.jar").write_text("")
    return tmp_path / "a b.jar"


def test_jars_are_remembered_until_one_is_gone(jar: Path) -> None:
    assert java.read_known_jars(CONF) == []
    java.write_known_jars(CONF, f"file://{jar}")
    assert java.read_known_jars(CONF) == [str(jar)]
    assert java.read_known_jars({**CONF, java.PACKAGES: "a:b:2"}) == []
    jar.unlink()
    assert java.read_known_jars(CONF) == []


@pytest.mark.parametrize("name", java.OWN_JARS)
def test_who_names_jars_or_where_they_lie_is_left_alone(jar: Path, name: str) -> None:
    java.write_known_jars(CONF, f"file://{jar}")
    assert java.read_known_jars({**CONF, name: "x"}) == []


def test_a_memory_that_is_damaged_or_cannot_be_written_is_none(
    jar: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java.write_known_jars(CONF, f"file://{jar}")
    (file,) = (jar.parent / "cache" / "recbench-spark").iterdir()
    file.write_text("{")
    assert java.read_known_jars(CONF) == []
    file.write_text(json.dumps([1]))
    assert java.read_known_jars(CONF) == []
    monkeypatch.setenv("XDG_CACHE_HOME", str(jar))  # a file
    java.write_known_jars(CONF, f"file://{jar}")


def words(folder: Path, text: str, *, small: bool = False) -> list[str]:
    (folder / "my.conf").write_text(text)
    return shlex.split(session.submit_arguments(folder / "my.conf", small))


def test_known_jars_take_the_place_of_packages(jar: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "")
    java.write_known_jars(CONF, f"file://{jar}")
    arguments = words(jar.parent, "spark.master local[2]\nspark.jars.packages a:b:1\n")
    assert f"spark.driver.extraClassPath={jar}" in arguments and "spark.jars.packages=" in arguments
    remote = words(jar.parent, "spark.master spark://h:7077\nspark.jars.packages a:b:1\n")
    assert "spark.jars.packages=" not in remote


def test_classes_are_taken_from_the_archive_of_these_jars(
    jar: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "")
    text = "spark.master local[2]\nspark.jars.packages a:b:1\n"
    archive = java.archive_file([str(jar)])
    archive.parent.mkdir(parents=True)
    archive.touch()
    assert "SharedArchiveFile" not in str(words(jar.parent, text)), "the jars are not known"
    java.write_known_jars(CONF, f"file://{jar}")
    for is_quick in (False, True):
        line = " ".join(words(jar.parent, text, small=is_quick))
        assert f"-XX:SharedArchiveFile={archive} -Xshare:auto" in line
        assert (session.SMALL_JOB_JAVA[0] in line) == is_quick
    assert java.read_flags([str(jar), "other.jar"]) == ()
    archive.unlink()
    assert "SharedArchiveFile" not in str(words(jar.parent, text))


def test_small_nights_start_a_quick_java_unless_its_flags_are_set(
    jar: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "")
    quick = f"{session.JAVA_FLAGS}={' '.join(session.SMALL_JOB_JAVA)}"
    assert quick in words(jar.parent, "spark.master local[2]\n", small=True)
    assert quick not in words(jar.parent, "spark.master local[2]\n")
    assert quick not in words(jar.parent, "spark.master spark://h:7077\n", small=True)
    assert quick not in words(jar.parent, f"{session.JAVA_FLAGS} -Xss4m\n", small=True)


def night(place: Path, **model: str) -> Benchmark:
    models = [{"name": "m", "kind": "scores", **model} if model else {"name": "m", "kind": "popular"}]
    log = {"name": "log", "reader": "csv", "path": str(place)}
    return parse(Benchmark, {"name": "n", "dataset": log, "models": models}, "test")


def test_a_night_is_small_by_all_that_it_reads(tmp_path: Path) -> None:
    log, scores = tmp_path / "log.csv", tmp_path / "scores"
    log.write_text("user_id,item_id\n")
    scores.mkdir()
    (scores / "part").write_bytes(b"")
    assert is_small(night(log)) and is_small(night(log, path=str(scores)))
    os.truncate(scores / "part", SMALL_BYTES + 1)
    assert not is_small(night(log, path=str(scores)))
    assert not is_small(night(tmp_path / "gone.csv"))
    assert not is_small(night(Path("s3a://bucket/log.csv")))
    assert is_small(small())
    world = {"users": 10, "items": 10, "interactions": 10**7}
    assert not is_small(small(dataset={"name": "w", "reader": "world", "world": world}))


def test_what_java_says_is_kept_until_it_runs(capfd: pytest.CaptureFixture[str]) -> None:
    ours, javas = os.pipe()
    errors = java.JavaErrors(os.fdopen(ours, "rb"))
    os.write(javas, b"noise\n")
    wait_until(lambda: bool(errors.lines))
    errors.started.set()
    os.write(javas, b"a finding\n")
    os.close(javas)
    errors.thread.join()
    assert capfd.readouterr().err == "a finding\n"
    errors.print_all()
    assert capfd.readouterr().err == "noise\n"
