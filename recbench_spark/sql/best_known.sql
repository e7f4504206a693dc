-- What is the best value ever seen of each method, who reached it, and was its search wide enough?
-- needs: current_metrics
-- needs: metric_facts
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
    WHEN depends_on_base_rate
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
      metrics.dataset,
      metrics.split,
      metrics.model,
      CASE
        WHEN metrics.model_kind IS NULL THEN metrics.model
        WHEN metrics.model_kind IN (
          'published', 'embeddings', 'scores', 'lists', 'predictions', 'bayesian_mf'
        )
          THEN metrics.model
        ELSE metrics.model_kind
      END AS method,
      metrics.source,
      metrics.ran_by,
      metrics.source_year,
      metrics.search_space,
      metrics.budget,
      metrics.at_grid_edge,
      metrics.suite,
      metrics.logical_date,
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
      metric_facts.depends_on_base_rate,
      CASE metric_facts.best
        WHEN 'small' THEN metrics.value
        WHEN 'near 0' THEN ABS(metrics.value)
        WHEN 'none' THEN NULL
        ELSE -metrics.value
      END AS sort_key
    FROM current_metrics AS metrics
    LEFT JOIN metric_facts ON metric_facts.metric = metrics.metric
    LEFT JOIN (
      SELECT run_id, part, value AS base_rate
      FROM metrics
      WHERE metric = 'mean_outcome' AND slice_key IS NULL
    ) AS base_rates ON base_rates.run_id = metrics.run_id AND base_rates.part = metrics.part
    WHERE metrics.slice_key IS NULL
  ) AS scored
) AS best
WHERE place = 1
