-- How far apart are the numbers of one method, by who ran it: its inventor, a rival, a re-run, us?
-- needs: standing_entries
SELECT
  board,
  part,
  method,
  COUNT(*) AS runs,
  COUNT(DISTINCT COALESCE(ran_by, 'unknown')) AS who,
  MIN(CASE WHEN ran_by = 'inventor' THEN value END) AS inventor,
  MIN(CASE WHEN ran_by = 'rival' THEN value END) AS rival,
  MIN(CASE WHEN ran_by = 'rerun' THEN value END) AS rerun,
  MIN(CASE WHEN ran_by = 'ours' THEN value END) AS ours,
  MIN(value) AS lowest,
  MAX(value) AS highest,
  MAX(value) - MIN(value) AS gap
FROM standing_entries
GROUP BY board, part, method
HAVING COUNT(*) > 1
