"""`tools/platforms` judges, keeps and prints results; what needs no Java of it."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from recbench_spark.engine.platforms import DELTA_JARS
from tools import connect_server
from tools.platforms import cell, environments, matrix, page
from tools.platforms.__main__ import list_wrong
from tools.platforms.environments import CELLS, ENVIRONMENTS, THIS, Cell, Environment


@pytest.fixture
def open_matrix(tmp_path):
    return matrix.Matrix.open(tmp_path, seconds=60)


def end(job, code=0, sentence=""):
    return {"job": job, "exit": code, "seconds": 1.0, "sentence": sentence}


def write_tables(open_matrix, name, job, **tables):
    for table, values in tables.items():
        write_deltalake(open_matrix.folder / "runs" / name / job / table, pa.table({"x": values}))


def test_tables_are_compared_with_those_of_this_spark(open_matrix):
    write_tables(open_matrix, THIS, "embed", nodes=[1, 2], embeddings=[0.5])
    write_tables(open_matrix, "3.5", "embed", nodes=[2, 1], embeddings=[0.5])
    write_tables(open_matrix, "4.0", "embed", nodes=[1, 2], embeddings=[0.5 + 2**-53])
    for name in (THIS, "3.5", "4.0"):
        open_matrix._note(name, end("embed"))
    verdicts = {name: open_matrix.rows[name, "embed"]["verdict"] for name in (THIS, "3.5", "4.0")}
    assert verdicts == {THIS: "reference", "3.5": "same: 2 tables", "4.0": "differs: embeddings"}
    assert "1 rows lost, 1 new" in (open_matrix.folder / "runs" / "4.0" / "embed.compared").read_text()


def test_without_a_reference_nothing_is_the_same(open_matrix):
    open_matrix._note(THIS, end("embed", 1, "error: no Java"))
    open_matrix._note("3.5", end("embed"))
    assert open_matrix.rows["3.5", "embed"]["verdict"].startswith("no reference: embed of 4.2")
    assert len(list_wrong([THIS, "3.5"], open_matrix.rows)) == 2


def test_a_refusal_is_right_where_it_is_known(open_matrix):
    open_matrix._note("4.1-connect", end("select", 2, "error: no guard by Connect\n  hint: local"))
    open_matrix._note("4.1", end("select", 2, "error: no guard"))
    assert open_matrix.rows["4.1-connect", "select"]["verdict"] == "refused: error: no guard by Connect"
    assert list_wrong(CELLS, open_matrix.rows) == ["4.1 select: refused: error: no guard"]


def test_a_stopped_run_goes_on_and_other_code_begins_anew(open_matrix, monkeypatch):
    for job in cell.JOBS:
        open_matrix._note(THIS, end(job))
    again = matrix.Matrix.open(open_matrix.folder, seconds=60)
    monkeypatch.setattr(matrix.Matrix, "_start", lambda *_: pytest.fail("ran again"))
    again.run_cells([THIS], list(cell.JOBS))
    monkeypatch.setattr(matrix, "hash_code", lambda: "other")
    assert len(again.rows) == len(cell.JOBS) and not matrix.Matrix.open(open_matrix.folder, seconds=60).rows


def test_a_python_that_is_missing_is_said_in_its_row(open_matrix, monkeypatch):
    monkeypatch.setitem(ENVIRONMENTS, "future", Environment(("pyspark",), "3.99"))
    monkeypatch.setitem(CELLS, "future", Cell("future"))
    open_matrix.run_cells(["future"], ["embed"])
    assert open_matrix.rows["future", "embed"]["verdict"] == "missing: no Python 3.99 on this machine"
    assert not list_wrong(["future"], open_matrix.rows)


def test_a_cell_ends_with_what_its_jobs_said(open_matrix, monkeypatch):
    started = []
    monkeypatch.setattr(matrix, "make_environment", lambda *_: Path(sys.executable))
    monkeypatch.setattr(matrix.subprocess, "run", lambda words, **_: started.append(words) or end_process())

    def end_process():
        cell.note(open_matrix.folder / "runs" / THIS, {"versions": {"pyspark": "4.2.0"}})
        cell.note(open_matrix.folder / "runs" / THIS, end("night"))
        return subprocess.CompletedProcess([], -9)

    open_matrix.run_cells([THIS], ["night", "embed"])
    assert started[0][-2:] == ["night", "embed"]
    assert open_matrix.rows[THIS, "night"]["verdict"] == "reference"
    assert open_matrix.rows[THIS, "embed"]["verdict"] == "stopped: the process ended with code -9"


def test_cells_side_by_side_are_judged_after_their_reference(open_matrix, monkeypatch):
    """The reference ends last; the exit code counts tables that differ."""
    write_tables(open_matrix, THIS, "embed", nodes=[1])
    write_tables(open_matrix, "3.5", "embed", nodes=[1])
    write_tables(open_matrix, "4.0", "embed", nodes=[2])
    both = threading.Barrier(2, timeout=10)

    def start(self, name, place, jobs):
        if name in (THIS, "3.5"):
            both.wait()
        time.sleep(0.1 * (name == THIS))
        cell.note(place, end("embed"))
        return ""

    monkeypatch.setattr(matrix.Matrix, "_start", start)
    open_matrix.run_cells([THIS, "3.5", "4.0"], ["embed"], at_once=2)
    verdicts = [row["verdict"] for row in open_matrix.rows.values()]
    assert verdicts == ["reference", "same: 1 tables", "differs: nodes"]
    assert list_wrong([THIS, "3.5", "4.0"], open_matrix.rows) == ["4.0 embed: differs: nodes"]


def test_jobs_of_a_cell_say_code_sentence_and_place(tmp_path, monkeypatch):
    monkeypatch.setattr(
        cell, "JOBS", {"fine": ("query", "--list"), "wrong": ("split", "--log", "{inputs}/none.csv")}
    )
    monkeypatch.setattr("recbench_spark.commands.split.main", lambda args: 1 / 0)
    cell.main(tmp_path, tmp_path / "inputs", ["fine", "wrong"])
    versions, fine, wrong = map(json.loads, (tmp_path / "jobs.jsonl").read_text().splitlines())
    assert versions["versions"]["python"] == "{}.{}.{}".format(*sys.version_info)
    assert fine["exit"] == 0 and "leaderboard" in (tmp_path / "fine.txt").read_text()
    assert wrong["exit"] == 1 and "division by zero" in wrong["sentence"]
    assert "ZeroDivisionError" in (tmp_path / "wrong.trace").read_text()


@pytest.mark.parametrize("version", ["3.5.9", "4.0.5", "4.1.3", "4.2.0"])
def test_a_server_has_the_packages_of_its_spark(monkeypatch, version):
    """Not those of conf/spark/local.conf, which names the newest Spark's Delta."""
    monkeypatch.setattr(connect_server, "find_spark", lambda _: (Path("spark"), version))
    words = connect_server.list_words(Path("python"), connect_server.LOCAL_CONF, 15002)
    packages = [word for word in words if "io.delta:" in word]
    server = ",org.apache.spark:spark-connect_2.12:3.5.7" if version == "3.5.9" else ""
    assert packages == [f"spark.jars.packages={DELTA_JARS[version[:3]]}{server}"]
    assert "delta-spark==3.3.2" in ENVIRONMENTS["3.5"].packages


