-- Does a method's number move more from one setup to the next than over the folds within a setup?
-- A setup is a row of a board: another work, another setting, another search. Significance sees the folds only.
-- needs: standing_entries
SELECT
  board,
  part,
  method,
  COUNT(*) AS setups,
  STDDEV_SAMP(value) AS spread_over_setups,
  SQRT(AVG(spread_folds * spread_folds)) AS spread_over_folds
FROM standing_entries
GROUP BY board, part, method
HAVING COUNT(*) > 1
