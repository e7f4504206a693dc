-- Which metrics order the models differently? Pairs of models that two metrics rank the other way round.
WITH places AS (
  SELECT
    suite,
    dataset,
    split_id,
    part,
    estimator,
    model,
    CASE WHEN k IS NULL THEN metric ELSE metric || '@' || k END AS measure,
    definition,
    position
  FROM leaderboard
  WHERE k = 10 OR k IS NULL
)

SELECT
  a.suite,
  a.part,
  a.measure AS one_measure,
  b.measure AS other_measure,
  COUNT(*) AS pairs,
  SUM(CASE WHEN (a.position - c.position) * (b.position - d.position) < 0 THEN 1 ELSE 0 END)
    AS reversed_pairs,
  a.definition AS one_definition,
  b.definition AS other_definition,
  a.estimator,
  a.dataset
FROM places AS a
INNER JOIN places AS b
  ON b.suite = a.suite AND b.split_id = a.split_id AND b.part = a.part
  AND b.estimator = a.estimator AND b.model = a.model AND b.measure > a.measure
INNER JOIN places AS c
  ON c.suite = a.suite AND c.split_id = a.split_id AND c.part = a.part
  AND c.estimator = a.estimator AND c.measure = a.measure AND c.definition = a.definition
  AND c.model > a.model
INNER JOIN places AS d
  ON d.suite = a.suite AND d.split_id = a.split_id AND d.part = a.part
  AND d.estimator = a.estimator AND d.measure = b.measure AND d.definition = b.definition
  AND d.model = c.model
GROUP BY
  a.suite, a.dataset, a.split_id, a.part, a.estimator, a.measure, a.definition, b.measure, b.definition
ORDER BY
  reversed_pairs DESC, a.suite, a.dataset, a.split_id, a.part, a.estimator, one_measure, other_measure,
  one_definition, other_definition
