"""A real S3 server for tests: versitygw, built by Go, serves a folder on a loopback port."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.waiting import wait_until

VERSION = "v1.8.0"
"""The first release whose conditional writes are atomic (its pull request 2288)."""

PACKAGE = f"github.com/versity/versitygw/cmd/versitygw@{VERSION}"


@dataclass(frozen=True)
class S3Server:
    """A running server: address, keys, the folder whose folders are buckets, and the process."""

    endpoint: str
    key: str
    secret: str
    folder: Path
    pid: int = 0

    def make_bucket(self) -> str:
        """Make a bucket and return its name."""
        name = f"bucket-{uuid.uuid4().hex[:12]}"
        (self.folder / name).mkdir()
        return name

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which every library reaches this server, and asks no other machine for keys."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }


def build_server() -> Path:
    """Return the program; it is built once a user, in a minute or two of a CPU."""
    if shutil.which("go") is None:
        pytest.skip("the S3 server of these tests is built by Go, which is not on this machine")
    folder = Path.home() / ".cache" / "recbench-spark-tests" / VERSION
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "versitygw"
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            command = ["go", "install", "-trimpath", "-ldflags=-s -w", PACKAGE]
            done = subprocess.run(
                command, env={**os.environ, "GOBIN": str(folder), "CGO_ENABLED": "0"},
                capture_output=True, text=True, check=False, cwd=folder,
            )  # fmt: skip
            assert done.returncode == 0, f"{' '.join(command)}: {done.stderr[-2000:]}"
    return program


@contextmanager
def serve(folder: Path) -> Iterator[S3Server]:
    """Serve a new folder, and stop at the end."""
    program = build_server()
    buckets, notes = folder / "buckets", folder / "notes"
    buckets.mkdir(parents=True)
    notes.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = S3Server(f"http://127.0.0.1:{port}", "tester", "secret-of-the-tester", buckets)
    keys = {"ROOT_ACCESS_KEY": server.key, "ROOT_SECRET_KEY": server.secret}
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [program, "--quiet", "--port", f"127.0.0.1:{port}", "posix", "--sidecar", notes, buckets],
            env={**os.environ, **keys}, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        wait_until(lambda: process.poll() is not None or answers(port))
        assert process.poll() is None, (folder / "server.log").read_text()
        yield replace(server, pid=process.pid)
    finally:
        process.terminate()
        process.wait()


def answers(port: int) -> bool:
    """Return whether somebody listens on a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
