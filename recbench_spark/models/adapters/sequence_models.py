"""SASRec, GRU4Rec and MemN2N in a night: histories become vectors.

The fit runs in the driver's process, which holds the network and 12 bytes per training row (MemN2N: 28; for
a short time, when the fit begins, about 40). Tasks sort users' rows by time and write them as Parquet.
After the fit, tasks compute each user's vector by a forward pass over its history, one user after the
other. So a user's vector does not depend on partitions or on other users. A killed fit continues from its
checkpoint, with the same bits. Learning-curve tasks open the network which the fit has kept in the
warehouse, and compute the vector after each given item. Axes: u users, p given rows, d dimensions.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import torch
import xxhash
from torch import nn

from recbench_spark.core.arrays import Bools, Floats, Floats32, Ints
from recbench_spark.core.threads import use_one_thread
from recbench_spark.errors import DataError, StoreError
from recbench_spark.models.adapters import fit_files
from recbench_spark.models.adapters.factor_models import find_journal, fit_folder, share_vectors
from recbench_spark.models.adapters.model_adapter import ModelAdapter, SplitData, Trained
from recbench_spark.models.adapters.split_data import COLUMNS, HistoryRule, read_histories, require_times
from recbench_spark.models.fits.logs import as_text
from recbench_spark.models.networks import sequence_tasks
from recbench_spark.models.networks.fitting import fit, read_checkpoint
from recbench_spark.models.networks.sequence_networks import Sequences, make_network
from recbench_spark.models.networks.settings import MemN2NModel, SequenceModelConfig
from recbench_spark.models.prefix_vectors import RoundedFolder, fold_used_rows, mark_known_items
from recbench_spark.ranking.kernels.rankings import mark_relevant
from recbench_spark.ranking.known_items import KnownItems
from recbench_spark.ranking.sources import Source, Strings
from recbench_spark.runtime.journal import Journal
from recbench_spark.schemas import EXPLANATIONS
from recbench_spark.splits.labels import HISTORY, VALID
from recbench_spark.storage.blocks import PieceRows, Rows, return_rows
from recbench_spark.storage.host_files import copy_file_to_object, digest_content, open_object
from recbench_spark.storage.objects import read_bytes
from recbench_spark.storage.scratch import share_table
from recbench_spark.storage.shared_arrays import SharedRows, flatten_lists, save_array
from recbench_spark.storage.uris import join_uri

CHECKPOINT = "checkpoints/best.safetensors"
"""File in a fit's folder with the best epoch's weights."""

VECTORS = ("user_id", "vector", "bias")
"""Columns of the users' vectors."""


