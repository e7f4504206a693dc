"""The catalogue as workers look ids up in it. No JVM."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recbench_spark.ranking.known_items import KnownItems
from recbench_spark.storage import shared_arrays
from recbench_spark.storage.shared_arrays import SharedRows


@pytest.mark.parametrize(
    ("numeric", "order"), [(True, ["-2", "9", "10"]), (False, ["-2", "10", "9"]), (None, ["9", "-2", "10"])]
)
def test_items_are_numbered_as_given_or_in_the_order_of_their_ids(
    tmp_path: Path, numeric: bool | None, order: list[str]
) -> None:
    rows = {"item_id": ["10", "-2", "9"], "n_train": [5, 6, 7]}
    if numeric is None:
        rows["item_index"] = [2, 1, 0]
    pq.write_table(pa.table(rows), tmp_path / "items.parquet")
    shared = SharedRows(f"numbered-{tmp_path.name}", (str(tmp_path / "items.parquet"),))
    known = KnownItems(shared, 3, numeric)
    index, n_train = known.find(pa.array([*order, "x"]))
    assert index.tolist() == [0, 1, 2, -1]
    trained = dict(zip(rows["item_id"], rows["n_train"], strict=True))
    assert n_train.tolist() == [*(trained[item] for item in order), 0]
    assert known.ids().tolist() == [item.encode() for item in order]
    shared_arrays.remove_arrays(shared.key)
