"""Ranking tasks' view of a fitted model with its own scores.

Weights come from the model's file. The first worker on a host writes the file's arrays, and the numbers of
users and items, as files which all the host's workers map.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.dataset as ds

from recbench_spark.core.arrays import Bools, Ints
from recbench_spark.errors import DataError
from recbench_spark.models.fits.logs import RatingLog, SharedRatingLog, as_text
from recbench_spark.models.fits.tasks import MODEL, FitTask, choose_rows, find_known
from recbench_spark.models.rating.interface import ScoringModel
from recbench_spark.models.rating.registry import make_stored_model
from recbench_spark.ranking.kernels.scorers import BlockScorer
from recbench_spark.ranking.known_items import KnownItems
from recbench_spark.ranking.sources import OPEN_MODELS, Strings
from recbench_spark.storage import shared_arrays
from recbench_spark.storage.objects import read_bytes
from recbench_spark.storage.shared_arrays import SharedRows

PREFIX = "model."
"""Prefix for the model's own arrays."""


@dataclass(frozen=True)
class BlockSource:
    """A source (`ranking.sources.Source`) over a model's function `score`.

    Users and items without a training pair are not ranked.

    Attributes:
        files: the fit's log, whose order of ids numbers users and items.
        catalogue: the items to rank.
        task: the fit.
    """

    files: SharedRatingLog
    catalogue: KnownItems
    task: FitTask = field(hash=False)

    wants_history: ClassVar[bool] = False
    dims: ClassVar[int] = 0

    @property
    def rows(self) -> SharedRows:
        """Name of the arrays on a host.

        The arrays are built from the log and the fit's file.
        """
        return SharedRows(f"{self.files.shared.key}-{self.task.fit_id}", self.files.shared.files)

    def scorer(self) -> BlockScorer:
        """Return the scorer, as in `Source`."""
        return _block_scorer(self)

    def item_ids(self) -> Strings:
        """Return the item ids, as in `Source`."""
        return self.catalogue.ids()

    def find_users(self, ids: pa.Array) -> Ints:
        """Return each user's number in the model, (n,).

        A user without a training pair has -1.
        """
        arrays = self.rows.arrays(self.build)
        known, texts = arrays["user_ids"], np.array(ids.cast(pa.binary()).to_pylist(), "S")
        place = np.minimum(np.searchsorted(known, texts), len(known) - 1)
        return np.where(known[place] == texts, arrays["user_rows"][place], -1)

    def build(self, rows: ds.Dataset, folder: Path) -> None:
        """Write the model's arrays, numbered user ids, and item numbers.

        Raises:
            DataError: the fit's file is not there.
        """
        content = read_bytes(self.task.place(MODEL))
        if content is None:
            raise DataError(
                f"{self.task.place(MODEL)} is not there", "run the night again: it fits the model"
            )
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            for name in file.files:
                shared_arrays.save_array(folder, f"{PREFIX}{name}", file[name])
        log = self.files.open()
        train_r, watched_r = choose_rows(self.task, log)
        known = find_known(self.task, log, watched_r)
        users = _number_seen(log.arrays["users"][train_r], log, "user_ids", known and known.users)
        numbers = _number_seen(log.arrays["items"][train_r], log, "item_ids", known and known.items)
        order = np.argsort(log.arrays["user_ids"])
        shared_arrays.save_array(folder, "user_ids", log.arrays["user_ids"][order])
        shared_arrays.save_array(folder, "user_rows", users[order])
        rows_i = np.full(self.catalogue.n_items, -1)
        index = self.catalogue.find(as_text(log.arrays["item_ids"]))[0]
        rows_i[index[index >= 0]] = numbers[index >= 0]
        shared_arrays.save_array(folder, "item_rows", rows_i)


def _number_seen(key_r: npt.NDArray[np.integer], log: RatingLog, ids: str, known: Ints | None) -> Ints:
    """Return each log id's row in the model.

    An id in no given row has -1.
    """
    size = len(log.arrays[ids])
    place = np.full(size, -1)
    numbers = np.arange(size) if known is None else known
    place[numbers] = np.arange(len(numbers))
    seen: Bools = np.bincount(key_r, minlength=size) > 0
    return np.where(seen, place, -1)


@lru_cache(maxsize=OPEN_MODELS)
def _block_scorer(source: BlockSource) -> BlockScorer:
    arrays = source.rows.arrays(source.build)
    own = {name[len(PREFIX) :]: array for name, array in arrays.items() if name.startswith(PREFIX)}
    model = make_stored_model(own, source.task.place(MODEL))
    assert isinstance(model, ScoringModel)
    return BlockScorer(model.score, arrays["item_rows"])
