"""Measure indexes: recall, speed, building time and bytes.

    python jobs/bench/retrieval.py                                 100,000 items in clusters, 64 dimensions
    python jobs/bench/retrieval.py --items 1000000 --kinds flat ivf lsh
    python jobs/bench/retrieval.py --vectors items.npy --queries users.npy      vectors of a model

Recall is the share of exact lists an index returns; speed is in queries a second. Each setting takes its
turn beside the block's bare product (numpy, no lists), this package's exact lists, and a search in the
same faiss file by hand, without exact scores. One thread works (set OMP_NUM_THREADS=1). Rates are per CPU
second of this process: others may share the machine. Recall is measured at 10 and 100 against the exact
lists, with no item left out.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import TypeAdapter

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from jobs.bench.harness import add_counts, add_output_flag, append_rows, measure_own_cpu, take_turns
from recbench_spark import cli
from recbench_spark.core.arrays import Floats32
from recbench_spark.errors import OK, ConfigError
from recbench_spark.ranking.kernels.counting import CountingSettings
from recbench_spark.ranking.kernels.positives import ItemLists
from recbench_spark.ranking.kernels.products import Products, make_products
from recbench_spark.ranking.kernels.scorers import DotScorer, UserBlock, count_ranks
from recbench_spark.retrieval.faiss_indexes import INDEX_FILE, load_faiss, multiply_matrices
from recbench_spark.retrieval.interface import IndexReader, count_bytes
from recbench_spark.retrieval.kernels.candidates import ItemSets, RetrievedLists, measure_recall
from recbench_spark.retrieval.search import IndexLists, make_builder, search_lists, write_parts
from recbench_spark.retrieval.settings import AnyIndexSettings

Search = Callable[[Floats32], object]
"""Searches a block of queries."""
K = 100
SWEEPS: dict[str, list[dict[str, Any]]] = {
    "flat": [{}],
    "ivf": [{"probes": probes} for probes in (4, 8, 16, 32, 64)],
    "hnsw": [{"candidates": candidates} for candidates in (100, 200, 400)],
    "lsh": [
        {"bands": 20, "bits": bits, "theta": theta} for bits, theta in ((16, 2), (12, 3), (12, 2), (8, 3))
    ],
}
TILE = 1 << 16
"""Items in a tile of the bare product, so its result stays small."""
DRAWN = 1 << 20
"""Vectors drawn at once."""
SINGLE_QUERIES = 64
"""Queries also searched one by one."""
BUILT = {"ivf": ("probes",), "hnsw": ("candidates",), "lsh": ("theta",), "flat": ()}
"""Search settings: an index is built once for all their values."""


class World(NamedTuple):
    """Vectors of items and queries."""

    products: Products
    queries_ud: Floats32


def parser() -> cli.Parser:
    """Make the flag parser."""
    flags = cli.Parser(__doc__ or "")
    flags.add_argument("--items", type=cli.parse_count, default=100_000)
    flags.add_argument("--users", type=cli.parse_count, default=2000, help="queries of a block")
    add_counts(flags, dims=64, clusters=500)
    flags.add_argument("--spread", type=float, default=1.2, help="of items around centres of spread 1")
    flags.add_argument("--vectors", type=Path, help="float32 .npy of items, instead of drawn ones")
    flags.add_argument("--queries", type=Path, help="float32 .npy of users, with --vectors")
    flags.add_argument("--kinds", nargs="+", choices=[*SWEEPS], default=[*SWEEPS])
    flags.add_argument("--cells", type=cli.parse_count, help="of ivf (default: 4 sqrt(items))")
    flags.add_argument("--always", type=float, default=0.05, help="share of the longest items, of lsh")
    flags.add_argument("--rounds", type=cli.parse_count, default=3)
    add_output_flag(flags)
    return flags


def make_world(args: argparse.Namespace) -> World:
    """Draw items and queries around the same centres.

    With `--vectors` they are read.
    """
    if (args.vectors is None) != (args.queries is None):
        raise ConfigError("one of --vectors and --queries is missing", "give both, or none of them")
    if args.vectors is not None:
        return World(make_products(np.load(args.vectors)), np.load(args.queries)[: args.users])
    draw = np.random.default_rng(0)
    centres = draw.normal(size=(args.clusters, args.dims))

    def draw_vectors(rows: int, spread: float) -> Floats32:
        near_n = draw.integers(0, args.clusters, rows)
        vectors_nd = np.empty((rows, args.dims), np.float32)
        for start in range(0, rows, DRAWN):  # the draws one block with all rows would get
            near = centres[near_n[start : start + DRAWN]]
            vectors_nd[start : start + DRAWN] = near + spread * draw.normal(size=near.shape)
        return vectors_nd

    return World(
        make_products(draw_vectors(args.items, args.spread)), draw_vectors(args.users, args.spread)
    )


def list_exactly(world: World) -> RetrievedLists:
    """Return all queries' exact lists."""
    nothing = ItemLists(np.zeros(len(world.queries_ud) + 1, np.int64), np.zeros(0, np.int64))
    users = UserBlock(np.arange(len(world.queries_ud)), world.queries_ud)
    p = world.products
    scorer = DotScorer(p.vectors_id, p.bias_i, p.scored_i, "dot")
    counts = count_ranks(scorer, users, nothing, nothing, settings=CountingSettings(top_k=K))
    assert counts.top_items_uk is not None and counts.top_scores_uk is not None
    return RetrievedLists(counts.top_items_uk, counts.top_scores_uk)


