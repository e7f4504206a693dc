-- Which models differ for sure from the baseline (or from the best other one) on the latest night?
-- p_holm is adjusted over all models, metrics and cut-offs; the sequence interval and the e-value hold however often one looks.
SELECT
  current_comparisons.suite,
  current_comparisons.part,
  current_comparisons.metric,
  current_comparisons.k,
  current_comparisons.model,
  current_comparisons.other,
  current_comparisons.value,
  current_comparisons.other_value,
  current_comparisons.difference,
  current_comparisons.ci_low,
  current_comparisons.ci_high,
  current_comparisons.p_t,
  current_comparisons.p_holm,
  current_comparisons.e_value,
  current_comparisons.effect,
  current_comparisons.verdict,
  current_comparisons.sequence_low,
  current_comparisons.sequence_high,
  current_comparisons.users,
  current_comparisons.definition,
  current_comparisons.split_id
FROM current_comparisons
INNER JOIN (
  SELECT suite, MAX(logical_date) AS logical_date
  FROM current_comparisons
  WHERE kind = 'pair'
  GROUP BY suite
) AS last_night
  ON last_night.suite = current_comparisons.suite
  AND last_night.logical_date = current_comparisons.logical_date
WHERE current_comparisons.kind = 'pair' AND current_comparisons.with_baseline
ORDER BY
  current_comparisons.suite,
  current_comparisons.split_id,
  current_comparisons.part,
  current_comparisons.metric,
  current_comparisons.k,
  current_comparisons.definition,
  current_comparisons.difference DESC,
  current_comparisons.model
