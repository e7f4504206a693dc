"""User blocks: the labelled log as one row per user, by hand, and against a slow oracle."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from recbench_spark.core.hashed_ids import hash_ids
from recbench_spark.splits.user_blocks import BlockPlan, SliceLabel, build_user_blocks

ITEMS = {"a": (0, 5), "b": (1, 2), "c": (2, 1), "d": (3, 0)}
"""Item -> its index and its training rows; torso from 2 rows on, head from 5."""
CLASSES = {"a": "head", "b": "torso", "c": "tail", "d": "cold"}
ROWS = [
    ("u", "c", 3.0, "train", {"page": "1"}),
    ("u", "a", 5.0, "train", {"page": "2"}),
    ("u", "d", 4.0, "test", {"page": "1"}),
    ("u", "b", 2.0, "test", None),
    ("u", "a", 1.0, "other", None),
    ("v", "b", 1.0, "test", {"page": "3"}),
    ("v", "a", 2.0, "open_loop", {"page": "4"}),
    ("w", "a", 2.0, "train", None),
]
PARTS = ("valid", "test", "open_loop")
SLICES = (
    SliceLabel("popularity", "popularity"),
    SliceLabel("cold_user", "cold_user"),
    SliceLabel("page", "log", "page"),
)
SCHEMA = pa.schema(
    [
        ("user_id", pa.string()),
        ("item_id", pa.string()),
        ("rating", pa.float64()),
        ("part", pa.string()),
        ("attributes", pa.map_(pa.string(), pa.string())),
    ]
)


def find(ids: pa.Array) -> tuple[Any, Any]:
    places = [ITEMS.get(one, (-1, 0)) for one in ids.to_pylist()]
    return np.array([index for index, _ in places], int), np.array([n for _, n in places], int)


def make_rows(rows: list[Any]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(SCHEMA)
    columns[-1] = [list(one.items()) if one else None for one in columns[-1]]
    return pa.table(
        [pa.array(one, kind) for one, kind in zip(columns, SCHEMA.types, strict=True)], schema=SCHEMA
    )


def build(rows: list[Any], slices: tuple[SliceLabel, ...] = SLICES) -> dict[str, dict[str, Any]]:
    return read(build_user_blocks(make_rows(rows), BlockPlan(find, (2, 5), PARTS, slices)))


def read(blocks: pa.Table) -> dict[str, dict[str, Any]]:
    by_user = {row["user_id"]: row for row in blocks.to_pylist()}
    assert len(by_user) == len(blocks)
    for row in by_user.values():
        row["held_out"] = {
            part: truth | {"slices": dict(truth["slices"])} for part, truth in row["held_out"]
        }
    return by_user


def test_arrays_by_hand() -> None:
    by_user = build(ROWS)
    assert sorted(by_user) == ["u", "v", "w"]
    u = by_user["u"]
    assert (u["train_items"], u["train_ratings"]) == ([0, 2], [5.0, 3.0])
    assert u["held_out"] == {
        "test": {
            "item_ids": ["b", "d"],
            "items": [1, 3],
            "relevance": [2.0, 4.0],
            "slices": {
                "popularity": ["torso", "cold"],
                "cold_user": ["warm", "warm"],
                "page": [None, "1"],
            },
        }
    }
    v = by_user["v"]
    assert (v["train_items"], v["train_ratings"]) == ([], [])
    assert list(v["held_out"]) == ["test", "open_loop"]
    assert v["held_out"]["test"]["slices"]["cold_user"] == ["cold"]
    assert v["held_out"]["open_loop"]["slices"]["page"] == ["4"]
    assert by_user["w"]["held_out"] == {}


def test_the_key_is_the_hash_of_the_user() -> None:
    (key,) = hash_ids(pa.array(["u"])).view(np.int64)
    assert build(ROWS)["u"]["user_key"] == key


def test_without_slices_there_are_none() -> None:
    assert build([("u", "a", 1.0, "test", None)], ())["u"]["held_out"]["test"]["slices"] == {}


def test_a_log_without_attributes_has_no_labels() -> None:
    rows = make_rows(ROWS).drop_columns(["attributes"])
    by_user = read(build_user_blocks(rows, BlockPlan(find, (2, 5), PARTS, SLICES)))
    assert by_user["u"]["held_out"]["test"]["slices"]["page"] == [None, None]


def test_users_whose_rows_were_dropped_have_no_block() -> None:
    """A file's dictionary still names them."""
    rows = make_rows(ROWS)
    for name in ("user_id", "item_id", "part"):
        rows = rows.set_column(
            rows.schema.get_field_index(name), name, rows.column(name).dictionary_encode()
        )
    kept = rows.filter(pa.array([user != "v" for user, *_ in ROWS]))
    assert "v" in kept.column("user_id").combine_chunks().dictionary.to_pylist()
    blocks = read(build_user_blocks(kept, BlockPlan(find, (2, 5), PARTS, SLICES)))
    assert blocks == {user: row for user, row in build(ROWS).items() if user != "v"}


def test_no_rows_give_no_blocks() -> None:
    assert build([]) == {}


def oracle(rows: list[Any]) -> dict[str, dict[str, Any]]:
    """Slow and obvious: dictionaries and `sorted`."""
    by_user = defaultdict(list)
    for user, item, rating, part, attributes in rows:
        page = (attributes or {}).get("page")
        by_user[user].append((ITEMS[item][0], rating, part, page is not None, page or "", item))
    blocks = {}
    for user, own in by_user.items():
        own.sort()
        known = [row for row in own if row[2] in ("train", "given")]
        warmth = "warm" if any(row[2] == "train" for row in own) else "cold"
        truth = {part: [row for row in own if row[2] == part] for part in PARTS}
        blocks[user] = {
            "train_items": [row[0] for row in known],
            "train_ratings": [row[1] for row in known],
            "held_out": {
                part: {
                    "item_ids": [row[5] for row in held],
                    "items": [row[0] for row in held],
                    "relevance": [row[1] for row in held],
                    "slices": {
                        "popularity": [CLASSES[row[5]] for row in held],
                        "cold_user": [warmth] * len(held),
                        "page": [row[4] if row[3] else None for row in held],
                    },
                }
                for part, held in truth.items()
                if held
            },
        }
    return blocks


@pytest.mark.parametrize("seed", range(20))
def test_drawn_logs_as_the_oracle_has_them(seed: int) -> None:
    """Users in several parts, rows of one pair, equal ratings, missing labels; the order is shuffled."""
    draw = random.Random(seed)
    parts = ["train", "given", "other", *PARTS]
    pages = [None, {"page": "ä"}, {"page": "1"}, {"other": "1"}, {"page": "10"}]
    rows = [
        (
            f"u{draw.randrange(9)}",
            draw.choice("abcd"),
            float(draw.randrange(3)),
            draw.choice(parts),
            draw.choice(pages),
        )
        for _ in range(draw.randrange(1, 150))
    ]
    expected = oracle(rows)
    draw.shuffle(rows)
    built = build(rows)
    assert {user: {name: row[name] for name in expected[user]} for user, row in built.items()} == expected
