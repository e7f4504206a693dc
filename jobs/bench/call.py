"""Time one metric call on a small catalogue, beside WarpRec.

    python jobs/bench/call.py                            9 warm calls of each system in turns; half a minute
    python jobs/bench/call.py --systems lists,vectors    without WarpRec

The size is MovieLens 1M's: 6,040 users, 3,706 items, 17 held-out items, six metrics, three cut-offs.
`lists` gives this package lists with 50 items, `vectors` the vectors for users and items, so it also
computes the 22 million scores and the exact ranks of all held-out items; both give intervals. `warprec`
(in its environment, see `tools/library_envs.sh`) gets the score matrix, which is made before. Each system
has its own process with one thread. The job prints medians, and the CPU seconds of imports and first
call.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from jobs.bench.harness import ONE_THREAD, ROOT, add_output_flag, append_rows, take_turns
from recbench_spark import cli
from recbench_spark.errors import OK, DataError

USERS, ITEMS, HELD_OUT, DIMS, KS = 6040, 3706, 17, 32, (5, 10, 20)
SYSTEMS = ("lists", "vectors", "warprec")
SAME = 1e-6
"""Largest difference in a value: WarpRec computes in single precision."""


def parser() -> cli.Parser:
    """Make the flag parser."""
    flags = cli.Parser(__doc__ or "")
    flags.add_argument("--rounds", type=cli.parse_count, default=9)
    flags.add_argument("--systems", default=",".join(SYSTEMS), help="separated by commas")
    flags.add_argument("--users", type=cli.parse_count, default=USERS)
    add_output_flag(flags)
    return flags


def main(args: argparse.Namespace) -> int:
    """Call the systems in turns, and compare their values.

    Medians are printed.
    """
    with tempfile.TemporaryDirectory(prefix="call-") as folder:
        make_inputs(Path(folder), args.users)
        systems = {name: SystemProcess(name, folder) for name in args.systems.split(",")}
        cold = {name: system.call() for name, system in systems.items()}
        check_values(cold)
        calls = {name: partial(system.call) for name, system in systems.items()}
        warm = take_turns(calls, args.rounds, warm_ups=1)
        for system in systems.values():
            system.stop()
    for name, turns in warm.items():
        facts = {"benchmark": "call", "system": name}
        spent = [{"round": n, "wall": turn["wall"], "cpu": turn["cpu"]} for n, turn in enumerate(turns)]
        append_rows(args.output, [{**facts, **row} for row in spent])
    imports = {name: system.imports for name, system in systems.items()}
    print("\n".join(format_table(imports, cold, warm)))
    return OK


def make_inputs(folder: Path, users: int) -> None:
    """Write vectors, and items held out by chance."""
    draws = np.random.default_rng(42)
    for name, count in (("users", users), ("items", ITEMS)):
        np.save(folder / f"{name}.npy", draws.standard_normal((count, DIMS), dtype=np.float32))
    truth = np.stack([draws.choice(ITEMS, HELD_OUT, replace=False) for _ in range(users)])
    np.save(folder / "truth.npy", truth)


class SystemProcess:
    """A process that calls one system on demand."""

    def __init__(self, name: str, folder: str) -> None:
        """Start the process and wait for its imports."""
        libraries = Path(os.environ.get("RECBENCH_LIBRARIES", ROOT / ".venv-libraries"))
        python = str(libraries / "warprec/bin/python") if name == "warprec" else sys.executable
        script = str(Path(__file__).with_name("time_call.py"))
        command = [python, script, name, folder, ",".join(map(str, KS))]
        variables = {**os.environ, **ONE_THREAD, "PYTHONPATH": str(ROOT)}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=variables)
        self.imports = float(self._read()["cpu"])

    def call(self) -> dict[str, Any]:
        """Call once: wall seconds, CPU seconds and values."""
        stdin = cast(IO[str], self.process.stdin)
        stdin.write("\n")
        stdin.flush()
        return self._read()

    def stop(self) -> None:
        """End the process."""
        cast(IO[str], self.process.stdin).close()
        self.process.wait()

    def _read(self) -> dict[str, Any]:
        line = cast(IO[str], self.process.stdout).readline()
        if not line:
            raise DataError("a system ended before it answered", "see its error above")
        answer: dict[str, Any] = json.loads(line)
        return answer


def check_values(calls: dict[str, dict[str, Any]]) -> None:
    """Check that all systems give the same values.

    With grades of 1, their NDCG gains agree.

    Raises:
        DataError: a value differs.
    """
    first, *others = calls
    for name in others:
        for figure, value in calls[name]["values"].items():
            if abs(calls[first]["values"][figure] - value) > SAME:
                raise DataError(f"{figure} of {name} is {value}, not {calls[first]['values'][figure]}")


def format_table(
    imports: dict[str, float], cold: dict[str, dict[str, Any]], warm: dict[str, list[dict[str, Any]]]
) -> list[str]:
    """Return the CPU seconds as Markdown."""
    lines = ["| system | warm CPU, s (smallest, largest) | first call | imports |", "|---|---|---|---|"]
    for name, turns in warm.items():
        cpu = [turn["cpu"] for turn in turns]
        spread = f"{statistics.median(cpu):.3f} ({min(cpu):.3f}, {max(cpu):.3f})"
        lines.append(f"| {name} | {spread} | {cold[name]['cpu']:.2f} | {imports[name]:.2f} |")
    return lines


if __name__ == "__main__":
    cli.run(main, parser())
