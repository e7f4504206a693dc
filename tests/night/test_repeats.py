"""Nights of a log in which a user has an item again: what is asked, what is ranked, what is said."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
import yaml

from recbench_spark.config import Benchmark, Split, make_benchmark, parse
from recbench_spark.errors import ConfigError
from recbench_spark.night.benchmark_checks import check_benchmark
from recbench_spark.schemas import CANDIDATES, CHECKS, MANIFESTS, METRICS
from recbench_spark.storage.arrow_store import ArrowStore
from tests.nights import read_rows, run

EVENTS = [
    ("u", "a", 1), ("u", "b", 2), ("u", "c", 3), ("u", "a", 9),
    ("v", "a", 1), ("v", "b", 2), ("v", "d", 9),
    ("w", "a", 1), ("w", "d", 2), ("w", "b", 9),
    ("x", "a", 1), ("x", "a", 2), ("x", "c", 9),
]  # fmt: skip
"""The last row of each user tests. Training rows: a 4 (x has two), b 2, c 1, d 1."""

MRR = {
    # c before d of v, b of w, c after b of x; u is not asked.
    "drop": (Fraction(1, 2) + 1 + Fraction(1, 2)) / 3,
    # Of all items a, b, c, d: a of u, d of v, b of w, c of x.
    "keep": (1 + Fraction(1, 4) + Fraction(1, 2) + Fraction(1, 3)) / 4,
    "only": Fraction(1),
}


def write_inputs(folder: Path) -> dict[str, Any]:
    log = pd.DataFrame(EVENTS, columns=["user_id", "item_id", "event_time"])
    log.to_csv(folder / "log.csv", index=False)
    ranked = [(user, item, rank) for user in "uvwx" for rank, item in enumerate("abcd", 1)]
    lists = pd.DataFrame(ranked, columns=["user_id", "item_id", "rank"])
    lists.to_csv(folder / "lists.csv", index=False)
    lists.assign(score=-lists["rank"]).drop(columns="rank").to_csv(folder / "scores.csv", index=False)
    return {
        "name": "repeats",
        "dataset": {"name": "shop", "reader": "csv", "path": str(folder / "log.csv")},
        "split": {"protocol": "TO_LS"},
        "models": [
            {"name": "popular", "kind": "popular"},
            {"name": "lists", "kind": "lists", "path": str(folder / "lists.csv")},
            {"name": "scores", "kind": "scores", "path": str(folder / "scores.csv")},
        ],
        "evaluation": {"metrics": ["mrr"], "k": [5], "slices": [], "bootstrap": {"replicates": 0}},
        "headline": "mrr@5",
    }


@pytest.mark.full
@pytest.mark.parametrize("repeats", ["drop", "keep", "only"])
def test_a_night_asks_for_repeats_as_the_file_says(tmp_path: Path, repeats: str) -> None:
    document = write_inputs(tmp_path)
    document["split"] = {"protocol": "TO_LS", "repeats": repeats}
    store = ArrowStore(str(tmp_path / "w"))
    ran = run(store, parse(Benchmark, document, "test"))
    assert ran.outcome.failed == {}
    rows = read_rows(store, METRICS, metric="mrr", k=5)
    # Lists of another system keep trained items, unless the file drops them.
    values = {row.value for row in rows if row.run_id != ran.outcome.run_ids["lists"] or repeats != "drop"}
    assert sorted(values) == [pytest.approx(float(MRR[repeats]), abs=1e-15)]
    assert {row.definition for row in rows} == {"v1" if repeats == "drop" else "v1;candidates=all"}
    users = pa.concat_tables(ran.night.select_users().each(["masked"], pa.concat_tables))
    assert any(users["masked"].to_pylist()) is (repeats == "drop")
    warned = store.rows(CHECKS, [("check", "=", "list rows of training items")])
    assert len(warned) == (repeats == "drop")

    facts = {(row.part, row.fact): row.value for row in read_rows(store, MANIFESTS)}
    assert facts["log", "rows_read"] == 13 and facts["log", "overlap"] == 0
    assert facts["train", "duplicates_dropped"] == facts["log", "duplicates_dropped"] == 1
    dropped = {"drop": (1, 0), "keep": (0, 0), "only": (0, 3)}[repeats]
    assert (facts["log", "repeats_dropped"], facts["log", "new_pairs_dropped"]) == dropped
    assert facts.get(("log", "repeats")) == (None if repeats == "drop" else 1)
    sizes = sum(value for (_, fact), value in facts.items() if fact == "rows")
    assert sizes + 1 + sum(dropped) == 13
    total = 1 + sum(dropped)
    assert f"{total} of 13 rows left out: 1 duplicates inside a part (dataset.duplicates)" in ran.remarks
    again = run(store, parse(Benchmark, document, "test"), force=True)
    assert f"{total} of 13 rows left out" in again.remarks


@pytest.mark.full
@pytest.mark.parametrize("mode", ["uniform", "popularity"])
@pytest.mark.parametrize("repeats", ["keep", "only"])
def test_items_asked_again_are_among_drawn_candidates(tmp_path: Path, repeats: str, mode: str) -> None:
    """A draw of 100 from four items takes all that the truth leaves, trained ones too."""
    document = write_inputs(tmp_path)
    document["split"] = {"protocol": "TO_LS", "repeats": repeats}
    document["models"] = document["models"][:1]
    document["evaluation"] |= {"definition": {"candidates": mode}, "draw": {"n": 100}}
    store = ArrowStore(str(tmp_path / "w"))
    ran = run(store, parse(Benchmark, document, "test"))
    assert ran.outcome.failed == {}
    (row,) = read_rows(store, METRICS, metric="mrr", k=5, estimator="holdout")
    assert row.value == pytest.approx(float(MRR[repeats]), abs=1e-15)
    (drawn,) = read_rows(store, CANDIDATES, user_id="u")
    assert len(drawn.items) == 3


@pytest.mark.full
def test_rejected_later_and_unordered_rows_are_said(tmp_path: Path) -> None:
    """12 of 30 rows are rejected; 3 come after the last day, and 2 rows of one second differ."""
    good = [(f"u{n % 4}", f"i{n}", 1, 1000 + n) for n in range(13)]
    later = [("u1", f"i{n}", 1, 2 * 86_400) for n in range(3)]
    lines = [*good, ("u0", "i0", 5, 1000), ("u0", "i0", 2, 1000), *later]
    text = "\n".join(",".join(map(str, line)) for line in lines) + "\n" + "u0,,1,7\n" * 12
    document = write_inputs(tmp_path)
    (tmp_path / "log.csv").write_text("user_id,item_id,rating,event_time\n" + text)
    document["dataset"] |= {"bad_rows": "reject", "until": "1970-01-01"}
    document["models"] = document["models"][:1]
    store = ArrowStore(str(tmp_path / "w"))
    ran = run(store, parse(Benchmark, document, "test"))
    facts = {(row.part, row.fact): row.value for row in read_rows(store, MANIFESTS)}
    assert facts["log", "rows_read"] == 30 and facts["log", "rejected_rows"] == 12
    assert "17 of 30 rows left out: 12 rejected (" in ran.remarks
    assert "3 rows after 1970-01-01 (UTC), left out" in ran.remarks
    (check,) = read_rows(store, CHECKS, check="log: pairs without a last row")
    assert (check.observed, check.severity, check.passed) == (1, "warning", False)
    assert "warning: 1 pairs have rows of equal or missing times that differ" in ran.remarks


# ------------------------------------------------------------------------------------ settings


def check(**sections: Any) -> Benchmark:
    document = {
        "name": "x",
        "dataset": {"name": "d", "reader": "csv", "path": "log.csv"},
        "models": [{"name": "popular", "kind": "popular"}],
        "split": {"protocol": "TO_LS", "repeats": "keep"},
        **sections,
    }
    benchmark = make_benchmark(yaml.safe_load(yaml.safe_dump(document)), [], "test")
    check_benchmark(benchmark)
    return benchmark


def test_all_items_are_ranked_where_repeats_are_asked_and_nothing_else_is_set() -> None:
    assert check().evaluation.resolve().candidates == "all"
    drawn = check(evaluation={"definition": {"candidates": "uniform", "gain": "linear"}})
    assert drawn.evaluation.definition == {"candidates": "uniform", "gain": "linear"}
    assert check(split={"protocol": "TO_LS"}).evaluation.resolve().candidates == "unseen"
    assert "repeats keep" in check().split.describe()


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"evaluation": {"definition": {"candidates": "unseen"}}},
            "no candidates under definition",
        ),
        (
            {"models": [{"name": "l", "kind": "lists", "path": "l.csv", "training_items": "drop"}]},
            "training_items 'drop' takes them out",
        ),
        ({"split": {"protocol": "RO_RS", "repeats": "only"}}, "in random order all rows of a pair"),
        ({"split": {"holdout": "folds", "repeats": "keep"}}, "in random order all rows of a pair"),
    ],
)
def test_settings_that_contradict_repeats(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(**sections)


def test_the_default_is_in_no_hash() -> None:
    assert "repeats" not in Split(protocol="TO_LS").model_dump()
    assert Split(holdout="consecutive", repeats="keep").model_dump()["repeats"] == "keep"
