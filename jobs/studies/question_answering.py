"""Study memory networks on generated questions.

    python jobs/studies/question_answering.py --output runs.jsonl
    python jobs/studies/question_answering.py --output runs.jsonl --tasks 2 --questions 10000 --hops 1,3
    python jobs/studies/question_answering.py --output runs.jsonl --tables   # of the fits in the file alone
    python jobs/studies/question_answering.py --quick                        # seconds, to see that it runs

The tasks are those of `jobs.studies.question_worlds`, after tasks 1, 2, 6, 12 and 15 of bAbI, with
sentences of our own. `joint` is one network for all five, trained on all their questions. Training is the
authors' (Sukhbaatar et al. 2015): position and temporal encoding, a linear start with 20 epochs at half
the rate, then 100 epochs; 10 % empty entries; see `jobs.studies.answers.AnswerPlan`. All weight seeds
have the same stories; 1,000 further stories for each task are the test.

Compared are errors by hops, tying and number of questions. A fit is a line in the output file, with its
errors on training and test questions. Fits whose lines are in the file are not made again, so a study
goes on where it was stopped. The tables show the test error of the fit with the lowest training error (as
the authors do), then the median with the least and the most over the seeds, in percent. `guess` is the
most frequent answer's error. One process, without Spark.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jobs.bench.harness import append_rows, format_markdown
from jobs.studies.answers import AnswerPlan, Questions, fit_answers, measure_error
from jobs.studies.question_worlds import TASKS, QuestionSet, number_stories, write_stories
from recbench_spark import cli
from recbench_spark.errors import OK, DataError
from recbench_spark.models.networks.memory import TYINGS, MemoryNetwork, MemoryShape, WordBags
from recbench_spark.runtime.journal import Journal

REVISION = 1
"""Revision for the lines.

Raise it when a story, a fit or an error changes.
"""

JOINT = "joint"
NAMES = (*map(str, TASKS), JOINT)
TEST_QUESTIONS, MOST_ENTRIES, SPARE = 1000, 50, 1.2
"""Test questions, largest memory, and room for empty entries.

