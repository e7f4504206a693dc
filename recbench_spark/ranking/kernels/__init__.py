"""Ranks of truth items, by counting: exact for every block size, thread count and device."""