def make_settings(kind: str, values: dict[str, Any], args: argparse.Namespace) -> AnyIndexSettings:
    """Make an index's settings in the sweep."""
    always: dict[str, Any] = {"always": args.always} if kind == "lsh" else {}
    if kind == "ivf" and args.cells:
        always["cells"] = args.cells
    adapter: TypeAdapter[AnyIndexSettings] = TypeAdapter(AnyIndexSettings)
    return adapter.validate_python({"name": kind, "kind": kind, **always, **values})


def measure_setting(
    world: World, exact: RetrievedLists, readers: list[IndexReader], hand: Search | None, rounds: int
) -> dict[str, float]:
    """Measure one setting's recall and rates.

    The index takes turns with the bare product, exact lists and faiss.
    """
    queries_ud, queries = world.queries_ud, len(world.queries_ud)

    def search(queries_ud: Floats32) -> IndexLists:
        nobody = ItemSets(np.zeros(len(queries_ud) + 1, np.int64), np.zeros(0, np.int32))
        return search_lists(readers, world.products, queries_ud, nobody, K)

    lists = search(queries_ud)
    systems: dict[str, Callable[[], object]] = {
        "product": lambda: multiply_blocks(queries_ud, world.products.vectors_id),
        "exact": lambda: list_exactly(world),
        "index": lambda: search(queries_ud),
        "single": lambda: [search(queries_ud[u : u + 1]) for u in range(min(queries, SINGLE_QUERIES))],
    }
    if hand is not None:
        systems["hand"] = partial(hand, queries_ud)
    timed = {name: partial(measure_own_cpu, work) for name, work in systems.items()}
    turns = take_turns(timed, rounds)
    counts = dict.fromkeys(systems, queries) | {"single": min(queries, SINGLE_QUERIES)}
    rates = {f"{name}_per_s": counts[name] / statistics.median(turns[name]) for name in systems}
    recalls = {
        f"recall_{k}": float(measure_recall(lists.scores_uk, exact.scores_uk, k).mean()) for k in (10, K)
    }
    return recalls | rates | {"candidates": float(lists.proposed_u.mean())}


