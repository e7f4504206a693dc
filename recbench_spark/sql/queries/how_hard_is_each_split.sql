-- How hard is each split for rating prediction? RMSE of the mean, and of mean + item + user effects (damped by 5).
WITH train AS (
  SELECT split_id, user_id, item_id, rating FROM splits WHERE part = 'train'
),
means AS (
  SELECT split_id, AVG(rating) AS mean FROM train GROUP BY split_id
),
item_effects AS (
  SELECT train.split_id, train.item_id, SUM(train.rating - means.mean) / (COUNT(*) + 5) AS of_item
  FROM train
  INNER JOIN means ON means.split_id = train.split_id
  GROUP BY train.split_id, train.item_id
),
user_effects AS (
  SELECT train.split_id, train.user_id, SUM(train.rating - means.mean - items.of_item) / (COUNT(*) + 5) AS of_user
  FROM train
  INNER JOIN means ON means.split_id = train.split_id
  INNER JOIN item_effects AS items ON items.split_id = train.split_id AND items.item_id = train.item_id
  GROUP BY train.split_id, train.user_id
),
errors AS (
  SELECT
    held_out.split_id,
    held_out.part,
    held_out.user_id,
    held_out.rating - means.mean AS of_mean,
    held_out.rating - means.mean - COALESCE(items.of_item, 0) - COALESCE(users.of_user, 0) AS of_effects
  FROM splits AS held_out
  INNER JOIN means ON means.split_id = held_out.split_id
  LEFT JOIN item_effects AS items
    ON items.split_id = held_out.split_id AND items.item_id = held_out.item_id
  LEFT JOIN user_effects AS users
    ON users.split_id = held_out.split_id AND users.user_id = held_out.user_id
  WHERE held_out.part NOT IN ('train', 'given', 'later')
)
SELECT
  errors.split_id,
  MAX(settings.order_by) AS order_by,
  MAX(settings.holdout) AS holdout,
  MAX(settings.within) AS within,
  errors.part,
  COUNT(*) AS n,
  COUNT(DISTINCT errors.user_id) AS users,
  SQRT(AVG(POWER(errors.of_mean, 2))) AS rmse_of_mean,
  SQRT(AVG(POWER(errors.of_effects, 2))) AS rmse_of_effects
FROM errors
LEFT JOIN (
  SELECT
    split_id,
    GET_JSON_OBJECT(detail, '$.order') AS order_by,
    GET_JSON_OBJECT(detail, '$.holdout') AS holdout,
    GET_JSON_OBJECT(detail, '$.group') AS within
  FROM manifests
  WHERE fact = 'settings'
) AS settings
  ON settings.split_id = errors.split_id
GROUP BY errors.split_id, errors.part
ORDER BY errors.part, rmse_of_effects
