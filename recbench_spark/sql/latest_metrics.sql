-- What did each model score on its latest night? Every metric, cut-off and slice.
-- needs: current_runs
SELECT
  latest.suite,
  latest.logical_date,
  latest.dataset,
  latest.split,
  latest.split_id,
  latest.model,
  latest.model_kind,
  latest.model_version,
  latest.source,
  latest.ran_by,
  latest.source_year,
  metrics.run_id,
  metrics.part,
  metrics.metric,
  metrics.definition,
  metrics.k,
  metrics.estimator,
  metrics.slice_key,
  metrics.slice_value,
  metrics.value,
  metrics.stderr,
  metrics.ci_low,
  metrics.ci_high,
  metrics.n
FROM (
  SELECT
    current_runs.*,
    MAX(logical_date) OVER (PARTITION BY suite, model) AS last_date
  FROM current_runs
) AS latest
INNER JOIN metrics ON metrics.run_id = latest.run_id
WHERE latest.logical_date = latest.last_date
