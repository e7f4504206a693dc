-- Which attempt is newer than which? Succeeded runs with their age: `newest` is 1 for the last attempt.
-- Attempts are of one model, night and held-out data; `HASH.1` is the split `HASH`, made again after retention.
SELECT
  runs.*,
  ROW_NUMBER() OVER (
    PARTITION BY suite, dataset, SPLIT_PART(split_id, '.', 1), logical_date, model
    ORDER BY finished_at DESC, attempt DESC, run_id DESC
  ) AS newest
FROM runs
WHERE status = 'succeeded'
