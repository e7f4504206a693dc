-- Which rows of the boards were held back, accepted or retracted, by whom and why? The newest decision of each.
-- needs: board_entries
SELECT
  board_entries.board,
  board_entries.part,
  board_entries.name,
  board_entries.value,
  latest.decision,
  latest.reason,
  latest.who AS decided_by,
  latest.decided_at,
  board_entries.entry_id
FROM board_entries
INNER JOIN (
  SELECT
    entry_id,
    decision,
    reason,
    who,
    decided_at,
    ROW_NUMBER() OVER (PARTITION BY entry_id ORDER BY decided_at DESC, decision_id DESC) AS newest
  FROM board_decisions
) AS latest ON latest.entry_id = board_entries.entry_id AND latest.newest = 1
