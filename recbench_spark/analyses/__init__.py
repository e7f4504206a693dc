"""Analyses on runs: comparisons, exposure, learning curves, drawn candidates."""
