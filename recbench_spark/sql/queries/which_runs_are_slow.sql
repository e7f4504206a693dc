-- Which runs take longest, and how many users do they rank a second?
SELECT
  suite,
  logical_date,
  model,
  model_kind,
  attempt,
  status,
  seconds,
  n_users,
  CASE WHEN seconds > 0 THEN n_users / seconds END AS users_a_second,
  code_version,
  error
FROM runs
ORDER BY seconds DESC NULLS LAST, suite, logical_date, model
