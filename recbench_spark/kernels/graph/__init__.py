"""Graphs as arrays: dense ids, adjacency, aggregation, layers, costs. No Spark."""
