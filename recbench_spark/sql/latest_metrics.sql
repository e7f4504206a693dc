-- What did each model score on its latest night? Every metric, cut-off and slice.
-- needs: current_metrics
SELECT
  suite,
  logical_date,
  dataset,
  split,
  split_id,
  model,
  model_kind,
  model_version,
  source,
  ran_by,
  source_year,
  run_id,
  part,
  metric,
  definition,
  k,
  estimator,
  slice_key,
  slice_value,
  value,
  stderr,
  ci_low,
  ci_high,
  n
FROM (
  SELECT
    current_metrics.*,
    MAX(logical_date) OVER (PARTITION BY suite, dataset, model) AS last_date
  FROM current_metrics
) AS latest
WHERE logical_date = last_date
