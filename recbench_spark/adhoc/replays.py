"""Replay a log of auctions in this process; `spark_replays` gives the same bits with Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from recbench_spark.checks import Check
from recbench_spark.config.replay import ReplayFile
from recbench_spark.data.auction_worlds import GeneratedAuctions, make_auctions
from recbench_spark.data.readers.auctions import (
    CheckedAuctions,
    check_auctions,
    read_auctions,
    read_local_table,
)
from recbench_spark.errors import ConfigError
from recbench_spark.kernels.arrays import Floats
from recbench_spark.simulation.auction_log import (
    AuctionLogParts,
    make_parts,
    match_probabilities,
    read_later_rows,
)
from recbench_spark.simulation.log_layout import MOST_ROWS_OF_A_PART
from recbench_spark.simulation.replay import LOGGED, replay_models


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
