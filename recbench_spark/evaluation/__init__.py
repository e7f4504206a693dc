"""Evaluations: all models in one pass, or tables from a caller."""