class SequenceAdapter(ModelAdapter[SequenceModelConfig]):
    """Fits and ranks models which read items in time order."""

    runs_local: ClassVar[bool] = True
    needs_files: ClassVar[bool] = True
    keeps_checkpoints: ClassVar[bool] = True
    folds_prefixes: ClassVar[bool] = True

    def fit(self, data: SplitData) -> Trained:
        """Fit the network; let tasks compute the users' vectors.

        Users with training or given rows have one.
        """
        settings, journal = self.settings, find_journal(data)
        folder = fit_folder(data, 1)
        known = data.choose_items(settings)
        shown = find_shown_parts(data, settings)
        sequences = read_sequences(data, settings, known, journal)
        task = sequence_tasks.SequenceTask(sequences, settings)
        result = fit(task, settings.plan(), folder / "checkpoints", lambda text: journal.say(f"  {text}"))
        journal.say(f"  best epoch {result.best}, validation ndcg@10 {result.worth:.5f}; {result.stopped}")
        shutil.copyfile(folder / CHECKPOINT, folder / fit_files.WEIGHTS_FILE)
        weights, place = (
            folder / fit_files.WEIGHTS_FILE,
            join_uri(data.scratch_folder(), fit_files.WEIGHTS_FILE),
        )
        copy_file_to_object(weights, place)  # where all tasks see it
        digest = digest_content(weights)
        network = FittedNetwork(settings, sequences.items, place, weights.stat().st_size, digest)
        listed = np.bincount(sequences.item, minlength=sequences.items) > 0
        # Nothing was learnt about the other items.
        rule = HistoryRule(known, data.threshold, shown, listed)
        return Trained(
            data.open_by_user(COLUMNS, partial(embed_users, rule=rule, network=network), VECTORS),
            share_items(data, known, task, listed),
            explanations=explain_users(data, rule, network),
        )

    def rank_users(self, trained: Trained, source: Source, data: SplitData) -> Rows | None:
        """Return user_id, vector; the fit has covered held-out users, too."""
        return cast("Rows | None", self.users(trained, source))

    def saved(self, data: SplitData) -> bool:
        """Return true if the model's vectors and weights are saved.

        Weights fold users in.
        """
        return super().saved(data) and fit_files.has_weights(data, self.key(data))

    def save(self, trained: Trained, data: SplitData) -> None:
        """Append to `embeddings` and `explanations`, and publish the weights."""
        fit_files.keep_weights(data, self.key(data), partial(super().save, trained, data))

    def make_fold_in(self, data: SplitData) -> HistoryFoldIn:
        """Return the fit's network, which reads each prefix."""
        known = data.choose_items(self.settings)
        network = find_network(data, self.key(data), self.settings, known.n_items)
        if known.n_items == data.n_items:
            return HistoryFoldIn(network, data.threshold)
        place_i = known.find(as_text(data.known_items.ids()))[0]
        index_n = np.flatnonzero(place_i >= 0)
        places = pa.table({"item_index": index_n, "place": place_i[index_n]})
        return HistoryFoldIn(network, data.threshold, share_table(data.store.scratch, places))


def find_shown_parts(data: SplitData, settings: SequenceModelConfig) -> tuple[str, ...]:
    """Return the parts whose rows are shown at the ranking.

    Raises:
        DataError: rows have no time; or the part valid is to be shown, and it has no rows.
    """
    counts = require_times(data, settings.name, settings.kind)
    if settings.shows_validation and not counts[VALID]:
        raise DataError(
            f"model {settings.name}: history 'with_valid', and no relevant row is in the part valid",
            "history: train, or a split with a part valid",
        )
    return (*HISTORY, VALID) if settings.shows_validation else HISTORY


def read_sequences(
    data: SplitData, settings: SequenceModelConfig, known: KnownItems, journal: Journal
) -> Sequences:
    """Read the training rows in time order.

    The journal says how well times order them.

    Raises:
        DataError: no relevant training rows.
    """
    users, length = (
        read_histories(data, HistoryRule(known, data.threshold)),
        sequence_tasks.read_length(settings),
    )
    if not len(users):
        raise DataError("no training rows are relevant", "lower the relevance threshold")
    offsets, items = flatten_lists(users.column("items").combine_chunks())
    tied, still = (pc.sum(users.column(name)).as_py() for name in ("tied", "still"))
    journal.say(
        f"model {settings.name}: histories of {len(users):,} users; {tied:,} have several items of "
        f"their last time and {still:,} of one time alone, in the order of ids; "
        f"{np.count_nonzero(np.diff(offsets) > length):,} have more than the {length:,} items that are read"
    )
    return Sequences(known.n_items, offsets.astype(np.int64), items.astype(np.int32))


def share_items(
    data: SplitData, known: KnownItems, task: sequence_tasks.SequenceTask, listed: Bools
) -> PieceRows:
    """Return item_id, vector, bias for items with training rows.

    Other items have no place in a list.

    Args:
        data: the split.
        known: the items in the network's tables.
        task: the task after the fit.
        listed: (items,) true for items with relevant training rows.
    """
    with torch.no_grad():
        vectors, biases = task.network.item_vectors().numpy(), task.network.item_biases()
    own = None if biases is None else biases.detach().numpy()[listed]
    return share_vectors(data, "item", as_text(known.ids()[listed]), vectors[listed], own)


# ------------------------------------------------------------------------------- vectors of users


def embed_users(rows: pa.Table, rule: HistoryRule, network: FittedNetwork) -> pa.Table:
    """Return some users' vectors (VECTORS) from their labelled rows.

    Vectors are computed one user after the other.
    """
    histories = rule.cut(rows)
    return embed_histories(histories.column("user_id"), histories.column("items"), network)


