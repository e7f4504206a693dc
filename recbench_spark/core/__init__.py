"""Hashes, ids, exact sums, resampling, and what every room may know. No Spark, no tables."""
