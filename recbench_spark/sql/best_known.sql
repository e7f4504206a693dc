-- What is the best value ever seen of each method, who reached it, and was its search wide enough?
-- needs: current_runs
-- A method is a kind of model (als, item_knn ...); for results from outside, and for a kind that is several
-- methods (bayesian_mf: timeSVD, SVD++ and their kin by its features), the model's name.
SELECT
  dataset,
  split,
  part,
  metric,
  k,
  definition,
  estimator,
  RANK() OVER (
    PARTITION BY dataset, split, part, metric, k, definition, estimator
    ORDER BY sort_key ASC NULLS LAST
  ) AS position,
  method,
  model,
  value,
  ci_low,
  ci_high,
  n,
  CASE
    WHEN metric IN ('rig', 'logloss', 'nmse', 'pe')
      AND MIN(base_rate) OVER (PARTITION BY dataset, split, part, metric, k, definition, estimator)
        < MAX(base_rate) OVER (PARTITION BY dataset, split, part, metric, k, definition, estimator)
      THEN 'measured over different base rates: not comparable'
  END AS warning,
  source,
  ran_by,
  source_year,
  search_space,
  budget,
  at_grid_edge,
  suite,
  logical_date,
  run_id
FROM (
  SELECT
    scored.*,
    ROW_NUMBER() OVER (
      PARTITION BY dataset, split, part, metric, k, definition, estimator, method
      ORDER BY sort_key ASC NULLS LAST, logical_date ASC, run_id ASC
    ) AS place
  FROM (
    SELECT
      current_runs.dataset,
      current_runs.split,
      current_runs.model,
      CASE
        WHEN current_runs.model_kind IS NULL THEN current_runs.model
        WHEN current_runs.model_kind IN (
          'published', 'embeddings', 'scores', 'lists', 'predictions', 'bayesian_mf'
        )
          THEN current_runs.model
        ELSE current_runs.model_kind
      END AS method,
      current_runs.source,
      current_runs.ran_by,
      current_runs.source_year,
      current_runs.search_space,
      current_runs.budget,
      current_runs.at_grid_edge,
      current_runs.suite,
      current_runs.logical_date,
      metrics.run_id,
      metrics.part,
      metrics.metric,
      metrics.k,
      metrics.definition,
      metrics.estimator,
      metrics.value,
      metrics.ci_low,
      metrics.ci_high,
      metrics.n,
      base_rates.base_rate,
      CASE
        WHEN metrics.metric IN (
          'rmse', 'mse', 'mae', 'logloss', 'nmse', 'percentile_rank', 'gini', 'mean_popularity',
          'calibration_error', 'fnr', 'fpr'
        )
          THEN metrics.value
        WHEN metrics.metric = 'pe' THEN ABS(metrics.value)
        WHEN metrics.metric IN ('mean_prediction', 'mean_outcome') THEN NULL
        ELSE -metrics.value
      END AS sort_key
    FROM current_runs
    INNER JOIN metrics ON metrics.run_id = current_runs.run_id
    LEFT JOIN (
      SELECT run_id, part, value AS base_rate
      FROM metrics
      WHERE metric = 'mean_outcome' AND slice_key IS NULL
    ) AS base_rates ON base_rates.run_id = metrics.run_id AND base_rates.part = metrics.part
    WHERE metrics.slice_key IS NULL
  ) AS scored
) AS best
WHERE place = 1
