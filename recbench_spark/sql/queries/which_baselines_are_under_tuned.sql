-- Which results on which boards are under-tuned baselines, and what is the reason?
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
  verdicts.reason
FROM verdicts
INNER JOIN standing_entries AS entries ON entries.entry_id = verdicts.entry_id
ORDER BY entries.board, entries.part, entries.value, entries.name, verdicts.code
