"""Spark's daemon of Python workers, with the libraries of a worker loaded before it forks them.

A campaign starts hundreds of workers, and each would spend seconds on the same imports. Nothing of the
product is imported here: what a worker does is what it does without.
"""

from __future__ import annotations

from importlib import import_module

from pyspark import daemon

for name in (
    "numba",
    "numpy",
    "pandas",
    "pyarrow.compute",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "pydantic",
):
    import_module(name)

if __name__ == "__main__":
    daemon.manager()
