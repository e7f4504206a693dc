-- Does a model find popular items only? Recall of head, torso, tail and cold items, and of all.
SELECT
  suite,
  part,
  model,
  definition,
  MAX(CASE WHEN slice_key IS NULL THEN value END) AS everything,
  MAX(CASE WHEN slice_value = 'head' THEN value END) AS head,
  MAX(CASE WHEN slice_value = 'torso' THEN value END) AS torso,
  MAX(CASE WHEN slice_value = 'tail' THEN value END) AS tail,
  MAX(CASE WHEN slice_value = 'cold' THEN value END) AS cold,
  dataset
FROM latest_metrics
WHERE
  metric = 'recall'
  AND k = 10
  AND estimator = 'holdout'
  AND (slice_key IS NULL OR slice_key = 'popularity')
GROUP BY suite, dataset, split_id, part, model, definition, estimator
ORDER BY suite, dataset, split_id, part, definition, everything DESC, model
