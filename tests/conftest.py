"""One Spark session for the whole run, made when the first test asks for it."""

from __future__ import annotations

import fcntl
import gc
import os
import sys
import tempfile
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

from tests import hadoop_cluster
from tests.object_storage import S3Server, serve

# An example that takes long beside other work is no failure.
hypothesis.settings.register_profile("tests", deadline=None)
hypothesis.settings.load_profile("tests")

# Tests of one group share a process of pytest, and so its session.
NIGHT = "night"

PARSING = {"test_architecture.py", "test_language.py"}
"""Files whose tests read the parsed sources: one process parses them, once."""

JVM_FIXTURES = {"spark", "own_jvm"}
"""A test that requests one of these is marked `spark`. A fixture that asks for `spark` by a parameter alone
marks that parameter: `pytest.param("spark", marks=pytest.mark.spark)`."""

NO_JAVA = "/nonexistent/java"
"""JAVA_HOME of the other tests: a JVM does not start there."""

ROOT = Path(__file__).resolve().parent.parent

SETTINGS = {
    # Two tasks at once show what depends on partitioning; CI has two cores.
    "spark.master": "local[2]",
    # Hundreds of rows: every further partition is only overhead.
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    # A Delta snapshot is rebuilt in this many tasks (default 50), and the logs of two or three warehouses
    # are kept in memory: with fewer, every read of a table would be one of its log too.
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.delta.log.cacheSize": "60",
    # Hundreds of small queries: compiling each one to Java takes longer than interpreting it, and stages
    # that are planned anew cost a job each. `make demo` and the slow tests run with Spark's defaults.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    # Nobody looks at the page or the bar.
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # A test run is over before the optimising compiler pays off; without it Java would leave only 48 MB
    # for compiled code, and interpret the rest. Threads that collect garbage beside would want a core more.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m "
    "-XX:+UseSerialGC",
    # Enough for the tests, and small enough to run beside other work.
    "spark.driver.memory": "2g",
    # Delta Lake, as in conf/spark/local.conf.
    "spark.jars.packages": "io.delta:delta-spark_4.2_2.13:4.4.0",
    # Older twins of Spark's own jars, as in conf/spark/local.conf.
    "spark.jars.excludes": "org.apache.hadoop:hadoop-client-api,org.apache.hadoop:hadoop-client-runtime,"
    "org.apache.parquet:*,com.fasterxml.jackson.*:*,"
    "org.apache.logging.log4j:*,org.slf4j:*",
    # Delta's SQL commands and its catalog.
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Small batches, so that tests with a few hundred users still cross batch borders.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "64",
    # The same times on every machine.
    "spark.sql.session.timeZone": "UTC",
    # Tasks are small: the search for garbage after each one took half of a worker's time.
    "spark.python.daemon.module": "tests.spark_daemon",
    # Expected failures of Python workers would fill the output with Java stack traces.
    "spark.log.level": "FATAL",
}


def start_jvm(item: pytest.Item) -> bool:
    """Say if a test needs a JVM: it requests one, or a parameter of it asks for one and is marked so."""
    parameters = getattr(getattr(item, "callspec", None), "marks", ())
    return bool(JVM_FIXTURES & set(getattr(item, "fixturenames", ()))) or any(
        mark.name == "spark" for mark in parameters
    )


def belongs_to_night(item: pytest.Item) -> bool:
    """Return whether a test reads the small night or is a contract."""
    return "small_night" in getattr(item, "fixturenames", ()) or bool(item.get_closest_marker("contract"))


def mark_test(item: pytest.Item) -> None:
    """Mark a test `spark` where it needs a JVM, and `full` where `make test` has no time for it.

    Raises:
        pytest.UsageError: the test is marked `spark` by hand and nothing of it needs a JVM.
    """
    if "s3_server" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.s3)
        item.add_marker(pytest.mark.full)  # `make test` needs no Go
    if {"hdfs_server", "yarn_server"} & set(getattr(item, "fixturenames", ())):
        item.add_marker(pytest.mark.hdfs)
        item.add_marker(pytest.mark.full)  # `make test` needs no jars of Hadoop's
    if not start_jvm(item):
        if item.get_closest_marker("spark"):
            raise pytest.UsageError(f"{item.nodeid} is marked spark and requests none of {JVM_FIXTURES}")
        return
    item.add_marker(pytest.mark.spark)
    if not belongs_to_night(item):
        item.add_marker(pytest.mark.full)


def pytest_collection() -> None:
    """Collect no garbage while tests are collected: hundreds of modules are read, and all of them stay."""
    gc.disable()
    gc.set_threshold(100_000, 20, 20)


