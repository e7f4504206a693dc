"""Read values from pandas frames, and order names."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pandas as pd

from recbench_spark.errors import SchemaError, nearest

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
