-- How does each model develop from night to night?
SELECT
  suite,
  part,
  model,
  logical_date,
  value,
  value - LAG(value) OVER (
    PARTITION BY suite, dataset, model, part, definition, estimator
    ORDER BY logical_date, run_id
  ) AS change,
  ci_low,
  ci_high,
  n,
  definition,
  dataset,
  split
FROM current_metrics
WHERE
  metric = 'ndcg'
  AND k = 10
  AND slice_key IS NULL
  AND estimator = 'holdout'
ORDER BY suite, dataset, part, definition, model, logical_date, run_id
