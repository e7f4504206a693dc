"""Cells of the matrix: run in processes of their environments, compared, noted under a hash of the code."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from tools import compare_warehouses
from tools.connect_server import LOCAL_CONF, serve
from tools.platforms.cell import QUESTIONS
from tools.platforms.environments import CELLS, ROOT, THIS, MissingError, make_environment
from tools.platforms.inputs import write_inputs

TABLE = re.compile(r"^(\S+) +\d+ rows  (.+)$", re.MULTILINE)
SPARKS_OWN = re.compile("(PY|RECBENCH_)?SPARK_")
DONE = ("same", "reference")
NONE = {"verdict": ""}
CODE = {".py", ".sql", ".conf", ".yaml"}
"""Files of the package that results depend on."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Matrix:
    """Results of this code by cell and job; `folder` keeps them with environments and warehouses."""

    folder: Path
    seconds: float
    code: str
    commit: str
    rows: dict[tuple[str, str], Row]

    @classmethod
    def open(cls, folder: Path, seconds: float) -> Matrix:
        """Read the results that this code has already; write the jobs' inputs."""
        write_inputs(folder / "inputs")
        code, file = hash_code(), folder / "results.jsonl"
        lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
        rows = [row for row in map(json.loads, lines) if row["code"] == code]
        words = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
        commit = subprocess.run(words, check=False, capture_output=True, text=True).stdout.strip()
        return cls(folder, seconds, code, commit, {(row["cell"], row["job"]): row for row in rows})

    def run_cells(self, names: Sequence[str], jobs: Sequence[str], at_once: int = 1) -> None:
        """Run cells side by side, and note in their order what became of each job."""
        with ThreadPoolExecutor(at_once) as pool:
            for name, results in zip(
                names, pool.map(lambda name: self._run(name, jobs), names), strict=True
            ):
                for result in results:
                    self._note(name, result)

    def _run(self, name: str, jobs: Sequence[str]) -> list[Row]:
        """Run the jobs of a cell that have not ended well; return what became of each."""
        todo = [job for job in jobs if not self.rows.get((name, job), NONE)["verdict"].startswith(DONE)]
        if not todo:
            return []
        place = self.folder / "runs" / name
        place.mkdir(parents=True, exist_ok=True)
        (place / "jobs.jsonl").unlink(missing_ok=True)
        end = self._start(name, place, todo)
        lines = (place / "jobs.jsonl").read_text("utf-8") if (place / "jobs.jsonl").is_file() else ""
        notes = [json.loads(line) for line in lines.splitlines()]
        ended = {note["job"]: note for note in notes if "job" in note}
        facts = {key: value for note in notes if "versions" in note for key, value in note.items()}
        return [facts | ended.get(job, {"job": job, "exit": None, "sentence": end}) for job in todo]

    def _start(self, name: str, place: Path, jobs: Sequence[str]) -> str:
        """Run the process of a cell; return why jobs of it have no result."""
        cell, words = CELLS[name], ["-m", "tools.platforms.cell", str(place), str(self.folder / "inputs")]
        try:
            python = make_environment(self.folder, cell.environment)
            with self._spark(cell.server, place) as environment:
                done = subprocess.run(
                    [str(python), *words, *jobs],
                    check=False,
                    cwd=ROOT,
                    env=environment,
                    timeout=self.seconds,
                )
        except MissingError as error:
            return f"missing: {error}"
        except subprocess.TimeoutExpired:
            return f"stopped: no end within {self.seconds / 60:g} minutes"
        except OSError as error:
            return f"stopped: {error}"
        return f"stopped: the process ended with code {done.returncode}"

    @contextmanager
    def _spark(self, server: str, place: Path) -> Iterator[dict[str, str]]:
        """Yield the variables of a process, with the address of its server if it has one."""
        kept = {key: value for key, value in os.environ.items() if not SPARKS_OWN.match(key)}
        kept["PYTHONPATH"] = str(ROOT)
        if not server:
            yield kept
            return
        python = make_environment(self.folder, server)
        with serve(python, LOCAL_CONF, place / "server.log") as address:
            yield kept | {"SPARK_REMOTE": address}

    def _note(self, name: str, result: Row) -> None:
        """Keep the result of a job with its verdict, and print it."""
        stamp = {
            "cell": name,
            "code": self.code,
            "commit": self.commit,
            "at": f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
        }
        row = stamp | result | {"verdict": self._judge(name, result)}
        self.rows[name, row["job"]] = row
        with (self.folder / "results.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{name} {row['job']}: {row['verdict']} ({row.get('seconds', '-')} s)", flush=True)

    def _judge(self, name: str, result: Row) -> str:
        """Say what became of a job: reference, same, differs, refused, failed, or why it has no result."""
        job, code, sentence = result["job"], result["exit"], result["sentence"].partition("\n")[0]
        if code is None:
            return sentence
        if code:
            return f"refused: {sentence}" if code == 2 else f"failed with {code}: {sentence}"
        if name == THIS:
            return "reference"
        first, other = (self.folder / "runs" / cell for cell in (THIS, name))
        if self.rows.get((THIS, job), NONE)["verdict"] != "reference":
            return f"no reference: {job} of {THIS} did not end well"
        if job in QUESTIONS:
            return compare_texts(first / f"{job}.txt", other / f"{job}.txt")
        return compare_tables(first / job, other / job)


def compare_texts(first: Path, other: Path) -> str:
    """Return `same`, or that the rows differ."""
    return "same" if first.read_bytes() == other.read_bytes() else "differs: rows"


def compare_tables(first: Path, other: Path) -> str:
    """Return `same` or the tables that differ; the tool's whole answer goes beside the second warehouse."""
    answer = io.StringIO()
    with redirect_stdout(answer):
        compare_warehouses.main([str(first), str(other), "--other-code"])
    other.with_suffix(".compared").write_text(answer.getvalue(), encoding="utf-8")
    verdicts = dict(TABLE.findall(answer.getvalue()))
    odd = [table for table, verdict in verdicts.items() if verdict != "same"]
    return f"differs: {', '.join(odd)}" if odd else f"same: {len(verdicts)} tables"


def hash_code() -> str:
    """Return a hash of the package and of the jobs: results of other code are not this one's."""
    package = [file for file in (ROOT / "recbench_spark").rglob("*") if file.suffix in CODE]
    digest = sha256()
    for file in (
        *sorted(package),
        *(ROOT / "tools" / "platforms" / name for name in ("cell.py", "inputs.py")),
    ):
        digest.update(str(file.relative_to(ROOT)).encode() + file.read_bytes())
    return digest.hexdigest()[:16]
