-- In what share of all defensible definitions does one model beat another? Nights of one protocol each.
-- needs: succeeded_runs
-- A world is a metric, a cut-off and a definition; a draw counts one half. Of each world of a model the newest counts.
WITH worlds AS (
  SELECT *
  FROM (
    SELECT
      latest.suite,
      latest.dataset,
      latest.split,
      latest.split_id,
      latest.model,
      multiverse.part,
      multiverse.metric,
      multiverse.k,
      multiverse.definition,
      multiverse.value,
      RANK() OVER (
        PARTITION BY
          latest.suite, latest.dataset, SPLIT_PART(latest.split_id, '.', 1), latest.model,
          multiverse.definition, multiverse.part, multiverse.metric, multiverse.k
        ORDER BY latest.newest
      ) AS age
    FROM (
      SELECT
        succeeded_runs.*,
        MAX(logical_date) OVER (PARTITION BY suite, dataset, model) AS last_date
      FROM succeeded_runs
    ) AS latest
    INNER JOIN multiverse ON multiverse.run_id = latest.run_id
    WHERE latest.logical_date = latest.last_date
  ) AS aged
  WHERE age = 1
)
SELECT
  ours.dataset,
  ours.suite,
  ours.split,
  ours.split_id,
  ours.part,
  ours.metric,
  ours.model,
  theirs.model AS other,
  COUNT(*) AS worlds,
  SUM(CASE WHEN ours.value > theirs.value THEN 1e0 WHEN ours.value = theirs.value THEN 5e-1 ELSE 0e0 END) AS won
FROM worlds AS ours
INNER JOIN worlds AS theirs
  ON ours.suite = theirs.suite
  AND ours.split_id = theirs.split_id
  AND ours.part = theirs.part
  AND ours.metric = theirs.metric
  AND ours.definition = theirs.definition
  AND COALESCE(ours.k, 0) = COALESCE(theirs.k, 0)
WHERE ours.model <> theirs.model
  AND ours.value IS NOT NULL
  AND theirs.value IS NOT NULL
GROUP BY
  ours.dataset,
  ours.suite,
  ours.split,
  ours.split_id,
  ours.part,
  ours.metric,
  ours.model,
  theirs.model
