"""Evaluations: models in one pass, or tables from callers."""
