-- How few items, or users, decide which of two models is better?
-- removed: without so many of them the other model leads; NULL: no set of them turns the verdict.
SELECT
  flips.suite,
  flips.logical_date,
  flips.part,
  flips.metric,
  flips.k,
  flips.model,
  flips.other,
  flips.removed_are,
  flips.removed,
  flips.out_of,
  flips.removed * 1e0 / flips.out_of AS share,
  flips.ids
FROM flips
INNER JOIN current_runs AS ours ON ours.run_id = flips.run_id
INNER JOIN current_runs AS theirs ON theirs.run_id = flips.other_run_id
INNER JOIN (
  SELECT suite, MAX(logical_date) AS logical_date
  FROM flips
  GROUP BY suite
) AS last_night
  ON last_night.suite = flips.suite
  AND last_night.logical_date = flips.logical_date
ORDER BY
  flips.suite,
  CASE WHEN flips.removed IS NULL THEN 1 ELSE 0 END,
  flips.removed * 1e0 / flips.out_of,
  flips.part,
  flips.metric,
  flips.k,
  flips.model,
  flips.other
