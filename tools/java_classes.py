"""Write the archive of Java's classes: python -m tools.java_classes.

It runs a small night in a folder of its own, and takes about as long as one. An archive that is there
stays.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from pyspark import SparkContext

from recbench_spark.commands import nightly
from recbench_spark.runtime import java, session

WORLD = {"users": 60, "items": 40, "interactions": 1500, "open_loop": 300}
START = "from recbench_spark.runtime.session import get_session; get_session()"


def main() -> int:
    """Write the archive if it is missing.

    Returns:
        0; 1 where Spark's jars are not known, so that there is nothing to archive for.
    """
    settings = session.read_properties(session.local_properties())
    if not java.read_known_jars(settings):  # a first session finds the jars and notes where they are
        subprocess.run([sys.executable, "-c", START], check=True)
    jars = java.read_known_jars(settings)
    target = java.archive_file(jars)
    if not jars or target.is_file():
        return int(not jars)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        file = Path(folder, target.name)
        run_night(Path(folder), java.write_flags(file))
        file.replace(target)
    print(f"{target}: {target.stat().st_size >> 20} MB")
    return 0


def run_night(folder: Path, flags: tuple[str, ...]) -> None:
    """Run a night of the demo's models on a small world; return when its Java process has ended."""
    properties = folder / "spark.conf"
    options = " ".join((*session.SMALL_JOB_JAVA, *flags))
    text = session.local_properties().read_text(encoding="utf-8")
    properties.write_text(f"{text}\n{session.JAVA_FLAGS} {options}\n", encoding="utf-8")
    os.environ[session.PROPERTIES] = str(properties)
    sets = [f"--set=dataset.world.{name}={value}" for name, value in WORLD.items()]
    words = [
        "--config=demo",
        "--engine=spark",
        f"--warehouse={folder / 'w'}",
        "--logical-date=2026-01-01",
        *sets,
    ]
    nightly.main(nightly.parser().parse_args(words))
    context = SparkContext._active_spark_context
    assert context is not None
    context.stop()
    process = SparkContext._gateway.proc  # type: ignore[union-attr]
    process.stdin.close()  # Java ends with its parent's pipe, and writes the archive then
    process.wait(timeout=300)


if __name__ == "__main__":
    sys.exit(main())
