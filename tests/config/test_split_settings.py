"""A split's settings: names of combinations, what is filled in, what contradicts itself."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from recbench_spark.config import PROTOCOLS, Gate, Split, load_benchmark


@pytest.mark.parametrize("name", ["RO_RS", "TO_RS", "RO_LS", "TO_LS", "given"])
def test_a_name_and_what_it_stands_for_are_the_same_split(name: str) -> None:
    assert Split(**PROTOCOLS[name]) == Split(protocol=name)  # type: ignore[arg-type]
    assert Split.model_validate(Split(protocol=name).model_dump()) == Split(protocol=name)  # type: ignore[arg-type]


def test_what_is_filled_in() -> None:
    assert Split().protocol == "RO_RS"
    assert Split(order="temporal", group="global").protocol is None
    netflix = Split(protocol="netflix")
    assert (netflix.order, netflix.holdout, netflix.n, netflix.parts) == (
        "temporal", "last_n", 9, ("probe", "quiz", "test"),
    )  # fmt: skip
    assert Split(protocol="netflix", n=6, parts=("probe", "qualifying")).n == 6
    assert Split(holdout="folds").group == "global"
    assert Split(holdout="period", length="7d").order == "temporal"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"protocol": "TO_LS", "order": "random"}, "TO_LS means order temporal"),
        ({"holdout": "last_n"}, "needs 'n'"),
        ({"holdout": "last_n", "n": 0}, "at least 1"),
        ({"holdout": "last_n", "n": 3, "group": "global"}, "per user"),
        ({"holdout": "n_given", "n": 3, "valid": True}, "parts: .valid, test"),
        ({"n": 3}, "n: not for holdout 'ratio'"),
        ({"holdout": "folds", "folds": 5, "fold": 5}, "below folds"),
        ({"holdout": "folds", "order": "temporal"}, "order must be 'random'"),
        ({"holdout": "folds", "folds": 2, "valid": True}, "leave none to validate"),
        ({"holdout": "period"}, "'start' or 'length'"),
        ({"holdout": "period", "length": "7 days"}, "should match pattern"),
        ({"holdout": "period", "length": "7d", "group": "user"}, "temporal and global"),
        ({"holdout": "period", "start": "2020-01-01", "window": 2}, "need the 'length'"),
        ({"anchor": "calendar"}, "anchor: not for holdout 'ratio'"),
        ({"holdout": "period", "length": "12h", "anchor": "calendar"}, "hours have no calendar"),
        ({"holdout": "period", "start": "2026-01-01", "anchor": "calendar"}, "hours have no calendar"),
        ({"holdout": "period", "start": "2026-01-01", "length": "7d", "anchor": "last_event"}, "'start'"),
        ({"holdout": "period", "length": "1mo", "anchor": "last_event"}, "no fixed length"),
        ({"holdout": "period", "length": "12h", "step": "1mo"}, "no fixed length"),
        ({"holdout": "period", "start": "yesterday"}, "start"),
        ({"holdout": "period", "start": {"logical_date": None}}, "quote a placeholder"),
        ({"parts": ["train", "test"]}, "names of their own"),
        ({"parts": ["a", "a"]}, "names of their own"),
        ({"held_out": {"test": 0.5, "valid": 0.5}}, "leave some"),
        ({"held_out": {}, "valid": True, "protocol": "TO_LS"}, "held_out.valid"),
        ({"held_out": {}, "holdout": "folds"}, "held_out goes with"),
    ],
)
def test_contradictions_are_reported(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Split.model_validate(settings)


def test_the_named_benchmarks() -> None:
    path = ["dataset.path=x"]
    assert load_benchmark("netflix", path).split.describe() == "netflix 9 to probe/quiz/test seed 42"
    folds = load_benchmark("movielens_10m_rating", [*path, "split.fold=3"]).split
    assert folds.describe() == "random folds global 3 of 10 seed 42"


def test_a_gate_has_one_bound() -> None:
    for bounds in ({}, {"above": 1, "below": 0}):
        with pytest.raises(ValidationError, match="one of 'above'"):
            Gate(fact="overlap", **bounds)
