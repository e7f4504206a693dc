"""Hosts of a cluster on one machine: each sees a temporary folder of its own, and none that of another.

A process enters a mount namespace of its own. There /tmp and shared memory are private, and the folders of
pytest, with those of other hosts and of the S3 server, are empty. That takes root, or a system where users
can make namespaces.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ENTER = """
mount --bind "$1" /tmp && mount -t tmpfs host /dev/shm || exit 1
if [ -e "$2" ]; then mount -t tmpfs host "$2" || exit 1; fi
cd /tmp && shift 2 && exec "$@"
"""
"""Shell script of a host: its folder, the folder to hide, and the command."""

UNSHARE = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]


@dataclass(frozen=True)
class Host:
    """A host: the folder that it has as /tmp, and a folder that it does not see.

    Attributes:
        folder: this host's /tmp as the test sees it.
        hidden: folder that is empty on every host.
    """

    folder: Path
    hidden: Path

    @property
    def prefix(self) -> list[str]:
        """Words before a command that this host runs. The process keeps its id."""
        return [*UNSHARE, "sh", "-c", ENTER, "host", str(self.folder), str(self.hidden)]

    def list_copies(self) -> list[Path]:
        """Return the copies of objects on this host (`host_files`).

        Meanwhile Spark removes folders, which `Path.rglob` does not take.
        """
        folders = ((Path(base), names) for base, _, names in os.walk(self.folder))
        copies = (base / name for base, names in folders if base.name == "objects" for name in names)
        return [path for path in copies if not path.name.startswith(".")]


def make_hosts(folder: Path, hidden: Path, names: tuple[str, ...]) -> dict[str, Host]:
    """Make hosts with empty folders; the test is skipped where this user can make no namespaces."""
    allowed = shutil.which("unshare") is not None and subprocess.run(
        [*UNSHARE, "mount", "-t", "tmpfs", "host", "/dev/shm"], capture_output=True, check=False
    )
    if not allowed or allowed.returncode:
        pytest.skip("this user cannot give processes a file system of their own (unshare --mount)")
    hosts = {name: Host(folder / name, hidden) for name in names}
    for host in hosts.values():
        host.folder.mkdir(parents=True)
    return hosts
