#!/usr/bin/env python3
"""Mutation test: one token is changed at a time, and a test must fail.

    python tools/mutants.py --count 100 --seed 1 [--files 'splits/kernels/*'] [--folder DIR]
    python tools/mutants.py --count 100 --seed 1 --killed-before OLD/mutants.jsonl --seconds 500
    python tools/mutants.py --count 40 --seed 1 --packages night metrics storage models --near

A site is an operator or a number in the kernels of recbench_spark, except in annotations, imports and
texts. A hash of seed and site draws `--count` of them. Each is changed in a copy of the package, where the
tests of its file, then of its folder, then of all kernels run until one fails. With `--packages` sites are
those of these folders, and the tests are those of the file, then those that import it (or, where none does,
what imports it), then those of its folder. All of them must pass without the change. Tests with Spark run
with `--spark` alone.

The tool prints a line for each survivor. Those of tools/mutants_equivalent.yaml change
no number, with a reason each, and are listed separately. Results are appended to DIR/mutants.jsonl (default
warehouse/mutants), and a second run of a seed continues there while the code is the same. Exit code 1: a
survivor is not listed; 3: `--seconds` ended the run before all were tried. The tool uses one core; a mutant
takes seconds to a minute.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import io
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from itertools import islice
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "recbench_spark"
EQUIVALENTS_FILE = ROOT / "tools" / "mutants_equivalent.yaml"
SWAPS = {
    **{"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="},
    **{"+": "-", "-": "+", "*": "+", "/": "*", "//": "*", "%": "//", "<<": ">>", ">>": "<<"},
    **{"+=": "-=", "-=": "+=", "*=": "+=", "/=": "*=", "&": "|", "|": "&", "and": "or", "or": "and"},
}
STAGE_TIMEOUT = 150
"""Seconds that a stage may take beyond three times its usual time. A mutant that loops forever ends
there."""
DID_NOT_END = "did not end"
NO_KERNELS = ("compile_kernels.py", "warm_kernels.py")
"""Names of files that call kernels only to compile them, and check no number."""
KERNELS = "kernels"
"""Folder of kernels in each room."""


@dataclass(frozen=True)
class Mutant:
    """A change of one token: `path` below the package, line from 1, column from 0."""

    path: str
    line: int
    column: int
    before: str
    after: str
    text: str
    nth: int

    @property
    def name(self) -> str:
        """Name in the list of equivalents and in draws: without the line number, which changes."""
        change = f"{self.column - self.indent}: {self.before} -> {self.after}"
        return f"{self.path}: {self.text.strip()} [{change}]" + (f" ({self.nth})" if self.nth > 1 else "")

    @property
    def indent(self) -> int:
        """Blanks before the statement."""
        return len(self.text) - len(self.text.lstrip())


def parser() -> argparse.ArgumentParser:
    """Make the parser of the flags."""
    words = argparse.RawDescriptionHelpFormatter
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=words)
    flags.add_argument("--count", type=int, default=100, help="mutants drawn (default 100)")
    flags.add_argument("--seed", type=int, default=1, help="of the draw")
    flags.add_argument("--files", default="**/kernels/*.py", help="pattern below recbench_spark")
    flags.add_argument("--packages", nargs="+", help="folders of recbench_spark, in the place of --files")
    flags.add_argument("--spark", action="store_true", help="run tests with Spark, too")
    flags.add_argument("--folder", type=Path, default=Path("warehouse/mutants"), help="copy and results")
    flags.add_argument("--near", action="store_true", help="not the last, widest tests: more may survive")
    flags.add_argument("--only", help="mutants whose name holds this text")
    flags.add_argument(
        "--killed-before", type=Path, help="results of older code: what it killed is left out"
    )
    flags.add_argument("--seconds", type=float, default=math.inf, help="try no further mutant after them")
    flags.add_argument("--list", action="store_true", help="print what would be tried, and stop")
    return flags


def main(argv: list[str] | None = None) -> int:
    """Draw mutants, try them and report; return 1 if a survivor is not listed as equivalent."""
    args = parser().parse_args(argv)
    killed_before = read_killed(args.killed_before) if args.killed_before else set()
    patterns = [f"{name}/**/*.py" for name in args.packages] if args.packages else [args.files]
    every = draw(patterns, args.seed, args.count, args.only)
    drawn = [mutant for mutant in every if mutant.name not in killed_before]
    if args.list:
        print("\n".join(mutant.name for mutant in drawn))
        return 0
    trial = MutantTrials(args.folder.absolute(), near=args.near, spark=args.spark)
    listed = yaml.safe_load(EQUIVALENTS_FILE.read_text(encoding="utf-8")) or {}
    survivors, begun = [], time.monotonic()
    for number, mutant in enumerate(drawn, 1):
        if time.monotonic() - begun > args.seconds:
            print(f"{number - 1} of {len(drawn)} tried; the same command continues")
            return 3
        killer = trial.find_killer(mutant)
        how = DID_NOT_END if DID_NOT_END in killer else "killed" if killer else "SURVIVED"
        print(f"{number}/{len(drawn)} {how:11} {mutant.name}", flush=True)
        if not killer:
            survivors.append(mutant)
    unknown = [mutant for mutant in survivors if mutant.name not in listed]
    killed, same = len(drawn) - len(survivors), len(survivors) - len(unknown)
    print(f"{killed} of {len(drawn)} killed, {same} listed as equivalent, seed {args.seed}")
    for mutant in unknown:
        print(f"survivor: {PACKAGE}/{mutant.path}:{mutant.line} {mutant.name}")
    return int(bool(unknown))


def read_killed(results: Path) -> set[str]:
    """Read the names of the mutants that a test killed."""
    rows = map(json.loads, results.read_text(encoding="utf-8").splitlines())
    return {row["key"].split("|", 1)[1] for row in rows if row["killer"]}


def draw(patterns: list[str], seed: int, count: int, only: str | None) -> list[Mutant]:
    """Draw `count` mutants of all sites by a hash of seed and name, independent of line numbers."""

    def place(mutant: Mutant) -> bytes:
        return hashlib.sha256(f"{seed}|{mutant.name}".encode()).digest()

    globbed = {file for pattern in patterns for file in (ROOT / PACKAGE).glob(pattern)}
    places = (file for file in globbed if file.suffix == ".py")
    files = sorted(file for file in places if file.name not in NO_KERNELS)
    mutants = [
        mutant for file in files for mutant in find_mutants(file) if only is None or only in mutant.name
    ]
    return list(islice(filter(is_valid_source, sorted(mutants, key=place)), count))


def find_mutants(file: Path) -> Iterator[Mutant]:
    """Return every mutant of a file."""
    source = file.read_text(encoding="utf-8")
    lines = source.splitlines()
    left_out, seen = find_annotations(ast.parse(source)), Counter[tuple[str, int]]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        line, column = token.start
        after = replacement_token(token)
        if after is None or any(low <= token.start < high for low, high in left_out):
            continue
        text = lines[line - 1]
        place = (text.strip(), column - len(text) + len(text.lstrip()))
        seen[place] += 1  # the same line can occur twice in a file
        path = str(file.relative_to(ROOT / PACKAGE))
        yield Mutant(path, line, column, token.string, after, text, seen[place])


def is_valid_source(mutant: Mutant) -> bool:
    """Return whether Python can parse the changed file."""
    try:
        ast.parse(apply_mutant((ROOT / PACKAGE / mutant.path).read_text(encoding="utf-8"), mutant))
    except SyntaxError:
        return False
    return True


def replacement_token(token: tokenize.TokenInfo) -> str | None:
    """Return the replacement of a token: another operator, or another number."""
    if token.type == tokenize.NUMBER:
        return next_number(token.string)
    if token.type in (tokenize.OP, tokenize.NAME):
        return SWAPS.get(token.string)
    return None


def next_number(text: str) -> str | None:
    """Return a whole number plus 1, any other number times 2 (0.0: 1.0)."""
    value = ast.literal_eval(text)
    if isinstance(value, int):
        return hex(value + 1) if text.lower().startswith("0x") else str(value + 1)
    return repr(value * 2 or 1.0) if isinstance(value, float) else None


def find_annotations(tree: ast.Module) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return the spans of imports and types, which change no number."""
    nodes: list[ast.AST] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            nodes.append(node)
        elif isinstance(node, ast.FunctionDef):
            every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            types = [arg.annotation for arg in (*every, node.args.vararg, node.args.kwarg) if arg]
            nodes += [node_type for node_type in (*types, node.returns) if node_type is not None]
        elif isinstance(node, ast.AnnAssign):
            nodes.append(node.annotation)
    return [
        ((n.lineno, n.col_offset), (n.end_lineno, n.end_col_offset))  # type: ignore[attr-defined]
        for n in nodes
    ]


