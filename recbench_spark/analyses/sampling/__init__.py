"""Metrics over drawn candidates, and their corrections."""
