"""Makes `warehouse.tar.gz`: two nights of a small world, by the code of a commit that is named here.

    python tests/old_warehouse/make.py

That code is checked out into a git worktree of its own and runs `jobs/nightly.py` on `nights.yaml`. What
is kept are the tables, in which no path of this machine stands.
"""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

COMMIT = "72a9089366c51767860a03d9e9930eb6ea7e3dd0"
"""The last code whose warehouses had schema version 4."""

NIGHTS = ("2026-01-01", "2026-01-02")
HERE = Path(__file__).resolve().parent
PACKED = HERE / "warehouse.tar.gz"
TABLES_ONLY = ("logs", "results", "reports", "_scratch")
"""Folders beside the tables: they name paths of the machine."""

ONE_FILE = "spark.sql.shuffle.partitions 1\nspark.default.parallelism 1\nspark.master local[2]\n"
"""Few files: each costs more than its rows."""


@contextmanager
def old_code(folder: Path) -> Iterator[Path]:
    """The code of the commit, checked out; gone at the end."""
    place, git = folder / "code", ["git", "-C", str(HERE)]
    subprocess.run([*git, "worktree", "add", "--quiet", "--detach", str(place), COMMIT], check=True)
    try:
        yield place
    finally:
        subprocess.run([*git, "worktree", "remove", "--force", str(place)], check=True)


def run_nights(code: Path, folder: Path) -> Path:
    """The warehouse after the nights."""
    properties = folder / "one_file.conf"
    properties.write_text((code / "conf/spark/local.conf").read_text() + ONE_FILE)
    settings = {"PYTHONPATH": str(code), "RECBENCH_SPARK_PROPERTIES": str(properties), "USER": "old"}
    for night in NIGHTS:
        job = [sys.executable, str(code / "jobs/nightly.py"), "--config", str(HERE / "nights.yaml")]
        flags = ["--warehouse", str(folder / "warehouse"), "--logical-date", night]
        subprocess.run([*job, *flags], check=True, cwd=folder, env={**os.environ, **settings})
    return folder / "warehouse"


def pack(warehouse: Path, archive: Path) -> None:
    """The tables, in order of their names, without Hadoop's checksum files."""
    with (
        gzip.GzipFile(archive, "wb", mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as tar,
    ):
        for file in sorted(warehouse.rglob("*")):
            name = file.relative_to(warehouse)
            if file.is_file() and name.parts[0] not in TABLES_ONLY and not file.name.endswith(".crc"):
                tar.add(file, f"warehouse/{name}", filter=_nobody)


def _nobody(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, old_code(Path(folder)) as code:
        pack(run_nights(code, Path(folder)), PACKED)
    print(f"{PACKED}: {PACKED.stat().st_size:,} bytes, by {COMMIT[:7]}")
