-- How often were the hidden parts of each board looked at, and has the board's leader been fitted to them?
-- Worn: the leader's test less its quiz value, above the same of all others: what choosing by quiz has gained.
-- Every look counts; leader, best and gaps are of rows that are neither held back nor retracted.
-- needs: board_decided
SELECT
  board,
  COUNT(*) AS submissions,
  COUNT(DISTINCT content) AS different,
  CASE WHEN MAX(rising) = 1 THEN MAX(quiz) ELSE MIN(quiz) END AS best_quiz,
  CASE WHEN MAX(rising) = 1 THEN MAX(test) ELSE MIN(test) END AS best_test,
  AVG(CASE WHEN place = 1 THEN test - quiz END) AS gap_of_the_leader,
  AVG(CASE WHEN place > 1 THEN test - quiz END) AS gap_of_others,
  AVG(CASE WHEN place = 1 THEN test - quiz END) - AVG(CASE WHEN place > 1 THEN test - quiz END) AS worn
FROM (
  SELECT
    counted.*,
    ROW_NUMBER() OVER (
      PARTITION BY board ORDER BY CASE WHEN rising = 1 THEN -quiz ELSE quiz END ASC NULLS LAST, handed_in_at ASC
    ) AS place
  FROM (
    SELECT
      submissions.board,
      submissions.content,
      submissions.handed_in_at,
      CASE WHEN NOT entries.lower_is_better THEN 1 ELSE 0 END AS rising,
      CASE WHEN COALESCE(decided.decision, 'accepted') = 'accepted' THEN submissions.quiz END AS quiz,
      CASE WHEN COALESCE(decided.decision, 'accepted') = 'accepted' THEN submissions.test END AS test
    FROM submissions
    LEFT JOIN (
      SELECT board, evidence, MAX(entry_id) AS entry_id, MAX(lower_is_better) AS lower_is_better
      FROM boards
      WHERE origin = 'bundle'
      GROUP BY board, evidence
    ) AS entries
      ON entries.board = submissions.board
        AND (
          entries.entry_id = submissions.entry_id
          OR (submissions.entry_id IS NULL AND entries.evidence = 'bundle ' || submissions.content)
        )
    LEFT JOIN board_decided AS decided ON decided.entry_id = entries.entry_id
  ) AS counted
) AS looks
GROUP BY board
