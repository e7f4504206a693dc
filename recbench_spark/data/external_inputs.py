"""Tables that other systems hand over: lists, scores, embeddings, candidates. Checked, ids as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recbench_spark.checks import Check
from recbench_spark.data.readers import read_table
from recbench_spark.data.readers.ids import Ids, ids_of
from recbench_spark.errors import DataError
from recbench_spark.kernels.ids import CANONICAL_INTEGER, FEW, Meeting, Side
from recbench_spark.schemas import ID_TYPE, IDS, require, require_names, with_text_ids

VALUES = {"rank": "long", "score": "double"}

EXACT = float(1 << 53)
"""From here on float64 does not tell whole numbers apart."""


def read_scored_rows(spark: SparkSession, path: str, kind: str) -> DataFrame:
    """Lists (rank or score) or scores at a path."""
    what = f"{kind} {path}"
    rows = read_table(spark, path, ["user_id", "item_id"], kind)
    found = {name: VALUES[name] for name in VALUES if name in rows.columns}
    if kind == "scores" or not found:
        require(rows, ["score"], what)
    return typed_rows(rows, found, what)


def value_columns(names: Sequence[str], kind: str) -> dict[str, str]:
    """What lists (rank, score, or both) or scores say of their rows: column -> type.

    Raises:
        SchemaError: neither a rank nor a score.
    """
    found = {name: of for name, of in VALUES.items() if name in names}
    if kind == "scores" or not found:
        require_names(names, ["user_id", "item_id", "score"], kind)
    return found if kind == "lists" else {"score": "double"}


@dataclass(frozen=True)
class Handed:
    """Rows that can be used: typed, ids as text or as the whole numbers that were stored.

    n: how many; ranges: of each value the smallest and the largest one beside an item, where there is any
    """

    rows: DataFrame
    n: int
    ranges: Mapping[str, tuple[float, ...]]


def typed_rows(
    rows: DataFrame, values: Mapping[str, str], what: str, *, empty_items: bool = False
) -> DataFrame:
    """user_id and item_id as text, and the value columns by type: rows of `handed`; errors as there."""
    found = handed(rows, values, what, empty_items=empty_items)
    return with_text_ids(found.rows)


def handed(rows: DataFrame, values: Mapping[str, str], what: str, *, empty_items: bool = False) -> Handed:
    """user_id and item_id, and the value columns by type.

    One pass counts what cannot be used. Ids that are stored as whole numbers stay numbers: Python makes
    text of the distinct ones.

    Args:
        rows: user_id, item_id and the values.
        values: column -> Spark type.
        what: how errors name the rows.
        empty_items: a NULL item_id is allowed (a user with an empty truth).

    Raises:
        SchemaError: a column is missing.
        DataError: NULL ids, or values that are NULL, NaN, infinite, not a number, or ranks below 1.
    """
    require(rows, ["user_id", "item_id", *values], what)
    ids = {name: ids_of(rows, name, what) for name in IDS}
    converted = {name: _typed(rows, name, kind) for name, kind in values.items()}
    known = ids["item_id"].text.isNotNull()
    wrong = {name: _unusable(name, column) for name, column in converted.items()}
    if empty_items:
        wrong = {name: test & known for name, test in wrong.items()}
    else:
        wrong["item_id"] = ~known
    wrong["user_id"] = ids["user_id"].text.isNull()
    of_items = {name: F.when(known, column) for name, column in converted.items()}
    ends = [F.min(column).alias(f"min_{name}") for name, column in of_items.items()]
    ends += [F.max(column).alias(f"max_{name}") for name, column in of_items.items()]
    row = _refuse(rows, wrong, what, ids, [F.count("*").alias("n"), *ends])
    ranges = {name: (row[f"min_{name}"], row[f"max_{name}"]) for name in values}
    columns = [column.alias(name) for name, column in converted.items()]
    typed = rows.select(*(_as_stored(rows, ids, name) for name in IDS), *columns)
    return Handed(typed, row["n"], {name: ends for name, ends in ranges.items() if ends[0] is not None})


def _as_stored(rows: DataFrame, ids: Mapping[str, Ids], name: str) -> Column:
    if isinstance(rows.schema[name].dataType, T.IntegralType):
        return F.col(name).cast("long").alias(name, metadata=ids[name].notes)
    return _as_text(ids, name)


def _as_text(ids: Mapping[str, Ids], name: str) -> Column:
    return ids[name].text.alias(name, metadata=ids[name].notes)


def typed_numbers(rows: DataFrame, names: Sequence[str], what: str) -> DataFrame:
    """The rows with these columns as float64.

    Raises:
        SchemaError: a column is missing. DataError: values that are NULL, NaN, infinite or not a number.
    """
    require(rows, list(names), what)
    typed = {name: _typed(rows, name, "double") for name in names}
    _refuse(rows, {name: _unusable(name, column) for name, column in typed.items()}, what)
    return rows.withColumns(typed)


def _typed(rows: DataFrame, name: str, kind: str) -> Column:
    """NULL where the value is of another kind, or a whole number that float64 does not tell from others."""
    raw, stored = F.col(name), rows.schema[name].dataType
    if kind == "double":
        exact = isinstance(stored, T.LongType) or (isinstance(stored, T.DecimalType) and not stored.scale)
        number = raw.try_cast("double")
        return F.when(F.abs(number) < EXACT, number) if exact else number
    if isinstance(stored, T.FloatType | T.DoubleType | T.DecimalType):
        return F.when(raw == F.floor(raw), raw.try_cast("bigint"))
    return raw.cast("string").try_cast(kind)


def _unusable(name: str, column: Column) -> Column:
    bad = column.isNull() | F.isnan(column) | (F.abs(column) == float("inf"))
    return bad | (column < 1) | (column >= EXACT) if name == "rank" else bad


def _refuse(
    rows: DataFrame,
    wrong: Mapping[str, Column],
    what: str,
    ids: Mapping[str, Ids] | None = None,
    further: Sequence[Column] = (),
) -> Row:
    """DataError where any test holds, or a value of these columns is not an id, with the smallest one.

    Else what was counted in the same pass; `further` too.
    """
    columns = {name: rule for name, rule in (ids or {}).items() if _unchecked(rows, name)}
    counts = [F.count_if(test).alias(f"n_{name}") for name, test in wrong.items()]
    examples = [
        F.min(F.when(F.coalesce(rule.bad, F.lit(False)), F.col(name).cast("string"))).alias(f"bad_{name}")
        for name, rule in columns.items()
        if rule.bad is not None
    ]
    if not (counts or examples or further):
        return Row()
    (row,) = rows.agg(*counts, *examples, *further).collect()
    for name, rule in columns.items():
        if rule.bad is not None and row[f"bad_{name}"] is not None:
            raise DataError(
                f"{what}: {name} ({rule.stored}) is not {rule.expected}, e.g. {row[f'bad_{name}']!r}",
                rule.hint,
            )
    refuse_counted({name: row[f"n_{name}"] for name in wrong}, what)
    return row


def refuse_counted(wrong: Mapping[str, int], what: str) -> None:
    """DataError for the first column of which any value cannot be used."""
    for name, n in wrong.items():
        if n:
            raise DataError(
                f"{what}: {n} rows whose {name} is {_wrong_values(name)}",
                "leave these rows out, or mend the system that wrote them",
            )


def _unchecked(rows: DataFrame, name: str) -> bool:
    """Whether the column does not come from our readers, which have looked at it."""
    return ID_TYPE not in rows.schema[name].metadata


def _wrong_values(name: str) -> str:
    if name == "rank":
        return "a rank below 1, NULL or not a whole number, or 2^53 and more, where float64 makes ranks one"
    return "NULL, NaN, infinite or, of whole numbers, beyond 2^53"


def read_embeddings(spark: SparkSession, users: str, items: str) -> tuple[DataFrame, DataFrame]:
    """(user_id, vector) and (item_id, vector, bias) at two paths."""
    frames = [
        read_table(spark, path, [f"{side}_id", "vector"], f"{side} embeddings")
        for side, path in (("user", users), ("item", items))
    ]
    return typed_embeddings(frames[0], frames[1], (users, items))


def typed_embeddings(
    users: DataFrame, items: DataFrame, what: tuple[str, str]
) -> tuple[DataFrame, DataFrame]:
    """(user_id, vector) and (item_id, vector, bias) with one number of dimensions.

    Raises:
        DataError: vectors that are NULL, of different lengths or hold NaN, an id that is NULL or twice.
    """
    sides = []
    for side, rows, where in (("user", users, what[0]), ("item", items, what[1])):
        require(rows, [f"{side}_id", "vector"], where)
        bias = F.col("bias").cast("double") if "bias" in rows.columns else F.lit(0.0)
        sides.append(_typed_vectors(rows, f"{side}_id", bias, where))
    dims = [dimensions(rows, name) for rows, name in zip(sides, what, strict=True)]
    same_width(dims, what)
    return sides[0].drop("bias"), sides[1]


def same_width(dims: Sequence[int], what: Sequence[str]) -> None:
    """DataError where two tables of vectors are not of one model."""
    if dims[0] != dims[1]:
        raise DataError(
            f"{what[0]} has {dims[0]} dimensions, {what[1]} has {dims[1]}", "both must be of one model"
        )


def typed_features(rows: DataFrame, what: str) -> DataFrame:
    """(item_id, vector, bias 0) of what items are like.

    Raises:
        SchemaError: a column is missing. DataError: vectors that cannot be used.
    """
    require(rows, ["item_id", "vector"], what)
    return _typed_vectors(rows, "item_id", F.lit(0.0), what)


def _typed_vectors(rows: DataFrame, name: str, bias: Column, what: str) -> DataFrame:
    ids = {name: ids_of(rows, name, what)}
    _refuse(rows, {}, what, ids)
    vector = F.col("vector").cast("array<float>").alias("vector")
    typed = rows.select(_as_text(ids, name), vector, bias.alias("bias"))
    _refuse(typed, _unusable_vectors(name), what)
    return typed


def _unusable_vectors(ids: str) -> dict[str, Column]:
    holes = F.exists("vector", lambda x: x.isNull() | F.isnan(x) | (F.abs(x) == float("inf")))
    bias = F.isnan("bias") | (F.abs("bias") == float("inf"))
    return {ids: F.col(ids).isNull(), "vector": holes, "bias": bias}


def candidate_lists(rows: DataFrame, items: DataFrame, users: DataFrame) -> DataFrame:
    """Rows (user_id, item_id) as one row per user: user_id, candidates (item indices).

    Raises:
        DataError: none of the items is in the catalogue, or none of the users among `users`.
    """
    typed = typed_rows(rows, {}, "candidates")
    meet(typed, users, "user_id", ("candidates", "truth"))
    meet(typed, items, "item_id", ("candidates", "catalogue"))
    known = typed.join(items.select("item_id", "item_index"), "item_id")
    listed = F.sort_array(F.collect_set("item_index"))
    return known.groupBy("user_id").agg(listed.alias("candidates"))


def dimensions(vectors: DataFrame, what: str) -> int:
    """The one length of all vectors.

    Raises:
        DataError: vectors of different lengths, a NULL vector, no vectors at all, or an id twice.
    """
    size = F.size("vector")
    ids = vectors.columns[0]
    (row,) = vectors.agg(
        F.min(size), F.max(size), F.count("*"), F.count("vector"), F.count_distinct(ids)
    ).collect()
    return one_width(*row, what=what)


def one_width(shortest: int, longest: int, rows: int, given: int, distinct: int, *, what: str) -> int:
    """The one length of vectors of which these numbers were counted; errors as `dimensions`."""
    if not rows:
        raise DataError(f"{what}: no vectors", "check the path and the ids")
    if given < rows:
        raise DataError(f"{what}: {rows - given} of {rows} vectors are NULL", "leave these rows out")
    if shortest != longest:
        raise DataError(f"{what}: vectors of {shortest} to {longest} dimensions", "give one length")
    if distinct < rows:
        raise DataError(f"{what}: {rows - distinct} ids stand more than once", "keep one vector an id")
    return int(longest)


# ----------------------------------------------------------------------------- ids that do not meet


def meet(
    left: DataFrame, right: DataFrame, name: str, what: tuple[str, str], *, must: bool = True
) -> list[Check]:
    """A warning where hardly any id of one frame is one of the other. Shuffles the distinct ids of both.

    Args:
        left: has the column `name`, ids as text; NULL is none.
        right: likewise.
        name: user_id or item_id.
        what: how the frames are called.
        must: whether it is an error that no id is common; else only of ids of two kinds, whole numbers
            and text, which no change of the data could make equal.

    Raises:
        DataError: no id is common, with three of each side and both types.
    """
    found = _meeting(left, right, name)
    sides = partial(sides_of, left, right, name, what)
    return told_meeting(found, sides, name, what, must=must)


def told_meeting(
    found: Meeting, sides: Callable[[], tuple[Side, Side]], name: str, what: tuple[str, str], *, must: bool
) -> list[Check]:
    """What `meet` says of what it counted; `sides`: examples, looked up where there is something to say."""
    if not (found.fails(must) or found.few):
        return []
    left, right = sides()
    found.refuse(left, right, must)
    apart = 1 - found.share
    return [
        Check(f"{name} of {what[0]} not in {what[1]}", apart, 1 - FEW, "warning", found.told(left, right))
    ]


def sides_of(left: DataFrame, right: DataFrame, name: str, what: tuple[str, str]) -> tuple[Side, Side]:
    """Examples of two frames' ids, for errors; arguments as `meet` takes them, ids also as numbers."""
    return _side(left, what[0], name), _side(right, what[1], name)


