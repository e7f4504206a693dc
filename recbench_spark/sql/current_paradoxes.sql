-- Do parts and whole agree on which of two models is better? The last search of each two models, of runs that count.
-- needs: current_runs
SELECT
  newest.paradox_id,
  newest.suite,
  newest.logical_date,
  newest.split_id,
  newest.model,
  newest.other,
  newest.part,
  newest.metric,
  newest.definition,
  newest.k,
  newest.slice_key,
  newest.kind,
  newest.certain,
  newest.users,
  newest.value,
  newest.other_value,
  newest.difference,
  newest.ci_low,
  newest.ci_high,
  newest.stratified_value,
  newest.other_stratified_value,
  newest.stratified_difference,
  newest.stratified_low,
  newest.stratified_high,
  newest.labels,
  newest.sizes,
  newest.stratum_users,
  newest.differences,
  newest.lows,
  newest.highs,
  newest.opposed_share,
  newest.run_id,
  newest.other_run_id
FROM (
  SELECT
    paradoxes.*,
    RANK() OVER (
      PARTITION BY
        paradoxes.suite, paradoxes.logical_date, paradoxes.split_id, paradoxes.part, paradoxes.metric,
        paradoxes.definition, paradoxes.k, paradoxes.slice_key,
        CASE WHEN paradoxes.model < paradoxes.other THEN paradoxes.model ELSE paradoxes.other END,
        CASE WHEN paradoxes.model < paradoxes.other THEN paradoxes.other ELSE paradoxes.model END
      ORDER BY paradoxes.found_at DESC, paradoxes.paradox_id ASC
    ) AS place
  FROM paradoxes
  INNER JOIN current_runs AS ours ON ours.run_id = paradoxes.run_id
  INNER JOIN current_runs AS theirs ON theirs.run_id = paradoxes.other_run_id
) AS newest
WHERE newest.place = 1
