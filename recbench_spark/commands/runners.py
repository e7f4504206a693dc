"""Run a job without Spark where possible, else with Spark."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeVar

from recbench_spark.core.extras import explain_missing
from recbench_spark.engine.choices import EngineChoice, require_spark
from recbench_spark.engine.local import choose_workers
from recbench_spark.errors import FallbackToSpark
from recbench_spark.runtime.journal import Journal
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.file_tables import FileTables

Result = TypeVar("Result")


def run_job(
    name: str,
    args: argparse.Namespace,
    chosen: tuple[EngineChoice, int],
    work: Callable[[FileTables], Result],
    *,
    journal: Journal | None = None,
    any_version: bool = False,
) -> Result:
    """Run a job by a chosen runner, and say why.

    Spark takes over where the job meets what needs it.

    Args:
        name: what the job does, for its first line.
        args: the job's flags, with `engine` and `warehouse`.
        chosen: the choice, and the number of rows in the job's log.
        work: the job; Spark runs it again from its beginning.
        journal: for the first line; None: a new one.
        any_version: the warehouse may have another schema.

    Raises:
        ConfigError: `--engine local`, and something needs Spark.
    """
    (choice, n), say = chosen, (journal or Journal()).say
    say(f"{name}: {choice.describe()}")
    if choice.engine == "local":
        try:
            return work(ArrowStore(args.warehouse, any_version=any_version, workers=choose_workers(n)))
        except FallbackToSpark as error:
            say(f"{name}: {require_spark(args.engine, error).describe()}")
    with explain_missing():
        from recbench_spark.runtime.session import get_session  # noqa: PLC0415
        from recbench_spark.storage.store import Store  # noqa: PLC0415

    return work(Store(get_session(f"recbench-spark {name}"), args.warehouse, any_version=any_version))
