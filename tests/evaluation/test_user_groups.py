"""Groups of users in `evaluate`: numbers of a group are those of its users alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from recbench_spark import cli, evaluate
from recbench_spark.commands import evaluate as job
from recbench_spark.errors import DataError, SchemaError
from recbench_spark.metrics.result import to_arrow
from recbench_spark.schemas import METRICS
from recbench_spark.storage.arrow_store import ArrowStore

NUMBERS = ["metric", "k", "slice_key", "slice_value", "value", "stderr", "ci_low", "ci_high", "n"]
USERS = [f"u{n}" for n in range(120)]
COUNTRIES = {user: "DE" if n % 3 else "FR" for n, user in enumerate(USERS) if n % 10}


def draw(queries: bool = False) -> dict[str, pd.DataFrame]:
    rng = np.random.default_rng(9)
    questions = [(user, str(q)) for user in USERS for q in range(1 + (queries and int(user[1:]) % 2))]
    tables = {}
    for name, n in (("truth", 3), ("lists", 6)):
        rows = [(u, q, f"i{i}", r + 1) for u, q in questions for r, i in enumerate(rng.permutation(20)[:n])]
        table = pd.DataFrame(rows, columns=["user_id", "query_id", "item_id", "rank"])
        dropped = [] if queries else ["query_id"]
        tables[name] = table.drop(columns=[*dropped, *(["rank"] if name == "truth" else [])])
    return tables


def groups() -> pd.DataFrame:
    rows = [(user, country, len(country) + int(user[1:]) % 2) for user, country in COUNTRIES.items()]
    return pd.DataFrame([*rows, ("nobody", "DE", 1)], columns=["user_id", "country", "age"])


@pytest.mark.parametrize("queries", [False, True])
@pytest.mark.parametrize("trained", [False, True])
def test_numbers_of_a_group_are_those_of_its_users(queries: bool, trained: bool) -> None:
    tables: dict[str, Any] = draw(queries)
    if trained:
        tables["train"] = pd.DataFrame({"user_id": USERS, "item_id": "i19"})
    options = {"metrics": ["ndcg", "recall"], "k": 5, "bootstrap": 100}
    numbers = evaluate(**tables, user_groups=groups(), **options).to_pandas(slices=True)
    assert set(numbers.slice_key.dropna()) == {"country", "age"} | ({"popularity"} if trained else set())
    for key, label in (("country", "FR"), ("country", "DE"), ("age", "2"), ("age", "3")):
        rows = groups()
        users = rows[rows[key].astype(str) == label].user_id
        alone = {
            name: table[table.user_id.isin(users)] if name in ("truth", "lists") else table
            for name, table in tables.items()
        }
        wanted = evaluate(**alone, **options).to_pandas().set_index(["metric", "k"])
        own = numbers[(numbers.slice_key == key) & (numbers.slice_value == label)].set_index(
            ["metric", "k"]
        )
        for name in ("value", "stderr", "ci_low", "ci_high", "n"):
            assert own[name].tolist() == wanted.loc[own.index, name].tolist(), (key, label, name)


def test_spark_gives_the_same_numbers(spark: Any) -> None:
    tables = {**draw(queries=True), "user_groups": groups()}
    frames = {name: spark.createDataFrame(table) for name, table in tables.items()}
    options = {"metrics": ["ndcg", "recall"], "k": 5, "bootstrap": 100}
    here, there = (
        to_arrow(evaluate(**given, **options).metrics).select(NUMBERS).to_pylist()
        for given in (tables, frames)
    )
    assert len(here) == 15 and sorted(map(repr, here)) == sorted(map(repr, there))


def test_gaps_of_groups() -> None:
    result = evaluate(**draw(), user_groups=groups(), metrics=["ndcg"], k=5)
    (row,) = result.find_gaps("country").query("k == 5").itertuples()
    numbers = {one["slice_value"]: one for one in to_arrow(result.metrics).to_pylist() if one["k"] == 5}
    means = {name: numbers[name]["value"] for name in ("DE", "FR")}
    assert row.gap == abs(means["DE"] - means["FR"]) and row.groups == 2
    assert row.worst_value == min(means.values()) and row.gap_low <= row.gap <= row.gap_high
    assert not len(result.find_gaps("town"))


def test_groups_that_cannot_be_read_are_refused() -> None:
    twice = pd.concat([groups(), groups().head(1)])
    with pytest.raises(DataError, match="a user stands twice"):
        evaluate(**draw(), user_groups=twice)
    with pytest.raises(SchemaError, match="popularity is a slice already"):
        evaluate(**draw(), user_groups=groups().rename(columns={"age": "popularity"}))
    with pytest.raises(SchemaError, match="give columns of labels"):
        evaluate(**draw(), user_groups=groups()[["user_id"]])
    many = pd.DataFrame({"user_id": [f"u{n}" for n in range(101)], "name": [f"n{n}" for n in range(101)]})
    with pytest.raises(DataError, match="user_groups: name has more than 100 values"):
        evaluate(**draw(), user_groups=many)


def test_the_command_takes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = []
    for name, table in {**draw(), "user-groups": groups()}.items():
        table.to_parquet(tmp_path / f"{name}.parquet")
        paths += [f"--{name}", str(tmp_path / f"{name}.parquet")]
    flags = ["--metrics", "ndcg", "--k", "5", "--warehouse", str(tmp_path / "w"), "--model", "ours"]
    with pytest.raises(SystemExit) as ended:
        cli.run(job.main, job.parser(), [*paths, *flags])
    assert ended.value.code == 0
    assert "ndcg" in capsys.readouterr().out
    store = ArrowStore(str(tmp_path / "w"))
    keys = {row["slice_key"] for row in store.rows(METRICS, [], ["slice_key"])}
    assert keys == {None, "country", "age"}
