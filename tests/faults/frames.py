"""Mutated tables through `evaluate_frames`, against the slow answer of `handed`."""

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
from tests.faults import handed
from tests.faults.campaign import Case, Verdict

CLOSE = 1e-9
BIG = 500
"""Every so many cases one user has a million rows."""


Values = dict[tuple[str, int | None], tuple[float, int]]
"""By metric and cut-off: a value, and over how many users."""


def run(case: Case) -> Verdict:
    if case.number % BIG == BIG - 1:
        return million(case.draw())
    given = handed.mutated(case)
    frames, seen = as_frames(given)

    def found() -> Values:
        table = recbench_spark.evaluate_frames(*frames, **asked(given))
        return {(r.metric, None if pd.isna(r.k) else int(r.k)): (r.value, r.n) for r in table.itertuples()}

    verdict = judged(seen, found, given.frame)
    verdict.about.insert(0, f"{given.frame} frame")
    return verdict


def asked(given: handed.Handed) -> dict[str, Any]:
    return {"k": given.k, "metrics": given.metrics, "preset": given.preset, "definition": given.axes}


def judged(given: handed.Handed, found: Callable[[], Values], where: str) -> Verdict:
    """How a call ended, beside what the slow answer says of the same tables."""
    about = [change.partition(" holds ")[0] for change in given.changes]
    told = f"{'; '.join(given.changes) or 'nothing changed'} [{where}]"
    wrong, end = wrong_of(given, found)
    return Verdict.of(wrong, told, *about, *([] if wrong else [end]))


def wrong_of(given: handed.Handed, found: Callable[[], Values]) -> tuple[str | None, str]:
    """What is wrong, and whether the tables were refused."""
    wanted, why = answer(given)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            values = found()
    except RecbenchError as error:
        if not error.hint:
            return f"an error without a hint: {error}", "refused"
        due = wanted is None or wanted.grey
        return None if due else f"refused though nothing is wrong: {error}", "refused"
    except Exception as error:
        return f"a trace: {type(error).__name__}: {str(error)[:300]}", "broken"
    return f"taken, and {why}" if wanted is None else differs(wanted, values), "right"


def answer(given: handed.Handed) -> tuple[handed.Answer | None, str]:
    """The slow answer, or why there is none."""
    try:
        return handed.expected(given), ""
    except handed.Refused as refused:
        return None, str(refused)


def differs(wanted: handed.Answer, found: Values) -> str | None:
    """The first number that is not the oracle's."""
    if set(wanted.values) != set(found):
        return f"other numbers: {set(wanted.values) ^ set(found)}"
    for key, (value, n) in wanted.values.items():
        got, users = found[key]
        same = (math.isnan(value) and math.isnan(got)) or abs(value - got) <= CLOSE * max(1.0, abs(value))
        if not same or n != users:
            return f"SILENTLY WRONG: {key} is {got} over {users}, and right is {value} over {n}"
    return None


def overall(rows: list[dict[str, Any]]) -> Values:
    """Of rows of `metrics` those that are of no slice."""
    whole = [row for row in rows if row.get("slice_key") is None]
    return {(r["metric"], r["k"]): (math.nan if r["value"] is None else r["value"], r["n"]) for r in whole}


def as_frames(given: handed.Handed) -> tuple[tuple[Any, Any], handed.Handed]:
    """The two frames, and the columns as Arrow sees them: pandas has types of its own."""
    tables = [as_arrow(columns) for columns in (given.truth, given.lists)]
    way = given.frame if all(len(set(t.column_names)) == t.num_columns for t in tables) else "arrow"
    if way == "chunks":
        tables = [pa.concat_tables([t.slice(n, 1) for n in range(t.num_rows)] or [t]) for t in tables]
    if way == "slice":
        tables = [pa.concat_tables([t, t, t]).slice(t.num_rows, t.num_rows) for t in tables]
    if way == "batch":
        return tuple(t.combine_chunks().to_batches()[0] if t.num_rows else t for t in tables), given  # type: ignore[return-value]
    if way in ("pandas", "categorical"):
        frames = [t.to_pandas() for t in tables]
        if way == "categorical":
            frames = [categorical(frame) for frame in frames]
        try:
            back = [pa.Table.from_pandas(frame, preserve_index=False) for frame in frames]
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            return (frames[0], frames[1]), given
        held = [
            [
                handed.Column(n, c.type, c.to_pylist())
                for n, c in zip(t.column_names, t.columns, strict=True)
            ]
            for t in back
        ]
        given.truth, given.lists = held
        return (frames[0], frames[1]), given
    return (tables[0], tables[1]), given


def as_arrow(columns: list[handed.Column]) -> pa.Table:
    return pa.table([column.arrow() for column in columns], names=[column.name for column in columns])


def categorical(frame: pd.DataFrame) -> pd.DataFrame:
    for name in ("user_id", "item_id"):
        if name in frame:
            try:
                frame[name] = frame[name].astype("category")
            except (TypeError, NotImplementedError):  # pandas has no categories of these
                continue
    return frame


def million(chance: random.Random) -> Verdict:
    """One user of a million rows, unsorted, with ties and doubles; an item in every list."""
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
    found = recbench_spark.evaluate_frames(truth, lists.iloc[order], k=[k], metrics=["recall", "mrr"])
    ranks = []
    for item in wanted:
        mine = score[items == item][0]
        ranks.append(1 + int((score > mine).sum()) + int(((score == mine) & (items < item)).sum()))
    distinct = dict(zip(wanted, ranks, strict=True))
    recall = sum(rank <= k for rank in distinct.values()) / len(distinct)
    first = min(distinct.values())
    right = {("recall", k): recall + users - 1, ("mrr", k): (1 / first if first <= k else 0) + users - 1,
             ("mrr", None): 1 / first + users - 1}  # fmt: skip
    for row in found.itertuples():
        key = (row.metric, None if pd.isna(row.k) else int(row.k))
        if row.n != users or abs(row.value - right[key] / users) > CLOSE:
            return Verdict.failed(
                f"a million rows: SILENTLY WRONG: {key} is {row.value}, right {right[key] / users}"
            )
    return Verdict(about=["a user of a million rows", "right"])
