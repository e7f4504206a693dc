"""Compile every kernel once, into the cache beside the sources.

The command is `python -m recbench_spark.night.compile_kernels`; names of rooms such as `ranking` after it
choose these. Without it the first night waits half a minute for the compiler, once on every host.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from importlib import import_module, resources
from importlib.resources.abc import Traversable

PACKAGE = "recbench_spark"
FILE = "warm_kernels.py"
"""Name of a module with a function `warm`, which calls all kernels that lie beside it."""


def find_modules(folder: Traversable, name: str) -> Iterator[str]:
    """Yield the names of all modules in `FILE` below a package's folder, without an import."""
    for place in sorted(folder.iterdir(), key=lambda place: place.name):
        if place.name == FILE:
            yield f"{name}.{FILE.removesuffix('.py')}"
        elif place.is_dir():
            yield from find_modules(place, f"{name}.{place.name}")


def main(rooms: Collection[str] = ()) -> None:
    """Call each kernel of each room, or of some."""
    for module in find_modules(resources.files(PACKAGE), PACKAGE):
        if not rooms or module.split(".")[1] in rooms:
            import_module(module).warm()


if __name__ == "__main__":
    main(sys.argv[1:])
