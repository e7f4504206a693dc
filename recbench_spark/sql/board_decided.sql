-- Which rows of the boards were held back, accepted or retracted, by whom and why? The newest decision of each.
SELECT
  boards.board,
  boards.part,
  boards.name,
  boards.value,
  latest.decision,
  latest.reason,
  latest.who AS decided_by,
  latest.decided_at,
  boards.entry_id
FROM boards
INNER JOIN (
  SELECT
    entry_id,
    decision,
    reason,
    who,
    decided_at,
    ROW_NUMBER() OVER (PARTITION BY entry_id ORDER BY decided_at DESC, decision_id DESC) AS newest
  FROM board_decisions
) AS latest ON latest.entry_id = boards.entry_id AND latest.newest = 1
