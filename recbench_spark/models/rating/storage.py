"""A fitted model in one `.npz` file: arrays and numbers by name, never a pickle."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from recbench_spark.errors import DataError, nearest
from recbench_spark.models.rating.interface import RatingModel

KIND = "kind"


def save(model: RatingModel, path: str | Path) -> Path:
    """Write every field of the model, and its kind, to `path` (which should end in .npz)."""
    fields = {field.name: getattr(model, field.name) for field in dataclasses.fields(model)}  # type: ignore[arg-type]
    arrays = {name: np.asarray(value) for name, value in fields.items() if value is not None}
    with Path(path).open("wb") as file:
        np.savez(file, **{KIND: np.asarray(model.kind)}, **arrays)  # type: ignore[arg-type]
    return Path(path)


def load(path: str | Path, kinds: Mapping[str, type[Any]]) -> Any:
    """Read a model that `save` wrote, of one of these kinds.

    Raises DataError if the file holds no such model or lacks a field.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, BadZipFile) as error:
        raise DataError(f"{path} holds no model: {error}", "give a file that save() wrote") from None
    kind = str(arrays.pop(KIND, ""))
    if kind not in kinds:
        raise DataError(f"{path} holds a model of kind '{kind}'", nearest(kind, kinds))
    return _make_model(kinds[kind], arrays, path)


def _make_model(model: type[Any], arrays: dict[str, Any], path: str | Path) -> Any:
    fields = dataclasses.fields(model)
    missing = [f.name for f in fields if f.name not in arrays and f.default is dataclasses.MISSING]
    if missing or not set(arrays) <= {f.name for f in fields}:
        names = ", ".join(f.name for f in fields)
        raise DataError(f"{path} has fields {sorted(arrays)}", f"a model of kind {model.kind} has {names}")
    return model(**{name: _plain(array) for name, array in arrays.items()})


def _plain(array: Any) -> Any:
    """Convert arrays without dimensions to numbers; other arrays stay arrays."""
    if array.ndim == 0:
        return array.item()
    return array
