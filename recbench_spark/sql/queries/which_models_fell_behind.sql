-- Which models fell behind an earlier night, and by more than chance explains?
SELECT
  suite,
  logical_date,
  kind,
  other_date,
  model,
  part,
  metric,
  k,
  other_value AS value_before,
  value,
  difference,
  ci_low,
  ci_high,
  p_holm,
  allowed_drop,
  regressed,
  users,
  definition
FROM current_comparisons
WHERE kind <> 'pair' AND (regressed OR ci_high < 0)
ORDER BY suite, logical_date DESC, part, metric, k, definition, difference, model
