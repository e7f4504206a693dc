-- Which number has a newer one in its place? Every number of a succeeded run; `age` is 1 for the one that counts.
-- needs: succeeded_runs
-- The rule for all that reads numbers: of each suite, dataset, split, night, model, definition, part, metric,
-- cut-off, estimator and slice the number of the newest succeeded run that has it counts.
SELECT
  succeeded_runs.*,
  metrics.part,
  metrics.metric,
  metrics.definition,
  metrics.k,
  metrics.estimator,
  metrics.slice_key,
  metrics.slice_value,
  metrics.value,
  metrics.stderr,
  metrics.ci_low,
  metrics.ci_high,
  metrics.n,
  RANK() OVER (
    PARTITION BY
      succeeded_runs.suite, succeeded_runs.dataset, SPLIT_PART(succeeded_runs.split_id, '.', 1),
      succeeded_runs.logical_date, succeeded_runs.model, metrics.definition, metrics.part, metrics.metric,
      metrics.k, metrics.estimator, metrics.slice_key, metrics.slice_value
    ORDER BY succeeded_runs.newest
  ) AS age
FROM succeeded_runs
INNER JOIN metrics ON metrics.run_id = succeeded_runs.run_id
