-- What is the best known run of each method on each board, who ran it, and how was its setting found?
-- Published rows, ours and those handed in stand side by side: `origin` says which.
-- needs: standing_entries
SELECT
  board,
  part,
  RANK() OVER (
    PARTITION BY board, part ORDER BY CASE WHEN lower_is_better THEN value ELSE -value END ASC
  ) AS position,
  method,
  name,
  origin,
  value,
  spread_folds,
  spread_seeds,
  folds,
  seeds,
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
  entry_id
FROM (
  SELECT
    standing_entries.*,
    ROW_NUMBER() OVER (
      PARTITION BY board, part, method
      ORDER BY CASE WHEN lower_is_better THEN value ELSE -value END ASC, entered_at ASC, entry_id ASC
    ) AS place
  FROM standing_entries
) AS of_methods
WHERE place = 1
