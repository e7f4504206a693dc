-- Which results on which boards are under-tuned baselines, what is the reason, and of which can nothing be said?
-- verdict: under-tuned; never searched; no power: the trials of its search decide nothing.
SELECT
  entries.board,
  entries.part,
  entries.method,
  entries.name,
  entries.origin,
  entries.value,
  entries.ran_by,
  entries.budget_settings,
  verdicts.code,
  verdicts.reason,
  CASE WHEN COALESCE(verdicts.under_tuned, TRUE) THEN 'under-tuned' ELSE REPLACE(verdicts.code, '_', ' ') END AS verdict
FROM verdicts
INNER JOIN standing_entries AS entries ON entries.entry_id = verdicts.entry_id
ORDER BY
  COALESCE(verdicts.under_tuned, TRUE) DESC,
  entries.board,
  entries.part,
  entries.value,
  entries.name,
  verdicts.code
