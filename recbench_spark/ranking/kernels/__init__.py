"""Ranks by counting, equal for all blocks, threads and devices."""
