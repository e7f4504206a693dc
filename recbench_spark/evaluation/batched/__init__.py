"""Batched evaluation: all models of a group are evaluated over the same users in one Spark job."""
