-- Which models are on the front of several figures, and which could be dropped without a loss?
SELECT
  fronts.suite,
  fronts.logical_date,
  fronts.part,
  fronts.front,
  fronts.model,
  fronts.on_front,
  fronts.contribution,
  fronts.hypervolume,
  fronts.dominated_by
FROM fronts
INNER JOIN
  (
    SELECT suite, part, front, MAX(compared_at) AS compared_at
    FROM fronts
    GROUP BY suite, part, front
  ) AS newest
  ON newest.suite = fronts.suite
  AND newest.part = fronts.part
  AND newest.front = fronts.front
  AND newest.compared_at = fronts.compared_at
ORDER BY fronts.suite, fronts.part, fronts.front, fronts.contribution DESC, fronts.model