def embed_histories(users: pa.Array, lists: pa.Array, network: FittedNetwork) -> pa.Table:
    """Return user_id, vector, bias from each user's items."""
    opened, length = network.open(), sequence_tasks.read_length(network.settings)
    offsets, items = flatten_lists(lists)
    with use_one_thread():
        vectors = [
            sequence_tasks.embed_history(opened, items[max(begin, end - length) : end].astype(np.int64) + 1)
            for begin, end in pairwise(offsets.tolist())
        ]
    return pa.table([users, pa.array(vectors, pa.list_(pa.float32())), np.zeros(len(users))], list(VECTORS))


def explain_users(data: SplitData, rule: HistoryRule, network: FittedNetwork) -> pa.Table | None:
    """Return rows of `explanations` for the listed users.

    The result is None for models without attention. Users with less than two items have no memory and no
    rows, and the journal counts them. A task holds the network and its listed users' weights, and the
    driver those of all.
    """
    settings = network.settings
    if not isinstance(settings, MemN2NModel) or not settings.explain:
        return None
    explain = partial(explain_listed, rule=rule, network=network, listed=settings.explain)
    parts = data.open_by_user(COLUMNS, return_rows, COLUMNS).each(explain)
    users, explained = len(set(settings.explain)), sum(n for n, _ in parts)
    if explained < users:
        find_journal(data).say(f"  explain: {users - explained} of {users} users have no memory")
    return pa.concat_tables([EXPLAINED.empty_table(), *(rows for _, rows in parts)])


EXPLAINED = pa.schema([field for field in EXPLANATIONS.arrow_schema if field.name != "model_id"])
"""Columns of explanations without the model's name."""


def explain_listed(
    rows: pa.Table, rule: HistoryRule, network: FittedNetwork, listed: Sequence[str]
) -> tuple[int, pa.Table]:
    """Explain a task's listed users; return count and rows.

    The count is of users with a memory; rows are `EXPLAINED`. The explained item is the best one the user
    does not have and a list may have. A user with all of them has no rows.
    """
    texts = rows.column("user_id").combine_chunks().cast(pa.string())
    rows = rows.filter(pc.is_in(texts, pa.array(listed, pa.string())))
    owned = dict(_list_users(HistoryRule(rule.known, -math.inf, HISTORY).cut(rows)))
    histories = [(user, items) for user, items in _list_users(rule.cut(rows)) if len(items) > 1]
    if not histories:
        return 0, EXPLAINED.empty_table()
    opened, length, ids = network.open(), sequence_tasks.read_length(network.settings), rule.known.ids()
    assert rule.learnt_i is not None
    unlisted, tables = np.flatnonzero(~rule.learnt_i), [EXPLAINED.empty_table()]
    for user, items in histories:
        read, barred = items[-length:], np.unique(np.concatenate([unlisted, items, owned.get(user, [])]))
        if len(barred) < network.items:
            with use_one_thread():
                explained = sequence_tasks.explain_history(opened, read + 1, barred.astype(np.int64))
            tables.append(make_explanation_rows(user, read, explained, ids))
    return len(histories), pa.concat_tables(tables)


def _list_users(histories: pa.Table) -> list[tuple[str, Ints]]:
    items = (np.array(own, np.int64) for own in histories.column("items").to_pylist())
    return list(zip(histories.column("user_id").to_pylist(), items, strict=True))


def make_explanation_rows(
    user: str, items: Ints, explained: sequence_tasks.Explanation, ids: Strings
) -> pa.Table:
    """Return one user's rows (`EXPLAINED`), hop after hop.

    The memory runs from the newest item on.
    """
    hops, n = explained.weight.shape
    columns = {
        "user_id": pa.repeat(user, hops * n),
        "best_item_id": as_text(np.repeat(ids[explained.best], hops * n)),
        "item_id": as_text(np.tile(ids[items[:-1][::-1]], hops)),
        "place": np.tile(np.arange(n, dtype=np.int32), hops),
        "hop": np.repeat(np.arange(1, hops + 1, dtype=np.int32), n),
        "weight": explained.weight.reshape(-1).astype(np.float64),
        "score_change": np.tile(explained.score_change.astype(np.float64), hops),
    }
    return pa.table(columns, schema=EXPLAINED)


