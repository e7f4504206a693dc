-- Why did each model's number move on its last night: other users, or other results for the same ones?
-- Over the groups of a key the mix and within changes add up to value - value_before.
SELECT
  current_changes.suite,
  current_changes.logical_date,
  current_changes.other_date,
  current_changes.model,
  current_changes.part,
  current_changes.metric,
  current_changes.k,
  current_changes.other_value AS value_before,
  current_changes.value,
  current_changes.group_key,
  current_changes.group_value,
  current_changes.share_before,
  current_changes.share_after,
  current_changes.mean_before,
  current_changes.mean_after,
  current_changes.mix_change,
  current_changes.within_change,
  current_changes.difference,
  current_changes.code_change,
  current_changes.code_alone
FROM current_changes
INNER JOIN (
  SELECT suite, model, MAX(logical_date) AS logical_date
  FROM current_changes
  GROUP BY suite, model
) AS last_night
  ON last_night.suite = current_changes.suite
  AND last_night.model = current_changes.model
  AND last_night.logical_date = current_changes.logical_date
ORDER BY
  current_changes.suite,
  current_changes.part,
  current_changes.metric,
  current_changes.k,
  current_changes.model,
  current_changes.group_key,
  ABS(current_changes.difference) DESC,
  current_changes.group_value
