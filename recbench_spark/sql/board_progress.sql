-- How much of each inventor's progress over the baselines is left once these are run with care?
-- Baselines are the methods that somebody ran as a rival; corrected: their best run by whoever ran them again.
-- needs: standing_entries
SELECT
  results.board,
  results.part,
  results.method,
  results.value,
  baselines.as_run AS baseline_as_run,
  baselines.corrected AS baseline_corrected,
  CASE WHEN results.lower_is_better THEN baselines.as_run - results.value
    ELSE results.value - baselines.as_run END AS published_progress,
  CASE WHEN results.lower_is_better THEN baselines.corrected - results.value
    ELSE results.value - baselines.corrected END AS corrected_progress
FROM standing_entries AS results
INNER JOIN (
  SELECT
    board,
    COALESCE(part, '') AS of_part,
    CASE WHEN MAX(CASE WHEN lower_is_better THEN 1 ELSE 0 END) = 1
      THEN MIN(CASE WHEN ran_by = 'rival' THEN value END)
      ELSE MAX(CASE WHEN ran_by = 'rival' THEN value END) END AS as_run,
    CASE WHEN MAX(CASE WHEN lower_is_better THEN 1 ELSE 0 END) = 1
      THEN MIN(CASE WHEN ran_by IN ('rerun', 'ours') THEN value END)
      ELSE MAX(CASE WHEN ran_by IN ('rerun', 'ours') THEN value END) END AS corrected
  FROM standing_entries
  WHERE method IN (SELECT method FROM standing_entries AS rivals WHERE rivals.ran_by = 'rival')
  GROUP BY board, COALESCE(part, '')
) AS baselines ON baselines.board = results.board AND baselines.of_part = COALESCE(results.part, '')
WHERE results.ran_by = 'inventor'
