-- Which models fell behind an earlier night by more than their benchmark file allows?
-- needs: current_comparisons
SELECT
  suite,
  logical_date,
  kind,
  other_date,
  model,
  part,
  metric,
  definition,
  k,
  other_value AS value_before,
  value,
  difference,
  allowed_drop,
  ci_low,
  ci_high,
  p_t,
  users,
  run_id,
  other_run_id
FROM current_comparisons
WHERE regressed
