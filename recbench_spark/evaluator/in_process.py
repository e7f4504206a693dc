"""Metrics of given lists in this process, without Spark: frames in, one row a number out.

    from recbench_spark import evaluate_frames
    evaluate_frames(truth, lists, k=(1, 3, 10))

A frame is whatever hands its columns over as Arrow: pandas, polars, pyarrow, DuckDB. The numbers are
those of `recbench_spark.evaluate`, bit for bit. Axes: u users, n list entries, p truth items, c columns
(metric x cut-off).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.definitions import Definition, make_definition
from recbench_spark.errors import ConfigError, DataError, SchemaError
from recbench_spark.kernels import resampling
from recbench_spark.kernels.arrays import Floats, Ints
from recbench_spark.kernels.compiling import compiled
from recbench_spark.kernels.ids import CANONICAL_INTEGER, Meeting, Side, as_ids
from recbench_spark.kernels.metrics.accuracy import METRICS, check_cutoffs, cutoffs, measure
from recbench_spark.kernels.ranking.lists import Lists, Truth, rank_lists

Told = tuple[str, str]

DEFAULT = ("hit", "precision", "recall", "f1", "map", "mrr", "ndcg")


def evaluate_frames(
    truth: Any,
    lists: Any,
    *,
    k: Sequence[int] = (1, 3, 5, 10, 20),
    metrics: Sequence[str] = DEFAULT,
    preset: str | None = None,
    definition: Mapping[str, Any] | None = None,
) -> pd.DataFrame:
    """Metrics of lists against a truth, for frames that fit into memory several times.

    Args:
        truth: user_id, item_id[, relevance]; a user with an empty truth has one row, item NULL.
        lists: user_id, item_id, and rank (from 1) or score; rank wins. Users without truth are left out.
        k: cut-offs.
        metrics: names of `kernels.metrics.accuracy.METRICS`.
        preset: another library's definition.
        definition: single axes (`definitions.Definition`) that replace the preset's.

    Returns:
        metric, definition, k (missing: the whole list), value, stderr (of the mean over users), n.

    Raises:
        ConfigError: unknown metric or axis; a cut-off that is no whole number from 1 to 2^31 - 1.
        SchemaError: a column is missing, or of a type that holds no ids (`kernels.ids`). DataError: no
        frame, NULL, NaN or unusable values, with their number; ids of the frames that do not meet.

    Warns:
        UserWarning: of the smaller frame's ids less than 1 % stand in the other.
    """
    wanted, ks = make_definition(preset, definition), _cutoffs(k)
    if not metrics or not ks:
        raise ConfigError(f"metrics {tuple(metrics)} at k {ks}", "name one, and cut-offs from 1 on")
    given, held_out = as_arrays(_as_table(truth, "truth"), _as_table(lists, "lists"))
    values = measure(rank_lists(given, held_out, wanted).rankings, metrics, ks, wanted)
    return _mean_rows(values, ks, wanted)


def as_arrays(truth: pa.Table, lists: pa.Table) -> tuple[Lists, Truth]:
    """The users of the truth, in the order in which they first occur, with their rows end to end.

    Item keys follow the order of ids that decides ties: as numbers where both tables hold integers,
    else by UTF-8 bytes.
    """
    if not truth.num_rows:
        raise DataError("truth: no rows", "a user with an empty truth has one row, with item_id NULL")
    user_p, user_n = _ids(truth, lists, "user_id")
    _meet(user_p, user_n, _told(truth, lists, "user_id"), must=True)
    users = pc.unique(user_p)
    offsets_n, order_n = _by_user(user_n, users)
    item_p, item_n = _ids(truth, lists, "item_id", empty_items=True)
    some = pc.is_valid(item_p)
    item_p = item_p.filter(some)
    # A system may miss the whole truth, and is worth 0; text can never be whole numbers.
    _meet(item_p, item_n, _told(truth, lists, "item_id"), must=False)
    offsets_p, order_p = _by_user(user_p.filter(some), users)
    key_p, key_n = _keys(item_p, item_n)
    return (
        Lists(offsets_n, key_n[order_n], **_ranked_by(lists, order_n)),
        Truth(offsets_p, key_p[order_p], _relevance(truth, some)[order_p]),
    )


def _cutoffs(k: Any) -> tuple[int, ...]:
    if isinstance(k, str) or not isinstance(k, Iterable):
        raise ConfigError(f"k is {k!r}", "give several cut-offs, such as k=(5, 10)")
    ks = list(k)
    check_cutoffs(ks)
    return tuple(sorted({int(cut) for cut in ks}))


def _as_table(frame: Any, what: str) -> pa.Table:
    try:
        return pa.table(frame)
    except (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError) as error:
        said = "; ".join(str(part) for part in error.args) or type(error).__name__
        raise DataError(
            f"{what}: {type(frame).__name__} is no table that Arrow can read: {said[:300]}",
            "give a frame of pandas, polars, pyarrow or DuckDB, with one type a column",
        ) from None


def _column(table: pa.Table, name: str, what: str) -> pa.ChunkedArray:
    if table.column_names.count(name) != 1:
        said = "no column" if name not in table.column_names else "more than one column"
        raise SchemaError(f"{what}: {said} {name}", f"it has {', '.join(table.column_names)}")
    return table.column(name)


def _ids(
    truth: pa.Table, lists: pa.Table, name: str, *, empty_items: bool = False
) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """The ids of both tables as one type: int64 where both hold whole numbers, else text."""
    columns = []
    for table, what in ((truth, "truth"), (lists, "lists")):
        column = as_ids(_column(table, name, what), f"{what}: {name}")
        if column.null_count and not (empty_items and what == "truth"):
            raise DataError(f"{what}: {column.null_count} rows whose {name} is NULL", "leave them out")
        columns.append(column)
    kind = pa.int64() if all(column.type == pa.int64() for column in columns) else pa.string()
    return columns[0].cast(kind), columns[1].cast(kind)


def _told(truth: pa.Table, lists: pa.Table, name: str) -> tuple[Told, Told]:
    """How both columns are called, and their types as they came."""
    sides = ((lists, "lists"), (truth, "truth"))
    first, second = ((f"{name} of {what}", str(table.column(name).type)) for table, what in sides)
    return first, second


def _meet(ids_p: pa.ChunkedArray, ids_n: pa.ChunkedArray, told: tuple[Told, Told], *, must: bool) -> None:
    """DataError where the ids of lists and truth do not meet, a warning where hardly any do."""
    unique = pc.unique(ids_n), pc.unique(ids_p)
    common = pc.sum(pc.is_in(unique[0], value_set=unique[1]), min_count=0).as_py()
    numbers = tuple(_whole_numbers(ids) for ids in unique)
    found = Meeting((len(unique[0]), len(unique[1])), common, (numbers[0], numbers[1]))
    if not (found.fails(must) or found.few):
        return
    left, right = (
        Side(*name, ids.take(pc.array_sort_indices(ids)[:3]).to_pylist())
        for name, ids in zip(told, unique, strict=True)
    )
    found.refuse(left, right, must)
    warnings.warn(f"few ids in common: {found.told(left, right)}", stacklevel=4)


def _whole_numbers(ids: pa.Array) -> int:
    if ids.type == pa.int64():
        return len(ids)
    return int(pc.sum(pc.match_substring_regex(ids, CANONICAL_INTEGER), min_count=0).as_py())


def _typed(column: pa.ChunkedArray, kind: pa.DataType, what: str, name: str) -> pa.ChunkedArray:
    """The column as numbers; text is read, times are none."""
    found = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    number = pa.types.is_integer(found) or pa.types.is_floating(found) or pa.types.is_decimal(found)
    text = pa.types.is_string(found) or pa.types.is_large_string(found) or pa.types.is_string_view(found)
    if not (number or text or pa.types.is_boolean(found) or pa.types.is_null(found)):
        raise SchemaError(f"{what}: {name} is {found}, not a number", f"give {name} as a number")
    try:
        return (column.cast(pa.string()) if text else column.cast(found)).cast(kind)
    except pa.ArrowException as error:
        raise DataError(f"{what}: {name} is no {kind}: {error}", "mend or leave out these rows") from None


def _keys(items_p: pa.ChunkedArray, items_n: pa.ChunkedArray) -> tuple[Ints, Ints]:
    if items_p.type == pa.int64():
        return items_p.to_numpy(), items_n.to_numpy()
    known = pc.unique(pa.chunked_array([*items_p.chunks, *items_n.chunks], pa.string()))
    known = known.take(pc.sort_indices(known))
    found = (pc.index_in(items, value_set=known).to_numpy() for items in (items_p, items_n))
    key_p, key_n = (keys.astype(np.int64) for keys in found)
    return key_p, key_n


def _by_user(user: pa.ChunkedArray, users: pa.Array) -> tuple[Ints, Ints | slice]:
    """Bounds of each user's rows, and the rows in that order; users we do not ask for are left out."""
    code = pc.fill_null(pc.index_in(user, value_set=users), len(users)).to_numpy()
    count = np.bincount(code, minlength=len(users) + 1)
    offsets = np.concatenate([[0], np.cumsum(count)]).astype(np.int64)
    stop = offsets[-2]
    ascending = bool((code[1:] >= code[:-1]).all())
    return offsets[:-1], slice(0, stop) if ascending else _grouped(code, offsets[:-1].copy())[:stop]