The memory is the authors' largest; a smaller one has room for empty entries.
"""

QUICK = {"tasks": "1", "questions": (300,), "hops": (1,), "tyings": "adjacent", "seeds": 2, "epochs": 10}


class QuestionFit(NamedTuple):
    """A fit, identified by all its line depends on."""

    task: str
    questions: int
    tying: str
    hops: int
    seed: int
    dims: int
    epochs: int
    stories: int
    revision: int = REVISION


def parser() -> cli.Parser:
    """Make the flag parser."""
    flags = cli.Parser(__doc__ or "")
    flags.add_argument("--output", type=Path, help="file of fits; those in it are not made again")
    flags.add_argument("--tasks", default=",".join(NAMES), help=f"some of {','.join(NAMES)}")
    counts, count, sizes = cli.parse_counts, cli.parse_count, (1000, 10000)
    flags.add_argument("--questions", type=counts, default=sizes, help="training questions of a task")
    flags.add_argument("--hops", type=counts, default=(1, 2, 3))
    flags.add_argument("--tyings", default=",".join(TYINGS), help=f"some of {','.join(TYINGS)}")
    flags.add_argument("--seeds", type=count, default=10, help="seeds of weights: 1 to this number (10)")
    flags.add_argument("--dims", type=count, default=20, help="length of vectors (20)")
    flags.add_argument("--epochs", type=count, default=100, help="after a linear start of a fifth (100)")
    flags.add_argument("--stories", type=int, default=1, help="seed of the stories (1)")
    flags.add_argument("--quick", action="store_true", help="a study of seconds, whatever other flags say")
    flags.add_argument("--tables", action="store_true", help="fit nothing: print the tables of the file")
    return flags


def main(args: argparse.Namespace) -> int:
    """Make the missing fits, and print tables.

    The tables show all fits named by the flags.
    """
    if args.quick:
        vars(args).update(QUICK)
    fits, lines = list_fits(args), read_lines(args.output)
    if not args.tables:
        lines |= run_fits([fit for fit in fits if fit not in lines], args.output)
    known = [lines[fit] for fit in fits if fit in lines]
    if not known:
        raise DataError("no fit to show", "leave --tables out, or name the file that --output wrote")
    print("\n\n".join(make_tables(known)))
    return OK


def list_fits(args: argparse.Namespace) -> list[QuestionFit]:
    """List the fits named by the flags, seed by seed."""
    tasks = cli.parse_names(args.tasks, "--tasks", NAMES)
    tyings = cli.parse_names(args.tyings, "--tyings", TYINGS)
    seeds = range(1, args.seeds + 1)
    sizes = product(args.questions, seeds, tasks, tyings, args.hops)
    return [
        QuestionFit(task, questions, tying, hops, seed, args.dims, args.epochs, args.stories)
        for questions, seed, task, tying, hops in sizes
    ]


def read_lines(path: Path | None) -> dict[QuestionFit, dict[str, Any]]:
    """Read a file's lines by their fits.

    A file that does not exist has none. A last line without its end, as a killed study leaves it, is left
    out.
    """
    if path is None or not path.exists():
        return {}
    lines = [json.loads(line) for line in read_whole_lines(path).splitlines() if line]
    return {QuestionFit(*(line[name] for name in QuestionFit._fields)): line for line in lines}


def read_whole_lines(path: Path) -> str:
    """Read a file up to its last line break."""
    text = path.read_text(encoding="utf-8")
    return text[: text.rfind("\n") + 1]


def run_fits(fits: list[QuestionFit], path: Path | None) -> dict[QuestionFit, dict[str, Any]]:
    """Make fits one by one, appending a line for each.

    A half line in the file is cut off.
    """
    journal, lines = Journal(), {}
    if fits and path is not None and path.exists():
        path.write_text(read_whole_lines(path), encoding="utf-8")
    worlds: dict[tuple[Any, ...], QuestionWorld] = {}
    for number, fit in enumerate(fits, 1):
        key = (fit.task, fit.questions, fit.stories)
        if key not in worlds:
            worlds[key] = make_world(*key)
        lines[fit] = run_fit(fit, worlds[key])
        journal.say(f"{number} of {len(fits)}: {json.dumps(lines[fit])}")
        append_rows(path, [lines[fit]])
    return lines


class QuestionWorld(NamedTuple):
    """The questions of a task, or of all tasks.

    Attributes:
        numbered: all questions.
        train: training questions.
        tests: each task's test questions.
        guesses: each task's error with the most frequent training answer.
    """

    numbered: QuestionSet
    train: Questions
    tests: dict[str, Questions]
    guesses: dict[str, float]


def make_world(task: str, questions: int, seed: int) -> QuestionWorld:
    """Write a task's stories, or all, and divide them.

    The parts are training and test.
    """
    tasks = TASKS if task == JOINT else (int(task),)
    size = questions + TEST_QUESTIONS
    numbered = number_stories([story for one in tasks for story in write_stories(one, size, seed)])
    part = np.arange(len(numbered.query)) % size < questions
    tests, guesses = {}, {}
    for place, one in enumerate(tasks):
        rows = np.arange(place * size, (place + 1) * size)
        tests[str(one)] = Questions(*numbered.select(rows[questions:])[2:])
        guesses[str(one)] = measure_guess(numbered, rows[:questions], rows[questions:])
    train = Questions(*numbered.select(np.flatnonzero(part))[2:])
    return QuestionWorld(numbered, train, tests, guesses)


def measure_guess(numbered: QuestionSet, train: np.ndarray, test: np.ndarray) -> float:
    """Return the most frequent training answer's error.

    Among equally frequent ones it is the first word.
    """
    answer = np.array(numbered.words)[numbered.answer]
    words, counts = np.unique(answer[train], return_counts=True)
    return float((answer[test] != words[counts.argmax()]).mean())


def run_fit(fit: QuestionFit, world: QuestionWorld) -> dict[str, Any]:
    """Make one fit, and return its line."""
    numbered, start = world.numbered, time.process_time()
    longest = min(int(SPARE * numbered.memory.shape[1]) + 1, MOST_ENTRIES)
    shape = MemoryShape(len(numbered.words), fit.dims, longest, fit.hops, fit.tying)
    network = MemoryNetwork(shape, fit.seed)
    halving = max(fit.epochs // 4, 1)
    plan = AnswerPlan(epochs=fit.epochs, linear_start=fit.epochs // 5, halving=halving, seed=fit.seed)
    fit_answers(network, numbered.entries, world.train, plan)
    bags = WordBags(numbered.entries, len(numbered.words))
    errors = {task: measure_error(network, bags, test) for task, test in world.tests.items()}
    return {
        **fit._asdict(),
        "train_error": measure_error(network, bags, world.train),
        "test_errors": errors,
        "guesses": world.guesses,
        "seconds": round(time.process_time() - start, 1),
    }


# ------------------------------------------------------------------------------------------- tables


def make_tables(lines: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a table for each number of questions.

    Single tasks come first, then the joint network.
    """
    grouped: dict[tuple[bool, int], list[dict[str, Any]]] = {}
    for line in lines:
        grouped.setdefault((line["task"] == JOINT, line["questions"]), []).append(line)
    for is_joint, questions in sorted(grouped):
        title = f"{questions:,} questions of each task, {'joint' if is_joint else 'each task alone'}"
        yield f"{title}:\n\n{make_table(grouped[is_joint, questions])}"


def make_table(lines: list[dict[str, Any]]) -> str:
    """Make a table with tyings and hops by task.

    Rows are tyings with a number of hops; columns are tasks.
    """
    tasks = [str(task) for task in TASKS if any(str(task) in line["test_errors"] for line in lines)]
    guesses = {task: error for line in lines for task, error in line["guesses"].items()}
    rows = [["guess", "", "", *(f"{100 * guesses[task]:.1f}" for task in tasks)]]
    for tying, hops in sorted({(line["tying"], line["hops"]) for line in lines}):
        own = [line for line in lines if (line["tying"], line["hops"]) == (tying, hops)]
        by_task = [[line for line in own if task in line["test_errors"]] for task in tasks]
        counts = sorted({len(part) for part in by_task if part})
        cells = [format_errors(part, task) for part, task in zip(by_task, tasks, strict=True)]
        rows.append([tying, str(hops), " to ".join(map(str, counts[:: len(counts) - 1 or 1])), *cells])
    return format_markdown(["tying", "hops", "seeds", *(f"task {task}" for task in tasks)], rows)


def format_errors(lines: list[dict[str, Any]], task: str) -> str:
    """Format a task's test errors.

    First comes the error of the fit with the lowest training error, then median, least and most.
    """
    if not lines:
        return "not run"
    errors = [100 * line["test_errors"][task] for line in lines]
    best = errors[int(np.argmin([line["train_error"] for line in lines]))]
    return f"{best:.1f}, {np.median(errors):.1f} ({min(errors):.1f} to {max(errors):.1f})"


if __name__ == "__main__":
    cli.run(main, parser())
