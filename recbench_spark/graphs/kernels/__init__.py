"""Kernels of graphs on arrays: dense ids, adjacency, aggregation, layers and costs. No Spark."""