@dataclass(frozen=True)
class FittedNetwork:
    """Opens a fitted network in tasks.

    It holds the settings, the number of items and the file with the weights.
    """

    settings: SequenceModelConfig = field(hash=False)  # its provenance is a dict
    items: int
    place: str
    size: int
    digest: str

    def open(self) -> nn.Module:
        """Return the network with the best epoch's weights, in evaluation mode."""
        module = make_network(self.settings, self.items)
        with open_object(self.place, self.size, self.digest) as file:
            # The copy may have another name by now, or none.
            read_checkpoint(Path(f"/dev/fd/{file.fileno()}"), module, None)
        return module.eval()


def find_network(data: SplitData, key: str, settings: SequenceModelConfig, items: int) -> FittedNetwork:
    """Return the network a fit has kept in the warehouse.

    The driver reads its file once.

    Raises:
        StoreError: the file is not there.
    """
    place = fit_files.find_weights(data, key)
    content = read_bytes(place)
    if content is None:
        raise StoreError(
            f"no file {place}, and these weights fold users in", "run a new night: it fits the model again"
        )
    digest = xxhash.xxh3_128_hexdigest(content)
    return FittedNetwork(settings, items, place, len(content), digest)


@dataclass(frozen=True)
class HistoryFoldIn:
    """Settings to fold histories in (`models.prefix_vectors.FoldInSettings`).

    Attributes:
        network: the fitted network.
        threshold: lowest rating of a row to read; None: above 0.
        places: item_index in the catalogue, and place in the network's tables; None: they are equal.
    """

    network: FittedNetwork
    threshold: float | None = None
    places: SharedRows | None = None

    def make_folder(self, vectors_id: Floats32, biases_i: Floats, known_i: Bools) -> HistoryFolder:
        """Open the network in a task; it has the item vectors."""
        settings, place_i = self.network.settings, np.arange(len(known_i))
        if self.places is not None:
            arrays = self.places.arrays(_write_places)
            place_i = np.full(len(known_i), -1)
            place_i[arrays["item_index"]] = arrays["place"]
        place_i = np.where(known_i, place_i, -1)
        length = sequence_tasks.read_length(settings)
        return HistoryFolder(self.network.open(), settings.dims, length, place_i, self.threshold)


def _write_places(rows: ds.Dataset, folder: Path) -> None:
    table = rows.to_table(columns=["item_index", "place"])
    for name in table.column_names:
        save_array(folder, name, table.column(name).to_numpy())


@dataclass(frozen=True)
class HistoryFolder(RoundedFolder):
    """Computes the vector after each row by a forward pass.

    The pass reads the liked items up to this row, in the given order, without those unknown to training.

    Attributes:
        module: the network in evaluation mode.
        dims: d.
        length: newest items which a vector reads.
        place_i: (i,) each catalogue item's place in the network; -1: unknown to training.
        threshold: lowest rating of a row to read; None: above 0.
    """

    module: nn.Module
    dims: int
    length: int
    place_i: Ints
    threshold: float | None = None

    def solve(self, offsets: Ints, items: Ints, ratings: Floats) -> tuple[Floats, Bools]:
        """Read each prefix's history, one after the other, single-threaded."""
        used_p = mark_known_items(self.place_i >= 0, items) & mark_relevant(ratings, self.threshold)
        read_r = self.place_i[items[used_p]].astype(np.int64)

        def solve_used(bounds: Ints) -> Floats:
            vectors_rd = np.zeros((len(read_r), self.dims))
            with use_one_thread():
                for first, end in (pair for pair in pairwise(bounds.tolist()) if pair[0] < pair[1]):
                    vectors_rd[first:end] = sequence_tasks.embed_prefixes(
                        self.module, read_r[first:end], self.length
                    )
            return vectors_rd

        return fold_used_rows(offsets, used_p, self.dims, solve_used)
