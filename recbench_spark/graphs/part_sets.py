"""Publish the arrays that tasks have written, block by block.

Each task returns the parts that it wrote, by the name of the array. The driver, which holds a few numbers
for each part, writes the lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from recbench_spark.storage.block_arrays import ArrayPart, publish_parts
from recbench_spark.storage.uris import join_uri

Parts = Mapping[str, ArrayPart]
"""Parts that a task wrote, by name of the array."""

SEPARATE = (0,)
"""Shape of an array whose parts are read alone."""


def publish_arrays(
    folder: str, written: Iterable[Parts], arrays: Mapping[str, tuple[tuple[int, ...], Any]]
) -> None:
    """Write the lists of the parts of some arrays.

    Args:
        folder: folder of the arrays.
        written: parts of each task.
        arrays: shape and type of each array by name; `SEPARATE` for parts that are read alone.
    """
    by_name: dict[str, list[ArrayPart]] = {name: [] for name in arrays}
    for parts in written:
        for name, part in parts.items():
            by_name[name].append(part)
    for name, (shape, dtype) in arrays.items():
        publish_parts(join_uri(folder, name), by_name[name], shape, dtype)
