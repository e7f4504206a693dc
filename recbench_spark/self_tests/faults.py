"""Faults to plant in a sample, each a function from tables to faulty ones.

A fault is in the log, or in what one model delivers. Every random choice is a hash.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from recbench_spark.config import EmbeddingsModel, ListsModel, ModelConfig, ScoresModel
from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.self_tests.samples import BEFORE, LEARNT, LOG, Sample, Tables, draw, list_paths

DAY, HOUR = 86_400_000_000, 3_600_000_000


class NotHereError(Exception):
    """Reason why a fault does not apply, in words."""


@dataclass(frozen=True)
class SampleFacts:
    """Facts of a sample and its honest night.

    Attributes:
        sample: the sample.
        truth: tested pairs (user_id, item_id).
        train: trained pairs.
        order: delivered models, the best of the honest night first.
    """

    sample: Sample
    truth: pd.DataFrame
    train: pd.DataFrame
    order: tuple[ModelConfig, ...]

    @property
    def seed(self) -> int:
        """The split's seed."""
        return self.sample.benchmark.split.seed

    def pick(self, *kinds: type[ModelConfig]) -> ModelConfig:
        """Return the best model by files of these kinds. Raises NotHereError."""
        fitting = [model for model in self.order if isinstance(model, kinds)]
        if not fitting:
            names = {EmbeddingsModel: "vectors", ScoresModel: "scores", ListsModel: "lists"}
            raise NotHereError(f"no model of {' or '.join(names[kind] for kind in kinds)} is delivered")
        return fitting[0]

    def popularity(self) -> pd.Series:
        """Return the number of trained rows of each item, largest first."""
        return (
            self.train.item_id.value_counts(sort=True)
            .sort_index(kind="stable")
            .sort_values(ascending=False, kind="stable")
        )


Plant = Callable[[SampleFacts], Tables]


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        name: its name in the table `self_tests`.
        sentence: what is wrong.
        plant: returns the faulty tables by name, without the others; NotHereError: it does not apply.
    """

    name: str
    sentence: str
    plant: Plant


FAULTS: dict[str, Fault] = {}
"""All faults by name."""


def fault(sentence: str) -> Callable[[Plant], Plant]:
    """Register a function as a fault under its name."""

    def register(plant: Plant) -> Plant:
        FAULTS[plant.__name__] = Fault(plant.__name__, sentence, plant)
        return plant

    return register


VECTORS, SCORES, LISTS = EmbeddingsModel, ScoresModel, ListsModel


def _tables(world: SampleFacts, model: ModelConfig) -> dict[str, pd.DataFrame]:
    """Return copies of a model's tables by setting."""
    return {name: world.sample.tables[f"{model.name}.{name}"].copy() for name in list_paths(model)}


