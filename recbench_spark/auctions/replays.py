"""Replay a log of auctions: in memory, or laid out in files once, with the same bits. Without Spark."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from recbench_spark.auctions.auction_log import (
    AuctionLogParts,
    make_parts,
    match_probabilities,
    read_later_rows,
)
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
    """Results of a replay.

    Attributes:
        rows: rows of `replays` without run ids.
        checks: checks of the log.
        rejects: rows of the log that were left out, as JSON, and the reason of each.
        participants: rows that were replayed.
        left_out: rows of auctions that were left out.
    """

    rows: list[dict[str, Any]]
    checks: list[Check]
    rejects: tuple[tuple[str, str], ...]
    participants: int
    left_out: int

    @classmethod
    def from_parts(
        cls, file: ReplayFile, parts: AuctionLogParts, rejects: tuple[tuple[str, str], ...], left_out: int
    ) -> ReplayOutcome:
        """Replay the models of a file over the parts of a log."""
        rows, checks = replay_models(parts, [model.name for model in file.models], file.replay)
        return cls(rows, checks, rejects, parts.facts.rows, left_out)


def replay_here(file: ReplayFile, until: int | None, parts: int | None) -> ReplayOutcome:
    """Read the log and the models, leave out rows that models were fitted to, and replay the models.

    Args:
        file: the replay.
        until: time in microseconds after which rows are replayed; None: all.
        parts: number of parts of the log; None: as many as its rows need.
    """
    world = make_auctions(file.log.world) if file.log.world else None
    log = check_auctions(world.log, file.log, "generated log") if world else read_auctions(file.log)
    if until is not None:
        log = read_later_rows(log, until)
    models = read_models(file, log, world)
    if log.probability_r is not None:
        models[LOGGED] = log.probability_r
    count = parts or -(-len(log.click_r) // MOST_ROWS_OF_A_PART)
    return ReplayOutcome.from_parts(file, make_parts(log, models, count), log.rejects, log.left_out)


def replay_laid_out(
    engine: Engine, file: ReplayFile, until: int | None, *, warehouse: Path, most: int, report: Report
) -> ReplayOutcome:
    """Lay the log out where no earlier run has, match the models by the layout, and replay them in tasks.

    Args:
        engine: the runner.
        file: the replay; log and models are files.
        until: as in `replay_here`.
        warehouse: folder that all workers see.
        most: rows of a part of the log.
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
    """Return the probabilities of each model, (r,) in the order of the log."""
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
        models[model.name] = match_probabilities(log, table, where)
    return models
