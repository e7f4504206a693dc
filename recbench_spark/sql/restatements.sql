-- Which published numbers were replaced by others, and why? Runs of one model and night, each beside the one before.
-- needs: succeeded_runs
-- The log changed where late rows or another file made another split of the same settings.
SELECT
  suite,
  dataset,
  logical_date,
  model,
  part,
  metric,
  k,
  definition,
  estimator,
  slice_key,
  slice_value,
  value_before,
  value,
  value - value_before AS difference,
  CASE WHEN value_before <> 0 THEN (value - value_before) / ABS(value_before) END AS share,
  CASE
    WHEN config_hash <> config_before THEN 'settings'
    WHEN COALESCE(revisions, '{}') <> code_before THEN 'code'
    WHEN SPLIT_PART(split_id, '.', 1) <> SPLIT_PART(split_before, '.', 1) THEN 'log'
    WHEN inputs_json <> inputs_before THEN 'inputs'
    ELSE 'nothing that was recorded'
  END AS cause,
  finished_at AS restated_at,
  run_id,
  run_before
FROM (
  SELECT
    runs.*,
    metrics.part,
    metrics.metric,
    metrics.k,
    metrics.definition,
    metrics.estimator,
    metrics.slice_key,
    metrics.slice_value,
    metrics.value,
    LAG(metrics.value) OVER (
      PARTITION BY
        runs.suite, runs.dataset, runs.logical_date, runs.model, metrics.part, metrics.metric, metrics.k,
        metrics.definition, metrics.estimator, metrics.slice_key, metrics.slice_value
      ORDER BY runs.finished_at, runs.run_id
    ) AS value_before,
    LAG(runs.run_id) OVER (
      PARTITION BY
        runs.suite, runs.dataset, runs.logical_date, runs.model, metrics.part, metrics.metric, metrics.k,
        metrics.definition, metrics.estimator, metrics.slice_key, metrics.slice_value
      ORDER BY runs.finished_at, runs.run_id
    ) AS run_before
  FROM succeeded_runs AS runs
  INNER JOIN metrics ON metrics.run_id = runs.run_id
) AS numbers
INNER JOIN (
  SELECT
    run_id AS earlier_id,
    config_hash AS config_before,
    COALESCE(revisions, '{}') AS code_before,
    split_id AS split_before,
    inputs_json AS inputs_before
  FROM succeeded_runs
) AS earlier ON earlier.earlier_id = numbers.run_before
WHERE value <> value_before
