"""A format that a package adds is read by every command, with the numbers of the same rows in Parquet."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from recbench_spark import cli, readers
from recbench_spark.auctions.worlds import AuctionWorld, make_auctions
from recbench_spark.config import Dataset
from recbench_spark.core.strict_settings import parse
from recbench_spark.errors import ConfigError, DataError, SchemaError
from recbench_spark.graphs.build_inputs import count_edges
from recbench_spark.graphs.edges import open_rows
from recbench_spark.graphs.settings import GraphSource
from recbench_spark.schemas import EMBEDDINGS, METRICS, PROPENSITIES, REPLAYS, SPLITS
from recbench_spark.sources.table_pieces import open_pieces, read_rows
from recbench_spark.storage.arrow_store import ArrowStore


@pytest.fixture(autouse=True)
def _package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install a package whose only content is an entry point."""
    place = tmp_path / "site" / "ipc-1.0.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text("Metadata-Version: 2.1\nName: ipc\nVersion: 1.0\n")
    (place / "entry_points.txt").write_text(f"[{readers.GROUP}]\narrow = tests.ipc_reader:IpcFiles\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "site")])
    readers.find_readers.cache_clear()
    yield
    readers.find_readers.cache_clear()


def write(path: Path, table: pa.Table) -> Path:
    """Write a table in the format of the path's ending, in pieces of 100 rows."""
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=100)
    else:
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table, max_chunksize=100)
    return path


