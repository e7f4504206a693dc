"""Mutated input tables, and the slow answer to their evaluation.

A world is a few users with lists and truths, written into columns of any type, whose cells, rows, names and
types are then changed. `compute_expected` reads the columns by the rules of README, `core.ids` and the
docstrings of the calls, value by value, and asks `tests/oracles.py` for every metric of every user. There
are three results: values; `Refused` (no answer is right, so the call must raise an error with a hint); and
`grey`, where a call may refuse or must give these values (such as a number written as text).
"""

from __future__ import annotations

import datetime
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

import pyarrow as pa

from recbench_spark.core.definitions import PRESETS, Definition, axis_values, make_definition
from recbench_spark.core.ids import SPELLINGS, respell
from tests import oracles
from tests.faults.campaign import Case
from tests.id_rule import make_id

IDS, NUMBERS = ("user_id", "item_id"), ("score", "rank", "relevance")
ID_TYPES: dict[str, pa.DataType] = {
    **{
        str(t): t
        for t in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32())
    },
    **{str(t): t for t in (pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.decimal128(9, 0))},
    **{str(t): t for t in (pa.decimal128(12, 2), pa.decimal128(38, 3), pa.string(), pa.large_string())},
    **{str(t): t for t in (pa.binary(), pa.large_binary(), pa.string_view(), pa.bool_())},
    "dictionary of text": pa.dictionary(pa.int32(), pa.string()),
    "dictionary of numbers": pa.dictionary(pa.int8(), pa.int64()),
}
NO_ID_TYPES: dict[str, pa.DataType] = {
    str(t): t for t in (pa.date32(), pa.timestamp("us"), pa.timestamp("ns", "UTC"), pa.time64("us"),
                        pa.duration("s"), pa.list_(pa.int64()), pa.struct([("a", pa.int64())]))
}  # fmt: skip
NUMBER_TYPES: dict[str, pa.DataType] = {
    **{
        str(t): t
        for t in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint64(), pa.float16())
    },
    **{
        str(t): t
        for t in (pa.float32(), pa.float64(), pa.decimal128(12, 2), pa.decimal128(38, 0), pa.string())
    },
    **{str(t): t for t in (pa.large_string(), pa.bool_())},
    "dictionary of floats": pa.dictionary(pa.int32(), pa.float64()),
}
METRICS = ("hit", "precision", "recall", "calibrated_recall", "f1", "map", "mrr", "ndcg", "auc",
"r_precision",
           "rbp", "percentile_rank")  # fmt: skip
WHOLE_LIST = ("auc", "r_precision", "percentile_rank")
"""Metrics that exist only for the whole list."""


@dataclass
class Column:
    """A column of one type; `values` are the Python values of Arrow's."""

    name: str
    kind: pa.DataType
    values: list[Any]

    def arrow(self) -> pa.Array:
        kind = self.kind
        values = self.values
        if pa.types.is_dictionary(kind):
            return pa.array(values, kind.value_type).dictionary_encode().cast(kind)
        if pa.types.is_decimal(kind):
            values = [None if v is None else Decimal(str(v)) for v in values]
        if pa.types.is_float16(kind):
            import numpy as np

            values = [None if v is None else np.float16(v) for v in values]
        return pa.array(values, kind, from_pandas=False)

    @property
    def stored(self) -> pa.DataType:
        return self.kind.value_type if pa.types.is_dictionary(self.kind) else self.kind


@dataclass
class InputTables:
    """Truth and lists, the options of the call, and the changes made."""

    truth: list[Column]
    lists: list[Column]
    k: Sequence[int]
    metrics: Sequence[str]
    preset: str | None
    axes: dict[str, Any]
    changes: list[str] = field(default_factory=list)
    frame: str = "arrow"
    train: list[Column] = field(default_factory=list)
    """Training rows; where there are any, the lists are scores of candidates, without these rows."""

    @property
    def definition(self) -> Definition:
        return make_definition(self.preset, self.axes)


class Refused(Exception):  # noqa: N818
    """Raised for an input that has no right answer."""


# -------------------------------------------------------------------------------------------- worlds


