"""Analyses of runs: comparisons, exposure, learning curves, drawn candidates."""
