-- What could the best order of the candidates reach, and how much of it does each model lose?
SELECT
  latest.suite,
  latest.part,
  latest.model,
  latest.metric,
  latest.k,
  ceilings.reach,
  ceilings.ceiling,
  ceilings.ceiling_low,
  ceilings.ceiling_high,
  latest.value,
  ceilings.lost,
  ceilings.lost_low,
  ceilings.lost_high,
  ceilings.n,
  latest.definition,
  latest.dataset
FROM latest_metrics AS latest
INNER JOIN ceilings
  ON ceilings.run_id = latest.run_id
  AND ceilings.part = latest.part
  AND ceilings.metric = latest.metric
  AND ceilings.definition = latest.definition
  AND COALESCE(ceilings.k, 0) = COALESCE(latest.k, 0)
WHERE latest.estimator = 'holdout' AND latest.slice_key IS NULL
ORDER BY
  latest.suite, latest.dataset, latest.split_id, latest.part, latest.metric, latest.definition, latest.k,
  latest.value DESC, latest.model
