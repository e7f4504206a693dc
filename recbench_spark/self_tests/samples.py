"""Samples: some users' rows of a log, and what models deliver for them.

A sample lies in memory and is written to a scratch folder, where nights of it run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recbench_spark.config import (
    Benchmark,
    Comparisons,
    Dataset,
    EmbeddingsModel,
    ListsModel,
    ModelConfig,
    PublishedModel,
    RetrievedModel,
    ScoresModel,
    SwitchModel,
)
from recbench_spark.config.benchmark import grows
from recbench_spark.config.placeholders import fill_placeholders
from recbench_spark.core.arrays import Floats
from recbench_spark.core.calendar_spans import end_day
from recbench_spark.core.hashed_ids import hash_rows
from recbench_spark.core.hashing import place_hashes
from recbench_spark.errors import DataError
from recbench_spark.models.settings import TruthModel
from recbench_spark.night.run_keys import hash_split, identify_model_inputs
from recbench_spark.night.split import current_split_id, open_any_log
from recbench_spark.schemas import MANIFESTS, SPLITS
from recbench_spark.sources.arrow_rows import is_text
from recbench_spark.sources.column_names import ColumnNames
from recbench_spark.sources.columnar import list_attributes
from recbench_spark.sources.events import EVENT
from recbench_spark.sources.input_rows import open_input
from recbench_spark.sources.opened_logs import OpenedLog, choose_identity
from recbench_spark.storage.file_tables import FileTables

LEFT_OUT = (PublishedModel, RetrievedModel, SwitchModel, TruthModel)
"""Models without a place in a sample: of no files, of other models, of a generated world."""

DELIVERED: dict[type[ModelConfig], tuple[str, ...]] = {
    EmbeddingsModel: ("users", "items"),
    ScoresModel: ("path",),
    ListsModel: ("path",),
}
"""Models by files, and the settings which name these."""

LOG, BEFORE = "log", "before"
"""Names of the log and of that of the night before, among a sample's tables."""

TEXT = pd.StringDtype("pyarrow")
"""Type of ids in a sample: Arrow reads, writes and counts them without a Python object each."""

LEARNT = "learnt"
"""Setting under which the items that a model of the night has learnt stand among a sample's tables."""

Tables = Mapping[str, pd.DataFrame]
"""Tables by name: the logs, and `MODEL.SETTING` of what a model delivers."""

FEWEST_USERS = 100
"""Users below which a self-test says that it may see little."""

REPLICATES = 200
"""Most resamplings for the interval of a difference, of which `certain` rules ask only whether it has 0."""

LEAST_LEFT = 0.5
"""Least share of the rows without the last day; with fewer, both nights have one log."""


@dataclass(frozen=True)
class Sample:
    """Some users of a night.

    Attributes:
        benchmark: the team's file of this night, placeholders filled in.
        before: the same of the night before.
        day: logical date of the nights in scratch.
        tables: rows of the logs (user_id, item_id, rating, event_time, part, further columns), and of what
            models deliver.
        users: users drawn.
        left_out: models without a place in a sample, or without their files.
        older: tables of models as they were delivered for the night before, where they differ.
        facts: the manifest of the team's night: (part, fact) -> value.
        labels: user -> label, for each slice by a column of the users or of the log; the users' come first.
    """

    benchmark: Benchmark
    before: Benchmark
    day: date
    tables: Tables
    users: int
    left_out: tuple[str, ...] = ()
    older: Tables = field(default_factory=dict)
    facts: Mapping[tuple[str, str], float] = field(default_factory=dict)
    labels: tuple[pd.Series, ...] = ()

    @property
    def log(self) -> pd.DataFrame:
        """Rows of the log."""
        return self.tables[LOG]


def draw(ids: Iterable[str], seed: int, purpose: str = "") -> Floats:
    """Return a number in [0, 1) for each id, by hash."""
    texts = pa.array(ids if isinstance(ids, pd.Series) else list(ids), pa.string())
    rows = pa.table({"id": texts, "purpose": pa.repeat(purpose, len(texts))})
    return place_hashes(hash_rows(rows, seed))


def draw_sample(
    store: FileTables, benchmark: Benchmark, day: date, n: int, *, seed: int | None = None
) -> Sample:
    """Read a sample of a finished night; nothing is written.

    Args:
        store: the warehouse with the night's split.
        benchmark: the file, with its placeholders.
        day: the night.
        n: most users.
        seed: seed of the draw; None: the split's.

    Raises:
        DataError: the night's split is not there, or no user of it is tested.
    """
    filled, before = (fill_placeholders(benchmark, one) for one in (day, day - timedelta(days=1)))
    split_id = current_split_id(store.rows, hash_split(choose_identity(store), filled)[0])
    users = sorted(list_users(store, filled, split_id))
    hash_u = draw(users, filled.split.seed if seed is None else seed, "self-test")
    kept = frozenset(users[place] for place in np.argsort(hash_u, kind="stable")[:n])
    log = read_log(store, filled.dataset, kept)
    zone = filled.dataset.zone
    day = day if grows(benchmark) else find_last_day(log, zone) or day
    tables = {LOG: log, BEFORE: cut_last_day(log, day, zone)}
    items = frozenset(log.item_id)
    models = [model for model in filled.models if not isinstance(model, LEFT_OUT)]
    out = [model.name for model in filled.models if isinstance(model, LEFT_OUT)]
    for model in models:
        if has_files(store, model):
            tables |= read_delivered(store, model, kept, items)
        else:
            out.append(model.name)
    older: dict[str, pd.DataFrame] = {}
    earlier = {model.name: model for model in before.models}
    for model in models:
        then = earlier[model.name]
        if then != model and has_files(store, then):
            older |= read_delivered(store, then, kept, items)
    labels = tuple(read_labels(store, filled, log))
    manifest = store.rows(MANIFESTS, [("split_id", "=", split_id)])
    facts = {(row["part"], row["fact"]): row["value"] for row in manifest if row["value"] is not None}
    return Sample(filled, before, day, tables, len(kept), tuple(out), older, facts, labels)


