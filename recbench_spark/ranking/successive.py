"""Successive questions: each held-out row with the rows before it as history.

Rows of `PART_USERS` hold a part's truth in order of time. Each of its items becomes a question. Axes: n
rows (a user and part), q questions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.arrays import Floats, Ints
from recbench_spark.ranking.kernels.rankings import mark_relevant
from recbench_spark.schemas import QUERY_ID
from recbench_spark.splits.events import NEXT
from recbench_spark.storage.shared_arrays import bound_lists, flatten_lists

TRUTH = ("item_ids", "items", "relevance")
"""Columns with a value per truth item."""


ITEM_BITS = 32
"""Bits of an item's index in a key with its question."""


class RowQuestions(NamedTuple):
    """Questions in row order.

    row_q: the row behind each, (q,); place_q: the place of its item in the row's truth, (q,); known_q:
    false where a row has no truth, (q,).
    """

    row_q: Ints
    place_q: Ints
    known_q: Ints


def ask_successively(
    users: pa.Table, known: pa.Table, threshold: float | None, *, masks: bool, in_time: bool = False
) -> pa.Table:
    """Ask for each truth item alone, after those before it.

    Items before it are masked, and history where they are relevant; so are those of validation.

    Args:
        users: rows of `PART_USERS`, truth in order of time.
        known: items and relevance of validation known to each row, as lists.
        threshold: as in `select_part_users`.
        masks: as in `select_part_users`.
        in_time: `known` has all rows before the questions instead, those of other events too, in order of
            time; NEXT stands for each question. They alone are history.

    Returns:
        A row per question, and `query_id`: its number in its user and part, from 1; NULL without truth.
    """
    truth = {name: users.column(name).combine_chunks() for name in (*TRUTH, "slices", "masked", "history")}
    offsets, items = flatten_lists(truth["items"])
    relevance = flatten_lists(truth["relevance"])[1]
    questions = _list_questions(np.diff(offsets))
    earlier_q, earlier_items, earlier_grades = _list_earlier(questions, offsets, items, relevance)
    bounds = pa.array(np.append(0, np.cumsum(questions.known_q)), pa.int32())
    at = pa.array((offsets[questions.row_q] + questions.place_q)[questions.known_q > 0])
    columns = {name: users.column(name).take(pa.array(questions.row_q)) for name in users.column_names}
    for name in TRUTH:
        columns[name] = pa.ListArray.from_arrays(bounds, truth[name].flatten().take(at))
    columns["slices"] = _take_labels(truth["slices"], questions)
    if masks:
        columns["masked"] = _add_items(truth["masked"], questions, (earlier_q, earlier_items))
    before_q, before_items, grades = _list_known(known, questions, in_time=in_time)
    if not in_time:
        before_q, before_items = np.append(before_q, earlier_q), np.append(before_items, earlier_items)
        grades = np.append(grades, earlier_grades)
    liked = mark_relevant(grades, threshold) & (before_items != NEXT)
    columns["history"] = _add_items(truth["history"], questions, (before_q[liked], before_items[liked]))
    numbers = pa.array(questions.place_q + 1, mask=questions.known_q == 0).cast(pa.string())
    table = pa.table([columns[name] for name in users.column_names], schema=users.schema)
    return table.append_column(QUERY_ID, numbers)


def sum_questions(tables: Iterable[pa.Table]) -> int:
    """Count the questions of users with truth `items`."""
    lengths = (pc.list_value_length(table.column("items")).to_numpy() for table in tables)
    return sum(int(np.maximum(length_n, 1).sum()) for length_n in lengths)


def _list_questions(length_n: Ints) -> RowQuestions:
    asked_n = np.maximum(length_n, 1)
    row_q = np.repeat(np.arange(len(length_n)), asked_n)
    place_q = np.arange(len(row_q)) - np.repeat(np.cumsum(asked_n) - asked_n, asked_n)
    return RowQuestions(row_q, place_q, np.minimum(length_n, 1)[row_q])


def _list_earlier(questions: RowQuestions, offsets: Ints, *values: Ints) -> tuple[Ints, ...]:
    """Return the question and values of all items before each question's."""
    question, at = repeat_ranges(offsets[questions.row_q], questions.place_q)
    return question, *(column[at] for column in values)


def _list_known(known: pa.Table, questions: RowQuestions, *, in_time: bool) -> tuple[Ints, Ints, Floats]:
    (offsets, items), (_, grades) = (flatten_lists(known.column(name)) for name in ("items", "relevance"))
    length_q = np.diff(offsets)[questions.row_q]
    if in_time:
        known_q = questions.known_q > 0
        length_q[known_q] = np.flatnonzero(items == NEXT) - offsets[questions.row_q][known_q]
    question, at = repeat_ranges(offsets[questions.row_q], length_q)
    return question, items[at], grades[at]


def repeat_ranges(start_q: Ints, length_q: Ints) -> tuple[Ints, Ints]:
    """Return the number, and each place, of ranges by start and length."""
    number = np.repeat(np.arange(len(start_q)), length_q)
    first = np.cumsum(length_q) - length_q
    return number, np.repeat(start_q - first, length_q) + np.arange(len(number))


def _add_items(lists: pa.ListArray, questions: RowQuestions, more: tuple[Ints, Ints]) -> pa.ListArray:
    """Return each question's items and some more, ascending and once."""
    offsets, items = flatten_lists(lists)
    own_q, at = repeat_ranges(offsets[questions.row_q], np.diff(offsets)[questions.row_q])
    question, item = np.append(own_q, more[0]), np.append(items[at], more[1])
    key = np.sort(question << ITEM_BITS | item)  # one sort of numbers is many times faster than two keys
    key = key[np.diff(key, prepend=-1) != 0]
    bounds = bound_lists(key >> ITEM_BITS, len(questions.row_q))
    return pa.ListArray.from_arrays(bounds, pa.array(key & (1 << ITEM_BITS) - 1, pa.int32()))


def _take_labels(slices: pa.MapArray, questions: RowQuestions) -> pa.MapArray:
    """Return each question's label by slice key; NULL without truth."""
    starts = slices.offsets.to_numpy()
    missing_q = slices.is_null().to_numpy(zero_copy_only=False)[questions.row_q] | (questions.known_q == 0)
    length_q = np.where(missing_q, 0, np.diff(starts)[questions.row_q])
    question, entry = repeat_ranges(starts[questions.row_q], length_q)
    labels = slices.items.offsets.to_numpy()[entry] + questions.place_q[question]
    values = pa.ListArray.from_arrays(
        pa.array(np.arange(len(entry) + 1), pa.int32()), slices.items.values.take(pa.array(labels))
    )
    bounds = pa.array(np.append(np.cumsum(length_q) - length_q, length_q.sum()), pa.int32())
    maps = pa.MapArray.from_arrays(bounds, slices.keys.take(pa.array(entry)), values)
    return maps.take(pa.array(np.arange(len(maps)), mask=missing_q)).cast(slices.type)
