"""An archive of Java's classes, to start sessions faster.

A local session and its first queries start in seconds less. `tools/java_classes.py` writes the archive once
(`make setup`) into the user's cache folder; it has some 200 MB. Java itself compares its version and the
class path with the archive's, and goes on without it where they differ.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from pyspark import __version__ as spark_version

QUIET = ("-Xlog:disable", "-Xlog:all=error:stderr")
"""Without these Java prints to the job's output when an archive is not its own."""


def archive_file(jars: Sequence[str], cache: Path) -> Path:
    """Return the archive's place for jars, Spark and Java."""
    home = os.environ.get("JAVA_HOME")
    java = Path(os.path.realpath(shutil.which("java", path=f"{home}/bin" if home else None) or "java"))
    changed = java.stat().st_mtime_ns if java.is_file() else 0
    parts = [spark_version, str(java), changed, *jars]
    return cache / f"classes-{sha256(json.dumps(parts).encode()).hexdigest()[:16]}.jsa"


def read_flags(jars: Sequence[str], cache: Path) -> tuple[str, ...]:
    """Return Java's flags to read classes from their archive.

    Without an archive there are no flags.
    """
    file = archive_file(jars, cache)
    if not jars or not file.is_file():
        return ()
    return (f"-XX:SharedArchiveFile={shlex.quote(str(file))}", "-Xshare:auto", *QUIET)


def write_flags(file: Path) -> tuple[str, ...]:
    """Return Java's flags to write its classes at the end."""
    return (f"-XX:ArchiveClassesAtExit={shlex.quote(str(file))}", *QUIET)
