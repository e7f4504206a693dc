-- Which models leave many users worse off than the baseline, and how bad is it for the worst tenth?
SELECT
  spreads.suite,
  spreads.part,
  spreads.model,
  spreads.metric,
  spreads.k,
  spreads.worst_tenth,
  spreads.worst_tenth_low,
  spreads.worst_tenth_high,
  spreads.other AS baseline,
  spreads.losing_share,
  spreads.losing_low,
  spreads.losing_high,
  spreads.mean_loss,
  spreads.gini,
  spreads.users,
  spreads.definition
FROM user_spreads AS spreads
INNER JOIN latest_metrics AS latest
  ON latest.run_id = spreads.run_id
  AND latest.part = spreads.part
  AND latest.metric = spreads.metric
  AND latest.definition = spreads.definition
  AND COALESCE(latest.k, 0) = COALESCE(spreads.k, 0)
WHERE latest.estimator = 'holdout' AND latest.slice_key IS NULL
ORDER BY
  spreads.suite, latest.dataset, latest.split_id, spreads.part, spreads.metric, spreads.definition, spreads.k,
  spreads.losing_share, spreads.model
