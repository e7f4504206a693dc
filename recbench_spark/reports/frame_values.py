"""Read values from pandas frames, and order names."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar, cast

import pandas as pd

from recbench_spark.errors import SchemaError, nearest

Facts = TypeVar("Facts")

PART_ORDER = ("test", "open_loop", "valid")
"""Order in which reports show the parts."""


def read_records(frame: pd.DataFrame, what: str, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Return a frame's rows as dicts.

    Raises:
        SchemaError: the frame lacks one of the columns.
    """
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise SchemaError(
            f"{what} has no column {', '.join(missing)}", nearest(missing[0], map(str, frame.columns))
        )
    return [{str(name): row[name] for name in row} for row in frame.to_dict("records")]


def is_missing(value: Any) -> bool:
    """Return True for None, NaN and NaT."""
    return value is None or (pd.api.types.is_scalar(value) and bool(pd.isna(value)))


def read_text(value: Any) -> str:
    """Return a value as text; empty if it is missing."""
    return "" if is_missing(value) else str(value)


def read_optional(value: Any) -> str | None:
    """Return a value as text; None if it is missing."""
    return None if is_missing(value) else str(value)


def read_real(value: Any) -> float | None:
    """Return a value as float; None if it is missing."""
    return None if is_missing(value) else float(value)


def read_whole(value: Any) -> int | None:
    """Return a value as int; None if it is missing."""
    return None if is_missing(value) else int(value)


def read_value(value: Any) -> float:
    """Return a value as float; NaN if it is missing."""
    return math.nan if is_missing(value) else float(value)


READERS: dict[object, Callable[[Any], Any]] = {
    "str": read_text,
    "str | None": read_optional,
    "float": read_value,
    "float | None": read_real,
    "int": lambda value: read_whole(value) or 0,
    "int | None": read_whole,
    "bool": bool,
}
"""Function to read a column, by the type of the fact with the same name."""


def read_facts(kind: type[Facts], row: Mapping[Any, Any], /, **given: Any) -> Facts:
    """Make a dataclass from the columns with the names of its fields.

    Args:
        kind: class of the facts.
        row: a row by column.
        given: facts that no column of the same name has.
    """
    wanted = [one for one in fields(cast(Any, kind)) if one.name not in given and one.type in READERS]
    return kind(**{one.name: READERS[one.type](row.get(one.name)) for one in wanted}, **given)


def format_json(text: str) -> str:
    """Format JSON with indents and sorted keys; keep other text."""
    try:
        return json.dumps(json.loads(text), indent=2, sort_keys=True, ensure_ascii=False)
    except json.JSONDecodeError:
        return text


def order_index(name: str, order: Sequence[str]) -> int:
    """Return a name's place in an order; unknown names last."""
    return order.index(name) if name in order else len(order)


def order_key(name: str, order: Sequence[str]) -> tuple[int, str]:
    """Return a sort key: place in an order, then name."""
    return order_index(name, order), name
