"""Steps of a night.

Each step reads and writes tables, so it can run again alone.
"""
