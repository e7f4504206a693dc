"""Ranks by counting: equal for all block sizes, threads and devices."""
