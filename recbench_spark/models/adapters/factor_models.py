"""MF-BPR and LightGCN in a night: training pairs become vectors.

The fit runs in the driver's process, or in `processes` on its host or under Spark tasks. Each process holds
4 bytes per pair for each of the two directions, the vectors and Adam's moments. Tasks write pairs as
Parquet, and vectors return to them as Parquet. A killed fit continues from its checkpoint, with the same
bits. If the warehouse is on object storage, checkpoints lie on the driver's disk, and copies of them in the
warehouse (`fit_files`).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from recbench_spark.errors import DataError, StoreError
from recbench_spark.models.adapters.model_adapter import RidgeAdapter, SplitData, Trained
from recbench_spark.models.adapters.multiprocess_fit import fit_as_configured, require_common_folder
from recbench_spark.models.adapters.split_data import HistoryRule, read_histories
from recbench_spark.models.fits.logs import as_text
from recbench_spark.models.fits.tasks import name_vectors
from recbench_spark.models.networks import factors
from recbench_spark.models.networks.factors import UserItemPairs
from recbench_spark.models.networks.fitting import Report, Task, Watch
from recbench_spark.models.networks.settings import LightGcnModel, MfBprModel
from recbench_spark.ranking.known_items import KnownItems
from recbench_spark.runtime.journal import Journal
from recbench_spark.storage.block_arrays import map_file
from recbench_spark.storage.blocks import Engine, PieceRows
from recbench_spark.storage.packed_blocks import read_partition_files
from recbench_spark.storage.scratch import share_table
from recbench_spark.storage.shared_arrays import flatten_lists, replace_array

ROWS_A_FILE = 1 << 20
"""Vectors which the driver writes, and a task reads, at once."""

PAIRS, TEST = "pairs_by_user", "test_by_user"
"""Subfolders in a fit's folder, read by all its processes."""

Settings = MfBprModel | LightGcnModel


class FactorAdapter(RidgeAdapter[Any]):
    """Fits and ranks MF-BPR and LightGCN."""

    runs_local: ClassVar[bool] = True
    needs_files: ClassVar[bool] = True
    keeps_checkpoints: ClassVar[bool] = True

    def fit(self, data: SplitData) -> Trained:
        """Fit the vectors; the module says how data flows."""
        settings: Settings = self.settings
        say = find_journal(data).say
        folder = fit_folder(data, settings.processes)
        known = data.choose_items(settings)
        pairs, users = read_pairs(data, known)
        say(f"model {settings.name}: {len(pairs.item):,} pairs of {pairs.users:,} users")
        test = read_test_pairs(data, known, users, pairs) if settings.watch else None
        report, engine = lambda text: say(f"  {text}"), data.store.engine
        final = fit_factors(pairs, settings, folder, report, test, engine=engine)
        seen = np.flatnonzero(np.bincount(pairs.item, minlength=pairs.items))
        items = share_vectors(data, "item", as_text(known.ids()[seen]), final[pairs.users :][seen])
        return Trained(share_vectors(data, "user", users, final[: pairs.users]), items)


def find_journal(data: SplitData) -> Journal:
    """Return the night's journal, or a new one."""
    return getattr(data, "journal", None) or Journal()


def fit_folder(data: SplitData, processes: int) -> Path:
    """Return a fit's work folder, which survives a killed run.

    The folder belongs to this run alone.

    Args:
        data: the split, with the lease of the fit.
        processes: number of processes; all must see the folder.

    Raises:
        StoreError: the warehouse is a catalog where Spark writes, or a host of the fit's processes does not
            see the folder.
    """
    if data.lease is None:
        raise StoreError(
            f"{data.store.root} is neither a folder nor an object storage, and a fit needs one",
            "--warehouse must be a folder that the driver and all workers see, or s3://, gs://, abfss://, hdfs://",
        )
    require_common_folder(data.lease.work, processes, data.store.engine)
    return data.lease.work


def read_pairs(data: SplitData, known: KnownItems) -> tuple[UserItemPairs, pa.Array]:
    """Return relevant training pairs by dense index, and user ids.

    Users are in the order of ids.
    """
    users = read_histories(data, HistoryRule(known, data.threshold))
    offsets, item_e = flatten_lists(users.column("items").combine_chunks())
    if not len(item_e):
        raise DataError("no training rows are relevant", "lower the relevance threshold")
    user_e = np.repeat(np.arange(len(users)), np.diff(offsets))
    ids = users.column("user_id").combine_chunks()
    return factors.make_pairs(user_e, item_e, len(users), known.n_items), ids