def make_world(chance: random.Random) -> InputTables:
    """Draw a few users: lists with a few ties, truths with grades, some users with only one of the two."""
    n_users, n_items = chance.randint(1, 6), chance.randint(2, 9)
    items = chance.sample(range(1, 40), n_items)
    users = chance.sample(range(1, 60), n_users + 1)
    listed, wanted = [], []
    for user in users:
        for item in chance.sample(items, chance.randint(0, min(6, n_items))):
            listed.append((user, item, chance.choice([0, 1, 1, 2, 3, 5, 8, -1])))
        for item in chance.sample(items, chance.randint(1, min(4, n_items))):
            wanted.append((user, item, chance.choice([0, 1, 1, 2, 3])))
    wanted = [row for row in wanted if row[0] != users[-1]] if chance.random() < 0.3 else wanted
    chance.shuffle(listed)
    by_rank = chance.random() < 0.3
    lists = columns((*IDS, "score"), listed)
    if by_rank:
        lists[2] = Column("rank", pa.int64(), make_ranks(listed))
    truth = columns((*IDS, "relevance"), wanted)
    if chance.random() < 0.3:
        truth = truth[:2]
    # The oracle orders ties by ids, and not by a hash.
    preset = chance.choice([None, None, *sorted(set(PRESETS) - {"warprec"})])
    axes = {
        axis: chance.choice(axis_values(axis)) for axis in chance.sample(AXES, chance.choice([0, 0, 1, 2]))
    }
    axes |= {"ties": "id"} if axes.get("ties") == "hashed" else {}
    if chance.random() < 0.2:
        axes["threshold"] = chance.choice([1, 2, 0.5])
    names = chance.sample(METRICS, chance.randint(1, 4))
    return InputTables(truth, lists, sorted(chance.sample(range(1, 9), 2)), names, preset, axes)


def make_scored_world(chance: random.Random) -> InputTables:
    """Draw scores of candidates, and training rows that are not in the truth."""
    tables = make_world(chance)
    if tables.lists[2].name == "rank":
        tables.lists[2] = Column("score", pa.float64(), [-float(v) for v in tables.lists[2].values])
    wanted = set(zip(tables.truth[0].values, tables.truth[1].values, strict=True))
    users = sorted({*tables.lists[0].values, *tables.truth[0].values})
    items = sorted({*tables.lists[1].values, *tables.truth[1].values})
    pairs = [(user, item) for user in users for item in items if (user, item) not in wanted]
    seen = chance.sample(pairs, min(len(pairs), chance.randint(1, 8)))
    tables.train = [Column(name, pa.int64(), [row[n] for row in seen]) for n, name in enumerate(IDS)]
    if chance.random() < 0.4:
        tables.axes["candidates"] = chance.choice(["all", "rated", "unseen"])
    return tables


APART = ("candidates", "weigh", "candidates_as_of", "first_seen_in", "unavailable")
"""Axes that are drawn elsewhere, or need a column `query_id` or times."""

AXES = [name for name in Definition.model_fields if axis_values(name) and name not in APART]


