"""Tables of groups of items: what is read, what is refused, and what checks say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from recbench_spark.engine.local import LocalEngine
from recbench_spark.errors import ConfigError, DataError, SchemaError
from recbench_spark.evaluation.evaluate import evaluate
from recbench_spark.metrics.item_labels import ItemGroups, open_item_groups
from recbench_spark.metrics.kernels.user_lists import CountedItems
from tests.metrics.families import World
from tests.metrics.test_families import Catalogue

TRUTH = {"user_id": ["u", "v"], "item_id": ["a", "b"]}
LISTS = {"user_id": ["u", "u", "v"], "item_id": ["a", "b", "c"], "rank": [1, 2, 1]}


def open_groups(folder: Path, table: dict[str, Any], *columns: str | None) -> ItemGroups:
    column, weight = columns
    labels = open_item_groups(LocalEngine(str(folder)), str(folder), pa.table(table), (str(column), weight))
    return labels.join(Catalogue(World(["a", "b", "c", "d"], [])), 4)


def list_weights(groups: ItemGroups) -> dict[int, dict[str, float]]:
    items = CountedItems(np.array([0, 4]), np.arange(4), np.ones(4, np.int64))
    weights: dict[int, dict[str, float]] = {}
    for entry, group, weight in zip(*groups.label(items), strict=True):
        weights.setdefault(int(entry), {})[groups.names[group]] = float(weight)
    return weights


def test_labels_of_an_item_weigh_one_together(tmp_path: Path) -> None:
    """A list in a cell, several rows, a row twice, an unknown item, and a row without a label."""
    ids, cells = ["a", "b", "a", "z", "c"], [["x", "y"], ["x"], ["w"], ["v"], None]
    groups = open_groups(tmp_path, {"item_id": ids, "genre": cells}, "genre", None)
    assert groups.names == ("v", "w", "x", "y") and groups.column == "genre"
    third = pytest.approx(1 / 3)
    assert list_weights(groups) == {0: {"w": third, "x": third, "y": third}, 1: {"x": 1.0}}
    assert groups.sizes_g.tolist() == [0.0, third, pytest.approx(4 / 3), third]
    without, several, alone = groups.check()
    assert (without.observed, without.passed, several.observed, alone.observed) == (2, True, 1, 2)


def test_weights_of_a_column_are_shares_of_the_item(tmp_path: Path) -> None:
    table = {"item_id": ["a", "a", "b", "b"], "genre": [1, 2, 2, 2], "weight": [3, 1, 0.5, 0.5]}
    groups = open_groups(tmp_path, table, "genre", "weight")
    assert list_weights(groups) == {0: {"1": 0.75, "2": 0.25}, 1: {"2": 1.0}}


REFUSED: list[tuple[dict[str, list[Any]], tuple[str | None, ...], type[Exception], str]] = [
    ({"item_id": ["a"], "genre": ["x"]}, ("gerne", None), SchemaError, r"no column gerne(.|\n)*'genre'"),
    ({"item_id": ["a"], "genre": [None]}, ("genre", None), DataError, "has 0 groups"),
    ({"item_id": ["a"] * 101, "genre": [*range(101)]}, ("genre", None), DataError, "101 groups(.|\n)*100"),
    ({"item_id": ["a"], "genre": ["x"], "w": [0.0]}, ("genre", "w"), DataError, "w is 0(.|\n)*above 0"),
    ({"item_id": ["q"], "genre": ["x"]}, ("genre", None), DataError, "no item_id in common"),
    ({"item_id": ["a"], "genre": [{"k": 1}]}, ("genre", None), SchemaError, "holds no labels"),
    ({"item_id": [None], "genre": ["x"]}, ("genre", None), DataError, "item_groups"),
]


@pytest.mark.parametrize(("table", "columns", "error", "message"), REFUSED)
def test_tables_that_hold_no_groups_are_refused(
    table: Any, columns: Any, error: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        open_groups(tmp_path, table, *columns)


def test_evaluate_asks_for_the_tables_and_one_column() -> None:
    with pytest.raises(ConfigError, match="rsp needs groups of items"):
        evaluate(TRUTH, lists=LISTS, metrics="rsp")
    with pytest.raises(ConfigError, match="calibration needs the training rows"):
        evaluate(TRUTH, lists=LISTS, metrics="calibration", item_groups={"item_id": ["a"], "genre": ["x"]})
    several = {"item_id": ["a"], "genre": ["x"], "year": [1]}
    with pytest.raises(SchemaError, match="item_groups has item_id, genre, year"):
        evaluate(TRUTH, lists=LISTS, metrics="rsp", item_groups=several)


def test_numbers_of_groups_stand_beside_slices() -> None:
    """Up to 2: a at rank 1, b at rank 2, c at rank 1; c has no genre."""
    genres = {"item_id": ["a", "b"], "genre": ["x", "y"]}
    result = evaluate(TRUTH, lists=LISTS, k=2, metrics=["exposure_share", "rsp"], item_groups=genres)
    rows = result.metrics.to_pylist()
    share = {row["slice_value"]: row for row in rows if row["metric"] == "exposure_share"}
    low = 1 / np.log2(3)
    assert share["x"]["value"] == pytest.approx(1 / (1 + low))
    assert share["y"]["value"] == pytest.approx(low / (1 + low))
    assert {row["slice_key"] for row in share.values()} == {"genre"}
    assert {row["definition"] for row in rows} == {"v1;groups=genre"}
    assert [row["value"] for row in rows if row["metric"] == "rsp"] == [0.0], (
        "each is listed once of two times"
    )
    assert {check.check for check in result.checks} >= {
        "items without a group",
        "items in several groups",
        "groups with one item",
    }


def test_users_without_history_and_an_empty_head_are_counted() -> None:
    genres = {"item_id": ["a", "b"], "genre": ["x", "y"]}
    for items, head in ((["a"], 1.0), ([], 0.0)):
        train = pa.table(
            {"user_id": pa.array(["u"] * len(items), pa.string()), "item_id": pa.array(items, pa.string())}
        )
        options = {"metrics": ["aplt", "calibration"], "item_groups": genres, "k": 2}
        result = evaluate(TRUTH, lists=LISTS, train=train, **options)
        counts = {check.check: check.observed for check in result.checks}
        users = len({*TRUTH["user_id"]})
        assert counts["items in the short head"] == head
        assert counts["test: users without training items"] == users - len(items)
