-- Which rows of the boards count: those that are neither held back as implausible nor retracted?
-- needs: board_entries
SELECT board_entries.*
FROM board_entries
LEFT JOIN (
  SELECT
    entry_id,
    decision,
    ROW_NUMBER() OVER (PARTITION BY entry_id ORDER BY decided_at DESC, decision_id DESC) AS newest
  FROM board_decisions
) AS latest ON latest.entry_id = board_entries.entry_id AND latest.newest = 1
WHERE latest.decision IS NULL OR latest.decision = 'accepted'