def multiply_blocks(queries_ud: Floats32, vectors_id: Floats32) -> None:
    """Multiply all queries with all items, in blocks.

    A block has 256 queries and `TILE` items.
    """
    out = np.empty((256, TILE), np.float32)
    for start in range(0, len(queries_ud), 256):
        block = queries_ud[start : start + 256]
        for first in range(0, len(vectors_id), TILE):
            tile = vectors_id[first : first + TILE]
            np.matmul(block, tile.T, out=out[: len(block), : len(tile)])


def open_by_hand(settings: AnyIndexSettings, folder: Path) -> Search | None:
    """Search an index's file by faiss alone.

    The result is None for `lsh`, which is no faiss file.
    """
    if settings.kind == "lsh":
        return None
    faiss = load_faiss()
    index, more = faiss.read_index(str(folder / INDEX_FILE)), None
    if settings.kind == "ivf":
        more = faiss.SearchParametersIVF(nprobe=settings.probes)
    if settings.kind == "hnsw":
        more = faiss.SearchParametersHNSW(efSearch=max(settings.candidates, K))

    def search(queries_ud: Floats32) -> object:
        with multiply_matrices(faiss):
            return index.search(queries_ud, K, params=more)

    search(np.ones((1, index.d), np.float32))  # opens what faiss opens at first use
    return search


def main(args: argparse.Namespace) -> int:
    """Print a line for each setting."""
    world = make_world(args)
    exact = list_exactly(world)
    items = len(world.products.scored_i)
    print(
        f"{items:,} items, {len(world.queries_ud):,} queries, {world.products.dims} dimensions", flush=True
    )
    for kind in args.kinds:
        folders: dict[str, tuple[Path, float]] = {}
        with tempfile.TemporaryDirectory(prefix="recbench-retrieval-") as place:
            for values in SWEEPS[kind]:
                settings = make_settings(kind, values, args)
                shared = str({name: value for name, value in values.items() if name not in BUILT[kind]})
                if shared not in folders:
                    folder = Path(place) / str(len(folders))
                    folder.mkdir()
                    work = lambda: write_parts(settings, world.products, folder)  # noqa: B023, E731
                    folders[shared] = folder, measure_own_cpu(work)
                folder, built_s = folders[shared]
                parts = sorted(folder.iterdir())
                readers = [make_builder(settings).read(part) for part in parts]
                row = measure_setting(world, exact, readers, open_by_hand(settings, parts[0]), args.rounds)
                row |= {"build_s": built_s, "bytes": count_bytes(folder)}
                print(describe_row(kind, values, row), flush=True)
                append_rows(args.output, [{"kind": kind, **values, "items": items, **row}])
    return OK


def describe_row(kind: str, values: dict[str, Any], row: dict[str, float]) -> str:
    """Return one line of the table.

    >>> row = {"recall_10": 1.0, "recall_100": 0.5, "index_per_s": 2e3, "product_per_s": 1e3,
    ...        "exact_per_s": 900.0, "single_per_s": 800.0, "hand_per_s": 2100.0,
    ...        "candidates": 120.0, "build_s": 2.0, "bytes": 5e6}
    >>> describe_row("ivf", {"probes": 8}, row)
    'ivf probes=8: recall@10 1.000 recall@100 0.500, 2,000 queries/s, singly 800 (product 1,000, \
exact lists 900, by hand 2,100), 120 candidates, built in 2.0 s, 5.0 MB'
    """
    name = " ".join([kind, *(f"{key}={value}" for key, value in values.items())])
    hand = f", by hand {row['hand_per_s']:,.0f}" if "hand_per_s" in row else ""
    return (
        f"{name}: recall@10 {row['recall_10']:.3f} recall@100 {row['recall_100']:.3f}, "
        f"{row['index_per_s']:,.0f} queries/s, singly {row['single_per_s']:,.0f} "
        f"(product {row['product_per_s']:,.0f}, exact lists {row['exact_per_s']:,.0f}{hand}), "
        f"{row['candidates']:,.0f} candidates, "
        f"built in {row['build_s']:.1f} s, {row['bytes'] / 1e6:.1f} MB"
    )


if __name__ == "__main__":
    cli.run(main, parser())
