"""Runs held against each other: differences, changes, paradoxes."""
