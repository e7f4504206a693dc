"""What all parts share: cases by number, the ledger, a line a failure with its reproducer."""

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
    """One fault: what is drawn for it follows from part, seed and number alone."""

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
    """How a case ended. `about`: what was tried and how the product answered, for the tallies."""

    status: str = PASSED
    told: str = ""
    about: list[str] = field(default_factory=list)

    @classmethod
    def failed(cls, told: str, *about: str) -> Verdict:
        return cls(FAILED, told, list(about))

    @classmethod
    def of(cls, wrong: object, told: str, *about: str) -> Verdict:
        """Failed where something is wrong."""
        return cls.failed(f"{told}: {wrong}", *about) if wrong else cls(about=list(about))

    @classmethod
    def skipped(cls, why: str, *about: str) -> Verdict:
        return cls(SKIPPED, why, list(about))


@dataclass(frozen=True)
class Part:
    """A kind of faults. `aim`: cases of a whole campaign; `short`: those of CI."""

    name: str
    about: str
    run: Callable[[Case], Verdict]
    aim: int
    short: int
    spark: bool = False


class Ledger:
    """Verdicts of earlier runs of the same code: a campaign that was stopped goes on where it stood."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file, self.code = folder / "faults.jsonl", digest_of_code()
        self.known: dict[str, Verdict] = {}
        if self.file.exists() and not self.file.read_bytes().endswith(b"\n"):
            with self.file.open("a") as out:  # the last line was torn: the next one must not be
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


def digest_of_code(folders: Sequence[str] = (*PRODUCT, "tests/faults")) -> str:
    """Of the package, the jobs and the campaign itself: another code is tried anew."""
    found = hashlib.sha256()
    for folder in folders:
        for file in sorted((ROOT / folder).rglob("*.py")):
            found.update(str(file.relative_to(ROOT)).encode() + file.read_bytes())
    return found.hexdigest()[:16]


def run_part(
    part: Part, seed: int, numbers: Sequence[int], folder: Path, until: float, resumed: bool = True
) -> bool:
    """Try cases until they, or the time, are over; tell of each failure and of all; whether all held.

    `resumed`: what is known of a case is not tried again. What cases share in `folder` stays either way.
    """
    ledger, place = Ledger(folder), folder / part.name
    place.mkdir(parents=True, exist_ok=True)
    done: list[tuple[Case, Verdict]] = []
    begun = time.monotonic()
    for number in numbers:
        case = Case(part.name, seed, number, place)
        known = ledger.known.get(case.name) if resumed else None
        if known is None and time.monotonic() > until:
            break
        verdict = known or tried(part, case)
        if known is None:
            ledger.keep(case, verdict)
        if verdict.status == FAILED:
            print(f"FAILED {case.name}: {verdict.told}\n  {case.reproducer}", flush=True)
        done.append((case, verdict))
    tell(part, seed, [verdict for _, verdict in done], len(numbers), time.monotonic() - begun)
    return all(verdict.status != FAILED for _, verdict in done)


PANIC = "PanicException"
"""What a library written in Rust raises where it breaks: no Exception, so that nobody takes it for one."""


def tried(part: Part, case: Case) -> Verdict:
    """The verdict; an error of the campaign itself is a failure too."""
    try:
        return part.run(case)
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != PANIC:
            raise
        trace = " | ".join(traceback.format_exc(limit=-3).split("\n")[-8:])
        return Verdict.failed(f"the campaign broke: {type(error).__name__}: {error}: {trace}")


def tell(part: Part, seed: int, verdicts: Sequence[Verdict], wanted: int, seconds: float) -> None:
    """The figures of a part: how many of what, what was skipped and why."""
    n = Counter(verdict.status for verdict in verdicts)
    short = f" of {wanted} asked for" if len(verdicts) < wanted else ""
    print(
        f"{part.name}: {len(verdicts)} cases{short}, seed {seed}: {n[PASSED]} passed, {n[FAILED]} failed, "
        f"{n[SKIPPED]} skipped; {seconds:.0f} s"
    )
    tallies = Counter(word for verdict in verdicts for word in verdict.about)
    for word, count in sorted(tallies.items()):
        print(f"  {count:7} {word}")
    for why, count in Counter(v.told for v in verdicts if v.status == SKIPPED).items():
        print(f"  {count:7} skipped: {why}")
    sys.stdout.flush()
