-- Which results on which boards are under-tuned baselines, and what is the reason?
SELECT
  boards.board,
  boards.part,
  boards.method,
  boards.name,
  boards.origin,
  boards.value,
  boards.ran_by,
  boards.budget_settings,
  verdicts.code,
  verdicts.reason
FROM verdicts
INNER JOIN boards ON boards.entry_id = verdicts.entry_id
ORDER BY boards.board, boards.part, boards.value, boards.name, verdicts.code
