"""Tables that a system hands over, mutated, and what evaluating them must give, slowly.

A world is a few users with lists and truths, written into columns of any type, whose cells, rows, names and
types are then changed. `expected` reads the columns as README, `kernels.ids` and the docstrings of the
calls say, value by value, and asks `tests/oracles.py` for every metric of every user. Three ends: values;
`Refused` (nothing right can be said: an error class with a hint is due); and `grey`, where a call may
refuse or must give these values (a number written as text).
"""

from __future__ import annotations

import datetime
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

import pyarrow as pa

from recbench_spark.definitions import PRESETS, Definition, axis_values, make_definition
from tests import oracles
from tests.faults.campaign import Case
from tests.id_rule import id_of

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
"""Metrics of the whole list alone."""


@dataclass
class Column:
    """Values of one type; `values` are what Python takes Arrow's to be."""

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
class Handed:
    """Truth and lists, how they are asked for, and what was changed."""

    truth: list[Column]
    lists: list[Column]
    k: Sequence[int]
    metrics: Sequence[str]
    preset: str | None
    axes: dict[str, Any]
    changes: list[str] = field(default_factory=list)
    frame: str = "arrow"
    train: list[Column] = field(default_factory=list)
    """With training rows the lists are scores of candidates, out of which these are taken."""

    @property
    def definition(self) -> Definition:
        return make_definition(self.preset, self.axes)


class Refused(Exception):  # noqa: N818
    """Nothing right can be said of this input."""


# -------------------------------------------------------------------------------------------- worlds


def world(chance: random.Random) -> Handed:
    """A few users: lists with a few ties, truths with grades, some users with one of the two alone."""
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
        lists[2] = Column("rank", pa.int64(), ranks_of(listed))
    truth = columns((*IDS, "relevance"), wanted)
    if chance.random() < 0.3:
        truth = truth[:2]
    preset = chance.choice([None, None, *sorted(PRESETS)])
    axes = {
        axis: chance.choice(axis_values(axis)) for axis in chance.sample(AXES, chance.choice([0, 0, 1, 2]))
    }
    if chance.random() < 0.2:
        axes["threshold"] = chance.choice([1, 2, 0.5])
    names = chance.sample(METRICS, chance.randint(1, 4))
    return Handed(truth, lists, sorted(chance.sample(range(1, 9), 2)), names, preset, axes)


def scored_world(chance: random.Random) -> Handed:
    """Scores of candidates, and training rows that are no truth."""
    found = world(chance)
    if found.lists[2].name == "rank":
        found.lists[2] = Column("score", pa.float64(), [-float(v) for v in found.lists[2].values])
    wanted = set(zip(found.truth[0].values, found.truth[1].values, strict=True))
    users = sorted({*found.lists[0].values, *found.truth[0].values})
    items = sorted({*found.lists[1].values, *found.truth[1].values})
    pairs = [(user, item) for user in users for item in items if (user, item) not in wanted]
    seen = chance.sample(pairs, min(len(pairs), chance.randint(1, 8)))
    found.train = [Column(name, pa.int64(), [row[n] for row in seen]) for n, name in enumerate(IDS)]
    if chance.random() < 0.4:
        found.axes["candidates"] = chance.choice(["all", "rated", "unseen"])
    return found


AXES = [name for name in Definition.model_fields if axis_values(name) and name != "candidates"]


