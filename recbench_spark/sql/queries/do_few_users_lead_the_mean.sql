-- Do few users lead the mean of NDCG or MANDCG? Grades below 0 (negative_grades: signed) have no lower bound.
WITH user_values AS (
  SELECT run_id, part, metric, definition, estimator, k, values[place] AS value
  FROM user_metrics
  LATERAL VIEW POSEXPLODE(ks) cutoffs AS place, k
  WHERE metric IN ('ndcg', 'mandcg')
)

SELECT
  runs.suite,
  runs.logical_date,
  user_values.part,
  user_values.metric,
  user_values.k,
  runs.model,
  AVG(user_values.value) AS mean,
  PERCENTILE(user_values.value, 0.5) AS median,
  AVG(CASE WHEN user_values.value < 0 THEN 1e0 ELSE 0e0 END) AS share_below_0,
  MIN(user_values.value) AS smallest,
  COUNT(user_values.value) AS users,
  user_values.definition,
  user_values.estimator
FROM user_values
INNER JOIN current_runs AS runs
  ON runs.run_id = user_values.run_id
GROUP BY
  runs.suite,
  runs.logical_date,
  runs.split_id,
  user_values.part,
  user_values.metric,
  user_values.k,
  runs.model,
  user_values.definition,
  user_values.estimator
ORDER BY
  runs.suite,
  runs.logical_date,
  user_values.part,
  user_values.metric,
  user_values.k,
  mean DESC,
  runs.model
