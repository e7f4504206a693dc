"""Drawn worlds on Spark have the bits that they have in this process."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recbench_spark.errors import DataError, ProtocolError
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.store import Store
from tests.night import test_event_logs as event_logs
from tests.night import test_family_nights as family_nights
from tests.night import test_least_rows as least_rows
from tests.night import test_log_queries as log_queries
from tests.night import test_moments as moments
from tests.night import test_row_conditions as row_conditions
from tests.night import test_successive as successive
from tests.night import test_successive_events as successive_events
from tests.nights import Ran

SEEDS = range(*map(int, os.environ.get("RECBENCH_SPARK_WORLDS", "1,2").split(",")))
"""Worlds drawn for each family: one in the suite, as many as one likes by hand."""


def read_night(made: Ran) -> Any:
    """Read ranks and numbers without Spark, wherever the night was."""
    here = replace(made, store=ArrowStore(made.store.root))
    return moments.read_bits(here)


def select_rows(folder: Path, seed: int, store: Any) -> Any:
    path = row_conditions.write_rows(folder / "log.csv", row_conditions.draw_rows(seed))
    names = sorted(row_conditions.CONDITIONS)
    where = [row_conditions.CONDITIONS[names[(seed + n) % len(names)]] for n in range(1 + seed % 3)]
    rows, facts, _ = row_conditions.split(folder, row_conditions.make(path, where), store)
    return rows, {name: (row["value"], row["detail"]) for name, row in facts.items()}


def leave_out_rare_rows(folder: Path, seed: int, store: Any) -> Any:
    path = event_logs.write(folder / "log.parquet", least_rows.draw_rows(seed))
    least = {**least_rows.LEAST[seed % len(least_rows.LEAST)], "on": ["log", "train"][seed % 2]}
    made, facts = event_logs.split_log(folder, event_logs.make(path, event_logs.GLOBAL, least=least), store)
    return event_logs.read_split(made), facts


FAMILIES: dict[str, Callable[[Path, int, Any], Any]] = {
    "queries": lambda folder, seed, store: read_night(
        log_queries.ask(folder, log_queries.draw_queries(seed), seed, store)
    ),
    "successive": lambda folder, seed, store: read_night(
        successive.ask(folder, seed, valid=seed % 2 == 1, store=store)
    ),
    "events": lambda folder, seed, store: read_night(successive_events.World(seed).ask(folder, store)),
    "moments": lambda folder, seed, store: read_night(moments.ask(folder, moments.draw_world(seed), store)),
    "families": lambda folder, seed, store: read_night(family_nights.ask(folder, seed, store)),
    "where": select_rows,
    "least": leave_out_rare_rows,
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", SEEDS)
def test_spark_changes_no_bit(
    seed: int, family: str, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.nights.choose_store", lambda store, _: store)

    def ask(name: str, store: Any = None) -> Any:
        try:
            return FAMILIES[family](tmp_path / name, seed, store)
        except (DataError, ProtocolError) as error:
            return error.message

    assert ask("here") == ask("there", Store(spark, str(tmp_path / "spark")))
