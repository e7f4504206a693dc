"""Several models in one call, evaluated one by one.

A dict of names and tables becomes one evaluation for each, and one result. Each table has a name in
messages: `lists`, or `lists of als` where the call has several models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Real
from os import PathLike
from typing import Any

from recbench_spark.errors import ConfigError, RecbenchError
from recbench_spark.metrics.result import Result, combine_results
from recbench_spark.sources.column_names import names_ids

SIDES = ("user embeddings", "item embeddings")
"""Names of both embedding tables."""

EMBEDDINGS = "embeddings"


def name_tables(
    systems: Mapping[str, Any], check_pair: Callable[[object], tuple[Any, Any]]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the systems' tables by name, and the model names.

    A single model has no name.

    Args:
        systems: lists, scores and embeddings as the caller gave them, or None.
        check_pair: splits embeddings into their two sides.

    Raises:
        ConfigError: several models, and more than one kind of output.
    """
    tables: dict[str, Any] = {}
    models: tuple[str, ...] = ()
    for kind, system in systems.items():
        if system is None:
            continue
        if is_several(system, kind):
            models = tuple(system)
            for model, table in system.items():
                tables |= _split_sides(kind, table, f" of {model}", check_pair)
        else:
            tables |= _split_sides(kind, system, "", check_pair)
    if models and sum(system is not None for system in systems.values()) > 1:
        raise ConfigError(
            "give exactly one of lists, scores, embeddings", "all models of a dict have outputs of one kind"
        )
    return tables, models


def _split_sides(
    kind: str, system: Any, suffix: str, check_pair: Callable[[object], tuple[Any, Any]]
) -> dict[str, Any]:
    if kind != EMBEDDINGS:
        return {f"{kind}{suffix}": system}
    return {f"{side}{suffix}": table for side, table in zip(SIDES, check_pair(system), strict=True)}


def is_several(system: object, kind: str) -> bool:
    """Tell whether a table is a dict of models' tables.

    Any text names a model, `user` and `item` too: what counts is that all values are tables.
    """
    if not isinstance(system, Mapping) or not system or is_run(system):
        return False
    test = _is_table
    if kind == EMBEDDINGS:
        test = _is_table_pair if names_ids(system) else _is_pair
    return all(isinstance(name, str) for name in system) and all(map(test, system.values()))


def _is_pair(table: object) -> bool:
    return isinstance(table, tuple | list) and len(table) == 2


def _is_table_pair(table: object) -> bool:
    return isinstance(table, tuple | list) and len(table) == 2 and all(map(_is_table, table))


def _is_table(table: object) -> bool:
    """Tell whether something is one table.

    What it offers decides; a column is none.
    """
    if isinstance(table, Mapping):
        return names_ids(table) or is_run(table)
    if isinstance(table, str | PathLike):
        return True
    offers = ("columns", "column_names", "collect", "to_df", "to_dataframe", "to_table")
    return any(hasattr(table, name) for name in offers)


def is_run(table: object) -> bool:
    """Tell whether a table is a ranx run.

    Such a run is a dict of users with dicts of items and numbers.
    """
    if not isinstance(table, Mapping) or not table:
        return False
    users = list(table.values())
    return all(isinstance(items, Mapping) for items in users) and all(
        isinstance(value, Real) for items in users for value in items.values()
    )


def unfold_run(table: Any, what: str) -> Any:
    """Return a ranx run as columns; other tables unchanged."""
    if not is_run(table):
        return table
    value = "relevance" if what.startswith("truth") else "score"
    rows = [
        (user, item, number)
        for user, items in table.items()
        for item, number in items.items() or [(None, None)]
    ]
    names = ("user_id", "item_id", value)
    return {name: [row[n] for row in rows] for n, name in enumerate(names)}


def evaluate_each(
    evaluate: Callable[..., Result], tables: Mapping[str, Any], models: tuple[str, ...]
) -> Result:
    """Evaluate one model, or several into one result.

    Several models' result has a column `model`.

    Args:
        evaluate: an engine's function of the tables.
        tables: by the names from `name_tables`, and truth and others shared by all models.
        models: model names; empty: one without a name.

    Raises:
        RecbenchError: from one model; the message begins with its name.
    """
    if not models:
        return evaluate(**_pair_sides(tables))
    shared = {name: table for name, table in tables.items() if " of " not in name}
    results = {}
    for model in models:
        own = {
            name.partition(" of ")[0]: table
            for name, table in tables.items()
            if name.partition(" of ")[2] == model
        }
        try:
            results[model] = evaluate(**_pair_sides({**shared, **own}))
        except RecbenchError as error:
            raise type(error)(f"model {model}: {error.message}", error.hint) from None
    return combine_results(results)


def _pair_sides(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables as both engines expect them.

    Both sides of embeddings become a pair.
    """
    sides = tuple(tables[name] for name in SIDES if name in tables)
    others = {name: table for name, table in tables.items() if name not in SIDES}
    return {**others, EMBEDDINGS: sides or None}
