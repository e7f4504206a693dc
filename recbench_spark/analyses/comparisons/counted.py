"""Numbers of models that have several runs on one night: each number belongs to one of these runs.

A model that was evaluated again with other metrics has two runs, and each of them owns some of the numbers
that count (the view `current_metrics`). One run represents the model and night in a plan. `gather_rows`
moves the rows of all these numbers to it, and `name_owners` puts the owner of each number back into the
results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.storage.shared_arrays import flatten_lists

WHOLE_RANKING = 0
"""Value for NULL, the whole ranking, in look-ups of cut-offs."""

_NUMBER = ("part", "metric", "definition")


@dataclass(frozen=True, order=True)
class CountedNumber:
    """A number that counts, of a model and night with several runs.

    Attributes:
        run_id: the run that represents the model and night.
        owner: the run whose number counts.
        part, metric, definition: as in the table `metrics`.
        k: cut-off; WHOLE_RANKING: the whole ranking.
    """

    run_id: str
    owner: str
    part: str
    metric: str
    definition: str
    k: int


def gather_rows(rows: pa.Table, numbers: Sequence[CountedNumber]) -> pa.Table:
    """Return rows of `user_metrics` with all numbers of a model and night under one run.

    Rows of runs that share no numbers stay as they are.

    Args:
        rows: rows of the table, of any runs.
        numbers: all numbers that count, of each model and night with several runs.
    """
    if not numbers:
        return rows
    shared = pa.array(sorted({run_id for n in numbers for run_id in (n.run_id, n.owner)}))
    owned: dict[tuple[str, ...], list[int]] = {}
    for n in numbers:
        owned.setdefault((n.run_id, n.owner, n.part, n.metric, n.definition), []).append(n.k)
    is_shared = pc.is_in(rows.column("run_id"), value_set=shared)
    shared_rows = rows.filter(is_shared)
    gathered = [_take_cutoffs(shared_rows, *key, ks) for key, ks in owned.items()]
    return pa.concat_tables([rows.filter(pc.invert(is_shared)), *gathered])


def _take_cutoffs(rows: pa.Table, standing: str, *owned: Any) -> pa.Table:
    """Return the rows of a number's owner under another run, with some of their cut-offs."""
    *key, ks = owned
    for name, value in zip(("run_id", *_NUMBER), key, strict=True):
        rows = rows.filter(pc.equal(rows.column(name), value))
    offsets, k_p = flatten_lists(rows.column("ks").combine_chunks())
    _, value_p = flatten_lists(rows.column("values").combine_chunks())
    # A NULL cut-off, the whole ranking, is NaN among the floats.
    kept_p = np.isin(np.nan_to_num(k_p.astype(np.float64), nan=WHOLE_RANKING), ks)
    bounds = pa.array(np.append(0, np.cumsum(kept_p))[offsets].astype(np.int32))
    columns: dict[str, pa.Array] = {"run_id": pa.repeat(standing, len(rows))}
    for name, flat_p in (("ks", k_p), ("values", value_p)):
        kind = rows.schema.field(name).type
        flat = pa.array(flat_p[kept_p], kind.value_type, from_pandas=True)
        columns[name] = pa.ListArray.from_arrays(bounds, flat, type=kind)
    for name, column in columns.items():
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, rows.schema.field(place), column)  # the type of the other rows
    return rows.filter(pc.greater(pc.list_value_length(rows.column("ks")), 0))


def name_owners(results: pa.Table, numbers: Sequence[CountedNumber]) -> pa.Table:
    """Return results whose `run_id` and `other_run_id` are those of the runs that own the numbers.

    Args:
        results: with columns run_id, other_run_id, part, metric, definition, k.
        numbers: as in `gather_rows`.
    """
    owners = {(n.run_id, n.part, n.metric, n.definition, n.k): n.owner for n in numbers}
    keys = [row.values() for row in results.select([*_NUMBER, "k"]).to_pylist()] if owners else []
    for name in ("run_id", "other_run_id") if owners else ():
        named = [
            owners.get((run_id, *key, k or WHOLE_RANKING), run_id)
            for run_id, (*key, k) in zip(results.column(name).to_pylist(), keys, strict=True)
        ]
        place = results.column_names.index(name)
        results = results.set_column(place, name, pa.array(named, pa.string()))
    return results
