"""Spark's Python workers, which collect new garbage only.

Spark's own worker collects garbage after each task, and so looks at all that it has imported: a tenth of a
second, where the task took milliseconds. Here what is left after a task is not looked at again.
"""

from __future__ import annotations

import gc
from types import SimpleNamespace

from pyspark import daemon


def collect_new() -> None:
    """Collect what became garbage since the last call."""
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    daemon.gc = SimpleNamespace(collect=collect_new)
    daemon.manager()
