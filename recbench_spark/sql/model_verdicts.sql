-- What may be said of each model against the baseline and its earlier nights?
-- needs: current_comparisons
-- needs: metric_facts
-- too good: a rise beyond what is believed, the best possible value, or nothing lost of what the candidates
-- could reach in the best order. cannot tell: a check says that the number does not hold.
SELECT
  judged.suite,
  judged.logical_date,
  judged.kind,
  judged.model,
  judged.other,
  judged.other_date,
  judged.part,
  judged.metric,
  judged.k,
  judged.definition,
  CASE
    WHEN judged.broken_check IS NOT NULL THEN 'cannot tell'
    WHEN judged.rose OR judged.at_bound OR judged.at_ceiling THEN 'too good'
    WHEN judged.verdict = 'unclear' THEN 'not told apart'
    ELSE judged.verdict
  END AS verdict,
  CASE
    WHEN judged.broken_check IS NOT NULL THEN judged.broken_check
    WHEN judged.rose THEN 'a rise beyond allowed_rise'
    WHEN judged.at_bound THEN 'the best possible value'
    WHEN judged.at_ceiling THEN 'the best order of its candidates'
  END AS reason,
  judged.value,
  judged.other_value,
  judged.difference,
  judged.ci_low,
  judged.ci_high,
  judged.detectable,
  judged.e_value,
  judged.users,
  judged.run_id,
  judged.other_run_id
FROM (
  SELECT
    current_comparisons.*,
    broken.broken_check,
    COALESCE(
      ceilings.lost = 0 AND ceilings.ceiling <> 0 AND ceilings.metric IN ('ndcg', 'map', 'mrr', 'auc', 'rbp')
      AND runs.model_kind <> 'truth',
      FALSE
    ) AS at_ceiling,
    COALESCE(
      metric_facts.metric NOT IN ('hit', 'recall', 'coverage', 'diversity', 'gini')
      AND runs.model_kind <> 'truth'
      AND CASE metric_facts.best
        WHEN 'large' THEN current_comparisons.value >= metric_facts.high
        WHEN 'small' THEN current_comparisons.value <= metric_facts.low
      END,
      FALSE
    ) AS at_bound
  FROM current_comparisons
  INNER JOIN runs ON runs.run_id = current_comparisons.run_id
  LEFT JOIN ceilings
    ON ceilings.run_id = current_comparisons.run_id
    AND ceilings.part = current_comparisons.part
    AND ceilings.metric = current_comparisons.metric
    AND ceilings.definition = current_comparisons.definition
    AND COALESCE(ceilings.k, 0) = COALESCE(current_comparisons.k, 0)
  LEFT JOIN metric_facts ON metric_facts.metric = current_comparisons.metric
  LEFT JOIN (
    SELECT run_id, MIN(`check`) AS broken_check
    FROM checks
    WHERE
      NOT passed
      AND (
        severity = 'error'
        OR `check` IN (
          'truth rows that are training rows', 'list rows of training items', 'lists without rows',
          'train without rows'
        )
        OR `check` LIKE '% of % not in %'
      )
    GROUP BY run_id
  ) AS broken ON broken.run_id = current_comparisons.run_id
  WHERE current_comparisons.kind <> 'pair' OR current_comparisons.with_baseline
) AS judged
