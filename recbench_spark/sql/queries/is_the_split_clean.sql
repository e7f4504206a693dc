-- What does each split consist of, and does anything of the test part leak into training?
SELECT
  latest.suite,
  latest.dataset,
  latest.split,
  manifests.part,
  manifests.fact,
  manifests.value,
  manifests.detail
FROM manifests
INNER JOIN (
  SELECT DISTINCT suite, dataset, split, split_id FROM latest_metrics
) AS latest
  ON latest.split_id = manifests.split_id
ORDER BY
  latest.suite,
  latest.dataset,
  CASE WHEN manifests.fact IN ('overlap', 'future_share') THEN 0 ELSE 1 END,
  manifests.fact,
  manifests.part
