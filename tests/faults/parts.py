"""The parts of the campaign, in the order in which they run; a part is loaded when it is run."""

from __future__ import annotations

from importlib import import_module

from tests.faults.campaign import Case, Part, Verdict


def part(name: str, aim: int, short: int, about: str) -> Part:
    """Return a part that imports `tests.faults.NAME` for its first case, since some parts need Spark."""

    def run(case: Case) -> Verdict:
        verdict: Verdict = import_module(f"tests.faults.{name}").run(case)
        return verdict

    return Part(name, about, run, aim, short)


ALL = (
    part("configs", 20_000, 1_500, "mutated benchmark files through load, check and dry run"),
    part("frames", 5_000, 499, "mutated tables through evaluate_frames"),
    part("scores", 3_000, 300, "mutated scores with training rows through recbench_spark.evaluate"),
    part("cells", 106, 49, "a cell that is no number in each column that a job takes"),
    part("local", 5_000, 150, "mutated tables as files through recbench evaluate --engine local"),
    part("spark", 400, 12, "mutated tables as files through recbench evaluate on Spark"),
    part("nights", 300, 6, "whole nights of mutated files on a log that the campaign wrote"),
    part("pairs", 300, 3, "two jobs at once in one warehouse, equal or different ones"),
    part("moved", 72, 2, "a warehouse moved or copied, and the next job"),
    part("disks", 68, 3, "every job on a disk that is full, and again with space"),
    part("names", 520, 3, "every job under every odd name of a folder"),
    part("kills", 60, 1, "kill -9 of every job, four times a warehouse, and its completion"),
    part("machine", 210, 7, "disks, paths, clocks, torn files, other users and jobs, one scenario a case"),
)
PARTS = {one.name: one for one in ALL}
