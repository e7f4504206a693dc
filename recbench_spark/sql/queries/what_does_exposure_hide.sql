-- What does exposure hide? Each model by every estimator, beside the holdout and the open loop.
SELECT
  held_out.suite,
  held_out.part,
  held_out.metric,
  held_out.k,
  held_out.model,
  corrected.estimator,
  corrected.definition,
  held_out.value AS holdout_value,
  corrected.value AS corrected_value,
  corrected.ci_low,
  corrected.ci_high,
  open_loop.value AS open_loop_value,
  held_out.position AS holdout_position,
  corrected.position AS corrected_position,
  open_loop.position AS open_loop_position,
  held_out.definition AS holdout_definition,
  held_out.dataset
FROM leaderboard AS held_out
LEFT JOIN leaderboard AS corrected
  ON corrected.suite = held_out.suite
  AND corrected.split_id = held_out.split_id
  AND corrected.model = held_out.model
  AND corrected.part = held_out.part
  AND corrected.metric = held_out.metric
  AND COALESCE(corrected.k, 0) = COALESCE(held_out.k, 0)
  AND corrected.value IS NOT NULL
  AND corrected.estimator IN (
    'ips', 'clipped_ips', 'snips_user', 'snips_global', 'ips_pooled', 'dm', 'dr', 'switch_dr', 'dros',
    'stratified'
  )
LEFT JOIN leaderboard AS open_loop
  ON open_loop.suite = held_out.suite
  AND open_loop.split_id = held_out.split_id
  AND open_loop.model = held_out.model
  AND open_loop.part = 'open_loop'
  AND open_loop.metric = held_out.metric
  AND open_loop.definition = held_out.definition
  AND open_loop.estimator = 'holdout'
  AND COALESCE(open_loop.k, 0) = COALESCE(held_out.k, 0)
WHERE
  held_out.estimator = 'holdout'
  AND held_out.part <> 'open_loop'
  AND (held_out.k = 10 OR held_out.k IS NULL)
ORDER BY
  held_out.suite, held_out.part, held_out.metric, held_out.k, corrected.estimator, corrected.definition,
  corrected.position, held_out.model
