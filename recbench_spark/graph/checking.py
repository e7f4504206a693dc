"""Check the files of a graph by tasks: lengths and digests, as they were when it was published.

A file that was cut short, is gone or has another byte would give other numbers, or an error of ours.
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
    """Write down length and digest of each file of a folder; a task reads some files, once each.

    The driver holds a name, a number and a digest a file: a few files a block.
    """
    names = list_files(folder)
    entries = context.parallelize(names, len(names)).map(partial(seal_entry, folder=folder)).collect()
    write_entries(folder, dict(entries))


def find_graph_damage(context: SparkContext, folder: Path) -> str:
    """Return what differs between a graph's files and their seal, in words; empty where nothing does.

    A graph that an older version laid out has no seal, and is taken as it is.
    """
    entries: list[tuple[str, Entry]] = list(read_seal(folder).items())
    if not entries:
        return ""
    look = partial(_find_damage, folder=folder)
    damages = context.parallelize(entries, len(entries)).map(look).collect()
    return next(filter(None, damages), "")


def _find_damage(entry: tuple[str, Entry], folder: Path) -> str:
    return find_file_damage(folder, *entry, digests=True)
