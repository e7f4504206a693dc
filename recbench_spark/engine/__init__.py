"""Engines: how tasks run here and on every Spark.

No other module knows which calls differ between Spark's versions and kinds of sessions.
"""
