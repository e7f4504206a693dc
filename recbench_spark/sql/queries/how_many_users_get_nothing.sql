-- What share of users finds not a single relevant item in the list, at each cut-off?
SELECT
  latest.suite,
  latest.part,
  latest.model,
  hits.k,
  AVG(CASE WHEN hits.value = 0 THEN 1e0 ELSE 0e0 END) AS share_without_hit,
  COUNT(*) AS users
FROM (
  SELECT DISTINCT suite, part, model, run_id FROM latest_metrics
) AS latest
INNER JOIN (
  SELECT run_id, part, definition, k, values[place] AS value
  FROM user_metrics
  LATERAL VIEW POSEXPLODE(ks) cutoffs AS place, k
  WHERE metric = 'hit'
) AS hits
  ON hits.run_id = latest.run_id AND hits.part = latest.part
WHERE hits.k IS NOT NULL AND hits.value IS NOT NULL
GROUP BY latest.suite, latest.part, latest.model, hits.definition, hits.k
ORDER BY latest.suite, latest.part, hits.k, share_without_hit, latest.model
