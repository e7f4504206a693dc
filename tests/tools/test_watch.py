"""`tools/watch.py` adds up a process tree's own memory and the disk of folders."""

import json
import subprocess
import sys
from pathlib import Path

WATCH = Path(__file__).parents[2] / "tools" / "watch.py"

CHILD = """
import sys, time
held = bytearray(b"x" * 60_000_000)
open(sys.argv[1], "wb").write(held[:8_000_000])
before = len(open(sys.argv[2]).readlines())
while len(open(sys.argv[2]).readlines()) < before + 4:
    time.sleep(0.01)
"""
"""A process that ends when it has been looked at often enough."""

PARENT = """
import subprocess, sys
sys.exit(subprocess.run([sys.executable, "-c", *sys.argv[1:]]).returncode or 3)
"""


def test_memory_of_a_child_and_its_file_are_seen(tmp_path):
    folder, output = tmp_path / "seen", tmp_path / "usage.jsonl"
    folder.mkdir()
    flags = ["--folders", f"{folder},{folder.parent / 'seen'}", "--output", str(output), "--every", "0.1"]
    command = [sys.executable, "-c", PARENT, CHILD, str(folder / "file"), str(output)]
    done = subprocess.run(
        [sys.executable, str(WATCH), *flags, "--", *command], check=False, capture_output=True
    )
    *samples, last = map(json.loads, output.read_text().splitlines())
    assert done.returncode == last["exit"] == 3
    assert 60_000_000 < last["peak"]["own"] < 200_000_000
    assert 8_000_000 <= last["peak"]["disk"] < 8_100_000
    assert last["peak"]["processes"] == 2 and len(samples) > 3
