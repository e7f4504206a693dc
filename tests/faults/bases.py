"""Benchmark files to start from: those of conf/benchmarks, and some that use every section and key."""

from __future__ import annotations

from importlib.util import find_spec

from tests.faults.campaign import ROOT

EVERYTHING = """
name: everything
description: every section of a ranking night
ran_by: a team
dataset:
  name: shop
  reader: csv
  path: /data/shop/{logical_date}.csv
  columns: {user_id: customer, item_id: article, rating: stars, event_time: at, part: fold}
  attributes: [country, device]
  options: {header: "true", sep: ";"}
  time_unit: ms
  time_zone: Europe/Rome
  bad_rows: reject
  duplicates: keep_first
  until: 2026-01-31
split:
  order: temporal
  holdout: last_n
  group: user
  n: 2
  valid: true
  parts: [test, other]
  seed: 7
models:
  - {name: random, kind: random, seed: 3, version: "2"}
  - {name: popular, kind: popular, provenance: {source: baseline, ran_by: us, year: 2024}}
  - {name: knn, kind: item_knn, scores: centred_mean, neighbours: 50, max_history: 200}
  - name: als
    kind: als
    rank: 16
    iterations: 5
    regularization: 0.1
    alpha: 2.0
    implicit: true
    seed: 9
    provenance: {source: own, search_space: {rank: [8, 16], alpha: [1.0, 2.0]}, budget: four fits}
  - {name: theirs, kind: embeddings, users: /data/u.parquet, items: /data/i.parquet, similarity: cosine}
  - {name: table, kind: scores, path: "/data/scores/{logical_date}"}
  - {name: handed, kind: lists, path: /data/lists}
  - {name: paper, kind: published, figures: {ndcg@10: 0.25, recall@20: 0.4}}
evaluation:
  metrics: [hit, precision, recall, f1, map, mrr, ndcg, auc, coverage]
  k: [1, 5, 10]
  curve: false
  parts: [test, valid]
  preset: recbole
  definition: {threshold: 4, gain: exponential, ties: expected}
  features: /data/features.parquet
  slices:
    - {key: popularity, of: popularity}
    - {key: cold_user, of: cold_user}
    - {key: land, of: log, column: country}
    - {key: age, of: users, column: age, path: /data/users.csv}
  bootstrap: {replicates: 200, level: 0.9, seed: 11}
  user_metrics: true
  multiverse: false
  uncut: true
  exposure:
    propensities: {method: power_law, law: exact, scale: largest, floor: 0.01}
    estimators: [ips, clipped_ips, snips_user, snips_global, ips_pooled, stratified]
    clip: 50.0
    switch: 20.0
    shrink: 10.0
    strata: {kind: equal_count, n: [2, 5]}
    without_most_popular: 0.05
headline: ndcg@10
gates:
  - {fact: users, part: test, below: 10}
  - {fact: rows, above: 1000000, action: warn}
comparisons:
  baseline: popular
  baseline_night: 2026-01-01
  metrics: [ndcg, recall]
  k: [5, 10]
  minimum_difference: 0.005
  replicates: 500
  planned_users: 5000
regressions:
  - {metric: ndcg, k: 10, drop: 0.01}
  - {metric: recall, k: 5, drop: 0.02, part: test, model: knn, against: baseline, certain: true}
paradoxes:
  by: [popularity]
  metrics: [ndcg]
  k: [10]
  parts: [test]
  replicates: 100
  against: best
  flips: [items, users]
  flips_against: best
"""

PERIOD = """
name: months
dataset: {name: log, reader: parquet, path: /data/log, time_unit: timestamp, until: "{logical_date}"}
split: {holdout: period, start: 2026-01-01T00:00:00+02:00, length: 30d, step: 7d, window: 2, valid: true}
models:
  - {name: popular, kind: popular}
evaluation:
  parts: [test]
  k: [10]
  definition: {candidates: uniform, persistence: 0.9}
  draw: {n: 50, per: positive, seed: 4, estimators: [rank_estimate, bias_variance]}
"""

HELD_OUT = """
name: strangers
dataset: {name: world, reader: world, world: {users: 500, items: 100, interactions: 9000, open_loop: 500,
  loop: 0.5, periods: 3, seed: 1, tastes: 4, open_items: unseen}}
split: {protocol: TO_RS, ratio: [0.7, 0.0, 0.3], held_out: {of: users, test: 0.2, valid: 0.1}}
models:
  - {name: popular, kind: popular}
  - {name: truth, kind: truth}
evaluation:
  parts: [test]
  k: [1, 3]
  curve: true
  metrics: [ndcg, novelty, gini]
  exposure: {propensities: {method: given, path: /data/chances}, estimators: [ips, dr],
    rewards: /data/rewards}
paradoxes: {}
"""

RATING = """
name: stars
dataset: {name: log, reader: delta, path: "s3a://bucket/log"}
split: {holdout: folds, folds: 5, fold: 2, valid: true, seed: 5}
models:
  - {name: mean, kind: means, means: global}
  - {name: als, kind: als, rank: 8, implicit: false}
evaluation:
  task: rating
  metrics: [rmse, mae]
headline: rmse
"""


def texts() -> dict[str, str]:
    """Return the text of each file by name, with a path where one is needed.

    Files with models of cornac are left out where it is not installed: the product refuses them then.
    """
    files = sorted((ROOT / "conf" / "benchmarks").glob("*.yaml"))
    benchmarks = {file.stem: file.read_text(encoding="utf-8") for file in files}
    if find_spec("cornac") is None:
        benchmarks = {name: text for name, text in benchmarks.items() if "kind: cornac" not in text}
    own = {"everything": EVERYTHING, "period": PERIOD, "held_out": HELD_OUT, "rating": RATING}
    return {
        name: text.replace("path: #", "path: /data/log #") for name, text in {**benchmarks, **own}.items()
    }
