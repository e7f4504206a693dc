-- Which model is best, metric by metric? Only numbers of one split and one definition are ranked together.
-- needs: latest_metrics
-- A model not run on the suite's latest night stays as long as the split is the same.
SELECT
  suite,
  logical_date,
  dataset,
  split,
  split_id,
  part,
  metric,
  k,
  definition,
  estimator,
  RANK() OVER (
    PARTITION BY suite, dataset, split_id, part, metric, k, definition, estimator
    ORDER BY
      CASE
        WHEN metric IN (
          'rmse', 'mse', 'mae', 'logloss', 'nmse', 'percentile_rank', 'gini', 'mean_popularity',
          'calibration_error', 'fnr', 'fpr'
        ) THEN value
        WHEN metric = 'pe' THEN ABS(value)
        WHEN metric IN ('mean_prediction', 'mean_outcome') THEN NULL
        ELSE -value
      END ASC NULLS LAST
  ) AS position,
  model,
  model_kind,
  source,
  value,
  ci_low,
  ci_high,
  n,
  run_id
FROM (
  SELECT
    latest_metrics.*,
    MAX(logical_date) OVER (PARTITION BY suite, dataset, split_id) AS split_date,
    MAX(logical_date) OVER (PARTITION BY suite, dataset) AS suite_date
  FROM latest_metrics
  WHERE slice_key IS NULL
) AS whole_population
WHERE split_date = suite_date
