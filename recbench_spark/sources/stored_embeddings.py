"""Find a model's vectors in a warehouse's table `embeddings`.

They are tables of users and items.
"""

from __future__ import annotations

from contextlib import suppress

from recbench_spark.errors import ConfigError, nearest
from recbench_spark.schemas import EMBEDDINGS
from recbench_spark.storage.delta_tables import hold_table
from recbench_spark.storage.table_scans import is_delta_table
from recbench_spark.storage.uris import is_remote, join_uri, place_side

SHOWN = 5
"""Number of models that an error names."""


def find_table(place: str) -> str | None:
    """Return the table `embeddings` here or below, if any."""
    from deltalake.exceptions import DeltaError  # noqa: PLC0415

    if is_remote(place) and "://" not in place:
        return None
    for table in (place.rstrip("/"), join_uri(place.rstrip("/"), EMBEDDINGS.name)):
        with suppress(DeltaError):  # a feature that is not read here: it is no table of ours
            if is_delta_table(table):
                with hold_table(table) as opened:
                    names = {field.name for field in opened.schema().fields}
                return table if {"model_id", "side", "id", "vector"} <= names else None
    return None


def find_sides(table: str, model_id: str | None) -> dict[str, str]:
    """Return where a model's vectors are, by side.

    Without a name, the table must have one model.

    Raises:
        ConfigError: there is no such model, or there are several and none is named.
    """
    with hold_table(table) as opened:
        parts = [(str(part["model_id"]), str(part["side"])) for part in opened.partitions()]
    models = sorted({model for model, _ in parts})
    if model_id is None and len(models) != 1:
        shown = ", ".join(models[:SHOWN]) + (" ..." if len(models) > SHOWN else "")
        hint = f"--model-id ID, of {shown}" if models else "embed a graph, or fit a model of vectors, first"
        raise ConfigError(f"{table} has vectors of {len(models)} models", hint)
    chosen = models[0] if model_id is None else model_id
    if chosen not in models:
        raise ConfigError(f"--model-id {chosen}: no such model in {table}", nearest(chosen, models))
    return {side: place_side(table, chosen, side) for model, side in sorted(parts) if model == chosen}


def choose_sides(table: str, model_id: str | None, sides: tuple[str, ...]) -> list[str]:
    """Return where a model's vectors are for these sides.

    If one side is wanted, a model's only side is taken.

    Raises:
        ConfigError: as `find_sides`, or the model has other sides.
    """
    places = find_sides(table, model_id)
    if len(sides) == len(places) == 1:
        return list(places.values())
    if missing := " and ".join(side for side in sides if side not in places):
        message = f"{table}: the model has vectors of {' and '.join(places)}, none of {missing}"
        hint = "embed the log with --columns src=user_id,dst=item_id --sides user,item"
        raise ConfigError(message, hint)
    return [places[side] for side in sides]