@compiled
def _grouped(code: npt.NDArray[np.int32], next_u: Ints) -> Ints:
    """The places of each code's rows, in the order in which they stand (counting sort)."""
    order = np.empty(len(code), np.int64)
    for n in range(len(code)):
        order[next_u[code[n]]] = n
        next_u[code[n]] += 1
    return order


def _ranked_by(lists: pa.Table, order_n: Ints | slice) -> dict[str, npt.NDArray[Any]]:
    if "rank" not in lists.column_names:
        score = _typed(_column(lists, "score", "lists"), pa.float64(), "lists", "score")
        return {"score": score.to_numpy()[order_n]}
    rank = _typed(lists.column("rank"), pa.int64(), "lists", "rank")
    if rank.null_count:
        raise DataError(f"lists: {rank.null_count} rows whose rank is NULL", "leave them out")
    return {"rank": rank.to_numpy()[order_n]}


def _relevance(truth: pa.Table, some: pa.ChunkedArray) -> Floats:
    for name in ("relevance", "rating"):
        if name in truth.column_names:
            values: Floats = _typed(truth.column(name), pa.float64(), "truth", name).filter(some).to_numpy()
            return values
    return np.ones(int(pc.sum(some, min_count=0).as_py()))


def _mean_rows(values: Mapping[str, Floats], ks: Sequence[int], definition: Definition) -> pd.DataFrame:
    columns = [(name, cut) for name in values for cut in cutoffs(name, ks)]
    sums = resampling.moments(np.concatenate(list(values.values()), axis=1))
    value, stderr, n = resampling.mean_and_error(sums)
    described = {name: definition.describe(METRICS[name].axes) for name in values}
    return pd.DataFrame(
        {
            "metric": [name for name, _ in columns],
            "definition": [described[name] for name, _ in columns],
            "k": pd.array([cut for _, cut in columns], dtype="Int64"),
            "value": value,
            "stderr": stderr,
            "n": n,
        }
    )
