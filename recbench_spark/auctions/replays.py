"""Replay an auction log in memory or files, without Spark.

Files are laid out once. Both ways give the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from recbench_spark.auctions import auction_log
from recbench_spark.auctions.auctions import (
    CheckedAuctions,
    check_auctions,
    read_auctions,
    read_local_table,
)
from recbench_spark.auctions.layout_tasks import open_layout
from recbench_spark.auctions.log_layout import LAYOUTS, MOST_ROWS_OF_A_PART
from recbench_spark.auctions.part_tasks import LaidOutParts, match_model, open_counts
from recbench_spark.auctions.replay import LOGGED, replay_models
from recbench_spark.auctions.settings import ReplayFile
from recbench_spark.auctions.worlds import GeneratedAuctions, make_auctions
from recbench_spark.core.arrays import Floats
from recbench_spark.core.checks import Check
from recbench_spark.errors import ConfigError
from recbench_spark.sources import arrow_files
from recbench_spark.storage.blocks import Engine
from recbench_spark.storage.leases import Report
from recbench_spark.storage.scratch import drop_scratch, scratch_folder


@dataclass(frozen=True, eq=False)
class ReplayOutcome:
    """Rows, checks and rejects from a replay.

    Attributes:
        rows: rows of `replays` without run ids.
        checks: checks on the log.
        rejects: rows left out of the log, as JSON, each with the reason.
        participants: rows that were replayed.
        left_out: rows in auctions that were left out.
    """

    rows: list[dict[str, Any]]
    checks: list[Check]
    rejects: tuple[tuple[str, str], ...]
    participants: int
    left_out: int

    @classmethod
    def from_parts(
        cls,
        file: ReplayFile,
        parts: auction_log.AuctionLogParts,
        rejects: tuple[tuple[str, str], ...],
        left_out: int,
    ) -> ReplayOutcome:
        """Replay a file's models over a log's parts."""
        rows, checks = replay_models(parts, [model.name for model in file.models], file.replay)
        return cls(rows, checks, rejects, parts.facts.rows, left_out)


def replay_here(file: ReplayFile, until: int | None, parts: int | None) -> ReplayOutcome:
    """Replay a file's models in this process.

    Rows that a model was fitted to are left out.

    Args:
        file: the replay.
        until: time in microseconds after which rows are replayed; None: all.
        parts: number of parts to cut the log into; None: as many as its rows need.
    """
    world = make_auctions(file.log.world) if file.log.world else None
    log = check_auctions(world.log, file.log, "generated log") if world else read_auctions(file.log)
    if until is not None:
        log = auction_log.read_later_rows(log, until)
    models = read_models(file, log, world)
    if log.probability_r is not None:
        models[LOGGED] = log.probability_r
    count = parts or -(-len(log.click_r) // MOST_ROWS_OF_A_PART)
    return ReplayOutcome.from_parts(
        file, auction_log.make_parts(log, models, count), log.rejects, log.left_out
    )


def replay_laid_out(
    engine: Engine, file: ReplayFile, until: int | None, *, warehouse: Path, most: int, report: Report
) -> ReplayOutcome:
    """Replay a file's models in tasks, on the log's layout.

    The log is laid out unless an earlier run has, and the models are matched by the layout.

    Args:
        engine: the runner.
        file: the replay; log and models are files.
        until: as in `replay_here`.
        warehouse: folder that all workers see.
        most: rows in a part of the log.
        report: gets lines about the progress.
    """
    base = warehouse.absolute()
    identity = arrow_files.identity(file.log.path or "")
    layout = open_layout(engine, file.log, identity, folder=base / LAYOUTS, most=most, report=report)
    log = open_counts(engine, layout, until, report)
    models = {}
    try:
        for model in file.models:
            models[model.name] = Path(scratch_folder(str(base)))
            where = f"model {model.name} {model.path}"
            match_model(engine, log, model.path or "", where, models[model.name])
            report(f"{model.name} is matched")
        if log.has_probabilities:
            models[LOGGED] = log.folder
        parts = LaidOutParts(engine, log, models, str(base))
        return ReplayOutcome.from_parts(file, parts, layout.read_rejects(), layout.left_out)
    finally:
        drop_scratch(str(base))


def read_models(
    file: ReplayFile, log: CheckedAuctions, world: GeneratedAuctions | None
) -> dict[str, Floats]:
    """Return each model's probabilities, (r,) in the log's order."""
    models = {}
    for number, model in enumerate(file.models):
        where = f"model {model.name}"
        if model.path:
            table, where = read_local_table(model.path, "model"), f"{where} {model.path}"
        elif world is not None and model.noise is not None:
            predicted = pa.array(world.predict(model.noise, number))
            table = world.log.select(["auction_id", "ad_id"]).append_column("probability", predicted)
        else:
            raise ConfigError(f"models: {model.name} has no source", "give path")
        models[model.name] = auction_log.match_probabilities(log, table, where)
    return models
