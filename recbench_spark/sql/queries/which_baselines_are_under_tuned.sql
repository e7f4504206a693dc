-- Which results on which boards are under-tuned baselines, what is the reason, and of which can nothing be said?
-- verdict: under-tuned; never searched; no power: the trials of its search decide nothing.
SELECT
  board_entries.board,
  board_entries.part,
  board_entries.method,
  board_entries.name,
  board_entries.origin,
  board_entries.value,
  board_entries.ran_by,
  board_entries.budget_settings,
  verdicts.code,
  verdicts.reason,
  CASE WHEN COALESCE(verdicts.under_tuned, TRUE) THEN 'under-tuned' ELSE REPLACE(verdicts.code, '_', ' ') END AS verdict
FROM verdicts
INNER JOIN board_entries ON board_entries.entry_id = verdicts.entry_id
ORDER BY
  COALESCE(verdicts.under_tuned, TRUE) DESC,
  board_entries.board,
  board_entries.part,
  board_entries.value,
  board_entries.name,
  verdicts.code
