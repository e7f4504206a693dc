-- Which end of each metric is best, and between which bounds does it lie?
-- `python -m tools.reference` writes this file from the metrics. No bound is NULL, no best end is 'none'.
-- One table of values is one task of Spark, while a SELECT for each metric would be a task each.
WITH facts (metric, best, low, high, depends_on_base_rate) AS (
  VALUES
    ('aclt', 'large', 0.0, NULL, FALSE),
    ('aplt', 'large', 0.0, 1.0, FALSE),
    ('auc', 'large', 0.0, 1.0, FALSE),
    ('calibrated_recall', 'large', 0.0, 1.0, FALSE),
    ('calibration_error', 'small', 0.0, 1.0, FALSE),
    ('coverage', 'large', 0.0, 1.0, FALSE),
    ('diversity', 'large', 0.0, 2.0, FALSE),
    ('entropy', 'large', 0.0, NULL, FALSE),
    ('f1', 'large', 0.0, 1.0, FALSE),
    ('fnr', 'small', 0.0, 1.0, FALSE),
    ('fpr', 'small', 0.0, 1.0, FALSE),
    ('gauc', 'large', 0.0, 1.0, FALSE),
    ('gini', 'small', 0.0, 1.0, FALSE),
    ('hit', 'large', 0.0, NULL, FALSE),
    ('logloss', 'small', 0.0, NULL, TRUE),
    ('mae', 'small', 0.0, NULL, FALSE),
    ('mandcg', 'large', 0.0, 1.0, FALSE),
    ('map', 'large', 0.0, 1.0, FALSE),
    ('mean_outcome', 'none', NULL, NULL, FALSE),
    ('mean_popularity', 'small', 0.0, 1.0, FALSE),
    ('mean_prediction', 'none', NULL, NULL, FALSE),
    ('mrr', 'large', 0.0, 1.0, FALSE),
    ('mse', 'small', 0.0, NULL, FALSE),
    ('ndcg', 'large', 0.0, 1.0, FALSE),
    ('nmse', 'small', 0.0, NULL, TRUE),
    ('novelty', 'large', 0.0, NULL, FALSE),
    ('pauc', 'large', 0.0, 1.0, FALSE),
    ('pe', 'near 0', -1.0, NULL, TRUE),
    ('percentile_rank', 'small', 0.0, 1.0, FALSE),
    ('popularity_reo', 'small', 0.0, 1.0, FALSE),
    ('precision', 'large', 0.0, 1.0, FALSE),
    ('r_precision', 'large', 0.0, 1.0, FALSE),
    ('rbp', 'large', 0.0, 1.0, FALSE),
    ('recall', 'large', 0.0, 1.0, FALSE),
    ('rig', 'large', NULL, 1.0, TRUE),
    ('rmse', 'small', 0.0, NULL, FALSE),
    ('tnr', 'large', 0.0, 1.0, FALSE),
    ('tpr', 'large', 0.0, 1.0, FALSE)
)

SELECT
  metric,
  best,
  CAST(low AS DOUBLE) AS low,
  CAST(high AS DOUBLE) AS high,
  depends_on_base_rate
FROM facts
