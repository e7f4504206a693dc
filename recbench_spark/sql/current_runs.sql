-- Which runs count? The last succeeded attempt of each model, night and split, and older ones with numbers that count.
-- needs: succeeded_runs
-- needs: current_metrics
-- Numbers of these runs are in `current_metrics`: an older run may have some that a newer one has too.
SELECT *
FROM succeeded_runs
WHERE newest = 1 OR run_id IN (SELECT run_id FROM current_metrics)
