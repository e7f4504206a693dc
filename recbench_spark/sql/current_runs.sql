-- Which runs count? The last succeeded attempt of each model on each night of each suite.
SELECT *
FROM (
  SELECT
    runs.*,
    ROW_NUMBER() OVER (
      PARTITION BY suite, logical_date, model
      ORDER BY finished_at DESC, attempt DESC, run_id DESC
    ) AS newest
  FROM runs
  WHERE status = 'succeeded'
) AS attempts
WHERE newest = 1
