"""A real HDFS, and YARN, for tests: Hadoop's mini cluster in a JVM of its own, on loopback ports.

Spark's resolver fetches its jars once a user into a cache of their own, apart from Spark's. They never come
on Spark's classpath.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark
import pytest

from tests.waiting import wait_until

VERSION = "3.5.0"
"""Version of the Hadoop in pyspark, whose two jars for clients the cluster uses too."""

PACKAGES = ",".join((
    f"org.apache.hadoop:hadoop-client-minicluster:{VERSION}", "org.junit.jupiter:junit-jupiter-api:5.10.2",
    "org.bouncycastle:bcpkix-jdk18on:1.78.1",
))  # fmt: skip
"""The cluster, and two libraries that its YARN lacks."""

CLIENT_JARS = ("hadoop-client-api", "hadoop-client-runtime")
JAVA_FLAGS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true")
NOT_ON_NODES = ("HADOOP_CONF_DIR", "PYTHONPATH", "SPARK_HOME", "PYSPARK_PYTHON")
"""Variables that a node of YARN hands to what it starts, if it has them: what is shipped must do."""

SPARK_HOME = Path(pyspark.__file__).parent
SOURCE = Path(__file__).parent / "java" / "MiniHadoop.java"


@dataclass(frozen=True)
class Hadoop:
    """A running cluster: the URI of its name node, and the folder with the settings of clients."""

    root: str
    settings: Path


def fetch_jars() -> list[Path]:
    """Return the jars of the cluster; they are fetched once a user."""
    java = shutil.which("java")
    if java is None:
        pytest.skip("the HDFS of these tests needs Java, which is not on this machine")
    folder = Path.home() / ".cache" / "recbench-spark-tests" / f"hadoop-{VERSION}"
    folder.mkdir(parents=True, exist_ok=True)
    complete = folder / "complete"
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists() or complete.read_text() != PACKAGES:
            resolve(folder, Path(java).resolve().parents[1])
            complete.write_text(PACKAGES)
    patterns = [f"{name}-{VERSION}.jar" for name in CLIENT_JARS] + ["*slf4j*.jar", "log4j-*.jar"]
    own = [file for pattern in patterns for file in sorted((SPARK_HOME / "jars").glob(pattern))]
    return [*own, *sorted((folder / "jars").glob("*.jar"))]


def resolve(folder: Path, java_home: Path) -> None:
    """Let spark-submit fetch the jars into a cache: the program that it starts does nothing."""
    nothing = folder / "nothing.py"
    nothing.write_text("")
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[1]"]
    command += ["--conf", f"spark.jars.ivy={folder}", "--packages", PACKAGES]
    command += ["--exclude-packages", ",".join(f"org.apache.hadoop:{name}" for name in CLIENT_JARS)]
    env = {**os.environ, "SPARK_HOME": str(SPARK_HOME), "JAVA_HOME": str(java_home)}
    done = subprocess.run([*command, str(nothing)], env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"the jars of Hadoop's mini cluster cannot be fetched: {done.stderr[-500:]}")


@contextmanager
def serve(folder: Path, kind: str = "hdfs") -> Iterator[Hadoop]:
    """Start a cluster with its files in a new folder, `hdfs` or `yarn`, and stop it at the end."""
    jars = fetch_jars()
    folder.mkdir(parents=True, exist_ok=True)
    command = ["java", *JAVA_FLAGS, "-cp", os.pathsep.join(map(str, jars)), str(SOURCE), str(folder), kind]
    output = folder / "output.txt"
    with output.open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT,
            env={name: value for name, value in os.environ.items() if name not in NOT_ON_NODES},
        )  # fmt: skip
    try:
        wait_until(lambda: process.poll() is not None or "\nready " in f"\n{output.read_text()}")
        text = output.read_text()
        assert process.poll() is None, text[-3000:]
        root = text.rpartition("ready ")[2].split()[0]
        yield Hadoop(root, folder / "conf")
    finally:
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
