-- How often were the hidden parts of each board looked at, and has the board's leader been fitted to them?
-- Worn: the leader's test less its quiz error, above the same of all others: what choosing by quiz has gained.
SELECT
  board,
  COUNT(*) AS submissions,
  COUNT(DISTINCT content) AS different,
  MIN(quiz) AS best_quiz,
  MIN(test) AS best_test,
  AVG(CASE WHEN place = 1 THEN test - quiz END) AS gap_of_the_leader,
  AVG(CASE WHEN place > 1 THEN test - quiz END) AS gap_of_others,
  AVG(CASE WHEN place = 1 THEN test - quiz END) - AVG(CASE WHEN place > 1 THEN test - quiz END) AS worn
FROM (
  SELECT
    board,
    content,
    quiz,
    test,
    ROW_NUMBER() OVER (PARTITION BY board ORDER BY quiz ASC NULLS LAST, handed_in_at ASC) AS place
  FROM submissions
) AS looks
GROUP BY board
