"""Questions by query: each query of a user in a part is ranked alone.

A row of `PART_USERS` holds a part's truth, and a label by item says its query. Axes: n rows (a user and
part), q questions, i truth items.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from recbench_spark.core.arrays import Ints
from recbench_spark.ranking.successive import TRUTH
from recbench_spark.schemas import QUERY_ID
from recbench_spark.splits.queries import QUERY_LABEL
from recbench_spark.storage.shared_arrays import flatten_lists, rank_texts

Labels = dict[str, pa.Array]
"""Labels of truth items by slice key."""


def ask_by_query(users: pa.Table) -> pa.Table:
    """Divide each row's truth by query; history and masked items stay the user's.

    Args:
        users: rows of `PART_USERS`; their slices have the key QUERY_LABEL.

    Returns:
        A row per question, by query in UTF-8 order, without that key; `query_id`: the query. It is NULL
        where the log has none, which is one question, and without truth.
    """
    offsets, _ = flatten_lists(users.column("items"))
    labels = list_labels(users)
    texts = labels.pop(QUERY_LABEL, pa.array([], pa.string()))
    row_i, code_i = np.repeat(np.arange(len(users)), np.diff(offsets)), rank_texts(texts)
    order = np.lexsort((code_i, row_i))
    first_q = np.flatnonzero(np.diff(row_i[order], prepend=-1) | np.diff(code_i[order], prepend=-2))
    table, at_q = divide_truth(users, labels, order, first_q, np.flatnonzero(np.diff(offsets) == 0))
    return table.append_column(QUERY_ID, texts.take(at_q))


def divide_truth(
    users: pa.Table, labels: Labels, order: Ints, first_q: Ints, empty_n: Ints
) -> tuple[pa.Table, pa.Array]:
    """Divide rows' truth into questions.

    Args:
        users: rows of `PART_USERS`.
        labels: those that stay, from `list_labels`.
        order: places of the truth items that are asked, question by question, in order of rows.
        first_q: where each question begins among them.
        empty_n: rows with a question without truth.

    Returns:
        A row per question, in order of rows, and the place of its first truth item, NULL without truth.
    """
    offsets, _ = flatten_lists(users.column("items"))
    asked_q = np.append(np.searchsorted(offsets, order[first_q], "right") - 1, empty_n)
    length_q = np.append(np.diff(first_q, append=len(order)), np.zeros_like(empty_n))
    order_q = np.argsort(asked_q, kind="stable")
    row_q, length_q = asked_q[order_q], length_q[order_q]
    columns = {name: users.column(name).take(pa.array(row_q)) for name in users.column_names}
    bounds, at = pa.array(np.append(0, np.cumsum(length_q)), pa.int32()), pa.array(order)
    for name in TRUTH:
        columns[name] = pa.ListArray.from_arrays(
            bounds, users.column(name).combine_chunks().flatten().take(at)
        )
    lists = {key: pa.ListArray.from_arrays(bounds, values.take(at)) for key, values in labels.items()}
    columns["slices"] = _map_labels(lists, length_q).cast(users.schema.field("slices").type)
    table = pa.table([columns[name] for name in users.column_names], schema=users.schema)
    place_q = np.append(order[first_q], np.zeros_like(empty_n))[order_q]
    return table, pa.array(place_q, mask=length_q == 0)


def list_labels(users: pa.Table) -> Labels:
    """Return each key's labels of all truth items, (i,).

    Rows with truth have the same keys, in one order.
    """
    slices = users.column("slices").combine_chunks()
    starts, there_n = slices.offsets.to_numpy(), slices.is_valid().to_numpy(zero_copy_only=False)
    first_n = starts[:-1][there_n & (np.diff(starts) > 0)]
    if not len(first_n):
        return {}
    keys = slices.keys[first_n[0] : first_n[0] + int(np.diff(starts).max())].to_pylist()
    return {key: slices.items.take(pa.array(first_n + n)).flatten() for n, key in enumerate(keys)}


def _map_labels(lists: dict[str, pa.ListArray], length_q: Ints) -> pa.MapArray:
    """Map slice keys to labels, by question; NULL without truth."""
    n, keys = len(length_q), [*lists]
    place_e = (np.arange(len(keys))[None, :] * n + np.flatnonzero(length_q)[:, None]).ravel()
    bounds = np.append(0, np.cumsum((length_q > 0) * len(keys)))
    values = pa.concat_arrays([*lists.values(), pa.array([], pa.list_(pa.string()))]).take(
        pa.array(place_e)
    )
    names = pa.array(keys * int((length_q > 0).sum()), pa.string())
    missing = pa.array(bounds, pa.int32(), mask=np.append(length_q == 0, False))
    return pa.MapArray.from_arrays(missing, names, values)