def make_log() -> pa.Table:
    rng = np.random.default_rng(2)
    pairs = rng.choice(40 * 25, 600, replace=False)
    times = pa.array(1_600_000_000 + rng.permutation(600), pa.int64())
    ratings = rng.integers(1, 6, 600) * 1.0
    return pa.table({"user_id": pairs // 25, "item_id": pairs % 25, "rating": ratings, "event_time": times})


def make_lists() -> tuple[pa.Table, pa.Table, pa.Table]:
    """Lists of two models, and what users chose."""
    users = np.repeat(np.arange(30), 4)
    items, ranks = np.tile([1, 5, 2, 9], 30), np.tile([1, 2, 3, 4], 30)
    one = pa.table({"user_id": users, "item_id": items, "rank": ranks})
    two = pa.table({"user_id": users, "item_id": (items + users) % 11, "rank": ranks})
    return one, two, pa.table({"user_id": np.arange(30), "item_id": np.arange(30) % 7})


def write_inputs(folder: Path, ending: str) -> dict[str, list[object]]:
    """Write the inputs of each command, and return its flags."""
    folder.mkdir()
    one, two, truth = (
        write(folder / f"{name}{ending}", table)
        for name, table in zip(("one", "two", "truth"), make_lists(), strict=True)
    )
    log, rng = write(folder / f"log{ending}", make_log()), np.random.default_rng(1)
    edges = pa.table({"src": rng.integers(0, 30, 400), "dst": rng.integers(0, 30, 400)})
    vectors = pa.table(
        {"id": np.arange(30), "vector": pa.array(list(rng.normal(size=(30, 3))), pa.list_(pa.float64()))}
    )
    rounds = pa.table({"reward": rng.integers(0, 2, 300) * 1.0, "propensity": rng.uniform(0.1, 1, 300)})
    world = make_auctions(AuctionWorld(auctions=300, queries=40, seed=9))
    document = {
        "name": "own", "log": {"path": str(write(folder / f"auctions{ending}", world.log))},
        "replay": {"points": [{"main_slots": 2, "side_slots": 2}], "bootstrap": {"replicates": 5}},
        "models": [{"name": "new", "trained_until": "2026-01-01T00:01:00+00:00", "path": str(write(
            folder / f"model{ending}", world.log.select(["auction_id", "ad_id", "probability"])))}],
    }  # fmt: skip
    (folder / "replay.yaml").write_text(yaml.safe_dump(document))
    night = {
        "name": "night",
        "dataset": {
            "name": "log",
            "reader": "arrow" if ending == ".arrow" else "parquet",
            "path": str(log),
        },
        "models": [{"name": "popular", "kind": "popular"}],
        "evaluation": {"metrics": ["ndcg"], "k": [5], "slices": [], "bootstrap": {"replicates": 5}},
    }
    (folder / "night.yaml").write_text(yaml.safe_dump(night))
    local: list[object] = ["--engine", "local", "--warehouse", folder / "w"]
    day = ["--logical-date", "2026-01-31"]
    return {
        "evaluate": [*local, *day, "--model", "m", "--lists", one, "--truth", truth, "--k", "3"],
        "compare": ["--lists", f"a={one}", "--lists", f"b={two}", "--truth", truth, "--k", "3"],
        "split": [*local, "--log", log, "--protocol", "TO_LS"],
        "nightly": [*local, *day, "--config", folder / "night.yaml"],
        "embed": [
            *local, "--edges", write(folder / f"edges{ending}", edges), "--widths", "4",
            "--features", write(folder / f"vectors{ending}", vectors),
        ],
        "estimate": [
            *local, *day, "--model", "m", "--rounds", write(folder / f"rounds{ending}", rounds),
            "--uniform", "3",
        ],
        "replay": [*local, *day, "--config", folder / "replay.yaml"],
        "propensity": [*local, "--log", log, "--part", "all"],
        "init": ["--log", log, "--dry-run"],
    }  # fmt: skip


TABLES = {
    "evaluate": METRICS, "split": SPLITS, "nightly": METRICS, "embed": EMBEDDINGS, "estimate": METRICS,
    "replay": REPLAYS, "propensity": PROPENSITIES,
}  # fmt: skip
NAMES = {"run_id", "split_id", "model_id", "propensity_id", "graph_id", "created_at"}


def run(command: str, flags: list[object], capsys: pytest.CaptureFixture[str]) -> str:
    job = import_module(f"recbench_spark.commands.{command}")
    with pytest.raises(SystemExit) as end:
        cli.run(job.main, job.parser(), [*map(str, flags)])
    said = capsys.readouterr()
    assert not end.value.code, said.err
    return str(said.out)


def read_numbers(folder: Path, command: str) -> list[str]:
    """Rows of the command's table without names by hashes of inputs, every number to the bit."""
    rows = ArrowStore(str(folder / "w"), read_only=True).rows(TABLES[command])
    exact = [
        {name: v.hex() if isinstance(v, float) else v for name, v in row.items() if name not in NAMES}
        for row in rows
    ]
    return sorted(map(repr, exact))


@pytest.mark.parametrize("command", [*TABLES, "compare", "init"])
def test_a_format_of_a_package_is_read_by(command: str, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr("recbench_spark.runtime.session.get_session", pytest.fail)
    said, numbers = [], []
    for ending in (".parquet", ".arrow"):
        folder = tmp_path / ending[1:]
        output = run(command, write_inputs(folder, ending)[command], capsys)
        said.append(
            re.sub(r"[a-z0-9]*-?[0-9a-f]{12,}|[0-9.]+ s\b", "", output.replace(ending[1:], "FORMAT"))
        )
        numbers.append(
            read_numbers(folder, command) if command in TABLES else [output.replace(ending[1:], "")]
        )
    assert numbers[0] == numbers[1] and numbers[0]
    assert said[0] == said[1] if command in ("compare", "init") else said[1]


def test_its_files_stand_in_folders_beside_none_of_another_format(tmp_path: Path) -> None:
    table = pa.table({"src": range(250), "dst": range(250)})
    for day in (1, 2):
        (tmp_path / f"e/day={day}").mkdir(parents=True)
        write(tmp_path / f"e/day={day}/a.arrow", table)
    opened = open_pieces(str(tmp_path / "e"))
    assert (opened.n, len(opened.pieces), opened.schema.names) == (500, 6, ["src", "dst", "day"])
    whole = pa.concat_tables(read_rows(opened.pieces, ["dst", "day"]))
    assert (
        whole["dst"].to_pylist() == [*range(250)] * 2
        and whole["day"].to_pylist() == ["1"] * 250 + ["2"] * 250
    )
    assert open_rows(str(tmp_path / "e"), ["src"], "edges", ids={"src": "auto"}).n == 500
    pq.write_table(table, tmp_path / "e/day=1/b.parquet")
    with pytest.raises(SchemaError, match="are of two formats"):
        open_pieces(str(tmp_path / "e"))
    (tmp_path / "bad.arrow").write_text("no Arrow")
    with pytest.raises(DataError, match=r"it is text, not a Arrow file|is not a Arrow file"):
        open_pieces(str(tmp_path / "bad.arrow"))


def test_a_reader_is_named_by_packages_that_are_here(tmp_path: Path) -> None:
    facts: Any = {"name": "log", "path": str(tmp_path / "log.arrow")}
    dataset = parse(Dataset, {"reader": "arrow", **facts}, "dataset")
    assert dataset.is_typed and dataset.is_table and dataset.is_headed
    with pytest.raises(ConfigError, match="no reader 'arow'") as error:
        parse(Dataset, {"reader": "arow", **facts}, "dataset")
    assert "arrow" in error.value.hint


def test_edges_in_lists_of_a_package_are_counted_by_their_rows(tmp_path: Path) -> None:
    lists = pa.table({"node": [1, 2], "neighbours": [[2, 3], [1]]})
    for ending, n in ((".arrow", 2), (".parquet", 3)):
        path = write(tmp_path / f"lists{ending}", lists)
        assert count_edges(GraphSource(edges=str(path), lists=True)) == n


def test_a_broken_package_is_named_where_its_reader_is_wanted(tmp_path: Path) -> None:
    entries = tmp_path / "site" / "ipc-1.0.dist-info" / "entry_points.txt"
    entries.write_text(f"[{readers.GROUP}]\narrow = tests.no_such_module:IpcFiles\n")
    log = {"name": "log", "path": str(write(tmp_path / "log.parquet", make_log()))}
    assert parse(Dataset, {**log, "reader": "parquet"}, "file").reader == "parquet"
    with pytest.raises(
        ConfigError, match=r"reader arrow of the package ipc cannot be loaded: .*no_such_module"
    ):
        parse(Dataset, {**log, "reader": "arrow"}, "file")
