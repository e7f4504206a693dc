-- Does the held-out part rank the models as uniformly exposed items do?
SELECT
  held_out.suite,
  held_out.metric,
  held_out.k,
  held_out.model,
  held_out.position AS test_position,
  open_loop.position AS open_loop_position,
  held_out.position - open_loop.position AS places_gained,
  held_out.value AS test_value,
  open_loop.value AS open_loop_value,
  held_out.definition,
  held_out.estimator,
  held_out.dataset
FROM leaderboard AS held_out
INNER JOIN leaderboard AS open_loop
  ON open_loop.suite = held_out.suite
  AND open_loop.split_id = held_out.split_id
  AND open_loop.model = held_out.model
  AND open_loop.metric = held_out.metric
  AND open_loop.definition = held_out.definition
  AND open_loop.estimator = held_out.estimator
  AND COALESCE(open_loop.k, 0) = COALESCE(held_out.k, 0)
WHERE
  held_out.part = 'test'
  AND open_loop.part = 'open_loop'
  AND (held_out.k = 10 OR held_out.k IS NULL)
ORDER BY
  held_out.suite, held_out.dataset, held_out.split_id, held_out.metric, held_out.k, held_out.definition,
  held_out.estimator, held_out.position, held_out.model
