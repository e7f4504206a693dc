-- Which verdicts depend on the protocol? Share of the worlds in which a model wins, least certain first.
SELECT
  dataset,
  part,
  model,
  other,
  SUM(won) / SUM(worlds) AS share_won,
  MIN(won / worlds) AS least,
  MAX(won / worlds) AS most,
  COUNT(DISTINCT suite) AS protocols,
  SUM(worlds) AS worlds
FROM multiverse_pairs
WHERE model < other
GROUP BY dataset, part, model, other
ORDER BY ABS(share_won - 0.5), model, other
