-- Which model is best, metric by metric? Only numbers of one split and one definition are ranked together.
-- needs: latest_metrics
-- needs: metric_facts
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
      CASE best WHEN 'small' THEN value WHEN 'near 0' THEN ABS(value) WHEN 'none' THEN NULL ELSE -value END
      ASC NULLS LAST
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
    metric_facts.best,
    MAX(logical_date) OVER (PARTITION BY suite, dataset, split_id) AS split_date,
    MAX(logical_date) OVER (PARTITION BY suite, dataset) AS suite_date
  FROM latest_metrics
  LEFT JOIN metric_facts ON metric_facts.metric = latest_metrics.metric
  WHERE slice_key IS NULL
) AS whole_population
WHERE split_date = suite_date
