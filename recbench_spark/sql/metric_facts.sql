-- Which end of each metric is best, and between which bounds does it lie?
-- `python -m tools.reference` writes this file from the metrics. No bound is NULL, no best end is 'none'.
SELECT 'auc' AS metric, 'large' AS best, CAST(0.0 AS DOUBLE) AS low, CAST(1.0 AS DOUBLE) AS high, FALSE AS depends_on_base_rate
UNION ALL
SELECT 'calibrated_recall' AS metric, 'large' AS best, CAST(0.0 AS DOUBLE) AS low, CAST(1.0 AS DOUBLE) AS high, FALSE AS depends_on_base_rate
UNION ALL
SELECT 'calibration_error' AS metric, 'small' AS best, CAST(0.0 AS DOUBLE) AS low, CAST(1.0 AS DOUBLE) AS high, FALSE AS depends_on_base_rate
UNION ALL
SELECT 'coverage' AS metric, 'large' AS best, CAST(0.0 AS DOUBLE) AS low, CAST(1.0 AS DOUBLE) AS high, FALSE AS depends_on_base_rate
UNION ALL
SELECT 'diversity' AS metric, 'large' AS best, CAST(0.0 AS DOUBLE) AS low, CAST(2.0 AS DOUBLE) AS high, FALSE AS depends_on_base_rate
UNION ALL
SELECT 'f1' AS metric, 'large' AS best, CAST(0.0 AS DOUBLE) AS low, CAST(1.0 AS DOUBLE) AS high, FALSE AS depends_on_base_rate
UNION ALL
SELECT 'fnr' AS metric, 'small' AS best, CAST(0.0 AS DOUBLE) AS low, CAST(1.0 AS DOUBLE) AS high, FALSE AS depends_on_base_rate
UNION ALL
SELECT 'fpr' AS metric, 'small' AS best, CAST(0.0 AS DOUBLE) AS low, CAST(1.0 AS DOUBLE) AS high, FALSE AS depends_on_base_rate
UNION ALL
SELECT 'gauc' AS metric, 'large' AS best, CAST(0.0 AS DOUBLE) AS low, CAST(1.0 AS DOUBLE) AS high, FALSE AS depends_on_base_rate
UNION ALL
SELECT 'gini' AS metric, 'small' AS best, CAST(0.0 AS DOUBLE) AS low, CAST(1.0 AS DOUBLE) AS high, FALSE AS depends_on_base_rate
UNION ALL
SELECT 'hit' AS metric, 'large' AS best, CAST(0.0 AS DOUBLE) AS low, CAST(NULL AS DOUBLE) AS high, FALSE AS depends_on_base_rate
UNION ALL
SELECT 'logloss' AS metric, 'small' AS best, CAST(0.0 AS DOUBLE) AS low, CAST(NULL AS DOUBLE) AS high, TRUE AS depends_on_base_rate
UNION ALL
SELECT 'mae' AS metric, 'small' AS best, CAST(0.0 AS DOUBLE) AS low, CAST(NULL AS DOUBLE) AS high, FALSE AS depends_on_base_rate
UNION ALL
SELECT 'mandcg' AS metric, 'large' AS best, CAST(0.0 AS DOUBLE) AS low, CAST(1.0 AS DOUBLE) AS high, FALSE AS depends_on_base_rate
UNION ALL
SELECT 'map' AS metric, 'large' AS best, CAST(0.0 AS DOUBLE) AS low, CAST(1.0 AS DOUBLE) AS high, FALSE AS depends_on_base_rate
UNION ALL
SELECT 'mean_outcome' AS metric, 'none' AS best, CAST(NULL AS DOUBLE) AS low, CAST(NULL AS DOUBLE) AS high, FALSE AS depends_on_base_rate
UNION ALL
SELECT 'mean_popularity' AS metric, 'small' AS best, CAST(0.0 AS DOUBLE) AS low, CAST(1.0 AS DOUBLE) AS high, FALSE AS depends_on_base_rate
UNION ALL
SELECT 'mean_prediction' AS metric, 'none' AS best, CAST(NULL AS DOUBLE) AS low, CAST(NULL AS DOUBLE) AS high, FALSE AS depends_on_base_rate
UNION ALL
SELECT 'mrr' AS metric, 'large' AS best, CAST(0.0 AS DOUBLE) AS low, CAST(1.0 AS DOUBLE) AS high, FALSE AS depends_on_base_rate
UNION ALL
SELECT 'mse' AS metric, 'small' AS best, CAST(0.0 AS DOUBLE) AS low, CAST(NULL AS DOUBLE) AS high, FALSE AS depends_on_base_rate
UNION ALL
SELECT 'ndcg' AS metric, 'large' AS best, CAST(0.0 AS DOUBLE) AS low, CAST(1.0 AS DOUBLE) AS high, FALSE AS depends_on_base_rate
UNION ALL
SELECT 'nmse' AS metric, 'small' AS best, CAST(0.0 AS DOUBLE) AS low, CAST(NULL AS DOUBLE) AS high, TRUE AS depends_on_base_rate
UNION ALL
SELECT 'novelty' AS metric, 'large' AS best, CAST(0.0 AS DOUBLE) AS low, CAST(NULL AS DOUBLE) AS high, FALSE AS depends_on_base_rate
UNION ALL
SELECT 'pauc' AS metric, 'large' AS best, CAST(0.0 AS DOUBLE) AS low, CAST(1.0 AS DOUBLE) AS high, FALSE AS depends_on_base_rate
UNION ALL
SELECT 'pe' AS metric, 'near 0' AS best, CAST(-1.0 AS DOUBLE) AS low, CAST(NULL AS DOUBLE) AS high, TRUE AS depends_on_base_rate
UNION ALL
SELECT 'percentile_rank' AS metric, 'small' AS best, CAST(0.0 AS DOUBLE) AS low, CAST(1.0 AS DOUBLE) AS high, FALSE AS depends_on_base_rate
UNION ALL
SELECT 'precision' AS metric, 'large' AS best, CAST(0.0 AS DOUBLE) AS low, CAST(1.0 AS DOUBLE) AS high, FALSE AS depends_on_base_rate
UNION ALL
SELECT 'r_precision' AS metric, 'large' AS best, CAST(0.0 AS DOUBLE) AS low, CAST(1.0 AS DOUBLE) AS high, FALSE AS depends_on_base_rate
UNION ALL
SELECT 'rbp' AS metric, 'large' AS best, CAST(0.0 AS DOUBLE) AS low, CAST(1.0 AS DOUBLE) AS high, FALSE AS depends_on_base_rate
UNION ALL
SELECT 'recall' AS metric, 'large' AS best, CAST(0.0 AS DOUBLE) AS low, CAST(1.0 AS DOUBLE) AS high, FALSE AS depends_on_base_rate
UNION ALL
SELECT 'rig' AS metric, 'large' AS best, CAST(NULL AS DOUBLE) AS low, CAST(1.0 AS DOUBLE) AS high, TRUE AS depends_on_base_rate
UNION ALL
SELECT 'rmse' AS metric, 'small' AS best, CAST(0.0 AS DOUBLE) AS low, CAST(NULL AS DOUBLE) AS high, FALSE AS depends_on_base_rate
UNION ALL
SELECT 'tnr' AS metric, 'large' AS best, CAST(0.0 AS DOUBLE) AS low, CAST(1.0 AS DOUBLE) AS high, FALSE AS depends_on_base_rate
UNION ALL
SELECT 'tpr' AS metric, 'large' AS best, CAST(0.0 AS DOUBLE) AS low, CAST(1.0 AS DOUBLE) AS high, FALSE AS depends_on_base_rate
