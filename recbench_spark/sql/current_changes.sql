-- Why did each number move? The last explanation of every run that counts, one row per group of users.
-- needs: current_runs
SELECT *
FROM (
  SELECT
    changes.*,
    RANK() OVER (
      PARTITION BY changes.run_id
      ORDER BY changes.other_date DESC, changes.explained_at DESC, changes.change_id ASC
    ) AS newest
  FROM changes
  INNER JOIN current_runs AS ours ON ours.run_id = changes.run_id
  INNER JOIN current_runs AS theirs ON theirs.run_id = changes.other_run_id
) AS explained
WHERE newest = 1
