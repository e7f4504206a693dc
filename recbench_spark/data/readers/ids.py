"""Whether item ids are ordered as numbers or as text: decided once, for nights and for single calls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recbench_spark.schemas import ID_KIND

CANONICAL_INTEGER = "^(0|-?[1-9][0-9]{0,17})$"
"""Text that is the only spelling of its number, and fits 64 bits."""


def id_order(
    frames: Iterable[DataFrame], name: Literal["user_id", "item_id"] = "item_id"
) -> Literal["numeric", "bytes"]:
    """How the item ids (or user ids) of these frames are ordered for ties, in splits and in rankings.

    `numeric` where each frame's column is an integer column or, read from text, holds nothing but
    canonical integers; else `bytes`: the order of UTF-8. A stored type is taken at its word: digits in
    a string column are text. For frames fresh from `read_log` and `read_table`, which note how ids
    were stored; one pass over those read from text.
    """
    return "numeric" if all(_ids_are_numbers(frame, name) for frame in frames) else "bytes"


def _ids_are_numbers(frame: DataFrame, name: str) -> bool:
    field = frame.schema[name]
    kind = field.metadata.get(ID_KIND, _type_kind(field.dataType))
    if kind == "text":
        return frame.where(~F.col(name).rlike(CANONICAL_INTEGER)).isEmpty()
    return bool(kind == "integer")


def id_kind(frame: DataFrame, name: str, kind: str) -> dict[str, str]:
    """Metadata of an id column: `kind` is `text` for fields of a text file, else the type decides."""
    return {ID_KIND: "text" if kind == "text" else _type_kind(frame.schema[name].dataType)}


def _type_kind(data_type: T.DataType) -> str:
    return "integer" if isinstance(data_type, T.IntegralType) else "string"
