"""Two writers of one table in any order, and lost answers: rows are as by one writer after the other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recbench_spark.schemas import REJECTS
from recbench_spark.storage import delta_files, table_upkeep
from recbench_spark.storage.arrow_store import ArrowStore
from recbench_spark.storage.delta_tables import read_dataset
from recbench_spark.storage.retries import is_delta_conflict, retry_while
from recbench_spark.storage.table_folders import create_object_table
from tests.faulty_storage import Faults, Proxy, disturb
from tests.object_storage import S3Server

KINDS = ("append", "delete split", "delete file", "compact")
CHOOSING = ("files", "missing", "replace")
"""Changes that look at what is there. A table has one kind: each is safe beside itself and KINDS."""

POINTS = ("opened", "named", "chosen")
"""Moments in a change: the table has been opened, its names have been read, files have been chosen."""

SPLITS, FILES = ("s", "é %"), ("a", "b")
"""Few, so that writers often mean the same rows."""


class State(NamedTuple):
    """Rows of the table (split and file), and names of appends in its log."""

    rows: tuple[tuple[str, str], ...] = ()
    names: frozenset[str] = frozenset()


class Change(NamedTuple):
    """Change is what a writer does to the table."""

    kind: str
    split: str
    file: str

    @property
    def name(self) -> str:
        """Name of the append, by which both writers know it."""
        return "/".join(self)


class Step(NamedTuple):
    """A change of one writer, and one that the other writer makes meanwhile, or behind it."""

    change: Change
    other: Change | None
    point: str


def draw_steps(choosing: str) -> st.SearchStrategy[list[Step]]:
    kinds = st.sampled_from((*KINDS, choosing, choosing))
    changes = st.builds(Change, kinds, st.sampled_from(SPLITS), st.sampled_from(FILES))
    steps = st.builds(Step, changes, st.none() | changes, st.sampled_from(POINTS))
    return st.lists(steps, min_size=1, max_size=5)


STEPS = st.sampled_from(CHOOSING).flatmap(draw_steps)

Waiting = dict[str, Callable[[], None]]
"""Changes of another writer, by the moment at which it makes them."""


def run_waiting(waiting: Waiting, point: str) -> None:
    """Let the other writer work, if it waits for this moment; once."""
    waiting.pop(point, lambda: None)()


# ------------------------------------------------------------------------------- changes of a table


def run_change(place: str, change: Change, waiting: Waiting) -> None:
    """Change the table as a job does: again where another writer was faster."""
    rows = pa.table({"split_id": [change.split], "file": [change.file], "line": [None], "reason": ["r"]})
    rows = rows.cast(REJECTS_SCHEMA)
    actions: dict[str, Callable[[], object]] = {
        "append": partial(delta_files.append_rows, place, rows, change.name),
        "files": partial(commit_to_empty, place, rows, change, waiting),
        "missing": partial(delta_files.append_missing, place, rows, ["split_id", "file"]),
        "replace": partial(delta_files.replace_rows, place, rows, "split_id", change.split),
        "delete split": partial(delta_files.delete_rows, place, "split_id", [change.split]),
        "delete file": partial(delta_files.delete_rows, place, "file", [change.file]),
        "compact": partial(table_upkeep.compact_files, place),
    }
    retry_while(is_delta_conflict, change.kind, actions[change.kind], wait=0.001)


REJECTS_SCHEMA = pa.schema(
    [pa.field("split_id", pa.string()), *(pa.field(n, pa.string()) for n in ("file", "line", "reason"))]
)


def commit_to_empty(place: str, rows: pa.Table, change: Change, waiting: Waiting) -> None:
    """Commit a file of a task, unless its partition has files."""

    def choose(files: Sequence[delta_files.File], there: Sequence[str]) -> Sequence[delta_files.File]:
        run_waiting(waiting, "chosen")
        return [] if there else files

    partition = {"split_id": change.split}
    file = delta_files.write_file(rows, place, partition, ["file", "line", "reason"])
    delta_files.commit(place, [file], partition, change.name, choose)


def read_table(place: str) -> tuple[tuple[str, str], ...]:
    table = read_dataset(place).to_table(columns=["split_id", "file"])
    return tuple(sorted(zip(*table.to_pydict().values(), strict=True)))


# ------------------------------------------------------------------------------- changes of a list


def apply_change(change: Change, state: State) -> State:
    """Return what a change makes of a list of rows."""
    row, rows = (change.split, change.file), state.rows
    others = tuple(one for one in rows if one[0] != change.split)
    if change.kind in ("append", "files"):
        is_there = change.name in state.names or (change.kind == "files" and others != rows)
        return state if is_there else State(add_row(rows, row), state.names | {change.name})
    after = {
        "missing": rows if row in rows else add_row(rows, row),
        "replace": add_row(others, row),
        "delete split": others,
        "delete file": tuple(one for one in rows if one[1] != change.file),
        "compact": rows,
    }
    return state._replace(rows=after[change.kind])


def add_row(rows: tuple[tuple[str, str], ...], row: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((*rows, row)))


def apply_both(state: State, change: Change, other: Change | None) -> set[State]:
    """Return what can be there after two changes at once: one came after the other."""
    if other is None:
        return {apply_change(change, state)}
    return {
        apply_change(second, apply_change(first, state))
        for first, second in itertools.permutations((change, other))
    }


# ------------------------------------------------------------------------------- two writers


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Waiting:
    """Changes that wait for a moment of a change by `delta_files` or `table_upkeep`."""
    actions: Waiting = {}

    def interrupt_hold(hold: Any) -> Any:
        @contextmanager
        def hold_interrupted(*args: Any, **options: Any) -> Iterator[DeltaTable]:
            with hold(*args, **options) as table:
                run_waiting(actions, "opened")
                yield table

        return hold_interrupted

    def interrupt(function: Any, point: str) -> Any:
        def call_interrupted(*args: Any) -> Any:
            result = function(*args)
            run_waiting(actions, point)
            return result

        return call_interrupted

    for name in ("hold_table", "open_for_write"):
        monkeypatch.setattr(delta_files, name, interrupt_hold(getattr(delta_files, name)))
    monkeypatch.setattr(delta_files, "find_append", interrupt(delta_files.find_append, "named"))
    monkeypatch.setattr(table_upkeep, "open_table", interrupt(table_upkeep.open_table, "opened"))
    return actions


def check_steps(place: str, steps: list[Step], waiting: Waiting) -> None:
    """Change a table and compare its rows after each step."""
    waiting.clear()  # of an example that has failed
    states = {State()}
    for change, other, point in steps:
        if other is not None:
            waiting[point] = partial(run_change, place, other, waiting)
        run_change(place, change, waiting)
        run_waiting(waiting, point)  # it has not come to this moment
        possible = {after for state in states for after in apply_both(state, change, other)}
        rows = read_table(place)
        states = {state for state in possible if state.rows == rows}
        assert states, (change, other, rows, [state.rows for state in possible])


numbers = itertools.count()


def test_two_compactions_at_once_keep_each_row_once(tmp_path: Path, waiting: Waiting) -> None:
    """With `deltalake` alone both would commit, and each row would be there twice."""
    ArrowStore(str(tmp_path)).create(REJECTS)
    appends = [Step(Change("append", "s", file), None, "opened") for file in FILES]
    compact = Change("compact", "s", "a")
    check_steps(str(tmp_path / "rejects"), [*appends, Step(compact, compact, "opened")], waiting)
    assert len(list(tmp_path.rglob("*.zstd.parquet"))) == 2


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_two_writers_of_a_folder(tmp_path: Path, waiting: Waiting, steps: list[Step]) -> None:
    root = tmp_path / str(next(numbers))
    ArrowStore(str(root)).create(REJECTS)
    check_steps(str(root / "rejects"), steps, waiting)


@pytest.fixture
def proxy(s3_server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    with disturb(s3_server, Faults(lose=5)) as running:
        monkeypatch.setenv("AWS_ENDPOINT_URL", running.server.endpoint)
        yield running
        assert running.done["lose"] > 3


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_two_writers_of_a_table_on_s3_whose_answers_are_lost(
    bucket: str, proxy: Proxy, waiting: Waiting, steps: list[Step]
) -> None:
    place = f"{bucket}/{next(numbers)}/rejects"
    proxy.done["writes"] = 0  # an example that is repeated loses the same answers
    create_object_table(place, REJECTS)
    check_steps(place, steps, waiting)
