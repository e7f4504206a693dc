"""Print the embeddings of some nodes: `recbench embed --nodes`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from recbench_spark.errors import OK, ConfigError, DataError, nearest
from recbench_spark.graphs.build import NodeFinder, read_ids
from recbench_spark.graphs.edge_values import to_id_array
from recbench_spark.graphs.folders import Graph
from recbench_spark.graphs.kernels.ids import MOST_NODES, hash_node_ids
from recbench_spark.graphs.model_inputs import PreparedGraphModel
from recbench_spark.graphs.nodes import embed_nodes
from recbench_spark.sources.paths import check_path

MAX_SEARCHED_IDS = 20_000
"""Most ids searched for a similar one, for a hint."""


def print_nodes(prepared: PreparedGraphModel, text: str) -> int:
    """Print some nodes' embeddings as CSV: side, id, numbers."""
    graph = prepared.graph
    side, names = find_nodes(text, graph)
    dense = np.array(find_dense_ids(prepared, names, side))
    order = np.argsort(dense, kind="stable")
    vectors = embed_nodes(graph, prepared.model, dense[order].astype(np.int64))
    for name, vector in zip(names, vectors[np.argsort(order)], strict=True):
        print(f"{graph.sides[side]},{name}," + ",".join(repr(float(x)) for x in vector))
    return OK


def find_nodes(text: str, graph: Graph) -> tuple[int, list[str]]:
    """Return the side and ids in [SIDE=]ID,ID or [SIDE=]@FILE.

    The file has one id per line.
    """
    side = text.rpartition("=")[0]
    if side and side not in graph.sides:
        raise ConfigError(f"--nodes: no side {side}", nearest(side, graph.sides))
    return graph.sides.index(side) if side else len(graph.sides) - 1, parse_ids(text)


def parse_ids(text: str) -> list[str]:
    """Return the different ids in [SIDE=]ID,ID or [SIDE=]@FILE.

    Raises:
        ConfigError: there are none.
    """
    listed = text.rpartition("=")[2]
    names = read_lines(listed[1:]) if listed.startswith("@") else listed.split(",")
    ids = list(dict.fromkeys(name.strip() for name in names if name.strip()))
    if not ids:
        raise ConfigError(f"--nodes {text}: no id", "[SIDE=]ID,ID or [SIDE=]@FILE with one id per line")
    return ids


def read_lines(path: str) -> list[str]:
    """Return the lines in a file with ids.

    Raises:
        MissingError: no such file. ConfigError: a folder, or a file which is no text.
    """
    check_path(path)
    try:
        text = Path(path).read_bytes().decode("utf-8")
    except OSError as error:
        raise ConfigError(
            f"--nodes @{path}: {error.strerror}", "give a text file with one id per line"
        ) from None
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise ConfigError(
            f"--nodes @{path}: the file is not UTF-8 text",
            "give a text file with one id per line; export the ids of a Parquet or compressed file first",
        )
    return text.removeprefix("\ufeff").splitlines()


def find_dense_ids(prepared: PreparedGraphModel, names: list[str], side: int) -> list[int]:
    """Return the dense ids for raw ones.

    Raises:
        DataError: a node is not on this side.
    """
    graph = prepared.graph
    ids = to_id_array(pa.array(names), graph.numeric[side], f"--nodes of side {graph.sides[side]}")
    places = NodeFinder(graph)(hash_node_ids(ids, graph.seed), side)
    unknown = [name for name, place in zip(names, places, strict=True) if place >= MOST_NODES]
    if unknown:
        listed = ", ".join(unknown[:5])
        message = f"{len(unknown)} of {len(names)} nodes are not of side {graph.sides[side]}: {listed}"
        hint = f"{nearest(unknown[0], sample_ids(graph, side))}; a node without edges comes by --node-table"
        raise DataError(message, hint)
    return [int(place) for place in places]


def sample_ids(graph: Graph, side: int) -> list[str]:
    """Return up to `MAX_SEARCHED_IDS` ids from a side.

    A hint names the most similar one.
    """
    ids: list[str] = []
    for block in graph.side_blocks(side):
        ids += [str(name) for name in read_ids(graph, block)[:MAX_SEARCHED_IDS].to_pylist()]
        if len(ids) >= MAX_SEARCHED_IDS:
            break
    return ids[:MAX_SEARCHED_IDS]
