"""Evaluate mutated tables by `evaluate_frames`, against the slow answer of `input_tables`."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

import recbench_spark
from recbench_spark.errors import RecbenchError
from tests.faults import input_tables
from tests.faults.campaign import Case, Verdict

CLOSE = 1e-9
BIG = 500
"""Interval of the cases in which one user has a million rows."""


Values = dict[tuple[str, int | None], tuple[float, int]]
"""Values by metric and cut-off, each with the number of its users."""


def run(case: Case) -> Verdict:
    if case.number % BIG == BIG - 1:
        return evaluate_million(case.draw())
    tables = input_tables.mutate_tables(case)
    frames, seen = as_frames(tables)

    def evaluate() -> Values:
        table = recbench_spark.evaluate_frames(*frames, **request_options(tables))
        return {(r.metric, None if pd.isna(r.k) else int(r.k)): (r.value, r.n) for r in table.itertuples()}

    verdict = judge(seen, evaluate, tables.frame)
    verdict.about.insert(0, f"{tables.frame} frame")
    return verdict


def request_options(tables: input_tables.InputTables) -> dict[str, Any]:
    return {"k": tables.k, "metrics": tables.metrics, "preset": tables.preset, "definition": tables.axes}


def judge(tables: input_tables.InputTables, evaluate: Callable[[], Values], where: str) -> Verdict:
    """Compare the result of a call with the slow answer for the same tables."""
    about = [change.partition(" holds ")[0] for change in tables.changes]
    case_text = f"{'; '.join(tables.changes) or 'nothing changed'} [{where}]"
    wrong, end = find_problem(tables, evaluate)
    return Verdict.judge(wrong, case_text, *about, *([] if wrong else [end]))


def find_problem(
    tables: input_tables.InputTables, evaluate: Callable[[], Values]
) -> tuple[str | None, str]:
    """Return the problem of a call, and whether the tables were refused."""
    wanted, why = slow_answer(tables)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            values = evaluate()
    except RecbenchError as error:
        if not error.hint:
            return f"an error without a hint: {error}", "refused"
        due = wanted is None or wanted.grey
        return None if due else f"refused though nothing is wrong: {error}", "refused"
    except Exception as error:
        return f"a trace: {type(error).__name__}: {str(error)[:300]}", "broken"
    return f"taken, and {why}" if wanted is None else find_difference(wanted, values), "right"


def slow_answer(tables: input_tables.InputTables) -> tuple[input_tables.Answer | None, str]:
    """Return the slow answer, or the reason why there is none."""
    try:
        return input_tables.compute_expected(tables), ""
    except input_tables.Refused as refused:
        return None, str(refused)


def find_difference(wanted: input_tables.Answer, values: Values) -> str | None:
    """Find the first number that differs from the oracle's."""
    if set(wanted.values) != set(values):
        return f"other numbers: {set(wanted.values) ^ set(values)}"
    for key, (value, n) in wanted.values.items():
        got, users = values[key]
        same = (math.isnan(value) and math.isnan(got)) or abs(value - got) <= CLOSE * max(1.0, abs(value))
        if not same or n != users:
            return f"SILENTLY WRONG: {key} is {got} over {users}, and right is {value} over {n}"
    return None


def overall(rows: list[dict[str, Any]]) -> Values:
    """Return the rows of `metrics` that belong to no slice."""
    whole = [row for row in rows if row.get("slice_key") is None]
    return {(r["metric"], r["k"]): (math.nan if r["value"] is None else r["value"], r["n"]) for r in whole}


def as_frames(inputs: input_tables.InputTables) -> tuple[tuple[Any, Any], input_tables.InputTables]:
    """Return the two frames, and the columns as Arrow reads them, since pandas has its own types."""
    tables = [as_arrow(columns) for columns in (inputs.truth, inputs.lists)]
    way = inputs.frame if all(len(set(t.column_names)) == t.num_columns for t in tables) else "arrow"
    if way == "chunks":
        tables = [pa.concat_tables([t.slice(n, 1) for n in range(t.num_rows)] or [t]) for t in tables]
    if way == "slice":
        tables = [pa.concat_tables([t, t, t]).slice(t.num_rows, t.num_rows) for t in tables]
    if way == "batch":
        return tuple(t.combine_chunks().to_batches()[0] if t.num_rows else t for t in tables), inputs  # type: ignore[return-value]
    if way in ("pandas", "categorical"):
        frames = [t.to_pandas() for t in tables]
        if way == "categorical":
            frames = [categorical(frame) for frame in frames]
        try:
            back = [pa.Table.from_pandas(frame, preserve_index=False) for frame in frames]
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            return (frames[0], frames[1]), inputs
        sides = [
            [
                input_tables.Column(n, c.type, c.to_pylist())
                for n, c in zip(t.column_names, t.columns, strict=True)
            ]
            for t in back
        ]
        inputs.truth, inputs.lists = sides
        return (frames[0], frames[1]), inputs
    return (tables[0], tables[1]), inputs


def as_arrow(columns: list[input_tables.Column]) -> pa.Table:
    return pa.table([column.arrow() for column in columns], names=[column.name for column in columns])


def categorical(frame: pd.DataFrame) -> pd.DataFrame:
    for name in ("user_id", "item_id"):
        if name in frame:
            try:
                frame[name] = frame[name].astype("category")
            except (TypeError, NotImplementedError):  # pandas has no categories of these
                continue
    return frame


def evaluate_million(chance: random.Random) -> Verdict:
    """Evaluate one user of a million rows, unsorted, with ties and duplicates; one item is in every
    list.
    """
    n, users = 1_000_000, 5
    items = np.arange(n) * 7 % 1_000_003
    score = (items * chance.randrange(1, 10**6) % 4099).astype(float)
    wanted = [int(items[chance.randrange(n)]) for _ in range(3)]
    lists = pd.DataFrame({
        "user_id": [0] * n + list(range(1, users)) + [0],
        "item_id": [*items.tolist(), *[wanted[0]] * (users - 1), wanted[0]],
        "score": [*score.tolist(), *[1.0] * (users - 1), -1.0],
    })  # fmt: skip
    order = np.random.default_rng(chance.randrange(2**32)).permutation(len(lists))
    truth = pd.DataFrame(
        {"user_id": [0] * 3 + list(range(1, users)), "item_id": [*wanted, *[wanted[0]] * (users - 1)]}
    )
    k = chance.choice([10, 1000, 250_000])
    result = recbench_spark.evaluate_frames(truth, lists.iloc[order], k=[k], metrics=["recall", "mrr"])
    ranks = []
    for item in wanted:
        mine = score[items == item][0]
        ranks.append(1 + int((score > mine).sum()) + int(((score == mine) & (items < item)).sum()))
    distinct = dict(zip(wanted, ranks, strict=True))
    recall = sum(rank <= k for rank in distinct.values()) / len(distinct)
    first = min(distinct.values())
    right = {("recall", k): recall + users - 1, ("mrr", k): (1 / first if first <= k else 0) + users - 1,
             ("mrr", None): 1 / first + users - 1}  # fmt: skip
    for row in result.itertuples():
        key = (row.metric, None if pd.isna(row.k) else int(row.k))
        if row.n != users or abs(row.value - right[key] / users) > CLOSE:
            return Verdict.fail(
                f"a million rows: SILENTLY WRONG: {key} is {row.value}, right {right[key] / users}"
            )
    return Verdict(about=["a user of a million rows", "right"])
