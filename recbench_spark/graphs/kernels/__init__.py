"""Graph kernels on arrays: ids, adjacency, aggregation, layers, costs."""
