-- How does each model develop from night to night?
SELECT
  current_runs.suite,
  metrics.part,
  current_runs.model,
  current_runs.logical_date,
  metrics.value,
  metrics.value - LAG(metrics.value) OVER (
    PARTITION BY
      current_runs.suite, current_runs.model, metrics.part, metrics.definition, metrics.estimator
    ORDER BY current_runs.logical_date
  ) AS change,
  metrics.ci_low,
  metrics.ci_high,
  metrics.n,
  metrics.definition
FROM current_runs
INNER JOIN metrics ON metrics.run_id = current_runs.run_id
WHERE
  metrics.metric = 'ndcg'
  AND metrics.k = 10
  AND metrics.slice_key IS NULL
  AND metrics.estimator = 'holdout'
ORDER BY
  current_runs.suite, metrics.part, metrics.definition, current_runs.model, current_runs.logical_date
