-- For which users does the best model beat the second best most, and where does it lose?
WITH pair AS (
  SELECT suite, split_id, part, definition, estimator, model, run_id, place
  FROM (
    SELECT
      leaderboard.*,
      ROW_NUMBER() OVER (
        PARTITION BY suite, split_id, part, definition, estimator
        ORDER BY position, model
      ) AS place
    FROM leaderboard
    WHERE metric = 'ndcg' AND k = 10
  ) AS placed
  WHERE place <= 2
),

user_values AS (
  SELECT run_id, user_id, part, definition, estimator, values[place] AS value, n_relevant
  FROM user_metrics
  LATERAL VIEW POSEXPLODE(ks) cutoffs AS place, k
  WHERE metric = 'ndcg' AND k = 10
)

SELECT
  pair.suite,
  pair.part,
  mine.user_id,
  mine.n_relevant,
  pair.model AS best,
  mine.value AS best_value,
  rival.model AS second,
  theirs.value AS second_value,
  mine.value - theirs.value AS difference,
  mine.definition,
  mine.estimator
FROM pair
INNER JOIN pair AS rival
  ON rival.suite = pair.suite
  AND rival.split_id = pair.split_id
  AND rival.part = pair.part
  AND rival.definition = pair.definition
  AND rival.estimator = pair.estimator
  AND rival.place = 2
INNER JOIN user_values AS mine
  ON mine.run_id = pair.run_id
  AND mine.part = pair.part
  AND mine.definition = pair.definition
  AND mine.estimator = pair.estimator
INNER JOIN user_values AS theirs
  ON theirs.run_id = rival.run_id
  AND theirs.user_id = mine.user_id
  AND theirs.part = mine.part
  AND theirs.definition = mine.definition
  AND theirs.estimator = mine.estimator
WHERE pair.place = 1 AND mine.value <> theirs.value
ORDER BY ABS(difference) DESC, pair.suite, pair.part, mine.user_id
