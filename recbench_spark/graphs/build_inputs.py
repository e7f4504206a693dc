"""Open a graph's inputs and read their usable edges."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.graphs.edge_values import parse_weights
from recbench_spark.graphs.edges import RowSource, expand_lists, open_rows, require_one_kind
from recbench_spark.sources.formats import FilePiece, ParquetFiles, TablePiece
from recbench_spark.sources.table_pieces import FragmentPiece
from recbench_spark.storage.table_scans import read_footers

if TYPE_CHECKING:  # workers import this module and do not need the settings
    from recbench_spark.graphs.settings import GraphSource


@dataclass(frozen=True)
class GraphInputs:
    """The edges to read, and each side's node tables.

    Attributes:
        edges: rows with both ends of each edge.
        names: columns for source, destination and weight; with lists, for neighbours, node and weights.
        nodes: side, its id table, and the id column's name.
        numeric: by side, true if ids are whole numbers.
        sides: the sides' names.
        both_ways: true if messages also go from destination to source.
        lists: true if a row is a node with its neighbours.
        loops: true if self loops stay.
        seed: seed for the hashes.
    """

    edges: RowSource
    names: tuple[str, str, str | None]
    nodes: tuple[tuple[int, RowSource, str], ...]
    numeric: tuple[bool, ...]
    sides: tuple[str, ...]
    both_ways: bool
    lists: bool
    loops: bool
    seed: int

    @property
    def bipartite(self) -> bool:
        """Tell whether there are two sides."""
        return len(self.sides) == 2


class EdgeCounts(NamedTuple):
    """Edges a task read: all, and by fault or kind."""

    edges: int = 0
    null_ids: int = 0
    bad_weights: int = 0
    negative_weights: int = 0
    zero_weights: int = 0
    self_loops: int = 0


def open_inputs(source: GraphSource) -> GraphInputs:
    """Open a graph's files.

    Only footers are read.

    Raises:
        DataError, SchemaError, ConfigError: a file or a column is missing, or ids have two types.
    """
    canonical = ("neighbours", "node", "weights") if source.lists else ("src", "dst", "weight")
    src, dst, weight = (source.column(name) for name in canonical)
    columns, ids = [src, dst, *([weight] if source.weighted else [])], dict.fromkeys((src, dst), source.ids)
    chosen = {"where": source.where, "partitions": source.partitions}
    rows = open_rows(source.edges, columns, "edges", fmt=source.format, ids=ids, **chosen)
    kinds = dict(rows.numeric)
    if not source.bipartite:
        require_one_kind(rows, (src, dst), "edges")
    numeric = tuple(kinds[name] for name in (src, dst)[: len(source.sides)])
    nodes = []
    for side, path in source.nodes.items():
        place, column = source.sides.index(side), source.node_column
        kind = "numeric" if numeric[place] else "text"
        nodes.append((place, open_rows(path, [column], f"nodes of {side}", ids={column: kind}), column))
    names = (src, dst, weight if source.weighted else None)
    both_ways, loops = source.bipartite or not source.directed, source.self_loops == "keep"
    rules = (both_ways, source.lists, loops, source.seed)
    return GraphInputs(rows, names, tuple(nodes), numeric, source.sides, *rules)


def count_edges(source: GraphSource) -> int:
    """Count a source's edges or rows.

    In Parquet edges are counted, an empty list as one. In other files rows are counted; in CSV the count
    is an estimate.
    """
    rows = open_inputs(source).edges
    is_parquet = (
        isinstance(one, FragmentPiece)
        or (isinstance(one, FilePiece) and isinstance(one.reader, ParquetFiles))
        for one in rows.pieces
    )
    if not source.lists or not all(is_parquet):
        return rows.n
    footers = read_footers(sorted({piece.file for piece in rows.pieces}))
    groups = [footer.row_group(place) for footer in footers for place in range(footer.num_row_groups)]
    columns = [group.column(place) for group in groups for place in range(group.num_columns)]
    name = source.column("neighbours")
    return sum(one.num_values for one in columns if one.path_in_schema.split(".")[0] == name)


Ends = tuple[pa.Array, pa.Array]

Weight = npt.NDArray[np.float32] | None


def read_edges(
    inputs: GraphInputs, pieces: tuple[TablePiece, ...]
) -> Iterator[tuple[Ends, Weight, EdgeCounts]]:
    """Yield usable edges chunk by chunk.

    A chunk has source and destination ids, weights, and counts.
    """
    src, dst, weight = inputs.names
    named = ("src", "dst", "weight") if inputs.lists else inputs.names
    for chunk in inputs.edges.chunks(pieces):
        rows = expand_lists(chunk, dst, src, weight) if inputs.lists else chunk
        ends = (inputs.edges.ids(rows, named[0], src), inputs.edges.ids(rows, named[1], dst))
        weights = None
        if weight is not None:
            weights = parse_weights(rows.column(named[2]), f"edges: column {weight}")
        yield _filter_edges(inputs, ends, weights)


def _filter_edges(
    inputs: GraphInputs, ends: Ends, weights: npt.NDArray[np.float64] | None
) -> tuple[Ends, Weight, EdgeCounts]:
    n = len(ends[0])
    if weights is None and inputs.loops and not ends[0].null_count + ends[1].null_count:
        loops = 0 if inputs.bipartite else int(pc.sum(pc.equal(*ends)).as_py() or 0)
        return ends, None, EdgeCounts(n, self_loops=loops)
    missing = np.logical_or(*(pc.is_null(end).to_numpy(zero_copy_only=False) for end in ends))
    bad = negative = np.zeros(n, bool)
    weight: Weight = None
    if weights is not None:
        with np.errstate(over="ignore"):  # too large for float32 becomes infinite, which is refused below
            weight = weights.astype(np.float32)
        bad = ~np.isfinite(weight) & ~missing
        negative = (weights < 0) & ~bad & ~missing
    usable = ~(missing | bad | negative)
    is_loop = np.zeros(n, bool)
    if not inputs.bipartite:
        is_loop = pc.fill_null(pc.equal(*ends), False).to_numpy(zero_copy_only=False) & usable
    zero = 0 if weight is None else int(np.count_nonzero((weight == 0) & usable))
    n_null, n_bad, n_negative = (int(np.count_nonzero(mask)) for mask in (missing, bad, negative))
    counts = EdgeCounts(n, n_null, n_bad, n_negative, zero, int(is_loop.sum()))
    if not inputs.loops:
        usable &= ~is_loop
    if not usable.all():
        mask = pa.array(usable)
        ends = (ends[0].filter(mask), ends[1].filter(mask))
        weight = None if weight is None else weight[usable]
    return ends, weight, counts
