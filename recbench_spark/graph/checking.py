"""Check the files of a graph by tasks: their lengths and digests must be those of the seal.

A file that is cut short, missing or changed would give other numbers or a confusing error.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from pyspark import SparkContext

from recbench_spark.storage.seals import (
    Entry,
    find_file_damage,
    list_files,
    read_seal,
    seal_entry,
    write_entries,
)


def write_graph_seal(context: SparkContext, folder: Path) -> None:
    """Write the length and digest of each file of a folder to its seal. Each file is read once, by tasks.

    The driver holds a name, a number and a digest for each file; there are a few files for each block.
    """
    names = list_files(folder)
    entries = context.parallelize(names, len(names)).map(partial(seal_entry, folder=folder)).collect()
    write_entries(folder, dict(entries))


def find_graph_damage(context: SparkContext, folder: Path) -> str:
    """Return the difference between a graph's files and their seal in words, or an empty text.

    Graphs of older versions have no seal and are not checked.
    """
    entries: list[tuple[str, Entry]] = list(read_seal(folder).items())
    if not entries:
        return ""
    look = partial(_find_damage, folder=folder)
    damages = context.parallelize(entries, len(entries)).map(look).collect()
    return next(filter(None, damages), "")


def _find_damage(entry: tuple[str, Entry], folder: Path) -> str:
    return find_file_damage(folder, *entry, digests=True)
