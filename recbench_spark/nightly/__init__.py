"""Steps of a night: each one reads tables and writes tables, so that each can be run again alone."""