@pytest.hookimpl(tryfirst=True)  # before xdist looks at the groups, and before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests and put them in order.

    Those with Spark come first: the files of the small night and of contracts in one process, others by
    file. Files without Spark follow from the last to the first, since the first ones are short: neither
    process is idle long at the end.
    """
    gc.freeze()
    gc.enable()
    for item in items:
        mark_test(item)
    nightly = {item.path for item in items if belongs_to_night(item)}
    items.sort(key=lambda item: "" if item.get_closest_marker("spark") else str(item.path), reverse=True)
    items.sort(key=lambda item: (not item.get_closest_marker("spark"), item.path not in nightly))
    for item in items:
        name = str(item.path) if item.get_closest_marker("spark") else f"{item.path} without Spark"
        name = "sources" if item.path.name in PARSING else name
        group = NIGHT if item.get_closest_marker("spark") and item.path in nightly else name
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let no test start or use a JVM, here or in a process of its own, unless it is marked `spark`."""
    if item.get_closest_marker("spark"):
        return (yield)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", NO_JAVA)
        if "recbench_spark.runtime.session" in sys.modules:
            forbid_spark(patch)
        return (yield)


@pytest.fixture(scope="session", autouse=True)
def user_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Digests of inputs are kept in this run's folder, not in the user's."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session", autouse=True)
def no_role() -> None:
    """No test asks the machine for a role of Amazon's: the address for it is that of another host."""
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"


CACHE = os.environ.get("XDG_CACHE_HOME")
"""Cache folder of the user, if a variable names one; the fixture `user_cache` sets another one."""


def start_sooner(settings: dict[str, str]) -> dict[str, str]:
    """Name the jars and the archive of Java's classes that `make setup` left in the user's cache."""
    from recbench_spark.runtime import session

    with pytest.MonkeyPatch.context() as patch:
        if CACHE is None:
            patch.delenv("XDG_CACHE_HOME", raising=False)
        else:
            patch.setenv("XDG_CACHE_HOME", CACHE)
        flags = [settings[session.JAVA_FLAGS], *session.read_class_flags(settings)]
        return {**settings, **session.jar_settings(settings), session.JAVA_FLAGS: " ".join(flags)}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """The shared session, from a properties file written before the JVM starts."""
    folder = tmp_path_factory.mktemp("spark")
    # Tables by name live in this run's folder, not in the repository.
    settings = {**start_sooner(SETTINGS), "spark.sql.warehouse.dir": str(folder / "warehouse")}
    properties = folder / "tests.conf"
    properties.write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--properties-file {properties} pyspark-shell"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Workers must find the package wherever pytest was started.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    from recbench_spark.runtime.session import get_session

    # Two processes must not fetch Spark's packages into one cache at once.
    with (Path(tempfile.gettempdir()) / f"recbench-tests-{os.getuid()}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        session = get_session("recbench-spark tests")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server on a loopback port; tests that need it are skipped where Go is missing."""
    with serve(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """URI of a new bucket; the variables that reach it are set for this test and what it starts."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{s3_server.make_bucket()}"


@pytest.fixture(scope="session")
def hdfs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[hadoop_cluster.Hadoop]:
    """A real HDFS on loopback; tests of it are skipped where Java, jars or the client are missing."""
    pytest.importorskip("hdfs_native", reason="no hdfs-native (the extra hdfs)")
    with hadoop_cluster.serve(tmp_path_factory.mktemp("hdfs")) as server:
        yield server


@pytest.fixture(scope="session")
def yarn_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[hadoop_cluster.Hadoop]:
    """A real YARN with one node, and its HDFS; skipped where tests of HDFS are."""
    pytest.importorskip("hdfs_native", reason="no hdfs-native (the extra hdfs)")
    with hadoop_cluster.serve(tmp_path_factory.mktemp("yarn"), "yarn") as server:
        yield server


@pytest.fixture
def hdfs_place(hdfs_server: hadoop_cluster.Hadoop) -> str:
    """URI of a new folder of HDFS."""
    return f"{hdfs_server.root}/tests/{uuid.uuid4().hex[:12]}"


@pytest.fixture
def own_jvm() -> None:
    """Say that a test starts JVMs in processes of its own."""


@pytest.fixture(scope="session")
def cuda() -> str:
    """Name the device of tests for a GPU; they are skipped where torch sees none."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU with CUDA here")
    return "cuda"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real data beside the project; tests that need it are skipped where it is absent."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no real data at ../shared/data")
    return folder


@pytest.fixture(scope="session")
def small_night(tmp_path_factory: pytest.TempPathFactory):
    """One night of a small world without Spark, run once a process and read by many tests."""
    from recbench_spark.storage.arrow_store import ArrowStore
    from tests.nights import run, small

    return run(ArrowStore(str(tmp_path_factory.mktemp("night") / "warehouse")), small())


@pytest.fixture(scope="session")
def splits(tmp_path_factory: pytest.TempPathFactory):
    """Splits of this session, each made once: `tests.nights.Splits`."""
    from tests.nights import Splits

    return Splits(tmp_path_factory.mktemp("splits"))


class NoSpark:
    """In the place of SparkSession where no session may be asked for."""

    @staticmethod
    def getActiveSession() -> None:  # noqa: N802 (as Spark calls it)
        pytest.fail("Spark was started")


def forbid_spark(patch: pytest.MonkeyPatch) -> None:
    """Whoever asks for a session fails.

    `get_session` itself stays as it is: a module that is first imported meanwhile would keep what
    stands in its place for ever, and later tests of the process would fail.
    """
    patch.setattr("recbench_spark.runtime.session.SparkSession", NoSpark)
