-- Which model is best, and does its interval overlap that of the next one?
SELECT
  suite,
  part,
  position,
  model,
  value,
  ci_low,
  ci_high,
  LEAD(model) OVER places AS next_model,
  ci_low <= LEAD(ci_high) OVER places AS overlaps_next,
  definition,
  dataset
FROM leaderboard
WHERE metric = 'ndcg' AND k = 10 AND estimator = 'holdout'
WINDOW places AS (
  PARTITION BY suite, dataset, split_id, part, definition, estimator
  ORDER BY position, model
)
ORDER BY suite, dataset, split_id, part, definition, position, model
