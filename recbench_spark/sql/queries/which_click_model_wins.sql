-- Which click model is clicked most, at which operating point, and what does the number rest on?
-- The latest replay of each suite. `lift`: over the logged policy, on the same bootstrap weights. `yield_if_unseen_are_zero` and
-- `yield_if_unseen_are_as_predicted` bound the yield where the log never showed a pair of query and ad.
SELECT
  succeeded_runs.suite,
  succeeded_runs.logical_date,
  own.model,
  own.point,
  own.value AS click_yield,
  own.ci_low,
  own.ci_high,
  lift.value AS lift,
  lift.ci_low AS lift_low,
  lift.ci_high AS lift_high,
  zero.value AS yield_if_unseen_are_zero,
  predicted.value AS yield_if_unseen_are_as_predicted,
  unseen.value AS share_unseen,
  CASE
    WHEN own.ci_low IS NULL THEN 'too few queries for an interval'
    WHEN own.same_log = 1 THEN 'may have been fitted to the replayed rows'
    WHEN lift.ci_low > 0 THEN 'better than what was logged'
    WHEN lift.ci_high < 0 THEN 'worse than what was logged'
    WHEN lift.ci_low IS NOT NULL THEN 'no certain difference to what was logged'
  END AS verdict,
  own.effective_queries,
  own.same_log,
  own.definition,
  succeeded_runs.dataset,
  own.run_id
FROM replays AS own
INNER JOIN succeeded_runs
  ON succeeded_runs.run_id = own.run_id AND succeeded_runs.newest = 1
INNER JOIN (
  SELECT suite, dataset, MAX(logical_date) AS logical_date
  FROM succeeded_runs
  WHERE model_kind = 'replay'
  GROUP BY suite, dataset
) AS last_night
  ON last_night.suite = succeeded_runs.suite
  AND last_night.dataset = succeeded_runs.dataset
  AND last_night.logical_date = succeeded_runs.logical_date
LEFT JOIN replays AS lift
  ON lift.run_id = own.run_id
  AND lift.point = own.point
  AND lift.metric = 'click_lift'
  AND lift.other = 'logged'
LEFT JOIN replays AS zero
  ON zero.run_id = own.run_id
  AND zero.point = own.point
  AND zero.metric = 'click_yield'
  AND zero.unseen = 'zero'
LEFT JOIN replays AS predicted
  ON predicted.run_id = own.run_id
  AND predicted.point = own.point
  AND predicted.metric = 'click_yield'
  AND predicted.unseen = 'probability'
LEFT JOIN replays AS unseen
  ON unseen.run_id = own.run_id
  AND unseen.point = own.point
  AND unseen.metric = 'share_unseen'
WHERE own.metric = 'click_yield' AND own.unseen = 'reference' AND own.other IS NULL
ORDER BY
  succeeded_runs.suite, succeeded_runs.dataset, click_yield DESC, own.model, own.point