def list_users(store: FileTables, benchmark: Benchmark, split_id: str) -> set[str]:
    """Return the users of the evaluated parts. Raises DataError where there are none."""
    find = partial(_find_users, parts=benchmark.evaluation.parts)
    rows = store.open_rows(SPLITS, "split_id", [split_id]) if store.exists(SPLITS.name) else None
    users: set[str] = set().union(*rows.each(["user_id", "part"], find)) if rows else set()
    if not users:
        message = f"the split {split_id} has no tested user: there is no such night in {store.root}"
        raise DataError(message, "recbench nightly first, with the same file and day")
    return users


def _find_users(tables: Iterable[pa.Table], parts: tuple[str, ...]) -> set[str]:
    wanted = pa.array(parts)
    kept_rows: set[str] = set()
    for rows in tables:
        tested = rows.filter(pc.is_in(rows.column("part"), wanted))
        kept_rows |= {*pc.unique(tested.column("user_id")).to_pylist()}
    return kept_rows


# --------------------------------------------------------------------------------------- the log


def read_log(store: FileTables, dataset: Dataset, users: frozenset[str]) -> pd.DataFrame:
    """Read the users' rows of a log, with standard names and times in microseconds."""
    log = open_any_log(store, dataset)
    names = list(log.columns)
    tables = [*chain.from_iterable(log.rows.each(names, partial(_keep_users, users=users)))]
    rows = pa.concat_tables(tables) if tables else pa.table({name: [] for name in names})
    return _flatten(rows, log, dataset)


def _keep_users(tables: Iterable[pa.Table], users: frozenset[str], name: str = "user_id") -> list[pa.Table]:
    wanted = pa.array(sorted(users), pa.string())
    return [rows.filter(pc.is_in(rows.column(name).cast(pa.string()), wanted)) for rows in tables]


def _flatten(rows: pa.Table, log: OpenedLog, dataset: Dataset) -> pd.DataFrame:
    """Return rows with columns in place of attributes, and texts in place of events' codes."""
    frame: pd.DataFrame = rows.drop_columns(
        [n for n in ("attributes",) if n in rows.column_names]
    ).to_pandas()
    frame["user_id"], frame["item_id"] = frame.user_id.astype(TEXT), frame.item_id.astype(TEXT)
    if "event_time" in frame:
        frame["event_time"] = frame.event_time.astype("Int64")
    if "attributes" in rows.column_names:
        maps = [dict(one or ()) for one in rows.column("attributes").to_pylist()]
        for name in list_attributes(dataset):
            frame[name] = [one.get(name) for one in maps]
    if dataset.events and EVENT in frame:
        names = log.rules.events.names if log.rules.events else tuple(dataset.events.weights)
        frame[dataset.events.column] = [names[int(code)] for code in frame.pop(EVENT)]
    if "part" in frame and frame.part.isna().all():
        frame = frame.drop(columns="part")
    for name in ("rating", "event_time"):
        if name not in frame:
            frame[name] = 1.0 if name == "rating" else pd.array([None] * len(frame), dtype="Int64")
    return frame.reset_index(drop=True)


def find_last_day(log: pd.DataFrame, zone: tzinfo) -> date | None:
    """Return the day with the newest row; None without times."""
    newest = log.event_time.max()
    if pd.isna(newest):
        return None
    utc = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(newest))
    return utc.astimezone(zone).date()


def cut_last_day(log: pd.DataFrame, day: date, zone: tzinfo) -> pd.DataFrame:
    """Return the rows before a day, or all rows where too few are before it."""
    begin = end_day(day - timedelta(days=1), zone)
    left = log[(log.event_time < begin).fillna(True).astype(bool)]
    return left.reset_index(drop=True) if len(left) >= LEAST_LEFT * len(log) else log


