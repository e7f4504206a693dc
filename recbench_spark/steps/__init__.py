"""The steps of a night: each reads tables and writes tables, so each can be run again alone."""
