-- Which numbers count? Of each number of a model and night the newest, with the columns of its run.
-- needs: metrics_by_age
SELECT *
FROM metrics_by_age
WHERE age = 1
