#!/usr/bin/env python3
"""Check that the fault campaign sees planted bugs, one at a time, in a copy.

    python -m tools.planted [--only TEXT] [--list] [--folder warehouse/planted]

tools/planted.yaml has the bugs: a line of the package, its replacement, and cases of `python -m
tests.faults`.
The cases must pass in the unchanged copy, and one of them must fail with the bug. The tool prints a line
for each bug. Exit code 1: a bug was not seen; 2: cases fail without a bug, or do not end within --minutes.
A bug takes seconds to minutes; beside other work the kills of a night can take half an hour, most of it to
prepare warehouses.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from tools.mutants import ROOT, copy_project

BUGS = ROOT / "tools" / "planted.yaml"
Bug = dict[str, str]

END_SECONDS = 60.0
"""Seconds that a campaign has to end its jobs."""


def parser() -> argparse.ArgumentParser:
    """Make the parser of the flags."""
    words = argparse.RawDescriptionHelpFormatter
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=words)
    flags.add_argument("--only", default="", help="bugs whose name or file holds this text")
    flags.add_argument("--list", action="store_true", help="print the bugs, and stop")
    flags.add_argument("--folder", type=Path, default=Path("warehouse/planted"), help="copy and verdicts")
    flags.add_argument("--minutes", type=float, default=45.0, help="limit of one run of a bug's cases")
    return flags


def main(argv: list[str] | None = None) -> int:
    """Plant bugs, run the campaign, report."""
    args = parser().parse_args(argv)
    bugs = [bug for bug in read_bugs() if args.only in bug["bug"] + bug["file"]]
    if args.list:
        print("\n".join(f"{bug['bug']}\n    {bug['seen_by']}" for bug in bugs))
        return 0
    shutil.rmtree(args.folder, ignore_errors=True)  # removes verdicts too
    copy = args.folder.absolute() / "copy"
    copy_project(copy)
    ends = [check_bug(copy, bug, args.minutes) for bug in bugs]
    return max(ends, default=0)


def read_bugs() -> list[Bug]:
    """Read the bugs: name, file, original line, planted line, and the cases that must fail."""
    bugs: list[Bug] = yaml.safe_load(BUGS.read_text(encoding="utf-8"))
    return bugs


def check_bug(copy: Path, bug: Bug, minutes: float) -> int:
    """Plant a bug and print the verdict; return 0 if it is seen, 1 if not, 2 if the cases fail without
    it or do not end.
    """
    try:
        if seen := failures(copy, bug["seen_by"], minutes):
            print(f"FAILS WITHOUT IT  {bug['bug']}: {seen[0]}", flush=True)
            return 2
        begun = time.monotonic()
        with plant_bug(copy / bug["file"], bug):
            seen = failures(copy, bug["seen_by"], minutes)
    except subprocess.TimeoutExpired:
        print(f"DID NOT END in {minutes:g} minutes  {bug['bug']}: `{bug['seen_by']}`", flush=True)
        return 2
    how = f"seen by {len(seen)} of" if seen else "NOT SEEN by"
    print(f"{how} `{bug['seen_by']}`, {time.monotonic() - begun:.0f} s: {bug['bug']}", flush=True)
    print("\n".join(f"    {line[:240]}" for line in seen[:1]), flush=True)
    return int(not seen)


@contextmanager
def plant_bug(file: Path, bug: Bug) -> Iterator[None]:
    """Change the line inside the block. Raises ValueError unless it occurs exactly once."""
    source = file.read_text(encoding="utf-8")
    if source.split("\n").count(bug["was"]) != 1:
        raise ValueError(f"{bug['file']}: not once in it: {bug['was']!r}")
    try:
        file.write_text(source.replace(bug["was"] + "\n", bug["now"] + "\n"), encoding="utf-8")
        yield
    finally:
        file.write_text(source, encoding="utf-8")


def failures(copy: Path, cases: str, minutes: float) -> list[str]:
    """Return the failed cases of the campaign.

    Raises RuntimeError if the campaign broke, and TimeoutExpired if it did not end in time. It then gets a
    SIGTERM, so that it ends the jobs that it started, and END_SECONDS later a SIGKILL.
    """
    flags = [*cases.split(), "--folder", str(copy.parent / "verdicts")]
    command = [sys.executable, "-m", "tests.faults", *flags]
    env = {**os.environ, "PYTHONPATH": str(copy), "NUMBA_CACHE_DIR": str(copy.parent / "numba")}
    text = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, cwd=copy, env=env, **text) as campaign:  # type: ignore[call-overload]
        try:
            output, _ = campaign.communicate(timeout=60 * minutes)
        except BaseException:
            _end(campaign)
            raise
    lines = [line for line in output.splitlines() if line.startswith("FAILED ")]
    if campaign.returncode != int(bool(lines)):
        raise RuntimeError(f"{cases} ended with {campaign.returncode}: {output[-1500:]}")
    return lines


def _end(campaign: subprocess.Popen[str]) -> None:
    """Let the campaign end its jobs, and then itself; kill it if it does not."""
    campaign.terminate()
    try:
        campaign.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        campaign.kill()


if __name__ == "__main__":
    # As an exception, so that the campaign is ended too, and with it the jobs that it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
