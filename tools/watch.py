"""Run a command and record the memory of its process tree and the disk use of some folders.

    python tools/watch.py --folders DIR,DIR --output usage.jsonl -- recbench embed ...

Each sample is a line: seconds, number of processes, bytes of their own memory (RssAnon + RssShmem of /proc,
without mapped files), bytes of resident files, bytes of allocated blocks under the folders. The last line
has the peaks and is printed too. Linux only. The exit code is that of the command.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from jobs.bench.harness import list_tree


def main() -> int:
    """Start the command, sample until it ends, print the peaks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folders", default="", help="comma-separated; nested ones count once")
    parser.add_argument("--output", required=True, help="JSON lines, appended")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between samples")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    folders = [Path(name) for name in args.folders.split(",") if name]
    started = time.monotonic()
    peaks = {"own": 0, "files": 0, "disk": 0, "processes": 0}
    process = subprocess.Popen(args.command)
    with Path(args.output).open("a", encoding="utf-8", buffering=1) as out:
        while process.poll() is None:
            sample = {
                **measure_memory(one.pid for one in list_tree(process.pid)),
                "disk": measure_disk(folders),
            }
            peaks = {name: max(peaks[name], sample[name]) for name in peaks}
            out.write(json.dumps({"seconds": round(time.monotonic() - started, 1), **sample}) + "\n")
            time.sleep(args.every)
        last = {"seconds": round(time.monotonic() - started, 1), "peak": peaks, "exit": process.returncode}
        out.write(json.dumps(last) + "\n")
    print(json.dumps(last), file=sys.stderr)
    return process.returncode


def measure_memory(processes: Iterable[int]) -> dict[str, int]:
    """Return the bytes of own memory, and of files, that processes hold."""
    total = {"own": 0, "files": 0, "processes": 0}
    for process in processes:
        try:
            lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
        except OSError:
            continue
        kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)
               if name in ("RssAnon", "RssShmem", "RssFile")}  # fmt: skip
        total["own"] += 1024 * (kib.get("RssAnon", 0) + kib.get("RssShmem", 0))
        total["files"] += 1024 * kib.get("RssFile", 0)
        total["processes"] += 1
    return total


def measure_disk(folders: Iterable[Path]) -> int:
    """Return the bytes allocated under some folders; each file counts once."""
    sizes: dict[tuple[int, int], int] = {}
    for folder in folders:
        for place, _, names in os.walk(folder):
            for name in names:
                try:
                    stat = Path(place, name).lstat()
                except OSError:  # the file was removed meanwhile
                    continue
                sizes[stat.st_dev, stat.st_ino] = 512 * stat.st_blocks
    return sum(sizes.values())


if __name__ == "__main__":
    sys.exit(main())
