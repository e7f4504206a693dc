"""A result is computed once a process, and a child computes its own."""

from __future__ import annotations

import os
import subprocess
import sys

from recbench_spark.storage.makers import cache_in_process


@cache_in_process(2)
def make_result(name: str, factor: int = 1) -> list[str]:
    return [name * factor, str(os.getpid())]


def test_a_result_is_made_once_and_the_oldest_goes_first() -> None:
    first = make_result("a")
    assert make_result("a") is first and make_result("b") is not first
    assert make_result("a", factor=2)[0] == "aa"
    assert make_result("a") is not first, "three results are kept, and two fit"
    assert make_result.__name__ == "make_result"


FORK = """
import os
from recbench_spark.storage.makers import this_maker

before = this_maker()
child = os.fork()
if not child:
    os._exit(this_maker().pid != os.getpid())
assert os.waitpid(child, 0)[1] == 0
assert this_maker() is before and before.pid == os.getpid()
"""


def test_a_child_makes_its_own() -> None:
    """In a process without threads, where a fork is safe."""
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
