"""Indexes that find items at serving time, and the share of exact lists that they return."""
