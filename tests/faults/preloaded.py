"""Spark's daemon of Python workers, which loads the libraries of a worker before it forks them.

A campaign starts hundreds of workers, and each would spend seconds on the same imports. No module of the
product is imported here, so that workers behave as without it.
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
