"""Comparisons of two models, or of two nights."""