def columns(names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> list[Column]:
    kinds = (pa.int64(), pa.int64(), pa.float64())
    found = []
    for n, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        values = [row[n] for row in rows]
        found.append(
            Column(name, kind, [float(v) for v in values] if pa.types.is_floating(kind) else values)
        )
    return found


def ranks_of(rows: Sequence[tuple[Any, ...]]) -> list[int]:
    seen: dict[Any, int] = {}
    found = []
    for user in (repr(row[0]) for row in rows):
        seen[user] = seen.get(user, 0) + 1
        found.append(seen[user])
    return found


# ------------------------------------------------------------------------------------------- changes


Change = Callable[[Handed, random.Random], str]
"""Changes the tables in place, and says what it did."""


def a_column(handed: Handed, chance: random.Random, names: Sequence[str] = ()) -> tuple[str, Column] | None:
    held = [(side, column) for side in ("truth", "lists") for column in getattr(handed, side)]
    found = [
        (side, column) for side, column in held if (not names or column.name in names) and column.values
    ]
    return chance.choice(found) if found else None


def spelt(values: Sequence[Any], kind: pa.DataType, chance: random.Random) -> list[Any] | None:  # noqa: PLR0911
    """Whole numbers in a column of a type; None where they do not fit it."""
    stored = kind.value_type if pa.types.is_dictionary(kind) else kind
    known = [v for v in values if v is not None]
    if any(not is_small(v) for v in known):
        return None
    if pa.types.is_boolean(stored):
        return [None if v is None else v % 2 == 0 for v in values]
    if is_text(stored):
        style = chance.choice(["{}", "{}", "u{}", "0{}", "{} ", "é{}"])
        texts = [None if v is None else style.format(int(v)) for v in values]
        return [v.encode() if v is not None and is_bytes(stored) else v for v in texts]
    if pa.types.is_floating(stored):
        return as_stored([None if v is None else float(v) for v in values], stored)
    if pa.types.is_decimal(stored):
        return [None if v is None else Decimal(int(v)) for v in values]
    if pa.types.is_unsigned_integer(stored) and any(v < 0 for v in known):
        return None
    if any(v != int(v) for v in known):
        return None
    return [None if v is None else int(v) for v in values]


def as_stored(values: list[float | None], kind: pa.DataType) -> list[Any]:
    """What a type of floats keeps of them: float32 and float16 know fewer numbers."""
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


def type_of_ids(handed: Handed, chance: random.Random, kind_name: str = "") -> str:
    """The ids of both tables, or of one, in another type: this one, or any."""
    name, kind_name = chance.choice(IDS), kind_name or chance.choice(sorted(ID_TYPES))
    kind, state = ID_TYPES[kind_name], chance.getstate()
    every = ("truth", "lists", "train")
    sides = chance.choice([every, every, ("truth",), ("lists",)])
    chance.random()
    after = chance.getstate()
    for side in sides:
        for column in getattr(handed, side):
            if column.name == name:
                chance.setstate(state)  # the same spelling on both sides
                values = spelt(column.values, kind, chance)
                if values is not None:
                    column.kind, column.values = kind, values
    chance.setstate(after)
    return f"{name} as {kind_name}{'' if len(sides) > 1 else ' on one side'}"


def type_of_numbers(handed: Handed, chance: random.Random, kind_name: str = "") -> str:
    found = a_column(handed, chance, NUMBERS)
    kind_name = kind_name or chance.choice(sorted(NUMBER_TYPES))
    if found is None:
        return "nothing"
    column, kind = found[1], NUMBER_TYPES[kind_name]
    if is_text(kind):
        column.values = [None if v is None else str(v) for v in column.values]
        column.kind = kind
    else:
        values = spelt(column.values, kind, chance)
        if values is None and all(map(is_small_or_null, column.values)):  # no type without a sign has -1
            values = spelt([None if v is None else abs(v) for v in column.values], kind, chance)
        if values is not None:
            column.kind, column.values = kind, values
    return f"{column.name} as {kind_name}"


def no_type(handed: Handed, chance: random.Random, kind_name: str = "") -> str:
    """A type that holds neither ids nor numbers."""
    found, kind_name = a_column(handed, chance), kind_name or chance.choice(sorted(NO_ID_TYPES))
    if found is None:
        return "nothing"
    column, kind = found[1], NO_ID_TYPES[kind_name]
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


def odd_cell(handed: Handed, chance: random.Random, names: Sequence[str] = ()) -> str:
    """One value that its type can hold, in any column or in one of these."""
    found = a_column(handed, chance, names)
    if found is None:
        return "nothing"
    column = found[1]
    for cell in chance.sample(CELLS, len(CELLS)):
        if fits(cell, column):
            kept = as_stored([cell], column.stored)[0] if isinstance(cell, float) else cell
            column.values[chance.randrange(len(column.values))] = kept
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
    python = next((found for test, found in wanted if test(kind)), None)
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


def rows_twice(handed: Handed, chance: random.Random) -> str:
    side = chance.choice(["truth", "lists"])
    held = getattr(handed, side)
    n = len(held[0].values)
    if n:
        row = chance.randrange(n)
        at = chance.randint(0, n)
        other = chance.random() < 0.5
        for column in held:
            value = column.values[row]
            changed = other and column.name in ("score", "relevance") and isinstance(value, float)
            column.values.insert(at, value + chance.choice([-1.0, 1.0]) if changed else value)
    return f"a row of {side} twice"


def rows_left_out(handed: Handed, chance: random.Random) -> str:
    side = chance.choice(["truth", "lists"])
    held = getattr(handed, side)
    n = len(held[0].values)
    kept = sorted(chance.sample(range(n), chance.choice([0, n // 2, max(n - 1, 0)])))
    for column in held:
        column.values = [column.values[row] for row in kept]
    return f"{side} with {'no' if not kept else 'fewer'} rows"


def shuffled(handed: Handed, chance: random.Random) -> str:
    for held in (handed.truth, handed.lists):
        order = chance.sample(range(len(held[0].values)), len(held[0].values))
        for column in held:
            column.values = [column.values[row] for row in order]
    return "rows in another order"


def empty_user(handed: Handed, chance: random.Random) -> str:
    """A user with an empty truth: one row, item NULL."""
    odd = {*NO_ID_TYPES, "null"}
    names = {column.name for column in handed.truth if str(column.kind) not in odd}
    if not set(IDS) <= names:
        return "nothing"
    user, item, *more = handed.truth
    if spelled := spelt([59], user.kind, chance):
        user.values.append(spelled[0])
        item.values.append(None)
        for column in more:
            column.values.append(column.values[0] if column.values else None)
    return "a user with an empty truth"


def unknown_items(handed: Handed, chance: random.Random) -> str:
    """What is listed is never wanted."""
    for column in handed.lists:
        if column.name == "item_id" and column.kind == pa.int64():
            column.values = [v + 50 if is_small(v) else v for v in column.values]
    return "items that nobody wants"


def no_column(handed: Handed, chance: random.Random) -> str:
    side = chance.choice(["truth", "lists"])
    held = getattr(handed, side)
    column = chance.choice(held)
    way = chance.choice(["missing", "twice", "upper case", "extra"])
    if way == "missing":
        held.remove(column)
    elif way == "twice":
        held.append(Column(column.name, column.kind, list(column.values)))
    elif way == "upper case":
        column.name = column.name.upper()
    else:
        held.append(
            Column(
                chance.choice(["item", "rating ", "é", "user", "part"]),
                pa.string(),
                ["x"] * len(column.values),
            )
        )
    return f"column {way}" if way == "extra" else f"{side}: column {way}"


def both_orders(handed: Handed, chance: random.Random) -> str:
    """Rank and score: rank wins."""
    names = [column.name for column in handed.lists]
    n = len(handed.lists[0].values)
    if "rank" not in names:
        rows = list(zip(*(column.values for column in handed.lists), strict=True))
        handed.lists.append(Column("rank", pa.int64(), ranks_of(rows)))
    elif "score" not in names:
        handed.lists.append(Column("score", pa.float64(), [float(chance.randint(0, 5)) for _ in range(n)]))
    return "rank and score"


def all_null(handed: Handed, chance: random.Random) -> str:
    found = a_column(handed, chance)
    if found:
        found[1].kind, found[1].values = pa.null(), [None] * len(found[1].values)
        return f"{found[1].name} is all NULL"
    return "nothing"


def whole_floats_too_large(handed: Handed, chance: random.Random) -> str:
    """Ids around 2^53, where floats do not tell neighbours apart; as integers they are fine."""
    name = chance.choice(IDS)
    kind = chance.choice([pa.int64(), pa.float64(), pa.uint64(), pa.decimal128(20, 0)])
    base = chance.choice([2**53 - 20, 2**53 + 1, 2**62])
    for held in (handed.truth, handed.lists, handed.train):
        for column in held:
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


def close_scores(handed: Handed, chance: random.Random) -> str:
    """Scores that differ in their last bit, or are very large whole numbers that do."""
    for column in handed.lists:
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
    type_of_ids, type_of_ids, type_of_ids, type_of_numbers, type_of_numbers, no_type, odd_cell,
    odd_cell, odd_cell,
    rows_twice, rows_left_out, shuffled, empty_user, unknown_items, no_column, both_orders, all_null,
    whole_floats_too_large, close_scores,
)  # fmt: skip


OF_PLAIN: tuple[Change, ...] = (unknown_items, whole_floats_too_large, close_scores)
"""Changes of whole numbers and of floats: they come before another type does."""
OF_ANY: tuple[Change, ...] = (
    partial(odd_cell, names=IDS), partial(odd_cell, names=NUMBERS), rows_twice, rows_left_out, shuffled,
    empty_user, no_column, both_orders, all_null,
)  # fmt: skip
NOTHING: tuple[Change, ...] = ()
ONE_CHANGE = (NOTHING, *((change,) for change in (*OF_PLAIN, *OF_ANY)))
EVERY_TYPE = (*ID_TYPES, *NO_ID_TYPES)
TURNS = len(ONE_CHANGE) * len(EVERY_TYPE)
"""So many cases meet every change with every type of ids, of numbers, and of neither."""


def in_turn(number: int) -> list[Change]:
    """What the first TURNS cases have for certain: a change, a type of ids and one of numbers, or one of
    neither."""
    change, nth = ONE_CHANGE[number // len(EVERY_TYPE)], number % len(EVERY_TYPE)
    numbers = list(NUMBER_TYPES)[(nth + number // len(EVERY_TYPE)) % len(NUMBER_TYPES)]
    types: list[Change] = [partial(no_type, kind_name=EVERY_TYPE[nth])]
    if EVERY_TYPE[nth] in ID_TYPES:
        types = [
            partial(type_of_ids, kind_name=EVERY_TYPE[nth]),
            partial(type_of_numbers, kind_name=numbers),
        ]
    return [*change, *types] if change and change[0] in OF_PLAIN else [*types, *change]


def mutated(case: Case, *, scored: bool = False) -> Handed:
    """The world of a case: of the first TURNS what is in turn, of the others anything."""
    chance = case.draw()
    handed = scored_world(chance) if scored else world(chance)
    drawn = [chance.choice(CHANGES) for _ in range(chance.choice([0, 1, 1, 1, 2, 2, 3, 4]))]
    for change in in_turn(case.number) if case.number < TURNS else drawn:
        handed.changes.append(change(handed, chance))
    handed.frame = chance.choice(
        ["arrow", "arrow", "chunks", "slice", "pandas", "pandas", "batch", "categorical"]
    )
    return handed


# ---------------------------------------------------------------------------------- the slow answer


@dataclass
class Answer:
    """Values by metric and cut-off (None: the whole list) with how many users; `grey`: may be refused."""

    values: dict[tuple[str, int | None], tuple[float, int]]
    grey: list[str]


def expected(handed: Handed) -> Answer:
    """What must come of it; Refused where nothing right can."""
    grey: list[str] = []
    truth, lists = table(handed.truth, "truth"), table(handed.lists, "lists")
    for held, what in ((truth, "truth"), (lists, "lists")):
        for name in IDS:
            if name not in held:
                raise Refused(f"{what}: no column {name}")
    if "score" not in lists and ("rank" not in lists or handed.train):
        raise Refused("lists: neither rank nor score")
    if not truth["user_id"].values:
        raise Refused("truth: no rows")
    users_p, items_p = ids(truth["user_id"]), ids(truth["item_id"])
    users_n, items_n = ids(lists["user_id"]), ids(lists["item_id"])
    if None in users_p or None in users_n or None in items_n:
        raise Refused("an id is NULL")
    value = next((truth[name] for name in ("relevance", "rating") if name in truth), None)
    wanted = [i is not None for i in items_p]
    grades = numbers(value, wanted, grey, handed) if value else [Fraction(1)] * len(users_p)
    by_rank = "rank" in lists and not handed.train
    order = lists["rank" if by_rank else "score"]
    places = numbers(order, [True] * len(users_n), grey, handed, ranks=order.name == "rank")
    if order.name == "rank" and "score" in lists and unusable(lists["score"]):
        grey.append("a score beside the rank is no number")
    meets(users_p, users_n, must=True)
    known = [i for i in items_p if i is not None]
    if handed.train:
        users_t, items_t = (ids(column) for column in handed.train)
        meets(users_t, users_p, must=False)
        meets(items_t, known, must=False)
        meets([*known, *items_t], items_n, must=True)
    else:
        meets(known, items_n, must=False)
    return answer(handed, (users_p, items_p, grades), (users_n, items_n, places), grey)


USED = ("user_id", "item_id", "score", "rank", "relevance", "rating")
"""Columns that an evaluation looks at; of another name there may be two."""


def table(held: Sequence[Column], what: str) -> dict[str, Column]:
    found: dict[str, Column] = {}
    for column in held:
        if column.name in found and column.name in USED:
            raise Refused(f"{what}: two columns {column.name}")
        found[column.name] = column
    return found


def ids(column: Column) -> list[str | None]:
    """The ids of a column as text, by the rule of ids."""
    kind = column.stored
    if str(kind) in NO_ID_TYPES:
        raise Refused(f"{column.name}: {kind} holds no ids")
    try:
        return [id_of(kind, value) for value in column.values]
    except (ValueError, UnicodeDecodeError):
        raise Refused(f"{column.name}: a value that is no id") from None


def numbers(
    column: Column, wanted: Sequence[bool], grey: list[str], handed: Handed, *, ranks: bool = False
) -> list[Fraction]:
    """Exact numbers of the rows that count."""
    kind = column.stored
    if str(kind) in NO_ID_TYPES or is_bytes(kind):
        raise Refused(f"{column.name}: {kind} holds no numbers")
    if is_text(kind) or pa.types.is_boolean(kind):
        grey.append(f"{column.name} as {kind}")
    found = []
    for value, counts in zip(column.values, wanted, strict=True):
        exact = number(value)
        if exact is None or (ranks and (exact < 1 or exact != int(exact))):
            if not counts:
                found.append(Fraction(0))
                if value is not None:
                    grey.append("an odd value of a row that does not count")
                continue
            raise Refused(f"{column.name}: {value!r}")
        if abs(exact) >= 2**53 and (not pa.types.is_floating(kind) or ranks):
            grey.append(f"{column.name} beyond 2^53")
        found.append(exact)
    return found


def number(value: Any) -> Fraction | None:
    """The exact number; None where it is none, or not finite."""
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


def meets(wanted: Sequence[str | None], listed: Sequence[str | None], *, must: bool) -> None:
    """Ids that cannot be those of one world: none in common, and one side numbers, the other text."""
    one, other = set(wanted), set(listed)
    if not one or not other or one & other:
        return

    a, b = (sum(map(spells_a_number, found)) for found in (one, other))
    if must or (a == len(one) and not b) or (b == len(other) and not a):
        raise Refused("ids that do not meet")


def spells_a_number(text: Any) -> bool:
    """Whether text is the one spelling of a whole number of at most 18 digits."""
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) <= 18 and str(int(text)) == text


def by_number(column: Column) -> bool:
    """Whether ties of this column's ids fall by number: by its type, wide ones by their digits."""
    kind = column.stored
    if pa.types.is_null(kind) or pa.types.is_floating(kind):
        return True
    if pa.types.is_integer(kind) and kind != pa.uint64():
        return True
    if pa.types.is_decimal(kind) or kind == pa.uint64():
        narrow = pa.types.is_decimal(kind) and kind.precision - kind.scale <= 18
        return narrow or all(v is None or abs(int(v)) < 10**18 for v in column.values)
    return False


def answer(handed: Handed, wanted: Any, listed: Any, grey: list[str]) -> Answer:
    """User by user and metric by metric, by the oracle."""
    definition = handed.definition
    by_rank = "rank" in table(handed.lists, "lists") and not handed.train
    place = places_of(handed, (*wanted[1], *listed[1]))
    grades, again = best_of(zip(*wanted, strict=True), place)
    costs = [-cost if by_rank else cost for cost in listed[2]]
    scores, twice = best_of(zip(*listed[:2], costs, strict=True), place)
    if definition.duplicates == "error":
        if again or twice & set(grades):
            raise Refused("duplicates")
        grey += ["duplicates of a user who is not asked for"] if twice else []
    if any(abs(g) > 500 for held in grades.values() for g in held.values()):
        grey.append("gains that float64 hardly holds")
    if handed.train and definition.candidates == "unseen":
        seen = set(zip(*(ids(column) for column in handed.train), strict=True))
        masked = {(user, place[item]) for user, item in seen if item in place}
        scores = {u: {i: s for i, s in held.items() if (u, i) not in masked} for u, held in scores.items()}
    if definition.candidates == "rated":
        scores = {
            u: {i: s for i, s in held.items() if i in grades.get(u, {})} for u, held in scores.items()
        }
    values = {}
    for metric in handed.metrics:
        for k in cuts_of(metric, handed.k):
            try:
                of_users = [
                    oracles.value(metric, scores.get(user, {}), floats(held), k, definition)
                    for user, held in grades.items()
                ]
            except OverflowError:
                raise Refused("gains that no float64 holds") from None
            known = [v for v in of_users if not math.isnan(v)]
            values[metric, k] = (math.fsum(known) / len(known) if known else math.nan, len(known))
    return Answer(values, grey)


def places_of(handed: Handed, ids_: Sequence[str | None]) -> dict[str, int]:
    """Items in the order in which ties fall."""
    every = [held for held in (handed.truth, handed.lists, handed.train) if held]
    columns = [table(held, "frame")["item_id"] for held in every]
    numeric = all(map(by_number, columns))
    every = {item for item in ids_ if item is not None}
    ordered = sorted(every, key=int if numeric else str.encode)
    return {item: n for n, item in enumerate(ordered)}


def best_of(rows: Any, place: dict[str, int]) -> tuple[dict[str, dict[int, Fraction]], set[str]]:
    """The best value of each item, by user; and the users who have an item twice."""
    found: dict[str, dict[int, Fraction]] = {}
    twice = set()
    for user, item, value in rows:
        held = found.setdefault(user, {})
        if item is not None:
            twice |= {user} if place[item] in held else set()
            held[place[item]] = max(value, held.get(place[item], value))
    return found, twice


def floats(held: dict[int, Fraction]) -> dict[int, float]:
    return {item: float(grade) for item, grade in held.items()}


def cuts_of(metric: str, ks: Sequence[int]) -> tuple[int | None, ...]:
    """At which cut-offs a metric has values: as the README's tables show."""
    if metric in WHOLE_LIST:
        return (None,)
    return (*ks, None) if metric in ("map", "mrr", "ndcg", "rbp") else tuple(ks)
