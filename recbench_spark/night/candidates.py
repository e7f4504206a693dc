"""The candidates to rank for each user, given or drawn.

They are given in a table, or drawn by hash and stored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.definitions import SAMPLED
from recbench_spark.night.night import BenchmarkNight
from recbench_spark.ranking.candidates import CandidateRule, Candidates
from recbench_spark.ranking.negatives import draw_candidates, make_draw
from recbench_spark.schemas import CANDIDATES
from recbench_spark.storage.blocks import ChangedRows
from recbench_spark.storage.commits import Addition
from recbench_spark.storage.file_tables import TaskFiles
from recbench_spark.storage.task_files import write_rows

COLUMNS = tuple(name for name in CANDIDATES.names if name != "split_id")


def select_candidates(night: BenchmarkNight) -> Candidates | None:
    """Return the candidates for each user; None for all items.

    Drawn ones are stored: `list_missing_draws` comes first. Those of moments are drawn by each pass.
    """
    mode, draw = night.definition.candidates, night.benchmark.evaluation.draw
    if mode == "given":
        return night.user_candidates
    if mode in SAMPLED and night.moments is not None:
        items = night.data.known_items.rows, night.n_items
        make = make_draw(*items, mode, draw, night.moments)
        return Candidates(None, CandidateRule(False, mode, night.n_items, night.moments, make))
    if mode in SAMPLED:
        rule = CandidateRule(drawn=mode, n_items=night.n_items)
        return Candidates(_open_stored(night, _describe_draw(night)), rule)
    return None


def list_missing_draws(night: BenchmarkNight) -> list[Addition]:
    """Draw the candidates this split lacks.

    Tasks write their files now.
    """
    if night.definition.candidates not in SAMPLED or night.moments is not None:
        return []
    name = _describe_draw(night)
    stored = set().union(*_open_stored(night, name).each(["part"], _list_parts))
    parts = [part for part in night.benchmark.evaluation.parts if part not in stored]
    return [_draw_part(night, part, name) for part in parts]


def _describe_draw(night: BenchmarkNight) -> str:
    draw = night.benchmark.evaluation.draw
    return f"{night.definition.candidates} {draw.n} a {draw.per} seed {draw.seed}"


def _open_stored(night: BenchmarkNight, name: str) -> ChangedRows:
    rows = night.store.open_rows(CANDIDATES, "split_id", [night.split_id])
    return ChangedRows(rows, COLUMNS, partial(_choose_draw, name=name), COLUMNS)


def _draw_part(night: BenchmarkNight, part: str, name: str) -> Addition:
    mode, draw = night.definition.candidates, night.benchmark.evaluation.draw
    drawn = draw_candidates(night.select_users(), night.data.known_items.rows, night.n_items, mode, draw)
    named = ChangedRows(drawn, drawn.names, partial(_name_draw, part=part, name=name), COLUMNS)
    folder = night.store.choose_folder(CANDIDATES)
    files = write_rows(named, COLUMNS, folder, {"split_id": night.split_id})
    return Addition(CANDIDATES, f"{night.split_id}/{part}/{name}", TaskFiles(files, folder))


# ------------------------------------------------------------------------------- what tasks do


def _list_parts(tables: Iterable[pa.Table]) -> Collection[str]:
    return {part for table in tables for part in table.column("part").unique().to_pylist()}


def _choose_draw(rows: pa.Table, name: str) -> pa.Table:
    return rows.filter(pc.equal(rows.column("draw"), name))


def _name_draw(drawn: pa.Table, part: str, name: str) -> pa.Table:
    rows = drawn.filter(pc.equal(drawn.column("part"), part))
    return rows.append_column("draw", pa.repeat(pa.scalar(name), len(rows)))
