"""Start a Spark Connect server with Delta on this machine: python -m tools.connect_server [--port 15002].

It is the server of the pyspark that runs this command, with the settings of conf/spark/local.conf and the
Delta of that pyspark, and listens on 127.0.0.1 alone. Clients set SPARK_REMOTE=sc://127.0.0.1:15002. Ctrl-C
ends it. Its workers are this Python with this checkout, so clients need the same minor version of Python.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from recbench_spark.engine.platforms import name_version
from recbench_spark.runtime.java import PACKAGES
from recbench_spark.runtime.session import choose_delta, read_properties

ROOT = Path(__file__).resolve().parents[1]
LOCAL_CONF = ROOT / "conf" / "spark" / "local.conf"
HOST = "127.0.0.1"
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
FIND_SPARK = "import pyspark; print(pyspark.__path__[0], pyspark.__version__, sep='\\n')"
SERVER_JARS = {"3.5": "org.apache.spark:spark-connect_2.12:3.5.7"}
"""Package of the server where pyspark brings none; no later one of 3.5 is on Maven Central."""
PARENT_DIED = 1
"""PR_SET_PDEATHSIG of Linux: a signal to a process whose parent has ended."""


def main(argv: list[str] | None = None) -> int:
    """Serve until Ctrl-C; return 1 if the server does not start."""
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    flags.add_argument("--port", type=int, default=15002, help="0: a free one")
    flags.add_argument("--properties", type=Path, default=LOCAL_CONF)
    flags.add_argument("--log", type=Path, help="file for what the server prints (default: not kept)")
    args = flags.parse_args(argv)
    log = args.log or Path(os.devnull)
    try:
        with serve(Path(sys.executable), args.properties, log, args.port) as address:
            print(f"export SPARK_REMOTE={address}", flush=True)
            signal.pause()
    except KeyboardInterrupt:
        return 0
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
    return 1


@contextmanager
def serve(python: Path, properties: Path, log: Path, port: int = 0) -> Iterator[str]:
    """Start the server of an environment; yield its address; end it.

    Raises:
        OSError: it ended, or did not listen within three minutes.
    """
    port = port or find_free_port()
    with log.open("ab") as out:
        process = subprocess.Popen(
            list_words(python, properties, port),
            env=make_environment(python),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            preexec_fn=_end_with_parent,  # noqa: PLW1509 - it calls the system alone
        )
    try:
        wait_for(process, port, log)
        yield f"sc://{HOST}:{port}"
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=20)
        process.kill()


def list_words(python: Path, properties: Path, port: int) -> list[str]:
    """Return the command of the server."""
    spark, version = find_spark(python)
    chosen = choose_delta(read_properties(properties), version)
    packages = (chosen.get(PACKAGES), SERVER_JARS.get(name_version(version)))
    settings = {
        **chosen,
        PACKAGES: ",".join(filter(None, packages)),
        "spark.connect.grpc.binding.address": HOST,
        "spark.connect.grpc.binding.port": str(port),
        "spark.log.level": "ERROR",
    }
    submit = spark / "bin" / "spark-submit"
    flags = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    return [str(submit), "--properties-file", str(properties), *flags, "--class", SERVER, "spark-internal"]


def make_environment(python: Path) -> dict[str, str]:
    """Return the environment of the server: its workers are that Python with this checkout."""
    left_out = {"SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT"}
    kept = {key: value for key, value in os.environ.items() if key not in left_out}
    spark = {
        "SPARK_HOME": str(find_spark(python)[0]),
        "SPARK_LOCAL_IP": HOST,
        "PYSPARK_PYTHON": str(python),
    }
    return {**kept, **spark, "PYTHONPATH": str(ROOT)}


def find_spark(python: Path) -> tuple[Path, str]:
    """Return folder and version of an environment's pyspark."""
    words = [str(python), "-c", FIND_SPARK]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    folder, version = done.stdout.split("\n")[:2]
    return Path(folder), version


def find_free_port() -> int:
    """Return a port of this machine that nobody listens on."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])


def wait_for(process: subprocess.Popen[bytes], port: int, log: Path, seconds: float = 180) -> None:
    """Return when the server listens.

    Raises:
        OSError: it ended, or did not listen in time.
    """
    end = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < end:
        with suppress(OSError), socket.create_connection((HOST, port), timeout=1):
            return
        time.sleep(0.2)
    state = "does not listen" if process.poll() is None else f"ended with code {process.returncode}"
    raise OSError(f"the Connect server {state}; its last words are in {log}")


def _end_with_parent() -> None:
    with suppress(AttributeError):  # Linux only
        ctypes.CDLL(None).prctl(PARENT_DIED, signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
