"""Core: hashes, ids, exact sums, resampling; no Spark, no tables.

Every room may use it.
"""
