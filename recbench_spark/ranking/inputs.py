"""Ranking inputs: scoring models, and other systems' lists or scores.

Works without Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.ranking.batch_schemas import LISTED_USERS
from recbench_spark.ranking.known_items import KnownItems
from recbench_spark.ranking.request import RankingRequest
from recbench_spark.ranking.sources import Source
from recbench_spark.schemas import IDS, QUERY_ID
from recbench_spark.storage.blocks import ChangedRows, Rows

VECTOR_ROWS = pa.schema({"user_id": pa.string(), "vector": pa.list_(pa.float32())})
"""User vectors."""

UNKNOWN_KEYS = 1 << 32
"""Items outside the catalogue get keys above this number."""


class ScoredModel(NamedTuple):
    """A scoring model, and its users' vectors where needed.

    `vectors`: user_id, vector.
    """

    source: Source
    vectors: Rows | None = None


@dataclass(frozen=True)
class GivenRows:
    """Another system's lists or scores; only listed items are candidates.

    Attributes:
        rows: user_id, item_id, and the columns in `values`.
        values: rank (from 1) or score, or both.
        items: the catalogue.
        mask: a user's training items are taken out (scores) or stay in the list (lists).
        by_query: each query of a user has a list, and rows have query_id; otherwise a user has one.
    """

    rows: Rows
    values: tuple[str, ...]
    items: KnownItems
    mask: bool
    by_query: bool = False

    def key_lists(self, request: RankingRequest) -> ChangedRows:
        """Return the rows with item numbers, for `given.group_lists`.

        Items outside the catalogue keep their place in the list; they are never truth items. Their ids are
        needed where lists are requested.
        """
        more = (*([QUERY_ID] if self.by_query else []), *self.values)
        names = ("user_id", "key", *(["item_id"] if request.top else []), *more)
        key = partial(_key_rows, items=self.items)
        return ChangedRows(self.rows, (*IDS, *more), key, names)

    def list_columns(self, request: RankingRequest) -> pa.Schema:
        """Return the columns that `given.group_lists` makes."""
        names = {"list_items", *(["list_ids"] if request.top else [])}
        names |= {f"list_{name}s" for name in self.values}
        return pa.schema([field for field in LISTED_USERS if field.name in names])


RankingInput = ScoredModel | GivenRows
"""A ranking's input: a model, or another system's output."""


def _key_rows(rows: pa.Table, items: KnownItems) -> pa.Table:
    from recbench_spark.core.hashed_ids import hash_encoded  # noqa: PLC0415

    codes = rows.column("item_id").combine_chunks()
    codes = codes if pa.types.is_dictionary(codes.type) else codes.dictionary_encode()
    known_d, _ = items.find(codes.dictionary)
    # Unknown items get keys beyond the catalogue and so stay distinct.
    unknown_r = (hash_encoded(codes) >> np.uint64(2)).astype(np.int64) + UNKNOWN_KEYS
    key_r = np.where(known_d[codes.indices] >= 0, known_d[codes.indices], unknown_r)
    casts = {"rank": pa.int64(), "score": pa.float64()}
    for name in (name for name in casts if name in rows.column_names):
        place = rows.column_names.index(name)
        rows = rows.set_column(place, name, pc.cast(rows.column(name), casts[name]))
    return rows.append_column("key", pa.array(key_r))
