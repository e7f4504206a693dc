-- What are the usual metrics of each run, side by side? One row per run, part and estimator; of numbers that count.
-- needs: current_metrics
-- A metric measured under several definitions shows the one nearest to the defaults; `definition`
-- is NULL where the columns do not share one: ask `metrics` then.
SELECT
  suite,
  logical_date,
  dataset,
  split,
  split_id,
  model,
  model_kind,
  source,
  run_id,
  part,
  estimator,
  CASE WHEN MIN(definition) = MAX(definition) THEN MIN(definition) END AS definition,
  MAX(n) AS n,
  MAX(CASE WHEN metric = 'hit' AND k = 1 THEN value END) AS hit_1,
  MAX(CASE WHEN metric = 'hit' AND k = 5 THEN value END) AS hit_5,
  MAX(CASE WHEN metric = 'hit' AND k = 10 THEN value END) AS hit_10,
  MAX(CASE WHEN metric = 'hit' AND k = 20 THEN value END) AS hit_20,
  MAX(CASE WHEN metric = 'precision' AND k = 1 THEN value END) AS precision_1,
  MAX(CASE WHEN metric = 'precision' AND k = 5 THEN value END) AS precision_5,
  MAX(CASE WHEN metric = 'precision' AND k = 10 THEN value END) AS precision_10,
  MAX(CASE WHEN metric = 'precision' AND k = 20 THEN value END) AS precision_20,
  MAX(CASE WHEN metric = 'recall' AND k = 1 THEN value END) AS recall_1,
  MAX(CASE WHEN metric = 'recall' AND k = 5 THEN value END) AS recall_5,
  MAX(CASE WHEN metric = 'recall' AND k = 10 THEN value END) AS recall_10,
  MAX(CASE WHEN metric = 'recall' AND k = 20 THEN value END) AS recall_20,
  MAX(CASE WHEN metric = 'f1' AND k = 1 THEN value END) AS f1_1,
  MAX(CASE WHEN metric = 'f1' AND k = 5 THEN value END) AS f1_5,
  MAX(CASE WHEN metric = 'f1' AND k = 10 THEN value END) AS f1_10,
  MAX(CASE WHEN metric = 'f1' AND k = 20 THEN value END) AS f1_20,
  MAX(CASE WHEN metric = 'map' AND k = 1 THEN value END) AS map_1,
  MAX(CASE WHEN metric = 'map' AND k = 5 THEN value END) AS map_5,
  MAX(CASE WHEN metric = 'map' AND k = 10 THEN value END) AS map_10,
  MAX(CASE WHEN metric = 'map' AND k = 20 THEN value END) AS map_20,
  MAX(CASE WHEN metric = 'mrr' AND k = 1 THEN value END) AS mrr_1,
  MAX(CASE WHEN metric = 'mrr' AND k = 5 THEN value END) AS mrr_5,
  MAX(CASE WHEN metric = 'mrr' AND k = 10 THEN value END) AS mrr_10,
  MAX(CASE WHEN metric = 'mrr' AND k = 20 THEN value END) AS mrr_20,
  MAX(CASE WHEN metric = 'ndcg' AND k = 1 THEN value END) AS ndcg_1,
  MAX(CASE WHEN metric = 'ndcg' AND k = 5 THEN value END) AS ndcg_5,
  MAX(CASE WHEN metric = 'ndcg' AND k = 10 THEN value END) AS ndcg_10,
  MAX(CASE WHEN metric = 'ndcg' AND k = 20 THEN value END) AS ndcg_20,
  MAX(CASE WHEN metric = 'coverage' AND k = 1 THEN value END) AS coverage_1,
  MAX(CASE WHEN metric = 'coverage' AND k = 5 THEN value END) AS coverage_5,
  MAX(CASE WHEN metric = 'coverage' AND k = 10 THEN value END) AS coverage_10,
  MAX(CASE WHEN metric = 'coverage' AND k = 20 THEN value END) AS coverage_20,
  MAX(CASE WHEN metric = 'map' AND k IS NULL THEN value END) AS map_full,
  MAX(CASE WHEN metric = 'mrr' AND k IS NULL THEN value END) AS mrr_full,
  MAX(CASE WHEN metric = 'ndcg' AND k IS NULL THEN value END) AS ndcg_full,
  MAX(CASE WHEN metric = 'auc' AND k IS NULL THEN value END) AS auc,
  MAX(CASE WHEN metric = 'mse' AND k IS NULL THEN value END) AS mse,
  MAX(CASE WHEN metric = 'rmse' AND k IS NULL THEN value END) AS rmse,
  MAX(CASE WHEN metric = 'mae' AND k IS NULL THEN value END) AS mae,
  MAX(CASE WHEN metric = 'nmse' AND k IS NULL THEN value END) AS nmse,
  MAX(CASE WHEN metric = 'pe' AND k IS NULL THEN value END) AS pe,
  MAX(CASE WHEN metric = 'logloss' AND k IS NULL THEN value END) AS logloss,
  MAX(CASE WHEN metric = 'rig' AND k IS NULL THEN value END) AS rig,
  MAX(CASE WHEN metric = 'gauc' AND k IS NULL THEN value END) AS gauc
FROM (
  SELECT
    current_metrics.*,
    MIN(definition) OVER (PARTITION BY run_id, part, estimator, metric) AS plainest
  FROM current_metrics
  WHERE slice_key IS NULL
) AS whole_population
WHERE definition = plainest
GROUP BY
  suite, logical_date, dataset, split, split_id, model, model_kind, source, run_id, part, estimator
