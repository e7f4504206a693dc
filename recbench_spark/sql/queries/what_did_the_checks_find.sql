-- What did the checks find in the latest runs? Failed ones first, then by severity.
SELECT
  latest.suite,
  latest.model,
  checks.`check`,
  checks.severity,
  checks.passed,
  checks.observed,
  checks.threshold,
  checks.detail,
  latest.dataset,
  latest.run_id
FROM (
  SELECT DISTINCT suite, dataset, model, run_id FROM latest_metrics
) AS latest
INNER JOIN checks ON checks.run_id = latest.run_id
ORDER BY
  checks.passed,
  CASE checks.severity WHEN 'error' THEN 0 WHEN 'warning' THEN 1 ELSE 2 END,
  latest.suite,
  checks.`check`,
  latest.model,
  latest.run_id
