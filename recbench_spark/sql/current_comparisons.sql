-- Which differences hold? The last comparison of each two numbers that count, in both directions.
-- needs: current_runs
-- needs: metrics_by_age
SELECT
  newest.comparison_id,
  newest.suite,
  newest.logical_date,
  newest.other_date,
  newest.kind,
  CASE WHEN directions.direction = 1 THEN newest.model ELSE newest.other END AS model,
  CASE WHEN directions.direction = 1 THEN newest.other ELSE newest.model END AS other,
  newest.part,
  newest.metric,
  newest.definition,
  newest.k,
  newest.estimator,
  newest.users,
  CASE WHEN directions.direction = 1 THEN newest.value ELSE newest.other_value END AS value,
  CASE WHEN directions.direction = 1 THEN newest.other_value ELSE newest.value END AS other_value,
  directions.direction * newest.difference AS difference,
  newest.stderr,
  CASE WHEN directions.direction = 1 THEN newest.ci_low ELSE -newest.ci_high END AS ci_low,
  CASE WHEN directions.direction = 1 THEN newest.ci_high ELSE -newest.ci_low END AS ci_high,
  newest.p_t,
  newest.p_randomisation,
  newest.p_bootstrap,
  newest.p_wilcoxon,
  CASE WHEN directions.direction = 1 THEN newest.with_baseline ELSE FALSE END AS with_baseline,
  newest.family,
  newest.p_holm,
  newest.p_bh,
  directions.direction * newest.effect AS effect,
  newest.detectable,
  newest.minimum_difference,
  CASE
    WHEN directions.direction = 1 OR newest.verdict NOT IN ('better', 'worse') THEN newest.verdict
    WHEN newest.verdict = 'better' THEN 'worse'
    ELSE 'better'
  END AS verdict,
  newest.looks,
  newest.sequence_users,
  CASE WHEN directions.direction = 1 THEN newest.sequence_low ELSE -newest.sequence_high END AS sequence_low,
  CASE WHEN directions.direction = 1 THEN newest.sequence_high ELSE -newest.sequence_low END AS sequence_high,
  newest.allowed_drop,
  newest.regressed,
  newest.allowed_rise,
  newest.rose,
  newest.e_value,
  newest.e_bh,
  newest.e_fall,
  newest.run_id,
  newest.other_run_id,
  newest.split_id
FROM (
  SELECT
    comparisons.*,
    ROW_NUMBER() OVER (
      PARTITION BY
        comparisons.kind, comparisons.run_id, comparisons.part, comparisons.metric, comparisons.definition,
        comparisons.k, comparisons.estimator,
        CASE
          WHEN comparisons.kind = 'pair' THEN comparisons.other_run_id
          WHEN comparisons.kind = 'baseline' THEN CAST(comparisons.other_date AS VARCHAR(10))
        END
      ORDER BY comparisons.other_date DESC, comparisons.compared_at DESC, comparisons.comparison_id ASC
    ) AS place
  FROM comparisons
  INNER JOIN current_runs AS ours ON ours.run_id = comparisons.run_id
  INNER JOIN current_runs AS theirs ON theirs.run_id = comparisons.other_run_id
  LEFT JOIN metrics_by_age AS our_number
    ON our_number.run_id = comparisons.run_id
    AND our_number.part = comparisons.part
    AND our_number.metric = comparisons.metric
    AND our_number.definition = comparisons.definition
    AND COALESCE(our_number.k, 0) = COALESCE(comparisons.k, 0)
    AND our_number.estimator = comparisons.estimator
    AND our_number.slice_key IS NULL
  LEFT JOIN metrics_by_age AS their_number
    ON their_number.run_id = comparisons.other_run_id
    AND their_number.part = comparisons.part
    AND their_number.metric = comparisons.metric
    AND their_number.definition = comparisons.definition
    AND COALESCE(their_number.k, 0) = COALESCE(comparisons.k, 0)
    AND their_number.estimator = comparisons.estimator
    AND their_number.slice_key IS NULL
  WHERE COALESCE(our_number.age, 1) = 1 AND COALESCE(their_number.age, 1) = 1
) AS newest
INNER JOIN (SELECT 1 AS direction UNION ALL SELECT -1 AS direction) AS directions
  ON directions.direction = 1 OR newest.kind = 'pair'
WHERE newest.place = 1
