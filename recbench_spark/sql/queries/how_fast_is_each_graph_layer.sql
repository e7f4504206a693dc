-- How fast was each layer over a graph, and how near was what had been predicted?
SELECT
  model,
  model_id,
  layer,
  aggregator,
  plan,
  nodes,
  edges,
  vectors_projected,
  bytes_shuffled,
  predicted_bytes,
  seconds,
  predicted_seconds,
  CASE WHEN predicted_seconds > 0 THEN seconds / predicted_seconds END AS share_of_prediction,
  CASE WHEN seconds > 0 THEN edges / seconds END AS edges_a_second,
  cores
FROM graph_runs
ORDER BY started_at DESC, model_id, layer
