-- Which rows of the boards count: those that are neither held back as implausible nor retracted?
SELECT boards.*
FROM boards
LEFT JOIN (
  SELECT
    entry_id,
    decision,
    ROW_NUMBER() OVER (PARTITION BY entry_id ORDER BY decided_at DESC, decision_id DESC) AS newest
  FROM board_decisions
) AS latest ON latest.entry_id = boards.entry_id AND latest.newest = 1
WHERE latest.decision IS NULL OR latest.decision = 'accepted'