def columns(names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> list[Column]:
    kinds = (pa.int64(), pa.int64(), pa.float64())
    result = []
    for n, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        values = [row[n] for row in rows]
        result.append(
            Column(name, kind, [float(v) for v in values] if pa.types.is_floating(kind) else values)
        )
    return result


def make_ranks(rows: Sequence[tuple[Any, ...]]) -> list[int]:
    seen: dict[Any, int] = {}
    ranks = []
    for user in (repr(row[0]) for row in rows):
        seen[user] = seen.get(user, 0) + 1
        ranks.append(seen[user])
    return ranks


# ------------------------------------------------------------------------------------------- changes


Change = Callable[[InputTables, random.Random], str]
"""A function that changes the tables in place, and returns a description of the change."""


def choose_column(
    tables: InputTables, chance: random.Random, names: Sequence[str] = ()
) -> tuple[str, Column] | None:
    every = [(side, column) for side in ("truth", "lists") for column in getattr(tables, side)]
    choices = [
        (side, column) for side, column in every if (not names or column.name in names) and column.values
    ]
    return chance.choice(choices) if choices else None


def spell(values: Sequence[Any], kind: pa.DataType, chance: random.Random) -> list[Any] | None:  # noqa: PLR0911
    """Write whole numbers in a column of a type; None where they do not fit it."""
    stored = kind.value_type if pa.types.is_dictionary(kind) else kind
    present = [v for v in values if v is not None]
    if any(not is_small(v) for v in present):
        return None
    if pa.types.is_boolean(stored):
        return [None if v is None else v % 2 == 0 for v in values]
    if is_text(stored):
        style = chance.choice(["{}", "{}", "u{}", "0{}", "{} ", "é{}"])
        texts = [None if v is None else style.format(int(v)) for v in values]
        return [v.encode() if v is not None and is_bytes(stored) else v for v in texts]
    if pa.types.is_floating(stored):
        return round_to_type([None if v is None else float(v) for v in values], stored)
    if pa.types.is_decimal(stored):
        return [None if v is None else Decimal(int(v)) for v in values]
    if pa.types.is_unsigned_integer(stored) and any(v < 0 for v in present):
        return None
    if any(v != int(v) for v in present):
        return None
    return [None if v is None else int(v) for v in values]


def round_to_type(values: list[float | None], kind: pa.DataType) -> list[Any]:
    """Round values to a float type: float32 and float16 have fewer numbers."""
    import numpy as np

    narrow = {"halffloat": np.float16, "float": np.float32}.get(str(kind), np.float64)
    return [None if v is None else float(narrow(v)) for v in values]


def is_small(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 120


def is_small_or_null(value: Any) -> bool:
    return value is None or is_small(value)


def is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def is_text(kind: pa.DataType) -> bool:
    tests = ("is_string", "is_large_string", "is_string_view", "is_binary", "is_large_binary")
    return any(getattr(pa.types, test)(kind) for test in tests)


def change_id_type(tables: InputTables, chance: random.Random, kind_name: str = "") -> str:
    """Change the type of the ids of both tables, or of one, to this type, or to any."""
    name, kind_name = chance.choice(IDS), kind_name or chance.choice(sorted(ID_TYPES))
    kind, state = ID_TYPES[kind_name], chance.getstate()
    every = ("truth", "lists", "train")
    sides = chance.choice([every, every, ("truth",), ("lists",)])
    chance.random()
    after = chance.getstate()
    for side in sides:
        for column in getattr(tables, side):
            if column.name == name:
                chance.setstate(state)  # the same spelling on both sides
                values = spell(column.values, kind, chance)
                if values is not None:
                    column.kind, column.values = kind, values
    chance.setstate(after)
    return f"{name} as {kind_name}{'' if len(sides) > 1 else ' on one side'}"


def change_number_type(tables: InputTables, chance: random.Random, kind_name: str = "") -> str:
    chosen = choose_column(tables, chance, NUMBERS)
    kind_name = kind_name or chance.choice(sorted(NUMBER_TYPES))
    if chosen is None:
        return "nothing"
    column, kind = chosen[1], NUMBER_TYPES[kind_name]
    if is_text(kind):
        column.values = [None if v is None else str(v) for v in column.values]
        column.kind = kind
    else:
        values = spell(column.values, kind, chance)
        if values is None and all(map(is_small_or_null, column.values)):  # no type without a sign has -1
            values = spell([None if v is None else abs(v) for v in column.values], kind, chance)
        if values is not None:
            column.kind, column.values = kind, values
    return f"{column.name} as {kind_name}"


def set_other_type(tables: InputTables, chance: random.Random, kind_name: str = "") -> str:
    """Set a type that holds neither ids nor numbers."""
    chosen, kind_name = choose_column(tables, chance), kind_name or chance.choice(sorted(NO_ID_TYPES))
    if chosen is None:
        return "nothing"
    column, kind = chosen[1], NO_ID_TYPES[kind_name]
    day = datetime.datetime(2026, 1, 1)
    one: Any = [1] if pa.types.is_list(kind) else {"a": 1} if pa.types.is_struct(kind) else day
    one = datetime.date(2026, 1, 1) if pa.types.is_date(kind) else one
    one = datetime.time(1) if pa.types.is_time(kind) else one
    one = datetime.timedelta(1) if pa.types.is_duration(kind) else one
    column.kind, column.values = kind, [one] * len(column.values)
    return f"{column.name} as {kind_name}"


CELLS: tuple[Any, ...] = (
    None, math.nan, math.inf, -math.inf, -0.0, 0.5, 1e308, 5e-324, 2.0**53, 2.0**53 + 2, -1.0, 0, -1,
    2**53 + 1,
    2**63 - 1, -(2**63), 2**64 - 1, 1, 7, "", " ", "007", " 7", "7 ", "7.0", "nan", "x", "é", "\ufffd",
    "🙂", b"\xff",
    b"7", True, False, Decimal("7.00"), Decimal("7.50"), Decimal(10) ** 20, "1e3", "1_0", "０",
    "Infinity", "0x1",
)  # fmt: skip


def put_odd_cell(tables: InputTables, chance: random.Random, names: Sequence[str] = ()) -> str:
    """Put one value that the type can hold into any column, or into one of these."""
    chosen = choose_column(tables, chance, names)
    if chosen is None:
        return "nothing"
    column = chosen[1]
    for cell in chance.sample(CELLS, len(CELLS)):
        if fits(cell, column):
            stored_value = round_to_type([cell], column.stored)[0] if isinstance(cell, float) else cell
            column.values[chance.randrange(len(column.values))] = stored_value
            return f"{column.name} ({column.stored}) holds {cell!r}"
    return "nothing"


def fits(cell: Any, column: Column) -> bool:
    if cell is None:
        return True
    kind = column.stored
    wanted = (
        (pa.types.is_floating, float),
        (pa.types.is_integer, int),
        (pa.types.is_decimal, Decimal),
        (pa.types.is_boolean, bool),
        (is_bytes, bytes),
        (is_text, str),
    )
    python = next((python_type for test, python_type in wanted if test(kind)), None)
    if python is None or type(cell) is not python:
        return False
    if (
        python is float
        and str(kind) != "double"
        and not (math.isnan(cell) or math.isinf(cell) or abs(cell) < 9)
    ):
        return False
    try:
        Column("x", column.kind, [cell]).arrow()
    except (pa.ArrowException, ValueError, OverflowError, TypeError):
        return False
    return True


def repeat_row(tables: InputTables, chance: random.Random) -> str:
    side = chance.choice(["truth", "lists"])
    columns_ = getattr(tables, side)
    n = len(columns_[0].values)
    if n:
        row = chance.randrange(n)
        at = chance.randint(0, n)
        other = chance.random() < 0.5
        for column in columns_:
            value = column.values[row]
            changed = other and column.name in ("score", "relevance") and isinstance(value, float)
            column.values.insert(at, value + chance.choice([-1.0, 1.0]) if changed else value)
    return f"a row of {side} twice"


def drop_rows(tables: InputTables, chance: random.Random) -> str:
    side = chance.choice(["truth", "lists"])
    columns_ = getattr(tables, side)
    n = len(columns_[0].values)
    rows = sorted(chance.sample(range(n), chance.choice([0, n // 2, max(n - 1, 0)])))
    for column in columns_:
        column.values = [column.values[row] for row in rows]
    return f"{side} with {'no' if not rows else 'fewer'} rows"


def shuffle_rows(tables: InputTables, chance: random.Random) -> str:
    for columns_ in (tables.truth, tables.lists):
        order = chance.sample(range(len(columns_[0].values)), len(columns_[0].values))
        for column in columns_:
            column.values = [column.values[row] for row in order]
    return "rows in another order"


def add_empty_user(tables: InputTables, chance: random.Random) -> str:
    """Add a user with an empty truth: one row, item NULL."""
    odd = {*NO_ID_TYPES, "null"}
    names = {column.name for column in tables.truth if str(column.kind) not in odd}
    if not set(IDS) <= names:
        return "nothing"
    user, item, *more = tables.truth
    if spelled := spell([59], user.kind, chance):
        user.values.append(spelled[0])
        item.values.append(None)
        for column in more:
            column.values.append(column.values[0] if column.values else None)
    return "a user with an empty truth"


def list_unknown_items(tables: InputTables, chance: random.Random) -> str:
    """List only items that are not in the truth."""
    for column in tables.lists:
        if column.name == "item_id" and column.kind == pa.int64():
            column.values = [v + 50 if is_small(v) else v for v in column.values]
    return "items that nobody wants"


def change_columns(tables: InputTables, chance: random.Random) -> str:
    side = chance.choice(["truth", "lists"])
    columns_ = getattr(tables, side)
    column = chance.choice(columns_)
    way = chance.choice(["missing", "twice", "upper case", "extra"])
    if way == "missing":
        columns_.remove(column)
    elif way == "twice":
        columns_.append(Column(column.name, column.kind, list(column.values)))
    elif way == "upper case":
        column.name = column.name.upper()
    else:
        columns_.append(
            Column(
                chance.choice(["item", "rating ", "é", "user", "part"]),
                pa.string(),
                ["x"] * len(column.values),
            )
        )
    return f"column {way}" if way == "extra" else f"{side}: column {way}"


def add_second_order(tables: InputTables, chance: random.Random) -> str:
    """Add a rank to scores, or scores to ranks; rank has priority."""
    names = [column.name for column in tables.lists]
    n = len(tables.lists[0].values)
    if "rank" not in names:
        rows = list(zip(*(column.values for column in tables.lists), strict=True))
        tables.lists.append(Column("rank", pa.int64(), make_ranks(rows)))
    elif "score" not in names:
        tables.lists.append(Column("score", pa.float64(), [float(chance.randint(0, 5)) for _ in range(n)]))
    return "rank and score"


def set_all_null(tables: InputTables, chance: random.Random) -> str:
    chosen = choose_column(tables, chance)
    if chosen:
        chosen[1].kind, chosen[1].values = pa.null(), [None] * len(chosen[1].values)
        return f"{chosen[1].name} is all NULL"
    return "nothing"


def raise_ids(tables: InputTables, chance: random.Random) -> str:
    """Move ids close to 2^53, where floats cannot represent all neighbours; as integers they are valid."""
    name = chance.choice(IDS)
    kind = chance.choice([pa.int64(), pa.float64(), pa.uint64(), pa.decimal128(20, 0)])
    base = chance.choice([2**53 - 20, 2**53 + 1, 2**62])
    for columns_ in (tables.truth, tables.lists, tables.train):
        for column in columns_:
            if (
                column.name == name
                and column.kind == pa.int64()
                and all(map(is_small_or_null, column.values))
            ):
                moved = [None if v is None else int(v) + base for v in column.values]
                column.values = (
                    moved
                    if not pa.types.is_floating(kind)
                    else [None if v is None else float(v) for v in moved]
                )
                column.kind = kind
    return f"{name} around {base} as {kind}"


def set_close_scores(tables: InputTables, chance: random.Random) -> str:
    """Set scores that differ in their last bit, as floats or as very large whole numbers."""
    for column in tables.lists:
        if column.name == "score" and column.kind == pa.float64():
            if chance.random() < 0.5:
                base = chance.choice([1.0, 1e300, 1e-300, -7.5])
                column.values = [v if v is None else base * (1 + 2**-52 * v) for v in column.values]
                return "scores that differ in a bit"
            whole = [v is not None and abs(v) < 1e6 for v in column.values]
            if all(whole):
                column.kind, column.values = pa.int64(), [2**53 + int(v) for v in column.values]
                return "whole scores beyond 2^53"
    return "nothing"


CHANGES: tuple[Change, ...] = (
    change_id_type, change_id_type, change_id_type, change_number_type, change_number_type, set_other_type,
    put_odd_cell, put_odd_cell, put_odd_cell, repeat_row, drop_rows, shuffle_rows, add_empty_user,
    list_unknown_items, change_columns, add_second_order, set_all_null, raise_ids, set_close_scores,
)  # fmt: skip


PLAIN_CHANGES: tuple[Change, ...] = (list_unknown_items, raise_ids, set_close_scores)
"""Changes of whole numbers and of floats: they come before a change of type."""
ANY_CHANGES: tuple[Change, ...] = (
    partial(put_odd_cell, names=IDS), partial(put_odd_cell, names=NUMBERS), repeat_row, drop_rows,
    shuffle_rows, add_empty_user, change_columns, add_second_order, set_all_null,
)  # fmt: skip
NOTHING: tuple[Change, ...] = ()
ONE_CHANGE = (NOTHING, *((change,) for change in (*PLAIN_CHANGES, *ANY_CHANGES)))
EVERY_TYPE = (*ID_TYPES, *NO_ID_TYPES)
TURNS = len(ONE_CHANGE) * len(EVERY_TYPE)
"""Number of cases that meet every change with every type of ids, of numbers, and of neither."""


def choose_changes(number: int) -> list[Change]:
    """Return the changes of one of the first TURNS cases: a change, and types of ids and numbers, or
    neither.
    """
    change, nth = ONE_CHANGE[number // len(EVERY_TYPE)], number % len(EVERY_TYPE)
    numbers = list(NUMBER_TYPES)[(nth + number // len(EVERY_TYPE)) % len(NUMBER_TYPES)]
    types: list[Change] = [partial(set_other_type, kind_name=EVERY_TYPE[nth])]
    if EVERY_TYPE[nth] in ID_TYPES:
        types = [
            partial(change_id_type, kind_name=EVERY_TYPE[nth]),
            partial(change_number_type, kind_name=numbers),
        ]
    return [*change, *types] if change and change[0] in PLAIN_CHANGES else [*types, *change]


def mutate_tables(case: Case, *, scored: bool = False) -> InputTables:
    """Return the tables of a case: the first TURNS cases go through all changes, the others are random."""
    chance = case.draw()
    tables = make_scored_world(chance) if scored else make_world(chance)
    drawn = [chance.choice(CHANGES) for _ in range(chance.choice([0, 1, 1, 1, 2, 2, 3, 4]))]
    for change in choose_changes(case.number) if case.number < TURNS else drawn:
        tables.changes.append(change(tables, chance))
    tables.frame = chance.choice(
        ["arrow", "arrow", "chunks", "slice", "pandas", "pandas", "batch", "categorical"]
    )
    return tables


# ---------------------------------------------------------------------------------- the slow answer


@dataclass
class Answer:
    """Values by metric and cut-off (None: the whole list), each with its number of users; `grey`: may be
    refused.
    """

    values: dict[tuple[str, int | None], tuple[float, int]]
    grey: list[str]


def compute_expected(tables: InputTables) -> Answer:
    """Compute the expected answer; raise Refused where no answer is right."""
    grey: list[str] = []
    truth, lists = index_columns(tables.truth, "truth"), index_columns(tables.lists, "lists")
    for columns_, what in ((truth, "truth"), (lists, "lists")):
        for name in IDS:
            if name not in columns_:
                raise Refused(f"{what}: no column {name}")
    if "score" not in lists and ("rank" not in lists or tables.train):
        raise Refused("lists: neither rank nor score")
    if not truth["user_id"].values:
        raise Refused("truth: no rows")
    flatten_lists((truth, lists), grey)
    users_p, items_p = ids(truth["user_id"]), ids(truth["item_id"])
    users_n, items_n = ids(lists["user_id"]), ids(lists["item_id"])
    if None in users_p or None in users_n or None in items_n:
        raise Refused("an id is NULL")
    value = next((truth[name] for name in ("relevance", "rating") if name in truth), None)
    wanted = [i is not None for i in items_p]
    grades = numbers(value, wanted, grey, tables) if value else [Fraction(1)] * len(users_p)
    by_rank = "rank" in lists and not tables.train
    order = lists["rank" if by_rank else "score"]
    places = numbers(order, [True] * len(users_n), grey, tables, ranks=order.name == "rank")
    if order.name == "rank" and "score" in lists and unusable(lists["score"]):
        grey.append("a score beside the rank is no number")
    check_common_ids(users_p, users_n, must=True)
    truth_items = [i for i in items_p if i is not None]
    if tables.train:
        users_t, items_t = (ids(column) for column in tables.train)
        check_common_ids(users_t, users_p, must=False)
        check_common_ids(items_t, truth_items, must=False)
        check_common_ids([*truth_items, *items_t], items_n, must=True)
    else:
        check_common_ids(truth_items, items_n, must=False)
    if would_meet(users_p, users_n) or would_meet(truth_items, items_n):
        grey.append("ids that differ in their spelling")
    return compute_answer(tables, (users_p, items_p, grades), (users_n, items_n, places), grey)


USED = ("user_id", "item_id", "score", "rank", "relevance", "rating")
"""Columns that an evaluation reads; other names may be there twice."""


READ = {
    "truth": ("user_id", "item_id", "relevance", "rating"),
    "lists": ("user_id", "item_id", "rank", "score"),
}
"""Columns that are read of each table, in the order in which usual names are looked for."""

OTHER_NAMES = {
    "user_id": ("user_id", "user"),
    "item_id": ("item_id", "item"),
    "score": ("score", "rating", "relevance"),
}
"""Names, without blanks and in small letters, under which a missing column is taken."""

INSTEAD = {"relevance": "rating", "rating": "relevance", "score": "rank"}


def index_columns(columns_: Sequence[Column], what: str) -> dict[str, Column]:
    """Return the columns by our names; a missing one may have another spelling, or a usual name."""
    by_name: dict[str, Column] = {}
    for column in columns_:
        if column.name in by_name and column.name in USED:
            raise Refused(f"{what}: two columns {column.name}")
        by_name[column.name] = column
    taken: set[str] = set()
    roles = READ.get(what, IDS)
    for role in roles:
        if role in by_name or INSTEAD.get(role) in by_name:
            continue
        names = OTHER_NAMES.get(role, (role,))
        near = [c for c in columns_ if c.name.strip().lower() in names and c.name not in {*roles, *taken}]
        if len(near) > 1:
            raise Refused(f"{what}: two columns for {role}")
        for column in near:
            taken.add(column.name)
            by_name[role] = replace(column, name=role)
    return by_name


def ids(column: Column) -> list[str | None]:
    """Return the ids of a column as text, by the rule of ids."""
    kind = column.stored
    if str(kind) in NO_ID_TYPES:
        raise Refused(f"{column.name}: {kind} holds no ids")
    try:
        return [make_id(kind, value) for value in column.values]
    except (ValueError, UnicodeDecodeError):
        raise Refused(f"{column.name}: a value that is no id") from None


def numbers(
    column: Column, wanted: Sequence[bool], grey: list[str], tables: InputTables, *, ranks: bool = False
) -> list[Fraction]:
    """Return the exact numbers of the rows that count."""
    kind = column.stored
    if str(kind) in NO_ID_TYPES or is_bytes(kind):
        raise Refused(f"{column.name}: {kind} holds no numbers")
    if is_text(kind) or pa.types.is_boolean(kind):
        grey.append(f"{column.name} as {kind}")
    exact_values = []
    for value, counts in zip(column.values, wanted, strict=True):
        exact = number(value)
        if exact is None or (ranks and (exact < 1 or exact != int(exact))):
            if not counts:
                exact_values.append(Fraction(0))
                if value is not None:
                    grey.append("an odd value of a row that does not count")
                continue
            raise Refused(f"{column.name}: {value!r}")
        if abs(exact) >= 2**53 and (not pa.types.is_floating(kind) or ranks):
            grey.append(f"{column.name} beyond 2^53")
        exact_values.append(exact)
    return exact_values


def number(value: Any) -> Fraction | None:
    """Return the exact number; None where it is none, or not finite."""
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return Fraction(value)


def unusable(column: Column) -> bool:
    kind = column.stored
    odd = str(kind) in NO_ID_TYPES or is_text(kind) or pa.types.is_boolean(kind)
    values = [] if odd else [number(v) for v in column.values]
    return odd or any(v is None or abs(v) >= 2**53 for v in values)


def check_common_ids(wanted: Sequence[str | None], listed: Sequence[str | None], *, must: bool) -> None:
    """Refuse ids that cannot be of one world: none in common, and one side numbers, the other text."""
    one, other = set(wanted), set(listed)
    if not one or not other or one & other:
        return

    a, b = (sum(map(spells_a_number, texts)) for texts in (one, other))
    if must or (a == len(one) and not b) or (b == len(other) and not a):
        raise Refused("ids that do not meet")


def would_meet(wanted: Sequence[str | None], listed: Sequence[str | None]) -> bool:
    """Check whether no id is in common, and some are in another spelling."""
    one, other = ({text for text in texts if text is not None} for texts in (wanted, listed))
    plain = [
        set(respell(pa.array(sorted(texts), pa.string()), [*SPELLINGS]).to_pylist())
        for texts in (one, other)
    ]
    return not one & other and bool(plain[0] & plain[1])


def flatten_lists(tables: Sequence[dict[str, Column]], grey: list[str]) -> None:
    """Read a cell with a list of items as its first item; a call may refuse such tables."""
    for columns in tables:
        column = columns["item_id"]
        if pa.types.is_list(column.stored):
            grey.append("items as a list")
            values = [value[0] if value else None for value in column.values]
            columns["item_id"] = replace(column, kind=column.stored.value_type, values=values)


def spells_a_number(text: Any) -> bool:
    """Check that text is the canonical spelling of a whole number of at most 18 digits."""
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) <= 18 and str(int(text)) == text


def has_numeric_order(column: Column) -> bool:
    """Check whether ties of this column's ids are ordered as numbers: by its type, wide ones by their
    digits.
    """
    kind = column.stored
    if pa.types.is_null(kind) or pa.types.is_floating(kind):
        return True
    if pa.types.is_integer(kind) and kind != pa.uint64():
        return True
    if pa.types.is_decimal(kind) or kind == pa.uint64():
        narrow = pa.types.is_decimal(kind) and kind.precision - kind.scale <= 18
        return narrow or all(v is None or abs(int(v)) < 10**18 for v in column.values)
    return False


def compute_answer(tables: InputTables, wanted: Any, listed: Any, grey: list[str]) -> Answer:
    """Compute the answer user by user and metric by metric, with the oracle."""
    definition = tables.definition
    by_rank = "rank" in index_columns(tables.lists, "lists") and not tables.train
    place = order_items(tables, (*wanted[1], *listed[1]))
    grades, again = keep_best(zip(*wanted, strict=True), place)
    costs = [-cost if by_rank else cost for cost in listed[2]]
    scores, twice = keep_best(zip(*listed[:2], costs, strict=True), place)
    if definition.duplicates == "error":
        if again or twice & set(grades):
            raise Refused("duplicates")
        grey += ["duplicates of a user who is not asked for"] if twice else []
    if any(abs(g) > 500 for values_of_user in grades.values() for g in values_of_user.values()):
        grey.append("gains that float64 hardly holds")
    if tables.train and definition.candidates == "unseen":
        seen = set(zip(*(ids(column) for column in tables.train), strict=True))
        masked = {(user, place[item]) for user, item in seen if item in place}
        scores = {
            u: {i: s for i, s in values_of_user.items() if (u, i) not in masked}
            for u, values_of_user in scores.items()
        }
    if definition.candidates == "rated":
        scores = {
            u: {i: s for i, s in values_of_user.items() if i in grades.get(u, {})}
            for u, values_of_user in scores.items()
        }
    values = {}
    for metric in tables.metrics:
        for k in list_cutoffs(metric, tables.k):
            try:
                user_values = [
                    oracles.value(metric, scores.get(user, {}), floats(values_of_user), k, definition)
                    for user, values_of_user in grades.items()
                ]
            except OverflowError:
                raise Refused("gains that no float64 holds") from None
            defined = [v for v in user_values if not math.isnan(v)]
            values[metric, k] = (math.fsum(defined) / len(defined) if defined else math.nan, len(defined))
    return Answer(values, grey)


def order_items(tables: InputTables, ids_: Sequence[str | None]) -> dict[str, int]:
    """Number the items in the order of ties."""
    every = [columns_ for columns_ in (tables.truth, tables.lists, tables.train) if columns_]
    columns = [index_columns(columns_, "frame")["item_id"] for columns_ in every]
    numeric = all(map(has_numeric_order, columns))
    every = {item for item in ids_ if item is not None}
    ordered = sorted(every, key=int if numeric else str.encode)
    return {item: n for n, item in enumerate(ordered)}


def keep_best(rows: Any, place: dict[str, int]) -> tuple[dict[str, dict[int, Fraction]], set[str]]:
    """Keep the best value of each item, by user; return also the users who have an item twice."""
    best: dict[str, dict[int, Fraction]] = {}
    twice = set()
    for user, item, value in rows:
        items_of_user = best.setdefault(user, {})
        if item is not None:
            twice |= {user} if place[item] in items_of_user else set()
            items_of_user[place[item]] = max(value, items_of_user.get(place[item], value))
    return best, twice


def floats(grades: dict[int, Fraction]) -> dict[int, float]:
    return {item: float(grade) for item, grade in grades.items()}


def list_cutoffs(metric: str, ks: Sequence[int]) -> tuple[int | None, ...]:
    """Return the cut-offs at which a metric has values, as in the README's tables."""
    if metric in WHOLE_LIST:
        return (None,)
    return (*ks, None) if metric in ("map", "mrr", "ndcg", "rbp") else tuple(ks)