def test_an_environment_alone_has_what_the_core_asks_for():
    alone = environments.list_packages(ENVIRONMENTS["python-3.13"])
    assert "pandas>=3" in alone and sum(package.startswith("pandas") for package in alone) == 1
    assert any(package.startswith("deltalake") for package in alone)
    assert not any(package.startswith("deltalake") for package in ENVIRONMENTS["3.5"].packages)


def test_a_page_keeps_its_words_around_the_table(tmp_path, open_matrix):
    open_matrix._note(THIS, end("embed", 2, "error: no"))
    table = page.write_table([THIS], open_matrix.rows)
    file = tmp_path / "page.md"
    file.write_text(f"# Platforms\n{page.START}\nold\n{page.END}\nafter\n")
    page.write_page(file, table, "abc")
    text = file.read_text()
    assert text.startswith("# Platforms\n") and text.endswith(f"{page.END}\nafter\n") and "old" not in text
    assert "refused (1)" in text and "1. error: no" in text and "commit abc" in text


def test_a_server_that_ends_at_once_is_an_error(tmp_path):
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]) as process:
        port = connect_server.find_free_port()
        with pytest.raises(OSError, match="ended with code 3; its last words are in"):
            connect_server.wait_for(process, port, tmp_path / "log")


def test_a_server_listens_on_this_machine_alone():
    words = connect_server.list_words(Path(sys.executable), connect_server.LOCAL_CONF, 15002)
    assert "spark.connect.grpc.binding.address=127.0.0.1" in words
    assert "SPARK_REMOTE" not in connect_server.make_environment(Path(sys.executable))
