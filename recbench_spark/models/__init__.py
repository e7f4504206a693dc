"""Models on arrays: numpy and torch, no Spark."""
