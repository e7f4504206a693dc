"""Publish arrays that tasks wrote block by block.

Each task returns its written parts by array name. The driver, which holds a few numbers for each part,
writes the lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from recbench_spark.storage.block_arrays import ArrayPart, publish_parts
from recbench_spark.storage.uris import join_uri

Parts = Mapping[str, ArrayPart]
"""Parts a task wrote, by array name."""

SEPARATE = (0,)
"""Shape of an array whose parts are read alone."""


def publish_arrays(
    folder: str, written: Iterable[Parts], arrays: Mapping[str, tuple[tuple[int, ...], Any]]
) -> None:
    """Write the part lists for some arrays.

    Args:
        folder: the arrays' folder.
        written: parts from each task.
        arrays: shape and type by array name; `SEPARATE` for parts that are read alone.
    """
    by_name: dict[str, list[ArrayPart]] = {name: [] for name in arrays}
    for parts in written:
        for name, part in parts.items():
            by_name[name].append(part)
    for name, (shape, dtype) in arrays.items():
        publish_parts(join_uri(folder, name), by_name[name], shape, dtype)
