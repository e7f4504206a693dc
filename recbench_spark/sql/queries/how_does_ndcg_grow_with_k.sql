-- Does the order of the models depend on the cut-off? NDCG at every k with its interval.
SELECT
  suite,
  part,
  COALESCE(CAST(k AS STRING), 'whole ranking') AS cutoff,
  position,
  model,
  value,
  ci_low,
  ci_high,
  definition,
  dataset
FROM leaderboard
WHERE metric = 'ndcg' AND estimator = 'holdout'
ORDER BY suite, dataset, split_id, part, definition, k NULLS LAST, position, model
