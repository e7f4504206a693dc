"""Logs and tables of other systems: what they look like, how they are read and checked."""
