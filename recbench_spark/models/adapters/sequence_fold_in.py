"""Fold users into models which read a history.

The vector after each given item is a forward pass. Learning-curve tasks open the network the fit has kept
in the warehouse. Axes: u users, p given rows, d dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.dataset as ds
import xxhash
from torch import nn

from recbench_spark.core.arrays import Bools, Floats, Floats32, Ints
from recbench_spark.core.threads import use_one_thread
from recbench_spark.errors import StoreError
from recbench_spark.models.adapters.kept_weights import find_weights
from recbench_spark.models.adapters.model_adapter import SplitData
from recbench_spark.models.networks.fitting import read_checkpoint
from recbench_spark.models.networks.sequence_networks import make_network
from recbench_spark.models.networks.sequence_tasks import embed_prefixes, read_length
from recbench_spark.models.networks.settings import SequenceModelConfig
from recbench_spark.models.prefix_vectors import RoundedFolder, fold_used_rows, mark_known_items
from recbench_spark.ranking.kernels.rankings import mark_relevant
from recbench_spark.storage.host_files import open_object
from recbench_spark.storage.objects import read_bytes
from recbench_spark.storage.shared_arrays import SharedRows, save_array


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
    place = find_weights(data, key)
    content = read_bytes(place)
    if content is None:
        raise StoreError(
            f"no file {place}, and these weights fold users in",
            "run a new night: it fits the model again",
        )
    digest = xxhash.xxh3_128_hexdigest(content)
    return FittedNetwork(settings, items, place, len(content), digest)


@dataclass(frozen=True)
class HistoryFoldIn:
    """Settings to fold histories in (`models.fold_in_settings.FoldInSettings`).

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
        length = read_length(settings)
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
                    vectors_rd[first:end] = embed_prefixes(self.module, read_r[first:end], self.length)
            return vectors_rd

        return fold_used_rows(offsets, used_p, self.dims, solve_used)