def _meeting(left: DataFrame, right: DataFrame, name: str) -> Meeting:
    marked = [
        frame.where(F.col(name).isNotNull()).select(
            F.col(name).alias("id"), F.lit(n == 0).alias("left"), F.lit(n == 1).alias("right")
        )
        for n, frame in enumerate((left, right))
    ]
    both = (
        marked[0]
        .unionByName(marked[1])
        .groupBy("id")
        .agg(F.max("left").alias("left"), F.max("right").alias("right"))
    )
    number = F.col("id").rlike(CANONICAL_INTEGER)
    (row,) = both.agg(
        F.count_if(F.col("left") & F.col("right")).alias("common"),
        *(F.count_if(side).alias(side) for side in ("left", "right")),
        *(F.count_if(F.col(side) & number).alias(f"{side}_numbers") for side in ("left", "right")),
    ).collect()
    return Meeting((row.left, row.right), row.common, (row.left_numbers, row.right_numbers))


def _side(frame: DataFrame, what: str, name: str) -> Side:
    """The smallest three ids, and their type as it was stored."""
    field = frame.schema[name]
    ids = F.col(name).cast("string").alias(name)
    known = frame.where(F.col(name).isNotNull()).select(ids).distinct().orderBy(name)
    kind = field.metadata.get(ID_TYPE, field.dataType.simpleString())
    return Side(f"{name} of {what}", kind, [row[0] for row in known.limit(3).collect()])
