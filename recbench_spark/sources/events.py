"""Read the event of each row, as a code.

Tasks import this module: names arrive as plain values, without the settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from recbench_spark.core.ids import drop_empty
from recbench_spark.errors import ConfigError, nearest
from recbench_spark.sources.arrow_rows import combine_column, spell_values

if TYPE_CHECKING:  # workers import this module and need no settings
    from recbench_spark.config import Dataset

EVENT = "event"
"""Column with the code of a row's event, between reading and labelling."""


class EventNames(NamedTuple):
    """A log's column with events, and those with a weight.

    Attributes:
        column: the log's own name of the column.
        names: the events in order; a code is a place among them.
    """

    column: str
    names: tuple[str, ...]

    def encode(self, column: pa.Array) -> pa.Array:
        """Return int8 codes; NULL where there is no event.

        Raises:
            ConfigError: an event has no weight.
        """
        encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        texts = drop_empty(combine_column(spell_values(pa.chunked_array([encoded.dictionary]))))
        if pa.types.is_floating(encoded.dictionary.type):  # whole numbers beside missing ones
            texts = pc.replace_substring_regex(texts, r"\.0$", "")
        codes = pc.index_in(texts, pa.array(self.names, pa.string())).cast(pa.int8())
        strange = texts.filter(pc.and_(codes.is_null(), texts.is_valid()))
        # A file's dictionary may hold texts without a row.
        there = texts.take(pc.unique(encoded.indices).drop_null()) if len(strange) else texts
        if names := {*strange.to_pylist()} & {*there.to_pylist()}:
            raise self.refuse(min(names))
        return codes.take(encoded.indices)

    def refuse(self, name: str) -> ConfigError:
        """Return the error for an event without weight."""
        hint = f"{nearest(name, self.names)}; or leave its rows out: where: [{{column: {self.column}, "
        message = f"dataset.events: the log has {self.column} '{name}', which has no weight"
        return ConfigError(message, f"{hint}not_in: [{name}]}}]")


def name_events(dataset: Dataset) -> EventNames | None:
    """Return the events of a log for tasks, if it has any."""
    events = dataset.events
    return EventNames(events.column, tuple(sorted(events.weights))) if events else None