def read_labels(store: FileTables, benchmark: Benchmark, log: pd.DataFrame) -> Iterator[pd.Series]:
    """Yield the users' labels of each slice that has any."""
    for cut in sorted(benchmark.evaluation.slices, key=lambda one: one.of != "users"):
        name = cut.column or cut.key
        if cut.of == "users" and cut.path:
            opened = open_input(store.engine, cut.path, ["user_id", name], f"slice {cut.key}")
            tables = [*chain.from_iterable(opened.rows.each(["user_id", name], list))]
            table = pa.concat_tables(tables).to_pandas()
            label_u = table.assign(user_id=table.user_id.astype(TEXT)).set_index("user_id")[name]
            yield label_u[label_u.index.isin(log.user_id)]
        elif cut.of == "log" and name in log:
            yield log.drop_duplicates("user_id", keep="last").set_index("user_id")[name]


# --------------------------------------------------------------------------- what models deliver


def list_paths(model: ModelConfig) -> dict[str, str]:
    """Return the files of a model by files: setting -> path."""
    names = DELIVERED.get(type(model), ())
    return {name: path for name in names if (path := getattr(model, name))}


def has_files(store: FileTables, model: ModelConfig) -> bool:
    """Return whether all files of a model are there."""
    return "missing" not in identify_model_inputs(choose_identity(store), model).values()


def read_delivered(
    store: FileTables, model: ModelConfig, users: frozenset[str], items: frozenset[str]
) -> dict[str, pd.DataFrame]:
    """Read what a model delivers for some users and items, by `MODEL.SETTING`.

    Ranks are counted anew without the items that the sample lacks.
    """
    tables = {}
    for setting, path in list_paths(model).items():
        by_pair = setting == "path"
        needed = ["user_id", "item_id"] if by_pair else [f"{setting[:-1]}_id", "vector"]
        what = str(model.kind) if by_pair else f"{setting[:-1]} embeddings"
        given = ColumnNames(getattr(model, "columns", {}) or {})
        opened = open_input(store.engine, path, needed, what, given)
        more = [n for n in ("score", "rank", "bias", "query_id") if n in opened.schema.names]
        wanted = {"user_id": users, "item_id": items}
        keep = partial(_keep_known, wanted={name: wanted[name] for name in needed if name in wanted})
        kept_rows = [*chain.from_iterable(opened.rows.each([*needed, *more], keep))]
        frame: pd.DataFrame = (
            pa.concat_tables(kept_rows).to_pandas() if kept_rows else pd.DataFrame(columns=needed)
        )
        for name in needed[:2] if by_pair else needed[:1]:
            frame[name] = frame[name].astype(TEXT)
        if "rank" in frame:
            owner = [name for name in ("user_id", "query_id") if name in frame]
            frame["rank"] = frame.groupby(owner)["rank"].rank(method="first").astype(int)
        tables[f"{model.name}.{setting}"] = frame.reset_index(drop=True)
    return tables


def _keep_known(tables: Iterable[pa.Table], wanted: Mapping[str, frozenset[str]]) -> list[pa.Table]:
    kept = list(tables)
    for name, ids in wanted.items():
        kept = _keep_users(kept, ids, name)
    return kept


# ------------------------------------------------------------------------------------ in scratch


def write_tables(tables: Tables, folder: Path) -> dict[str, str]:
    """Write tables in Parquet; return their places by name."""
    folder.mkdir(parents=True, exist_ok=True)
    places = {name: str(folder / f"{name}.parquet") for name in tables}
    for name, table in tables.items():
        rows = pa.Table.from_pandas(table, preserve_index=False)
        texts = [one.name for one in rows.schema if is_text(one.type)]
        pq.write_table(rows, places[name], use_dictionary=texts)  # numbers hardly repeat
    return places


def point_at(sample: Sample, places: Mapping[str, str], *, before: bool = False) -> Benchmark:
    """Return the team's file with its log and models at other places."""
    benchmark = sample.before if before else sample.benchmark
    models = []
    for model in benchmark.models:
        if model.name in sample.left_out:
            continue
        changed = {name: places[f"{model.name}.{name}"] for name in list_paths(model)}
        update: dict[str, Any] = {**changed, "columns": {}} if changed else {}
        models.append(model.model_copy(update=update))
    dataset = place_log(benchmark.dataset, sample, places[BEFORE if before else LOG])
    no_intervals = benchmark.evaluation.bootstrap.model_copy(update={"replicates": 0})
    changes = {"multiverse": False, "bootstrap": no_intervals}
    compared = benchmark.comparisons or (Comparisons() if benchmark.regressions else None)
    fewer = {"replicates": min(compared.replicates, REPLICATES)} if compared else {}
    parts = {
        "dataset": dataset,
        "models": tuple(models),
        "evaluation": benchmark.evaluation.model_copy(update=changes),
        "comparisons": compared and compared.model_copy(update=fewer),
    }
    return benchmark.model_copy(update={**parts, "paradoxes": None, "restated": None})


def place_log(dataset: Dataset, sample: Sample, place: str) -> Dataset:
    """Return the settings of a log whose sample lies in Parquet, its conditions applied already."""
    kept = ("name", "time_zone", "duplicates", "scale", "until", "events", "least", "availability", "query")
    columns = {"event_time": ""} if sample.log.event_time.isna().all() else {}
    return Dataset(
        **{name: getattr(dataset, name) for name in kept},
        reader="parquet",
        path=place,
        columns=columns,
        attributes=dataset.attributes,
        time_unit="us",
    )
