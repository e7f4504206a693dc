-- Who reached the best known values, and does an optimum lie on the edge of what was searched?
SELECT
  dataset,
  split,
  part,
  position,
  method,
  value,
  source,
  ran_by,
  source_year,
  search_space IS NULL AS nothing_searched,
  SIZE(COALESCE(at_grid_edge, ARRAY())) > 0 AS on_the_edge,
  at_grid_edge,
  search_space,
  budget
FROM best_known
WHERE metric = 'ndcg' AND k = 10 AND estimator = 'holdout'
ORDER BY dataset, split, part, definition, estimator, position, method
