"""Common code of all parts: cases by number, the ledger, and a line per failure with its reproducer."""

from __future__ import annotations

import hashlib
import json
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


@dataclass(frozen=True)
class Case:
    """One fault; everything random in it follows from part, seed and number alone."""

    part: str
    seed: int
    number: int
    place: Path
    """A folder of the part, kept between cases; a case clears what it leaves there."""

    @property
    def name(self) -> str:
        return f"{self.part}/{self.seed}/{self.number}"

    @property
    def reproducer(self) -> str:
        return f"python -m tests.faults {self.part} --seed {self.seed} --only {self.number}"

    def draw(self) -> random.Random:
        return random.Random(self.name)  # the text is hashed: the same on every machine


@dataclass
class Verdict:
    """The result of a case.

    Attributes:
        status: passed, failed or skipped.
        message: the failure, or the reason to skip.
        about: what was tried and the product's answer, for the tallies.
    """

    status: str = PASSED
    message: str = ""
    about: list[str] = field(default_factory=list)

    @classmethod
    def fail(cls, message: str, *about: str) -> Verdict:
        return cls(FAILED, message, list(about))

    @classmethod
    def judge(cls, wrong: object, case: str, *about: str) -> Verdict:
        """Return a failure where something is wrong, else a pass."""
        return cls.fail(f"{case}: {wrong}", *about) if wrong else cls(about=list(about))

    @classmethod
    def skip(cls, why: str, *about: str) -> Verdict:
        return cls(SKIPPED, why, list(about))


@dataclass(frozen=True)
class Part:
    """A kind of faults. `aim` is the number of cases of a whole campaign, `short` that of CI."""

    name: str
    about: str
    run: Callable[[Case], Verdict]
    aim: int
    short: int
    spark: bool = False


class Ledger:
    """Verdicts of earlier runs of the same code, from which a stopped campaign resumes."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file, self.code = folder / "faults.jsonl", code_digest()
        self.known: dict[str, Verdict] = {}
        if self.file.exists() and not self.file.read_bytes().endswith(b"\n"):
            with self.file.open("a") as out:  # the last line is incomplete; the next one must not join it
                out.write("\n")
        for row in self._rows():
            code, name = row.pop("code"), row.pop("case")
            if code == self.code:
                self.known[name] = Verdict(**row)

    def _rows(self) -> Iterator[dict[str, Any]]:
        if self.file.exists():
            for line in self.file.read_text(encoding="utf-8").splitlines():
                try:
                    yield json.loads(line)
                except ValueError:  # killed while it wrote
                    continue

    def keep(self, case: Case, verdict: Verdict) -> None:
        self.known[case.name] = verdict
        with self.file.open("a", encoding="utf-8") as out:
            out.write(json.dumps({"code": self.code, "case": case.name, **asdict(verdict)}) + "\n")


PRODUCT = ("recbench_spark", "jobs")


def code_digest(folders: Sequence[str] = (*PRODUCT, "tests/faults")) -> str:
    """Return a digest of the package, the jobs and the campaign itself; changed code is tried again."""
    digest = hashlib.sha256()
    for folder in folders:
        for file in sorted((ROOT / folder).rglob("*.py")):
            digest.update(str(file.relative_to(ROOT)).encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def run_part(
    part: Part, seed: int, numbers: Sequence[int], folder: Path, until: float, resumed: bool = True
) -> bool:
    """Try cases until they, or the time, are over; report each failure and the totals; return whether all
    passed.

    With `resumed`, cases with a known verdict are not tried again. Files that cases share in `folder` stay.
    """
    ledger, place = Ledger(folder), folder / part.name
    place.mkdir(parents=True, exist_ok=True)
    done: list[tuple[Case, Verdict]] = []
    start = time.monotonic()
    for number in numbers:
        case = Case(part.name, seed, number, place)
        known = ledger.known.get(case.name) if resumed else None
        if known is None and time.monotonic() > until:
            break
        verdict = known or try_case(part, case)
        if known is None:
            ledger.keep(case, verdict)
        if verdict.status == FAILED:
            print(f"FAILED {case.name}: {verdict.message}\n  {case.reproducer}", flush=True)
        done.append((case, verdict))
    print_tallies(part, seed, [verdict for _, verdict in done], len(numbers), time.monotonic() - start)
    return all(verdict.status != FAILED for _, verdict in done)


PANIC = "PanicException"
"""Name of the error that a library written in Rust raises where it breaks; it is no Exception."""


def try_case(part: Part, case: Case) -> Verdict:
    """Return the verdict of a case; an error of the campaign itself is a failure, too."""
    try:
        return part.run(case)
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != PANIC:
            raise
        trace = " | ".join(traceback.format_exc(limit=-3).split("\n")[-8:])
        return Verdict.fail(f"the campaign broke: {type(error).__name__}: {error}: {trace}")


def print_tallies(part: Part, seed: int, verdicts: Sequence[Verdict], wanted: int, seconds: float) -> None:
    """Print the figures of a part: counts by status, tallies, and reasons to skip."""
    n = Counter(verdict.status for verdict in verdicts)
    short = f" of {wanted} asked for" if len(verdicts) < wanted else ""
    print(
        f"{part.name}: {len(verdicts)} cases{short}, seed {seed}: {n[PASSED]} passed, {n[FAILED]} failed, "
        f"{n[SKIPPED]} skipped; {seconds:.0f} s"
    )
    tallies = Counter(word for verdict in verdicts for word in verdict.about)
    for word, count in sorted(tallies.items()):
        print(f"  {count:7} {word}")
    for why, count in Counter(v.message for v in verdicts if v.status == SKIPPED).items():
        print(f"  {count:7} skipped: {why}")
    sys.stdout.flush()
