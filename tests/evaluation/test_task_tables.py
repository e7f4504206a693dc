"""Rows dealt by user: with any number of tasks the numbers are those of one process. No JVM."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from recbench_spark.core.definitions import make_definition
from recbench_spark.engine.local import LocalEngine
from recbench_spark.errors import DataError, RecbenchError
from recbench_spark.evaluation.evaluation import evaluate, evaluate_at
from recbench_spark.evaluation.input_tables import RunPlace
from recbench_spark.evaluation.request_checks import EvaluationRequest, check_request
from recbench_spark.metrics.accuracy import MetricPlan
from recbench_spark.ranking.given import add_lists
from recbench_spark.sources.text_layouts import TEXT_NOTES
from tests.evaluation.test_engines import comparable, drawn

SYSTEMS = ("lists", "scores", "embeddings")
GIVEN = ("truth", "train", "candidates", "features")


@dataclass(frozen=True)
class ManyTasks(LocalEngine):
    """This process, as if a table needed several tasks."""

    tasks: int = 3

    @property
    def cores(self) -> int:
        return 2

    def count_tasks(self, n: int) -> int:
        return self.tasks


def evaluate_in_tasks(folder: Path, n: int, tables: dict[str, Any], options: dict[str, Any]) -> Any:
    given = {name: tables.get(name) for name in (*SYSTEMS, *GIVEN)}
    plan = check_request(EvaluationRequest(**options), **{k: v for k, v in given.items() if k != "truth"})
    place = RunPlace(ManyTasks(str(folder), tasks=n), str(folder))
    return evaluate_at(place, plan, {name: given[name] for name in GIVEN})


def answer(call: Any, *args: Any) -> Any:
    try:
        return comparable(call(*args))
    except RecbenchError as error:
        return str(error)


@pytest.mark.parametrize("seed", range(9))
def test_tasks_change_no_bit_check_or_error(seed: int, tmp_path: Path) -> None:
    tables, options = drawn(seed)
    here = answer(lambda: evaluate(**tables, **options))
    there = answer(evaluate_in_tasks, tmp_path, (3, 17, 1)[seed % 3], tables, options)
    assert here == there, options


@pytest.mark.parametrize("items", [["9", "10", "8"], ["9", "10", "a"]])
def test_ids_of_text_files_are_ordered_by_what_all_tasks_hold(items: list[str], tmp_path: Path) -> None:
    users = [f"u{n}" for n in range(len(items))]
    fields = [pa.field(name, pa.string(), metadata=TEXT_NOTES) for name in ("user_id", "item_id")]
    truth = pa.table([users, items], schema=pa.schema(fields))
    lists = truth.append_column("score", pa.array([1.0] * 3))
    every = pa.concat_tables([lists.set_column(0, fields[0], pa.array([one] * 3)) for one in users])
    options = {"metrics": ("mrr", "coverage"), "k": (1, 2)}
    tables = {"truth": truth, "lists": every}
    here = evaluate(**tables, **options)
    assert answer(evaluate_in_tasks, tmp_path, 3, tables, options) == comparable(here)
    first = here.rankings.column("top_items")[0].as_py()
    assert first[:2] == (["8", "9"] if "8" in items else ["10", "9"])


@pytest.mark.parametrize(("name", "part"), [("truth", "test"), ("train", "train"), ("lists", "list rows")])
def test_duplicates_are_refused_by_the_table_they_stand_in(name: str, part: str, tmp_path: Path) -> None:
    rows = {"user_id": [1, 1, 2], "item_id": [1, 2, 1]}
    tables = {"truth": rows, "train": rows, "lists": {**rows, "rank": [1, 2, 1]}}
    tables[name] = {column: [*values, values[0]] for column, values in tables[name].items()}
    options = {"definition": {"duplicates": "error"}, "metrics": ("hit",)}
    with pytest.raises(DataError, match=rf"{part}.*\b1\b"):
        evaluate_in_tasks(tmp_path, 3, {one: pa.table(table) for one, table in tables.items()}, options)


def test_users_without_rows_have_empty_lists() -> None:
    users = pa.table({"user_id": ["u", "v"]})
    rows = pa.table({"item_id": ["a", "b"], "rank": [2, 1]})
    plan = MetricPlan.checked(("hit",), (1,), make_definition(None, None))
    with_lists = add_lists(users, np.array([1, -1]), np.array([4, 5]), rows, plan.request())
    assert with_lists.column("list_items").to_pylist() == [[], [4]]
    assert with_lists.column("list_ranks").to_pylist() == [[], [2]]
    assert pc.list_value_length(with_lists.column("list_items")).to_pylist() == [0, 1]
