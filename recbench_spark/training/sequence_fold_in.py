"""Fold users into models that read a history: the vector after each given item is a forward pass.

Tasks of learning curves open the network that the fit has kept in the warehouse. Axes: u users, p given
rows, d dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import xxhash
from torch import nn

from recbench_spark.errors import StoreError
from recbench_spark.kernels.arrays import Bools, Floats, Floats32, Ints
from recbench_spark.kernels.ranking.rankings import mark_relevant
from recbench_spark.kernels.threads import use_one_thread
from recbench_spark.models.networks.fitting import read_checkpoint
from recbench_spark.models.networks.sequence_networks import make_network
from recbench_spark.models.networks.sequence_tasks import embed_prefixes, read_length
from recbench_spark.models.networks.settings import SequenceModelConfig
from recbench_spark.models.prefix_vectors import RoundedFolder, fold_used_rows
from recbench_spark.storage.host_files import open_object
from recbench_spark.storage.objects import read_bytes
from recbench_spark.training.kept_weights import find_weights
from recbench_spark.training.model_adapter import SplitData


@dataclass(frozen=True)
class FittedNetwork:
    """FittedNetwork is a network as tasks open it: settings, number of items, file of its weights."""

    settings: SequenceModelConfig = field(hash=False)  # its provenance is a dict
    items: int
    place: str
    size: int
    digest: str

    def open(self) -> nn.Module:
        """Return the network with the weights of the best epoch, to be evaluated."""
        module = make_network(self.settings, self.items)
        with open_object(self.place, self.size, self.digest) as file:
            # The copy may have another name by now, or none.
            read_checkpoint(Path(f"/dev/fd/{file.fileno()}"), module, None)
        return module.eval()


def find_network(data: SplitData, key: str, settings: SequenceModelConfig) -> FittedNetwork:
    """Return the network that a fit has kept in the warehouse; the driver reads its file once.

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
    return FittedNetwork(settings, data.n_items, place, len(content), digest)


@dataclass(frozen=True)
class HistoryFoldIn:
    """HistoryFoldIn holds the settings of the fold-in (`models.fold_in_settings.FoldInSettings`).

    Attributes:
        network: the fitted network.
        threshold: lowest rating of a row that is read; None: above 0.
    """

    network: FittedNetwork
    threshold: float | None = None

    def make_folder(self, vectors_id: Floats32, biases_i: Floats, known_i: Bools) -> HistoryFolder:
        """Open the network in a task; the vectors of the items are in it."""
        settings = self.network.settings
        return HistoryFolder(self.network.open(), settings.dims, read_length(settings), self.threshold)


@dataclass(frozen=True)
class HistoryFolder(RoundedFolder):
    """HistoryFolder computes the vector after each row by a forward pass of the liked items up to it.

    Items are read in the order in which they are given. An item that training does not know has its first
    random vector, as in the vectors of all users.

    Attributes:
        module: the network in evaluation mode.
        dims: d.
        length: newest items that a vector reads.
        threshold: lowest rating of a row that is read; None: above 0.
    """

    module: nn.Module
    dims: int
    length: int
    threshold: float | None = None

    def solve(self, offsets: Ints, items: Ints, ratings: Floats) -> tuple[Floats, Bools]:
        """Read the history of each prefix, one after the other and with one thread."""
        used_p = (items >= 0) & mark_relevant(ratings, self.threshold)
        read_r = items[used_p].astype(np.int64)

        def solve_used(bounds: Ints) -> Floats:
            vectors_rd = np.zeros((len(read_r), self.dims))
            with use_one_thread():
                for first, end in (pair for pair in pairwise(bounds.tolist()) if pair[0] < pair[1]):
                    vectors_rd[first:end] = embed_prefixes(self.module, read_r[first:end], self.length)
            return vectors_rd

        return fold_used_rows(offsets, used_p, self.dims, solve_used)
