"""The harness of benches: turns, seconds and memory of process trees, rows, and paths of the scripts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jobs.bench import harness

BENCHES = sorted(path.name for path in (harness.ROOT / "jobs" / "bench").glob("*.py"))

BUSY = "import time\nuntil = time.process_time() + 0.4\nwhile time.process_time() < until: pass"
HOLDER = "held = bytearray(b'x' * 80_000_000)\nimport time; time.sleep(0.8)"
PARENT = "import subprocess, sys\nsys.exit(subprocess.run([sys.executable, '-c', sys.argv[1]]).returncode)"


def test_systems_take_turns_and_warm_ups_are_dropped() -> None:
    order = []
    systems = {name: lambda name=name: order.append(name) or len(order) for name in "ABC"}
    assert harness.take_turns(systems, 2, warm_ups=1) == {"A": [4, 7], "B": [5, 8], "C": [6, 9]}
    assert "".join(order) == "ABCABCABC"
    assert list(harness.order_turns("AB", 1, 1)) == [(-1, "A"), (-1, "B"), (0, "A"), (0, "B")]
    assert harness.take_turns(systems, 0) == {"A": [], "B": [], "C": []}


def test_ratios_are_of_the_same_round_and_noise_is_half_the_range() -> None:
    assert harness.divide_rounds([3.0, 8.0, 5.0], [1.0, 2.0]) == [3.0, 4.0]
    assert harness.make_figure([9.0, 10.0, 12.0]) == harness.Figure(10.0, 0.15)


def test_cpu_seconds_include_a_child_of_a_process() -> None:
    own = harness.measure_call(lambda: subprocess.run([sys.executable, "-c", PARENT, BUSY], check=True))
    assert own.cpu >= 0.4 and own.wall >= own.cpu / (os.cpu_count() or 1)
    idle = harness.measure_call(lambda: time.sleep(0.3))
    assert idle.wall >= 0.3 > idle.cpu
    run = harness.run_process([sys.executable, "-c", PARENT, BUSY])
    assert run.code == 0 and run.seconds.cpu >= 0.4


def test_the_peak_of_a_tree_is_sampled() -> None:
    run = harness.run_process([sys.executable, "-c", PARENT, HOLDER], sample_every=0.05)
    assert run.code == 0 and 80_000_000 < run.peak < 250_000_000
    assert 80_000_000 < max(run.largest.values()) <= run.peak
    assert harness.list_tree(2**22 + 1) == []  # no such process


LEAVER = (
    "import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', sys.argv[1]])\ntime.sleep(1.2)"
)


def test_cpu_seconds_of_a_child_that_nobody_waits_for_are_sampled() -> None:
    """A worker of Spark that its daemon leaves behind counted nothing."""
    seen = harness.run_process([sys.executable, "-c", LEAVER, BUSY]).seconds.cpu
    assert seen < 0.3
    run = harness.run_process([sys.executable, "-c", LEAVER, BUSY], sample_every=0.05)
    assert run.seconds.cpu > seen + 0.1  # a machine at work gives the child a part of its time


def test_a_process_reads_its_input_and_its_failure_is_visible() -> None:
    script = "import json, sys; print('a word'); print(json.dumps({'n': len(sys.stdin.read())}))"
    run = harness.run_process([sys.executable, "-c", script], given="four")
    assert harness.parse_rows(run) == [{"n": 4}] and run.errors == ""
    variables = "import os, sys; sys.exit(os.environ['WORD'] + os.environ['PYTHONPATH'])"
    run = harness.run_process([sys.executable, "-c", variables], environment={"WORD": "w"})
    assert run.code == 1 and run.errors.strip() == f"w{harness.ROOT}"


@pytest.mark.parametrize("every", [None, 0.05])
def test_an_interrupt_ends_the_process(monkeypatch, every) -> None:
    seen = []

    def interrupt(pid: int, options: int) -> None:
        seen.append(pid)
        raise KeyboardInterrupt

    monkeypatch.setattr(harness.os, "wait4", interrupt)
    with pytest.raises(KeyboardInterrupt):
        harness.run_process([sys.executable, "-c", "import time; time.sleep(60)"], sample_every=every)
    assert not Path(f"/proc/{seen[0]}").exists()


def test_each_round_is_a_row() -> None:
    rows = harness.list_rows({"benchmark": "b"}, {"A": [1.0, 2.0], "B": []})
    assert rows == [{"benchmark": "b", "system": "A", "round": n, "seconds": n + 1.0} for n in (0, 1)]


def test_rows_are_appended(tmp_path: Path) -> None:
    output = tmp_path / "new" / "rows.jsonl"
    for number in range(2):
        harness.append_rows(output, [{"n": number}])
    harness.append_rows(None, [{"n": 2}])
    assert list(map(json.loads, output.read_text().splitlines())) == [{"n": 0}, {"n": 1}]


@pytest.mark.parametrize("name", BENCHES)
def test_a_script_of_this_folder_finds_the_harness(name: str, tmp_path: Path) -> None:
    text = (harness.ROOT / "jobs" / "bench" / name).read_text()
    if "from jobs.bench" in text and "__main__" in text:
        path, harness_import = text.index("sys.path.insert(0"), text.index("\nfrom jobs.bench")
        assert path < harness_import


@pytest.mark.full
def test_a_bench_starts_by_its_path_from_another_folder(tmp_path: Path) -> None:
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    script = str(harness.ROOT / "jobs" / "bench" / "ranking.py")
    flags = ["--users", "8", "--items", "40", "--dims", "4", "--k", "3", "--rounds", "1"]
    done = subprocess.run(
        [sys.executable, script, *flags, "--systems", "product"],
        cwd=tmp_path, env=variables, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "of the bare product: 100 %" in done.stdout
