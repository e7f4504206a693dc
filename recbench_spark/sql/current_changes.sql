-- Why did each number move? The last explanation of every run that counts, one row per group of users.
-- needs: current_runs
-- needs: metrics_by_age
SELECT *
FROM (
  SELECT
    changes.*,
    RANK() OVER (
      PARTITION BY
        changes.run_id, changes.part, changes.metric, changes.definition, changes.k, changes.estimator
      ORDER BY changes.other_date DESC, changes.explained_at DESC, changes.change_id ASC
    ) AS newest
  FROM changes
  INNER JOIN current_runs AS ours ON ours.run_id = changes.run_id
  INNER JOIN current_runs AS theirs ON theirs.run_id = changes.other_run_id
  LEFT JOIN metrics_by_age AS number
    ON number.run_id = changes.run_id
    AND number.part = changes.part
    AND number.metric = changes.metric
    AND number.definition = changes.definition
    AND COALESCE(number.k, 0) = COALESCE(changes.k, 0)
    AND number.estimator = changes.estimator
    AND number.slice_key IS NULL
  WHERE COALESCE(number.age, 1) = 1
) AS explained
WHERE newest = 1