def apply_mutant(source: str, mutant: Mutant) -> str:
    """Return the source with one token changed."""
    lines = source.splitlines(keepends=True)
    line = lines[mutant.line - 1]
    end = mutant.column + len(mutant.before)
    lines[mutant.line - 1] = line[: mutant.column] + mutant.after + line[end:]
    return "".join(lines)


def copy_project(copy: Path) -> None:
    """Copy all that the tests and the fault campaign need."""
    shutil.rmtree(copy, ignore_errors=True)
    rubbish = shutil.ignore_patterns("__pycache__", ".numba")
    for name in (PACKAGE, "tests", "conf", "docs", "jobs", "tools"):
        shutil.copytree(ROOT / name, copy / name, ignore=rubbish)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, copy / name)


class MutantTrials:
    """A copy of package and tests in which mutants are tried one by one."""

    def __init__(self, folder: Path, *, near: bool = False, spark: bool = False) -> None:
        self.near, self.spark = near, spark
        self.folder, self.results = folder, folder / "mutants.jsonl"
        self.copy = folder / "copy"
        copy_project(self.copy)
        self.digest = hashlib.sha256()
        for file in sorted(p for name in (PACKAGE, "tests") for p in (self.copy / name).rglob("*.py")):
            self.digest.update(file.read_bytes())
        self.known = {row["key"]: row for row in self.rows()}
        self.sound: dict[str, float] = {}
        uses = find_uses(self.copy)
        self.importers = {name: list_affected_files(name, uses) for name in uses}

    def rows(self) -> Iterator[dict[str, str]]:
        """Return the results of earlier runs."""
        if self.results.exists():
            for line in self.results.read_text(encoding="utf-8").splitlines():
                yield json.loads(line)

    def find_killer(self, mutant: Mutant) -> str:
        """Return the tests that failed, empty for a survivor; results for the same code are reused."""
        key = f"{self.digest.hexdigest()[:16]}|{mutant.name}"
        if key in self.known and (self.known[key]["killer"] or (self.near and not self.spark)):
            return self.known[key]["killer"]
        killer = next(
            filter(None, (self.find_failing_stage(mutant, stage) for stage in self.stages(mutant.path))), ""
        )
        with self.results.open("a", encoding="utf-8") as out:
            out.write(json.dumps({"key": key, "killer": killer, **asdict(mutant)}) + "\n")
        return killer

    def stages(self, path: str) -> list[str]:
        """Return the stages of tests; with `near`, without the slow stage of all kernels."""
        near_stages = list(stages(path, self.copy))
        return near_stages[:-1] if self.near and len(near_stages) > 1 else near_stages

    def find_failing_stage(self, mutant: Mutant, stage: str) -> str:
        """Apply a mutant and run a stage; return the stage if a test fails, else an empty text."""
        self.check(stage)
        file = self.copy / PACKAGE / mutant.path
        source = file.read_text(encoding="utf-8")
        try:
            file.write_text(apply_mutant(source, mutant), encoding="utf-8")
            self.clear_machine_code(mutant.path)
            return self.run_stage(stage)
        finally:
            file.write_text(source, encoding="utf-8")
            self.clear_machine_code(mutant.path)

    def check(self, stage: str) -> None:
        """Check that a stage passes without a change: a failing test would see every mutant."""
        begun = time.monotonic()
        if stage not in self.sound and self.run_stage(stage):
            sys.exit(f"{stage} fails in {self.copy} though nothing is changed: look there first")
        self.sound.setdefault(stage, time.monotonic() - begun)

    def clear_machine_code(self, path: str) -> None:
        """Delete compiled code of the file and its users: numba checks the time of one file only."""
        stems = {Path(name).stem for name in self.importers.get(f"{PACKAGE}/{path}", {path}) | {path}}
        for cached in (self.folder / "numba").rglob("*.nb*"):
            if cached.name.split(".")[0] in stems:
                cached.unlink()

    def run_stage(self, stage: str) -> str:
        """Run tests; return the stage if one fails. The text of a timeout says so."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        marks = "not slow and not data" if self.spark else "not slow and not spark and not data"
        chosen = ["-m", marks, *stage.split()]
        here = {
            "NUMBA_CACHE_DIR": str(self.folder / "numba"),
            "PYTHONPATH": str(self.copy),
            "PYTHONDONTWRITEBYTECODE": "1",  # a changed token may leave the size and the second of a file
        }
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
        tests = subprocess.Popen([*command, *chosen], cwd=self.copy, env={**os.environ, **here}, **silent)  # type: ignore[call-overload]
        try:
            code = tests.wait(STAGE_TIMEOUT + 3 * self.sound.get(stage, STAGE_TIMEOUT))
        except subprocess.TimeoutExpired:
            os.killpg(tests.pid, signal.SIGKILL)
            tests.wait()
            return f"{stage} ({DID_NOT_END})"
        if code > 0 and code not in (1, 2, 5):  # 2: import error, 5: no tests
            raise RuntimeError(
                f"pytest itself broke, with {code}: {' '.join(command)} {stage} in {self.copy}"
            )
        return stage if code in (1, 2) or code < 0 else ""  # below 0: the interpreter crashed


def stages(path: str, root: Path) -> Iterator[str]:
    """Return stages of tests by distance: of the file, of its users, of its folder, of all kernels."""
    here = Path("tests") / path
    own = here.with_name(f"test_{here.name}")
    if (root / own).exists():
        yield str(own)
    is_kernel = here.parent.name == KERNELS
    if not is_kernel and (users := list_nearest_tests(f"{PACKAGE}/{path}", find_uses(root))):
        yield " ".join(users)
    if (root / here.parent).exists():
        yield str(here.parent)
    if is_kernel:
        yield " ".join(sorted(str(folder.relative_to(root)) for folder in (root / "tests").rglob(KERNELS)))


@cache
def find_uses(root: Path) -> dict[str, set[str]]:
    """Return for each file of package and tests, below a root, the files that import it."""
    uses: dict[str, set[str]] = {}
    for file in (file for name in (PACKAGE, "tests") for file in (root / name).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                module = Path(*node.module.split("."))
                for end in (module, *(module / alias.name for alias in node.names)):
                    uses.setdefault(f"{end}.py", set()).add(str(file.relative_to(root)))
    return uses


def list_nearest_tests(name: str, uses: dict[str, set[str]]) -> list[str]:
    """Return the test files that import a file; where none does, those of the files that import it."""
    seen, ahead = {name}, {name}
    while ahead:
        ahead = set().union(*(uses.get(one, set()) for one in ahead)) - seen
        if tests := sorted(one for one in ahead if Path(one).name.startswith("test_")):
            return tests
        seen |= ahead
    return []


def list_affected_files(name: str, uses: dict[str, set[str]]) -> set[str]:
    """Return all files that a change of `name` can affect."""
    affected, ahead = {name}, [name]
    while ahead:
        new = uses.get(ahead.pop(), set()) - affected
        affected |= new
        ahead += new
    return affected


if __name__ == "__main__":
    sys.exit(main())
