"""Candidates that a user's items are ranked among: given in a table, or drawn by hash and stored."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.definitions import SAMPLED
from recbench_spark.evaluation.ranking.candidates import CandidateRule, Candidates
from recbench_spark.evaluation.ranking.negatives import draw_candidates
from recbench_spark.nightly.night import BenchmarkNight
from recbench_spark.schemas import CANDIDATES
from recbench_spark.storage.delta_files import File, write_file
from recbench_spark.storage.sides import ChangedRows, gather_tables

COLUMNS = tuple(name for name in CANDIDATES.names if name != "split_id")


def select_candidates(night: BenchmarkNight) -> Candidates | None:
    """Return the candidates that the definition names for each user; None for all items."""
    mode, evaluation = night.definition.candidates, night.benchmark.evaluation
    if mode == "given":
        from recbench_spark.nightly import given_candidates  # noqa: PLC0415

        with_truth = not evaluation.candidates_path and night.benchmark.dataset.lists_negatives
        return Candidates(given_candidates.read_candidates(night), CandidateRule(with_truth))
    if mode in SAMPLED:
        rule = CandidateRule(drawn=mode, n_items=night.n_items)
        return Candidates(ensure_drawn_candidates(night), rule)
    return None


def ensure_drawn_candidates(night: BenchmarkNight) -> ChangedRows:
    """Return the drawn candidates of this split. They are drawn and stored once, and read afterwards."""
    mode, draw = night.definition.candidates, night.benchmark.evaluation.draw
    name = f"{mode} {draw.n} a {draw.per} seed {draw.seed}"
    stored = _open_stored(night, name)
    parts = set().union(*stored.each(["part"], _list_parts))
    for part in night.benchmark.evaluation.parts:
        if part not in parts:
            users = night.select_users()
            drawn = draw_candidates(users, night.data.known_items.rows, night.n_items, mode, draw)
            named = ChangedRows(drawn, drawn.names, partial(_name_draw, part=part, name=name), COLUMNS)
            _append_drawn(night, named, f"{night.split_id}/{part}/{name}")
    return stored if parts.issuperset(night.benchmark.evaluation.parts) else _open_stored(night, name)


def _open_stored(night: BenchmarkNight, name: str) -> ChangedRows:
    rows = night.store.open_rows(CANDIDATES, "split_id", [night.split_id])
    return ChangedRows(rows, COLUMNS, partial(_choose_draw, name=name), COLUMNS)


def _append_drawn(night: BenchmarkNight, rows: ChangedRows, once: str) -> None:
    folder = night.store.choose_folder(CANDIDATES)
    write = partial(_write_rows, folder=folder, split_id=night.split_id)
    files = [file for written in rows.each(COLUMNS, write) for file in written]
    night.store.commit_files(files, CANDIDATES, once, folder)


# ------------------------------------------------------------------------------- what tasks do


def _list_parts(tables: Iterable[pa.Table]) -> Collection[str]:
    return {part for table in tables for part in table.column("part").unique().to_pylist()}


def _choose_draw(rows: pa.Table, name: str) -> pa.Table:
    return rows.filter(pc.equal(rows.column("draw"), name))


def _name_draw(drawn: pa.Table, part: str, name: str) -> pa.Table:
    rows = drawn.filter(pc.equal(drawn.column("part"), part))
    return rows.append_column("draw", pa.repeat(pa.scalar(name), len(rows)))


def _write_rows(tables: Iterable[pa.Table], folder: str, split_id: str) -> list[File]:
    return [write_file(rows, folder, {"split_id": split_id}, COLUMNS) for rows in gather_tables(tables)]
