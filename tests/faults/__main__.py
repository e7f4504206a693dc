"""The fault campaign: search for faults of the product before users meet them.

    python -m tests.faults [PART ...] [--seed 1] [--count N] [--minutes M] [--folder warehouse/faults]
    python -m tests.faults configs --seed 1 --only 42       # one case again

`--list` shows each part and how many cases a whole campaign has. Verdicts are stored in
FOLDER/faults.jsonl: a stopped campaign resumes, and changed code is tried again. Each failure is a line
with the command that reproduces it. Cases that cannot be tried here are reported as skipped, never as
passed. The exit code is 1 where anything failed.
"""

from __future__ import annotations

import argparse
import fcntl
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.faults import campaign
from tests.faults.parts import PARTS


def parser() -> argparse.ArgumentParser:
    words = argparse.RawDescriptionHelpFormatter
    flags = argparse.ArgumentParser(
        prog="python -m tests.faults", description=__doc__, formatter_class=words
    )
    flags.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: all)")
    flags.add_argument("--seed", type=int, default=1, help="of what is drawn (default 1)")
    flags.add_argument("--count", type=int, help="cases of each part (default: those of a whole campaign)")
    flags.add_argument("--short", action="store_true", help="the few cases of each part that CI runs")
    flags.add_argument("--only", type=int, nargs="+", help="these cases alone, also where known already")
    flags.add_argument("--minutes", type=float, default=1e6, help="begin no case after so long")
    flags.add_argument("--folder", type=Path, default=Path("warehouse/faults"), help="verdicts and scratch")
    flags.add_argument("--list", action="store_true", help="say what each part does, and stop")
    return flags


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    if args.list:
        for part in PARTS.values():
            print(f"{part.name:10} {part.aim:6} {part.about}")
        return 0
    unknown = sorted(set(args.parts) - set(PARTS))
    if unknown:
        parser().error(f"no part {unknown[0]}; known: {', '.join(PARTS)}")
    until = time.monotonic() + 60 * args.minutes
    folder = args.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    lock = (folder / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        parser().error(f"another campaign is at work in {folder}: give --folder")
    passed = [
        campaign.run_part(
            PARTS[name], args.seed, choose_numbers(PARTS[name], args), folder, until, args.only is None
        )
        for name in args.parts or PARTS
    ]
    return int(not all(passed))


class Stopped(BaseException):
    """SIGTERM: no job handles it as its own end, and the processes that a case started are ended."""


def stop(number: int, frame: object) -> None:
    raise Stopped


def choose_numbers(part: campaign.Part, args: argparse.Namespace) -> Sequence[int]:
    if args.only is not None:
        return list(args.only)
    return range(args.count or (part.short if args.short else part.aim))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)
    sys.exit(main())
