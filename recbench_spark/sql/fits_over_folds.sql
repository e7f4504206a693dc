-- How good is each model over the folds, and how much of its spread is the data's, how much the seed's?
-- Spread over folds: of the folds' means over seeds. Spread over seeds: within a fold. Never one of both.
SELECT
  suite,
  dataset,
  split,
  log_id,
  purpose,
  model,
  kind,
  dims,
  COUNT(*) AS folds,
  MIN(seeds) AS seeds,
  AVG(rmse) AS rmse,
  AVG(mae) AS mae,
  CASE WHEN COUNT(*) > 1 THEN STDDEV_SAMP(rmse) END AS spread_over_folds,
  CASE WHEN MAX(seeds) > 1 THEN SQRT(AVG(variance_over_seeds)) END AS spread_over_seeds,
  SUM(cpu_seconds) / 3600 AS core_hours,
  MAX(peak_bytes) AS peak_bytes,
  settings_json
FROM (
  SELECT
    suite,
    dataset,
    split,
    log_id,
    purpose,
    model,
    kind,
    dims,
    settings_json,
    fold,
    parts,
    COUNT(*) AS seeds,
    AVG(rmse) AS rmse,
    AVG(mae) AS mae,
    CASE WHEN COUNT(*) > 1 THEN VAR_SAMP(rmse) END AS variance_over_seeds,
    SUM(cpu_seconds) AS cpu_seconds,
    MAX(peak_bytes) AS peak_bytes
  FROM (
    SELECT
      fits.*,
      ROW_NUMBER() OVER (PARTITION BY fit_id, suite, model, purpose ORDER BY finished_at DESC) AS attempt
    FROM fits
    WHERE status = 'succeeded' AND purpose <> 'search'
  ) AS attempts
  WHERE attempt = 1
  GROUP BY suite, dataset, split, log_id, purpose, model, kind, dims, settings_json, fold, parts
) AS of_folds
GROUP BY suite, dataset, split, log_id, purpose, model, kind, dims, settings_json