def _give(model: ModelConfig, tables: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    return {f"{model.name}.{name}": table for name, table in tables.items()}


def _matrix(table: pd.DataFrame) -> Floats:
    return np.stack([np.asarray(one, np.float64) for one in table.vector])


def _set_vectors(table: pd.DataFrame, vectors: Floats) -> None:
    table["vector"] = list(vectors.astype(np.float32))


def _normals(world: SampleFacts, shape: tuple[int, ...], purpose: int) -> Floats:
    key = [world.seed % (1 << 63), purpose]
    numbers: Floats = np.random.Generator(np.random.Philox(key=key)).standard_normal(shape)
    return numbers


# ------------------------------------------------------------------------------- what models deliver


@fault("the item vectors are random")
def random_vectors(world: SampleFacts) -> Tables:
    """Replace item vectors by noise of their size."""
    model = world.pick(VECTORS)
    tables = _tables(world, model)
    old = _matrix(tables["items"])
    _set_vectors(tables["items"], _normals(world, old.shape, 1) * old.std())
    return _give(model, tables)


@fault("every item has the output of the one before it")
def id_shift(world: SampleFacts) -> Tables:
    """Give each item's id to the next one."""
    model = world.pick(VECTORS, SCORES, LISTS)
    tables = _tables(world, model)
    table = tables["items" if isinstance(model, VECTORS) else "path"]
    ids = sorted(table.item_id.unique(), key=lambda one: (len(one), one))
    table["item_id"] = table.item_id.map(dict(zip(ids, [*ids[1:], ids[0]], strict=True)))
    return _give(model, tables)


@fault("5 % of the items have each other's names")
def item_renames(world: SampleFacts) -> Tables:
    """Exchange names of 5 % of the items in what a model delivers.

    Else in the vectors which the best model of the night has learnt, joined to wrong names as delivered
    ones would be; without any, in training rows.
    """
    learnt = [name for name in world.sample.tables if name.endswith(f".{LEARNT}")]
    if world.order:
        tables = _tables(world, world.order[0])
        name = "items" if isinstance(world.order[0], VECTORS) else "path"
        return _give(world.order[0], {**tables, name: _rename(world, tables[name])})
    if learnt:
        return {learnt[0]: _rename(world, world.sample.tables[learnt[0]])}
    log = world.sample.log
    renamed = _rename(world, log)
    return {LOG: renamed.assign(item_id=renamed.item_id.where(~is_among(log, world.truth), log.item_id))}


def _rename(world: SampleFacts, table: pd.DataFrame) -> pd.DataFrame:
    """Pass 5 % of the names in a table round."""
    ids = sorted(table.item_id.unique())
    chosen = [ids[n] for n in np.argsort(draw(ids, world.seed, "renamed"))[: max(2, len(ids) // 20)]]
    names = {**dict(zip(ids, ids, strict=True)), **dict(zip(chosen, [*chosen[1:], chosen[0]], strict=True))}
    return table.assign(item_id=table.item_id.map(names))


@fault("the item vectors are those of another fit")
def other_night_vectors(world: SampleFacts) -> Tables:
    """Take item vectors of the night before where they differ, else turn them as a new fit may do."""
    model = world.pick(VECTORS)
    tables = _tables(world, model)
    older = world.sample.older.get(f"{model.name}.items")
    if older is not None and not older.equals(tables["items"]):
        tables["items"] = older
        return _give(model, tables)
    old = _matrix(tables["items"])
    turn, _ = np.linalg.qr(_normals(world, (old.shape[1], old.shape[1]), 2))
    _set_vectors(tables["items"], old @ turn)
    return _give(model, tables)


@fault("one model is delivered under two names")
def twice_delivered(world: SampleFacts) -> Tables:
    """Give the best model's files to another model of its kind."""
    for best in world.order:
        for other in world.order:
            if other is not best and type(other) is type(best):
                return _give(other, _tables(world, best))
    raise NotHereError("no two models of one kind are delivered")


@fault("lists hold the users' training items")
def training_items_kept(world: SampleFacts) -> Tables:
    """Put each user's training items at the head of the list."""
    model = world.pick(LISTS)
    return _give(model, {"path": _put_first(_tables(world, model)["path"], world.train)})


@fault("tested rows have trained the model")
def test_rows_trained(world: SampleFacts) -> Tables:
    """Put tested items first in what a model delivers, else test rows before the training rows."""
    if not world.order:
        log, split = world.sample.log, world.sample.benchmark.split
        if not split.temporal and "part" not in log:
            raise NotHereError("all rows of a pair are in one part, and no model is delivered")
        again = log[is_among(log, world.truth)].copy()
        if "part" in again:
            again["part"] = "train"
        again["event_time"] = log.event_time.min()
        return {LOG: pd.concat([log, again], ignore_index=True)}
    model = world.order[0]
    tables = _tables(world, model)
    if not isinstance(model, VECTORS):
        return _give(model, {"path": _put_first(tables["path"], world.truth)})
    users, items = tables.get("users"), tables["items"]
    if users is None:
        raise NotHereError("users have no vectors of their own")
    owner_t = pd.Index(users.user_id).get_indexer(world.truth.user_id)
    item_t = pd.Index(items.item_id).get_indexer(world.truth.item_id)
    known, own, vectors = (owner_t >= 0) & (item_t >= 0), _matrix(users), _matrix(items)
    sums_u = np.zeros((len(users), vectors.shape[1]))
    np.add.at(sums_u, owner_t[known], vectors[item_t[known]])
    tested, size = np.unique(owner_t[known]), np.linalg.norm(own, axis=1).mean()
    sums = sums_u[tested]
    own[tested] = sums * (size / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12))
    _set_vectors(users, own)
    return _give(model, tables)


@fault("all scores are equal")
def equal_scores(world: SampleFacts) -> Tables:
    """Give every item the same vector or score."""
    model = world.pick(VECTORS, SCORES)
    tables = _tables(world, model)
    if isinstance(model, VECTORS):
        old = _matrix(tables["items"])
        _set_vectors(tables["items"], np.repeat(old[:1], len(old), axis=0))
        if "bias" in tables["items"]:
            tables["items"]["bias"] = 0.0
    else:
        tables["path"]["score"] = 1.0
    return _give(model, tables)


@fault("1 % of the users have scores that are no numbers")
def nan_scores(world: SampleFacts) -> Tables:
    """Put NaN into vectors, scores or list values of 1 % of the users."""
    model = world.pick(VECTORS, SCORES, LISTS)
    tables = _tables(world, model)
    table = tables.get("users", tables.get("items", tables.get("path")))
    assert table is not None
    ids = table["user_id" if "user_id" in table else "item_id"]
    hit = ids.isin(_choose(world, ids, 0.01, "nan"))
    if isinstance(model, VECTORS):
        vectors = _matrix(table)
        vectors[hit.to_numpy()] = np.nan
        _set_vectors(table, vectors)
    else:
        column = "score" if "score" in table else "rank"
        table[column] = table[column].astype(float).mask(hit)
    return _give(model, tables)


@fault("lists are cut to half")
def lists_halved(world: SampleFacts) -> Tables:
    """Keep the first half of each list."""
    model = world.pick(LISTS)
    table = _sort_lists(_tables(world, model)["path"])
    place = table.groupby("user_id").cumcount()
    length = table.groupby("user_id").item_id.transform("size")
    return _give(model, {"path": table[place < (length + 1) // 2].reset_index(drop=True)})


@fault("everybody has the most popular items")
def popular_lists(world: SampleFacts) -> Tables:
    """Rank by popularity for all users."""
    model = world.pick(LISTS, SCORES, VECTORS)
    return _give(model, _make_popular(world, model, None))


@fault("the users of one slice have the most popular items")
def slice_collapse(world: SampleFacts) -> Tables:
    """Rank by popularity for the users of one value of a slice."""
    model = world.pick(LISTS, SCORES)
    if not world.sample.labels:
        raise NotHereError("the file has no slice by a column of the log or of the users")
    label_u = world.sample.labels[0]
    values = label_u.value_counts().index
    return _give(model, _make_popular(world, model, {*label_u[label_u == values[len(values) // 2]].index}))


@fault("half of the users have no output")
def half_without(world: SampleFacts) -> Tables:
    """Leave half of the users out of what a model delivers."""
    model = world.pick(VECTORS, SCORES, LISTS)
    tables = _tables(world, model)
    name = "users" if isinstance(model, VECTORS) else "path"
    if name not in tables:
        raise NotHereError("users have no vectors of their own")
    gone = tables[name].user_id.isin(_choose(world, tables[name].user_id, 0.5, "silent"))
    tables[name] = tables[name][~gone].reset_index(drop=True)
    return _give(model, tables)


# ------------------------------------------------------------------------------------------- the log


@fault("every item is there twice")
def items_doubled(world: SampleFacts) -> Tables:
    """Repeat all rows under a second name of their item."""
    log = world.sample.log
    return {LOG: pd.concat([log, log.assign(item_id=log.item_id + "_2")], ignore_index=True)}


@fault("every user is there twice")
def users_doubled(world: SampleFacts) -> Tables:
    """Repeat all rows under a second name of their user."""
    log = world.sample.log
    return {LOG: pd.concat([log, log.assign(user_id=log.user_id + "_2")], ignore_index=True)}


@fault("the catalogue is cut to 60 %")
def catalogue_cut(world: SampleFacts) -> Tables:
    """Leave the rows of 40 % of the items out."""
    log = world.sample.log
    return {LOG: _drop(log, log.item_id.isin(_choose(world, log.item_id, 0.4, "cut")))}


@fault("all times are a day late")
def times_day_late(world: SampleFacts) -> Tables:
    """Move all times by a day."""
    return {LOG: _shift(world, DAY)}


@fault("all times are an hour late")
def times_hour_late(world: SampleFacts) -> Tables:
    """Move all times by an hour."""
    return {LOG: _shift(world, HOUR)}


@fault("the log is that of the day before")
def old_truth(world: SampleFacts) -> Tables:
    """Take the log of the night before."""
    if len(world.sample.tables[BEFORE]) == len(world.sample.log):
        raise NotHereError("the log has no last day to leave out")
    return {LOG: world.sample.tables[BEFORE]}


@fault("the truth is that of other users")
def truth_exchanged(world: SampleFacts) -> Tables:
    """Exchange items and ratings between tested rows: what models know of a user helps no more.

    Users and times stay, so training rows do. Rows whose user has the other item already stay, too, and
    unless most do, rows which share their user's time: items decide their order.
    """
    log = world.sample.log
    rows = np.flatnonzero(is_among(log, world.truth))
    free = rows[~log.duplicated(["user_id", "event_time"], keep=False).to_numpy()[rows]]
    rows = free if 2 * len(free) > len(rows) else rows
    rows = rows[np.argsort(draw(log.user_id.iloc[rows], world.seed, "exchanged"), kind="stable")]
    half = len(rows) // 2
    pairs = np.stack([rows[:half], rows[half : 2 * half]])
    known = log.duplicated(["user_id", "item_id"], keep=False).to_numpy()
    while True:
        changed = _exchange(log, pairs)
        twice = changed.duplicated(["user_id", "item_id"], keep=False).to_numpy() & ~known
        if not twice[pairs].any():
            return {LOG: changed}
        pairs = pairs[:, ~twice[pairs].any(axis=0)]


def _exchange(log: pd.DataFrame, pairs: Ints) -> pd.DataFrame:
    """Exchange items and ratings between the rows of each pair, (2, pairs)."""
    place = np.arange(len(log))
    place[pairs] = pairs[::-1]
    return log.assign(**{name: log[name].array[place] for name in ("item_id", "rating")})


@fault("relevance is turned round")
def relevance_reversed(world: SampleFacts) -> Tables:
    """Give the best rating to the worst, and so on."""
    log = world.sample.log
    if log.rating.nunique() < 2:
        raise NotHereError("all ratings are equal")
    return {LOG: log.assign(rating=log.rating.min() + log.rating.max() - log.rating)}


@fault("a fifth of the log is missing")
def log_fifth_missing(world: SampleFacts) -> Tables:
    """Leave a fifth of the rows out."""
    log = world.sample.log
    return {LOG: _drop(log, draw(log.user_id + " " + log.item_id, world.seed, "missing") < 0.2)}


# -------------------------------------------------------------------------------------------- parts


def _choose(world: SampleFacts, ids: pd.Series, share: float, purpose: str) -> list[str]:
    """Return this share of the distinct ids, at least one."""
    names = sorted(ids.unique())
    order = np.argsort(draw(names, world.seed, purpose), kind="stable")
    return [names[place] for place in order[: max(1, round(share * len(names)))]]


def _drop(table: pd.DataFrame, gone: Any) -> pd.DataFrame:
    return table[~np.asarray(gone, bool)].reset_index(drop=True)


def _shift(world: SampleFacts, micros: int) -> pd.DataFrame:
    log = world.sample.log
    if not log.event_time.notna().any():
        raise NotHereError("the log has no times")
    return log.assign(event_time=log.event_time + micros)


def is_among(table: pd.DataFrame, pairs: pd.DataFrame) -> pd.Series:
    """Return which rows are of these pairs."""
    known = pd.MultiIndex.from_frame(pairs[["user_id", "item_id"]])
    among = pd.MultiIndex.from_frame(table[["user_id", "item_id"]]).isin(known)
    return pd.Series(among, index=table.index)


def _sort_lists(table: pd.DataFrame) -> pd.DataFrame:
    """Return lists in their order."""
    by_rank = "rank" in table
    column = "rank" if by_rank else "score"
    return table.sort_values(["user_id", column], ascending=[True, by_rank], kind="stable")


def _put_first(table: pd.DataFrame, pairs: pd.DataFrame) -> pd.DataFrame:
    """Put pairs first in each user's list; lists stay as long as they are."""
    ordered = _sort_lists(table)
    length = ordered.groupby("user_id").size()
    first = pairs[pairs.user_id.isin(length.index)][["user_id", "item_id"]].drop_duplicates()
    merged = pd.concat([first, ordered[["user_id", "item_id"]]], ignore_index=True)
    merged = merged.drop_duplicates().sort_values("user_id", kind="stable", ignore_index=True)
    place = merged.groupby("user_id").cumcount()
    merged = merged[place < merged.user_id.map(length)]
    return _number(merged.reset_index(drop=True), table)


def _number(lists: pd.DataFrame, like: pd.DataFrame) -> pd.DataFrame:
    """Number lists from 1, with scores that fall where the lists had scores."""
    place = lists.groupby("user_id").cumcount() + 1
    values: dict[str, pd.Series] = {"rank": place} if "rank" in like else {}
    values |= {"score": -place.astype(float)} if "score" in like else {}
    return lists.assign(**values)


def _make_popular(
    world: SampleFacts, model: ModelConfig, users: set[str] | None
) -> dict[str, pd.DataFrame]:
    """Return a model's tables with the most popular items for these users, None: all."""
    tables, counts = _tables(world, model), world.popularity()
    if isinstance(model, VECTORS):
        items = tables["items"]
        flat = np.zeros_like(_matrix(items))
        flat[:, 0] = items.item_id.map(counts).fillna(0).to_numpy(float)
        _set_vectors(items, flat)
        if "users" in tables:
            _set_vectors(tables["users"], np.ones_like(_matrix(tables["users"])))
        return tables
    table = tables["path"]
    hit = table.user_id.isin(users) if users is not None else pd.Series(True, index=table.index)
    if isinstance(model, SCORES):
        table.loc[hit, "score"] = table.item_id.map(counts).fillna(0).astype(float)[hit]
        return tables
    chosen = table[hit]
    longest = int(chosen.groupby("user_id").size().max()) if len(chosen) else 0
    head, names = list(counts.index[:longest]), chosen.user_id.unique()
    lists = pd.DataFrame({"user_id": np.repeat(names, len(head)), "item_id": head * len(names)})
    return {"path": pd.concat([table[~hit], _number(lists, table)], ignore_index=True)}


# ---------------------------------------------------------------------------------- what is different


def describe_change(before: pd.DataFrame, after: pd.DataFrame) -> str:
    """Say what a fault changed in a table: counts, else rows that differ; empty: nothing."""
    parts = [f"rows {len(before):,} -> {len(after):,}"] if len(before) != len(after) else []
    for name in ("user_id", "item_id"):
        if name in before and (counts := (before[name].nunique(), after[name].nunique()))[0] != counts[1]:
            parts.append(f"{name[:-3]}s {counts[0]:,} -> {counts[1]:,}")
    if parts:
        return ", ".join(parts)
    for name in before.columns:
        old, new = before[name], after[name]
        if name == "vector":
            differ = int((_matrix(before) != _matrix(after)).any(axis=1).sum())
        else:
            differ = 0 if old.equals(new) else int(((old != new) & ~(old.isna() & new.isna())).sum())
        if differ:
            parts.append(f"{name} differs in {differ:,} of {len(before):,} rows")
    return ", ".join(parts)
