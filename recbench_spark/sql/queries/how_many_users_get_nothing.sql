-- What share of users finds not a single relevant item in the list, at each cut-off?
SELECT
  latest.suite,
  latest.part,
  latest.model,
  hits.k,
  AVG(CASE WHEN hits.value = 0 THEN 1e0 ELSE 0e0 END) AS share_without_hit,
  COUNT(*) AS users,
  hits.definition,
  latest.dataset
FROM latest_metrics AS latest
INNER JOIN (
  SELECT run_id, part, definition, estimator, k, values[place] AS value
  FROM user_metrics
  LATERAL VIEW POSEXPLODE(ks) cutoffs AS place, k
  WHERE metric = 'hit'
) AS hits
  ON hits.run_id = latest.run_id
  AND hits.part = latest.part
  AND hits.definition = latest.definition
  AND hits.estimator = latest.estimator
  AND hits.k = latest.k
WHERE latest.metric = 'hit' AND latest.slice_key IS NULL AND hits.value IS NOT NULL
GROUP BY
  latest.suite, latest.dataset, latest.split_id, latest.part, latest.model, hits.definition, hits.estimator,
  hits.k
ORDER BY
  latest.suite, latest.dataset, latest.part, hits.definition, hits.k, share_without_hit, latest.model
