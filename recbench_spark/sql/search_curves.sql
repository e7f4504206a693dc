-- What would the best of n settings have been, on average and nine times out of ten, for each budget n?
-- needs: metric_facts
-- P(best of n is the i-th best of N or better) = 1 - ((N - i) / N)^n: Dodge et al. (EMNLP 2019), section 3.1.
-- Of each search with all that goes on from it (`extends`): other epochs are another search.
-- Of a ranking (ndcg@20 and its like) the best is the largest, of an error the smallest.
SELECT
  ranked.log_id,
  ranked.dataset,
  ranked.model,
  ranked.extends,
  ranked.metric,
  budgets.place AS budget,
  ranked.trials,
  SUM(
    ranked.value * (
      POWER((ranked.trials - ranked.place + 1e0) / ranked.trials, budgets.place)
      - POWER((ranked.trials - ranked.place + 0e0) / ranked.trials, budgets.place)
    )
  ) AS expected_best,
  MIN(ranked.sign) * MIN(
    CASE WHEN POWER((ranked.trials - ranked.place + 0e0) / ranked.trials, budgets.place)
      <= CASE WHEN ranked.sign > 0 THEN 0.95 ELSE 0.05 END
      THEN ranked.loss END
  ) AS low,
  MIN(ranked.sign) * MIN(
    CASE WHEN POWER((ranked.trials - ranked.place + 0e0) / ranked.trials, budgets.place)
      <= CASE WHEN ranked.sign > 0 THEN 0.05 ELSE 0.95 END
      THEN ranked.loss END
  ) AS high
FROM (
  SELECT
    known.*,
    ROW_NUMBER() OVER (PARTITION BY log_id, model, extends ORDER BY loss, trial_id) AS place,
    COUNT(*) OVER (PARTITION BY log_id, model, extends) AS trials
  FROM (
    SELECT
      signed.*,
      signed.sign * signed.value AS loss,
      ROW_NUMBER() OVER (PARTITION BY trial_id ORDER BY finished_at DESC) AS attempt
    FROM (
      SELECT
        named.trial_id,
        named.log_id,
        named.dataset,
        named.model,
        named.extends,
        named.of_trial AS metric,
        named.value,
        named.finished_at,
        CASE WHEN metric_facts.best = 'small' THEN 1 ELSE -1 END AS sign
      FROM (
        SELECT
          trial_id,
          log_id,
          dataset,
          model,
          extends,
          metric AS of_trial,
          SUBSTR(COALESCE(metric, 'rmse'), 1, INSTR(COALESCE(metric, 'rmse') || '@', '@') - 1) AS metric,
          value,
          finished_at
        FROM trials
        WHERE value IS NOT NULL
      ) AS named
      LEFT JOIN metric_facts ON metric_facts.metric = named.metric
    ) AS signed
  ) AS known
  WHERE attempt = 1
) AS ranked
INNER JOIN (
  SELECT
    log_id,
    model,
    extends,
    ROW_NUMBER() OVER (PARTITION BY log_id, model, extends ORDER BY trial_id) AS place
  FROM trials
  WHERE value IS NOT NULL
  GROUP BY log_id, model, extends, trial_id
) AS budgets
  ON budgets.log_id = ranked.log_id AND budgets.model = ranked.model AND budgets.extends = ranked.extends
GROUP BY
  ranked.log_id, ranked.dataset, ranked.model, ranked.extends, ranked.metric, budgets.place, ranked.trials
