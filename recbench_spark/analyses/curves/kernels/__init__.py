"""Curves as arrays: where two of them cross."""