def read_test_pairs(
    data: SplitData, known: KnownItems, users: pa.Array, pairs: UserItemPairs
) -> UserItemPairs:
    """Return relevant test pairs of trained users, for `watch` alone."""
    tested = read_histories(data, HistoryRule(known, data.threshold, ("test",)))
    place_u = pc.index_in(tested.column("user_id"), users)
    kept, place_u = tested.filter(place_u.is_valid()), place_u.drop_null().to_numpy()
    offsets, item_e = flatten_lists(kept.column("items").combine_chunks())
    return factors.make_pairs(np.repeat(place_u, np.diff(offsets)), item_e, pairs.users, pairs.items)


def fit_factors(
    pairs: UserItemPairs,
    settings: Settings,
    folder: Path,
    report: Report,
    test: UserItemPairs | None = None,
    *,
    engine: Engine | None = None,
) -> np.ndarray:
    """Return (users + items, dims) vectors from the best epoch.

    The validation score chooses it.

    Args:
        pairs: training pairs.
        settings: settings of the model.
        folder: folder of the fit, seen by all its processes.
        report: called with one line per epoch.
        test: pairs to measure beside the fit; None: none.
        engine: the runner, for several processes.
    """
    task = factor_task(pairs, settings, test)
    if settings.processes > 1:
        save_pairs(folder / PAIRS, pairs)
        if test is not None:
            save_pairs(folder / TEST, test)
    make = partial(load_task, str(folder.absolute()), settings)
    result = fit_as_configured(settings, task, make, folder / "checkpoints", report, engine=engine)
    report(f"best epoch {result.best}, validation recall@20 {result.worth:.5f}; ended: {result.stopped}")
    with torch.no_grad():
        return cast(factors.FactorNetwork, task.module).final().detach().numpy()


def factor_task(pairs: UserItemPairs, settings: Settings, test: UserItemPairs | None = None) -> Task:
    """Return the task to fit, with some pairs for validation."""
    train, held = factors.split_pairs(pairs, settings.validation, settings.seed)
    sparse = not settings.weight_decay
    module = factors.FactorNetwork(
        train, settings.dims, settings.layers, settings.seed, settings.spread, sparse=sparse
    )
    task = factors.FactorTask(
        train, held, module, settings.penalty, settings.negatives, groups=settings.groups
    )
    if test is not None:
        task.watch = Watch("recall@20", factors.FactorTask(pairs, test, module, 0.0).worth)
    return task


def load_task(folder: str, settings: Settings) -> Task:
    """Return the same task in another process.

    The driver has written the pairs to the fit's folder.
    """
    test = load_pairs(Path(folder, TEST)) if settings.watch else None
    return factor_task(load_pairs(Path(folder, PAIRS)), settings, test)


def save_pairs(folder: Path, pairs: UserItemPairs) -> None:
    """Write pairs as `.npy` files for other processes."""
    replace_array(folder / "size.npy", np.array([pairs.users, pairs.items]))
    replace_array(folder / "indptr.npy", pairs.indptr)
    replace_array(folder / "item.npy", pairs.item)


def load_pairs(folder: Path) -> UserItemPairs:
    """Map the pair files from `save_pairs`."""
    users, items = map_file(folder / "size.npy").tolist()
    return UserItemPairs(users, items, map_file(folder / "indptr.npy"), map_file(folder / "item.npy"))


def share_vectors(
    data: SplitData, name: str, ids: pa.Array, vectors_nd: np.ndarray, biases_n: np.ndarray | None = None
) -> PieceRows:
    """Return `NAME_id`, vector, bias from scratch files all tasks see.

    Args:
        data: the split.
        name: user or item.
        ids: (n,) ids as text.
        vectors_nd: (n, d) vectors.
        biases_n: (n,) biases; None: 0.
    """
    files = list[str]()
    for start in range(0, max(len(ids), 1), ROWS_A_FILE):
        n = slice(start, start + ROWS_A_FILE)
        vectors = np.asarray(vectors_nd[n], np.float32)
        biases = np.zeros(len(vectors)) if biases_n is None else biases_n[n].astype(np.float64)
        rows = name_vectors(ids[n], vectors, biases, f"{name}_id")
        files += share_table(data.store.scratch, rows).files
    return PieceRows(data.store.engine, [(file, {}) for file in files], read_partition_files)
