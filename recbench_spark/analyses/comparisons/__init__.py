"""Comparisons of runs: paired differences, changes between nights, Simpson's paradoxes, smallest flips."""
