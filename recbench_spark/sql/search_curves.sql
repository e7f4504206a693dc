-- What would the best of n settings have been, on average and nine times out of ten, for each budget n?
-- P(best of n is the i-th best of N or better) = 1 - ((N - i) / N)^n: Dodge et al. (EMNLP 2019), section 3.1.
SELECT
  ranked.log_id,
  ranked.dataset,
  ranked.model,
  budgets.place AS budget,
  ranked.trials,
  SUM(
    ranked.value * (
      POWER((ranked.trials - ranked.place + 1e0) / ranked.trials, budgets.place)
      - POWER((ranked.trials - ranked.place + 0e0) / ranked.trials, budgets.place)
    )
  ) AS expected_best,
  MIN(
    CASE WHEN POWER((ranked.trials - ranked.place + 0e0) / ranked.trials, budgets.place) <= 0.95
      THEN ranked.value END
  ) AS low,
  MIN(
    CASE WHEN POWER((ranked.trials - ranked.place + 0e0) / ranked.trials, budgets.place) <= 0.05
      THEN ranked.value END
  ) AS high
FROM (
  SELECT
    known.*,
    ROW_NUMBER() OVER (PARTITION BY log_id, model ORDER BY value, trial_id) AS place,
    COUNT(*) OVER (PARTITION BY log_id, model) AS trials
  FROM (
    SELECT
      trials.*,
      ROW_NUMBER() OVER (PARTITION BY trial_id ORDER BY finished_at DESC) AS attempt
    FROM trials
    WHERE value IS NOT NULL
  ) AS known
  WHERE attempt = 1
) AS ranked
INNER JOIN (
  SELECT
    log_id,
    model,
    ROW_NUMBER() OVER (PARTITION BY log_id, model ORDER BY trial_id) AS place
  FROM trials
  WHERE value IS NOT NULL
  GROUP BY log_id, model, trial_id
) AS budgets ON budgets.log_id = ranked.log_id AND budgets.model = ranked.model
GROUP BY ranked.log_id, ranked.dataset, ranked.model, budgets.place, ranked.trials
