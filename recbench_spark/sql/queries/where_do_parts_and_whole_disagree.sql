-- Where do parts and whole disagree on which of two models is better, and is it more than chance?
-- full: the whole says one thing and every stratum the other; reversal: the strata taken together do; partial: one does.
SELECT
  current_paradoxes.suite,
  current_paradoxes.part,
  current_paradoxes.metric,
  current_paradoxes.k,
  current_paradoxes.slice_key,
  current_paradoxes.kind,
  current_paradoxes.certain,
  current_paradoxes.model,
  current_paradoxes.other,
  current_paradoxes.value,
  current_paradoxes.other_value,
  current_paradoxes.difference,
  current_paradoxes.ci_low,
  current_paradoxes.ci_high,
  current_paradoxes.stratified_value,
  current_paradoxes.other_stratified_value,
  current_paradoxes.stratified_difference,
  current_paradoxes.stratified_low,
  current_paradoxes.stratified_high,
  current_paradoxes.labels,
  current_paradoxes.sizes,
  current_paradoxes.differences,
  current_paradoxes.opposed_share
FROM current_paradoxes
INNER JOIN (
  SELECT suite, MAX(logical_date) AS logical_date
  FROM current_paradoxes
  GROUP BY suite
) AS last_night
  ON last_night.suite = current_paradoxes.suite
  AND last_night.logical_date = current_paradoxes.logical_date
WHERE current_paradoxes.kind <> 'none'
ORDER BY
  current_paradoxes.suite,
  current_paradoxes.certain DESC,
  CASE current_paradoxes.kind WHEN 'full' THEN 1 WHEN 'reversal' THEN 2 ELSE 3 END,
  current_paradoxes.opposed_share DESC,
  current_paradoxes.part,
  current_paradoxes.metric,
  current_paradoxes.k,
  current_paradoxes.model,
  current_paradoxes.other
