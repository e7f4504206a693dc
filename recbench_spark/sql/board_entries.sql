-- Which rows stand on boards? Of each entry the newest row: a search made later is joined to it.
-- entered_at is when the entry came first.
SELECT
  entry_id,
  board,
  origin,
  data,
  protocol,
  metric,
  lower_is_better,
  method,
  name,
  value,
  spread_folds,
  spread_seeds,
  folds,
  seeds,
  part,
  ran_by,
  who,
  quoted_from,
  year,
  dims,
  search_space,
  budget_settings,
  budget_seconds,
  at_edge,
  never_searched,
  evidence,
  fold_values,
  first_entered_at AS entered_at
FROM (
  SELECT
    boards.*,
    MIN(entered_at) OVER (PARTITION BY entry_id) AS first_entered_at,
    ROW_NUMBER() OVER (
      PARTITION BY entry_id ORDER BY entered_at DESC, COALESCE(budget_settings, 0) DESC
    ) AS newest
  FROM boards
) AS known
WHERE newest = 1
