"""Partitions of a Delta table as tables of their own: `WAREHOUSE/embeddings/model_id=ID/side=user`.

Their rows are those of the table's log. The folder itself may hold files that no version names.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote

from recbench_spark.storage.local_files import has_delta_log
from recbench_spark.storage.objects import holds_files
from recbench_spark.storage.uris import LOG, is_object_storage, join_uri

PARTITION = re.compile(r"(.+?)((?:/\w+=[^/=]+)+)/?")


class TablePartition(NamedTuple):
    """TablePartition names the rows of a table that have these values in its partition columns."""

    table: str
    values: dict[str, str]


def find_partition(path: str) -> TablePartition | None:
    """Return the partition that a path names; None for a path that is no part of a Delta table."""
    match = PARTITION.fullmatch(path)
    if match is None or not is_delta_table(match[1]):
        return None
    pairs = (folder.split("=") for folder in match[2].strip("/").split("/"))
    return TablePartition(match[1], {unquote(name): unquote(value) for name, value in pairs})


def is_delta_table(place: str) -> bool:
    """Tell whether a path of this machine, or a URI of object storage, is the folder of a Delta table."""
    if is_object_storage(place):
        return holds_files(join_uri(place, LOG))
    return has_delta_log(place)
