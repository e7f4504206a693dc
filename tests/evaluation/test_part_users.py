"""Users of held-out parts and their exposure, without Spark: functions of Arrow tables, and by hand."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recbench_spark.analyses.exposure import exposure
from recbench_spark.analyses.exposure.exposure import EXPOSED_USERS, ExposedItems, item_chances
from recbench_spark.analyses.sampling.kernels.strata import StratumEdges, round_propensities
from recbench_spark.config import Strata
from recbench_spark.engine.measures import reduce_pieces
from recbench_spark.errors import DataError
from recbench_spark.ranking.batch_schemas import LISTED_USERS
from recbench_spark.ranking.given import LISTS, group_lists
from recbench_spark.ranking.kernels.rankings import list_roundings
from recbench_spark.ranking.part_users import (
    BLOCK_NAMES,
    PART_USERS,
    QUESTION_USERS,
    count_trained_users,
    select_part_users,
)
from recbench_spark.schemas import USER_BLOCKS
from recbench_spark.storage.shared_arrays import SharedRows

Row = dict[str, Any]

SCHEMA = pa.schema([field for field in USER_BLOCKS.arrow_schema if field.name in BLOCK_NAMES])
ITEMS = 12
NAMES = ("valid", "test", "open_loop", "quiz")
RATINGS = (0.0, -1.0, 0.5, 3.0, 3.5, 4.0, list_roundings(0.7)[0], 0.7)


def draw_items(draw: random.Random, least: int, most: int) -> list[int]:
    return sorted(draw.sample(range(ITEMS), draw.randint(least, most)))


def draw_truth(draw: random.Random) -> Row:
    items = draw_items(draw, 1, 4)
    labels = [draw.choice(["x", "y", None]) for _ in items]
    return {
        "item_ids": [f"i{item}" for item in items],
        "items": items,
        "relevance": draw.choices(RATINGS, k=len(items)),
        "slices": draw.choice([[], [("genre", labels)]]),
    }


def draw_row(draw: random.Random) -> Row:
    train = draw_items(draw, 0, 6)
    return {
        "user_id": f"u{draw.randrange(1000)}é",
        "user_key": draw.choice([-(1 << 63), (1 << 63) - 1, draw.randrange(99)]),
        "train_items": train,
        "train_ratings": draw.choices(RATINGS, k=len(train)),
        "held_out": [(name, draw_truth(draw)) for name in draw.sample(NAMES, draw.randint(0, len(NAMES)))],
        "closed_items": draw.choice([None, train, sorted(draw.sample(train, len(train) // 2))]),
    }


ROWS = st.randoms(use_true_random=True).map(
    lambda draw: [draw_row(draw) for _ in range(draw.randint(0, 6))]
)
"""Rows by a drawn seed: drawn value by value they took a third of a second an example."""


def to_table(rows: list[Row], cuts: list[int]) -> pa.Table:
    """The rows in chunks, with others before and behind them in the same buffers."""
    table = pa.Table.from_pylist([*rows[:1], *rows, *rows[:1]], schema=SCHEMA)
    table = table.slice(min(1, len(rows)), len(rows))
    bounds = [0, *sorted(cut % (len(rows) + 1) for cut in cuts), len(rows)]
    pieces = [table.slice(a, b - a) for a, b in pairwise(bounds)]
    return pa.concat_tables([*pieces, SCHEMA.empty_table()])


def choose_by_hand(
    rows: list[Row], parts: list[str], threshold: float | None, keep_empty: bool, masks: bool
) -> list[Row]:
    """`select_part_users`, a user and a part at a time."""
    chosen = []
    for row in rows:
        held_out, train = dict(row["held_out"]), row["train_items"]
        for part in parts:
            truth = held_out.get(part)
            if truth is None and not keep_empty:
                continue
            closed = train if row["closed_items"] is None else row["closed_items"]
            known = sorted(closed + (held_out["valid"]["items"] if "valid" in held_out else []))
            chosen.append({
                "user_id": row["user_id"], "part": part, "user_key": row["user_key"],
                "item_ids": truth["item_ids"] if truth else [],
                "items": truth["items"] if truth else [],
                "relevance": truth["relevance"] if truth else [],
                "slices": truth["slices"] if truth else None,
                "masked": ([] if not masks else closed if part == "valid" else known),
                "history": [
                    item
                    for item, rating in zip(train, row["train_ratings"], strict=True)
                    if is_relevant(rating, threshold)
                ],
            })  # fmt: skip
    return chosen


def is_relevant(rating: float, threshold: float | None) -> bool:
    """A rating that is the threshold in float32 reaches it."""
    return rating > 0 if threshold is None else rating >= threshold or rating in list_roundings(threshold)


REQUESTS = (
    ROWS,
    st.lists(st.integers(0, 9), max_size=2),
    st.lists(st.sampled_from(NAMES), min_size=1, unique=True),
    st.sampled_from([None, 0.7, 4.0]),
    st.booleans(),
    st.booleans(),
)
"""Blocks, cuts between pieces, parts, threshold, and whether empty users and masks are kept."""


@settings(max_examples=50)
@given(*REQUESTS)
def test_users_of_parts(
    rows: list[Row], cuts: list[int], parts: list[str], threshold: float | None, keep: bool, masks: bool
) -> None:
    selected = select_part_users(to_table(rows, cuts), parts, threshold, keep, masks=masks)
    assert selected.schema == PART_USERS
    assert selected.to_pylist() == choose_by_hand(rows, parts, threshold, keep, masks)


def ask_by_hand(
    rows: list[Row], parts: list[str], threshold: float | None, keep_empty: bool, masks: bool
) -> list[Row]:
    """Successive questions, one at a time: each truth item alone, with all before it."""
    chosen = []
    for one in choose_by_hand(rows, parts, threshold, keep_empty, masks):
        row = next(
            row for row in rows if row["user_key"] == one["user_key"] and row["user_id"] == one["user_id"]
        )
        known = dict(row["held_out"]).get("valid") if one["part"] != "valid" else None
        before = list(zip(known["items"], known["relevance"], strict=True)) if known else []
        for place in range(max(1, len(one["items"]))):
            at = slice(place, place + 1)
            earlier = list(zip(one["items"][:place], one["relevance"][:place], strict=True))
            liked = [item for item, grade in before + earlier if is_relevant(grade, threshold)]
            labels = None if one["slices"] is None else [(key, of[at]) for key, of in one["slices"]]
            chosen.append({
                **one,
                **{name: one[name][at] for name in ("item_ids", "items", "relevance")},
                "slices": labels,
                "masked": sorted({*one["masked"], *(item for item, _ in earlier)}) if masks else [],
                "history": sorted({*one["history"], *liked}),
                "query_id": str(place + 1) if one["items"] else None,
            })  # fmt: skip
    return chosen


@settings(max_examples=50)
@given(*REQUESTS, st.randoms(use_true_random=True))
def test_successive_questions(
    rows: list[Row], cuts: list[int], parts: list[str], threshold: float | None, keep: bool, masks: bool,
    draw: random.Random,
) -> None:  # fmt: skip
    rows = [{**row, "user_id": f"{n}{row['user_id']}"} for n, row in enumerate(rows)]
    for row in rows:
        for _, truth in row["held_out"]:
            order = draw.sample(range(len(truth["items"])), len(truth["items"]))
            for name in ("item_ids", "items", "relevance"):
                truth[name] = [truth[name][place] for place in order]
    table = to_table(rows, cuts)
    selected = select_part_users(table, parts, threshold, keep, masks=masks, successive=True)
    assert selected.schema == QUESTION_USERS
    assert selected.to_pylist() == ask_by_hand(rows, parts, threshold, keep, masks)


# ------------------------------------------------------------------------------------ exposure

CATALOGUE = st.lists(
    st.tuples(st.integers(0, 6), st.sampled_from([None, 0.0, 1e-3, 0.125, 0.1, 0.3, 2.5])),
    min_size=2, max_size=30,
).filter(lambda rows: any(value for _, value in rows))  # fmt: skip
"""Training rows and propensity of each item, by index; None: the table has none."""


def open_catalogue(rows: list[tuple[int, float | None]]) -> tuple[pa.Table, pa.Table]:
    """Items from the last to the first, and propensities in order, with one of a strange item."""
    named = [(f"i{n}", n, *row) for n, row in enumerate(rows)]
    items = pa.Table.from_pylist(
        [dict(zip(("item_id", "item_index", "n_train"), row, strict=False)) for row in named[::-1]]
    )
    known = [("?", 9.0), *((row[0], row[3]) for row in named if row[3] is not None or row[1] % 2)]
    ids, values = zip(*known, strict=True)
    propensities = pa.table({"item_id": pa.array(ids), "propensity": pa.array(values, pa.float64())})
    return items, propensities


@settings(max_examples=40)
@given(CATALOGUE, st.sampled_from([0.0, 0.01, 0.3, 0.5, 1.0]))
def test_chances_of_items(rows: list[tuple[int, float | None]], share: float) -> None:
    items, propensities = open_catalogue(rows)
    chances = item_chances(items, propensities)
    low = min(value for _, value in rows if value)
    by_index = {row["item_index"]: (row["n_train"], row["propensity"]) for row in chances.rows.to_pylist()}
    assert by_index == {n: (count, value or low) for n, (count, value) in enumerate(rows)}
    assert chances.unknown == sum(not value for _, value in rows)
    assert (chances.low, chances.high) == (low, max(value for _, value in rows if value))
    popular_from = exposure.popularity_threshold(items.column("n_train").to_numpy(), share)
    counts = sorted((count for count, _ in rows), reverse=True)
    assert popular_from == (counts[max(0, int(np.ceil(share * len(counts))) - 1)] if share else None)


@settings(max_examples=40)
@given(CATALOGUE.filter(lambda rows: len({value for _, value in rows if value}) > 1))
def test_strata_of_items(rows: list[tuple[int, float | None]]) -> None:
    chances = item_chances(*open_catalogue(rows))
    low = chances.low
    for kind in ("equal_width", "equal_count", "equal_mass"):
        for cut in exposure.cut_strata(chances, Strata(kind=kind, n=(2, 3))):  # type: ignore[arg-type]
            places = [sum(edge < (value or low) for edge in cut.edges) for _, value in rows]
            items = [places.count(stratum) for stratum in range(len(cut.items))]
            assert cut.items.tolist() == items
            mass = [
                sum(n for (n, _), s in zip(rows, places, strict=True) if s == stratum)
                for stratum in range(len(items))
            ]
            assert cut.interactions.tolist() == mass


@pytest.mark.parametrize(
    ("propensities", "message"),
    [
        (
            [("a", -0.5), ("b", float("nan")), ("c", 1.0), ("c", 1.0)],
            "2 below 0 or not a number, 1 items twice",
        ),
        ([("a", float("inf")), ("z", 1.0)], "1 below 0 or not a number, 0 items twice, 2 without one"),
        ([("a", 0.0), ("b", None), ("z", 1.0)], "0 below 0 or not a number, 0 items twice, 3 without one"),
        ([("a", 5e-324)], "2 without one"),
        ([], "3 without one"),
    ],
)
def test_propensities_that_cannot_be_used(propensities: list[tuple[str, float]], message: str) -> None:
    items = pa.table({"item_id": ["a", "b", "c"], "item_index": [0, 1, 2], "n_train": [3, 2, 1]})
    rows = [{"item_id": item, "propensity": value} for item, value in propensities]
    schema = pa.schema({"item_id": pa.string(), "propensity": pa.float64()})
    with pytest.raises(DataError, match=message):
        item_chances(items, pa.Table.from_pylist(rows, schema))


class ByIndex(ExposedItems):
    """Exposure of items whose arrays are in this process."""

    def arrays(self) -> Any:
        index = np.arange(ITEMS)
        return {"propensity": 1.0 / (index + 3), "n_train": index // 3}


@settings(max_examples=50)
@given(
    ROWS,
    st.lists(st.integers(0, 9), max_size=2),
    st.sampled_from([None, 0.2, 0.1]),
    st.sampled_from([None, 0, 2, 9]),
    st.sampled_from([None, 3.5]),
)
def test_exposure_of_users(
    rows: list[Row], cuts: list[int], edge: float | None, popular: int | None, threshold: float | None
) -> None:
    one = np.ones(2, int)
    strata = None if edge is None else StratumEdges("equal_count", 2, np.array([edge]), one, one)
    shown = ByIndex(SharedRows("", ()), ITEMS, strata, popular)
    users = select_part_users(to_table(rows, []), ["test", "valid"], threshold, True)
    batches = pa.concat_tables(users.slice(a % (len(users) + 1), 3) for a in [*cuts, 0])
    exposed_users = exposure.add_exposure(batches, shown)
    assert exposed_users.schema == EXPOSED_USERS
    expected = [expose_by_hand(row, edge, popular) for row in batches.to_pylist()]
    assert exposed_users.to_pylist() == expected
    measure = exposure.weight_measure(threshold)
    pieces = [exposed_users.slice(n, 2).to_batches() for n in range(0, len(exposed_users), 2)]
    results = reduce_pieces({"weights": measure}, pieces)
    weights = exposure.list_weights(results["weights"]) if results else {}
    assert list(weights) == sorted({row["part"] for row in expected})
    for part, part_weights in weights.items():
        check_weights(part_weights, [row for row in expected if row["part"] == part], threshold)


def expose_by_hand(row: Row, edge: float | None, popular: int | None) -> Row:
    propensity = [1.0 / (item + 3) for item in row["items"]]
    slices = [] if row["slices"] is None else list(row["slices"])
    if edge is not None:
        slices.append(("stratum", ["Q2" if value > edge else "Q1" for value in propensity]))
    if popular is not None:
        labels = ["only" if item // 3 >= popular else "without" for item in row["items"]]
        slices.append(("most_popular", labels))
    changed = edge is not None or popular is not None
    return {**row, "slices": slices if changed else row["slices"], "propensity": propensity}


def check_weights(weights: exposure.Weights, rows: list[Row], threshold: float | None) -> None:
    pairs = [pair for row in rows for pair in zip(row["relevance"], row["propensity"], strict=True)]
    rounded = [float(round_propensities(np.array([1.0 / value]))[0]) for _, value in pairs]
    relevant = [w for w, (grade, _) in zip(rounded, pairs, strict=True) if is_relevant(grade, threshold)]
    assert weights.longest == max(len(row["items"]) for row in rows)
    assert weights.largest == max(rounded, default=0.0)
    assert weights.grade == max((abs(grade) for grade, _ in pairs), default=0.0)
    assert weights.weight_x.tolist() == sorted(set(relevant))
    assert weights.rows_x.tolist() == [relevant.count(weight) for weight in sorted(set(relevant))]


# ------------------------------------------------------------------------------------ lists

LISTED = st.fixed_dictionaries({
    "user_id": st.sampled_from(["a", "b", "é", "c"]),
    "key": st.integers(0, 5) | st.just(1 << 40),
    "item_id": st.sampled_from(["i", "j", "ü"]),
    "rank": st.integers(1, 4),
    "score": st.sampled_from([-1.5, 0.0, 2.25]),
})  # fmt: skip


@settings(max_examples=40)
@given(st.lists(LISTED, max_size=12), st.sets(st.sampled_from(["item_id", "rank", "score"])))
def test_lists_of_users(rows: list[Row], dropped: set[str]) -> None:
    kinds = {"user_id": pa.string(), "key": pa.int64(), "item_id": pa.string()}
    kinds |= {"rank": pa.int64(), "score": pa.float64()}
    names = [name for name in kinds if name not in dropped]
    table = pa.Table.from_pylist(rows, pa.schema(kinds)).select(names)
    lists_by_user = {row.pop("user_id"): row for row in group_lists(table).to_pylist()}
    expected: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: [row[name] for name in names]):
        lists = expected.setdefault(row["user_id"], {LISTS[name]: [] for name in names[1:]})
        for name in names[1:]:
            lists[LISTS[name]].append(row[name])
    assert lists_by_user == expected
    schema = group_lists(table).schema
    assert schema == pa.schema([LISTED_USERS.field("user_id"), *map(LISTED_USERS.field, schema.names[1:])])


def test_users_with_training_items_are_counted() -> None:
    """Blocks of none of them, and of no user at all, count none."""
    users = [[[1], [], [2, 3]], [[], None], []]
    lists = [pa.array(rows, SCHEMA.field("train_items").type) for rows in users]
    assert [count_trained_users([pa.table({"train_items": rows})]) for rows in lists] == [2, 0, 0]
    assert count_trained_users(pa.table({"train_items": rows}) for rows in lists) == 2
