"""The world of chained facts: its rule, its noise, and what a model that knows the rule reaches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from jobs.studies.chained_facts import (
    ENTITIES,
    ITEMS,
    LENGTH,
    NOISE,
    QUESTIONS,
    find_best_values,
    generate_histories,
    write_log,
)


def follow_facts(history: list[int]) -> int:
    """The answer to the last question, by the facts."""
    after = dict(divmod(item - 2 * ENTITIES, ENTITIES) for item in history if item >= 2 * ENTITIES)
    return after[after[history[-1] - ENTITIES]]


def test_the_rule_reaches_the_best_values() -> None:
    history_ul = generate_histories(4000)
    hits, gains = [], []
    for *past, answer in history_ul.tolist():
        left = [c for c in range(ENTITIES) if c not in past]
        rule = follow_facts(past)
        assert rule in left  # no earlier noise gave the answer away
        order = [rule, *(c for c in left if c != rule)]
        hits.append(answer == rule)
        gains.append(1 / np.log2(order.index(answer) + 2))
    best, error = find_best_values(), 4 / np.sqrt(len(hits))
    assert abs(np.mean(hits) - best.hit_at_1) < error * 0.4
    assert abs(np.mean(gains) - best.ndcg_at_10) < error * 0.2


def test_histories_hold_each_item_once_and_every_fact() -> None:
    history_ul = generate_histories(300)
    assert history_ul.shape == (300, LENGTH) and history_ul.min() >= 0 and history_ul.max() < ITEMS
    assert all(len(set(own)) == LENGTH for own in history_ul.tolist())
    facts = history_ul[:, :ENTITIES] - 2 * ENTITIES
    assert (np.sort(facts // ENTITIES, axis=1) == np.arange(ENTITIES)).all()
    assert (np.sort(facts % ENTITIES, axis=1) == np.arange(ENTITIES)).all()
    assert 0 < NOISE < 1 <= QUESTIONS < ENTITIES


def test_tested_users_are_given_all_but_their_last_item(tmp_path: Path) -> None:
    write_log(tmp_path, 5, 2)
    rows = pq.read_table(tmp_path / "log.parquet").to_pandas()
    counts = rows.groupby("part")["item_id"].size().to_dict()
    assert counts == {"train": 5 * LENGTH, "given": 2 * (LENGTH - 1), "test": 2}
    assert rows[rows["part"] == "test"]["event_time"].tolist() == [LENGTH - 1] * 2
