"""Estimators for drawn candidates, on arrays."""
